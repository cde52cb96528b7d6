"""What is published: each wheel holds its own package, its types and its data, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ["core", "sdk", *sorted(f"plugins/{path.parent.name}" for path in ROOT.glob("plugins/*/pyproject.toml"))]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_wheel_holds_its_own_package_and_nothing_else(folder: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT / folder, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    own = f"ptrl/{folder}" if folder in ("core", "sdk") else f"ptrl_plugin_{Path(folder).name.replace('-', '_')}"
    outside = [name for name in names if not name.startswith(f"{own}/") and ".dist-info/" not in name]
    assert not outside
    assert f"{own}/py.typed" in names
    assert f"{own}/__init__.py" in names
    assert "ptrl/__init__.py" not in names
    packaged = {
        path for path in (ROOT / folder / "src" / own).rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if name.startswith(f"{own}/")} == {
        path.relative_to(ROOT / folder / "src").as_posix() for path in packaged
    }
