"""What `pip install ptrl-core` brings: distributions and megabytes, in a fresh virtual environment."""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tests.benchmarks.measuring import ROOT


def main() -> None:
    """Installs the core's wheel alone and prints what came with it."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "venv"
        venv.create(environment, with_pip=False)
        site = next(environment.glob("lib/python*/site-packages"))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(site)]
        subprocess.run([*command, "-c", str(ROOT / "constraints.txt"), str(ROOT / "core")], check=True)
        names = sorted(path.name.rpartition("-")[0].rpartition("-")[0] for path in site.glob("*.dist-info"))
        size = sum(file.stat().st_size for file in site.rglob("*") if file.is_file())
    print(f"{len(names)} distributions, {size / 1e6:.1f} MB: {', '.join(names)}")
