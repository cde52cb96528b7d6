"""Type-checks every distribution strictly, each with its dependencies' sources on the path."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def sources() -> list[Path]:
    """Returns the source folder of every distribution."""
    return [ROOT / "core/src", ROOT / "sdk/src", *sorted(ROOT.glob("plugins/*/src"))]


def main() -> int:
    """Runs mypy over all packages at once."""
    packages = [
        "ptrl.core",
        "ptrl.sdk",
        *(path.name for path in sorted(ROOT.glob("plugins/*/src/ptrl_plugin_*"))),
    ]
    arguments = [part for package in packages for part in ("-p", package)]
    environment = {**os.environ, "MYPYPATH": os.pathsep.join(str(path) for path in sources())}
    command = [sys.executable, "-m", "mypy", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
