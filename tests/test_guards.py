"""What must stay true of the whole tree."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE = ROOT / "core/src/ptrl/core"
PROJECTS = [ROOT, ROOT / "core", ROOT / "sdk", *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]

LAYERS = [
    {"errors", "files", "text"},
    {"records"},
    {"settings", "policy"},
    {"contracts"},
    {"registry"},
    {"plan"},
    {"statistics", "run_folder", "rollout_schema"},
    {"episode", "sources", "composition", "scoring"},
    {"session"},
    {"config"},
    {"run"},
    {"observers", "endpoint"},
    {"cli"},
]
"""Modules and packages of ptrl.core, bottom to top. A module imports from its own layer and from those below."""


def project(folder: Path) -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return found


def tracked_text_files() -> Iterator[tuple[Path, str]]:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        path = ROOT / name
        try:
            yield path, path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue


def python_files() -> list[Path]:
    return [path for path, _ in tracked_text_files() if path.suffix == ".py"]


def imports_of(path: Path) -> Iterator[str]:
    """Yields the modules that a file imports when it runs; those for type checkers only are left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.ImportFrom) and inner.module:
                yield inner.module
                yield from (f"{inner.module}.{alias.name}" for alias in inner.names)
            elif isinstance(inner, ast.Import):
                yield from (alias.name for alias in inner.names)


def layer_of(module: str) -> int | None:
    parts = module.split(".")
    if parts[:2] != ["ptrl", "core"] or len(parts) < 3:
        return None
    return next((number for number, layer in enumerate(LAYERS) if parts[2] in layer), None)


def test_ptrl_is_a_namespace_that_no_distribution_owns() -> None:
    assert not list(ROOT.glob("*/src/ptrl/__init__.py"))


@pytest.mark.parametrize("folder", PROJECTS[1:], ids=lambda folder: folder.name)
def test_a_distribution_ships_its_own_package_and_its_types(folder: Path) -> None:
    wheel = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    (package,) = wheel["packages"]
    assert re.fullmatch(r"src/(ptrl|ptrl_plugin_\w+)", package)
    inner = folder / package / folder.name if package == "src/ptrl" else folder / package
    assert (inner / "py.typed").is_file()
    assert {path.name for path in (folder / "src").iterdir() if path.name[0] != "."} == {Path(package).name}


def test_all_versions_are_equal() -> None:
    versions = {project(folder)["version"] for folder in PROJECTS}
    assert len(versions) == 1
    assert f'__version__ = "{versions.pop()}"' in (CORE / "__init__.py").read_text()


def test_the_meta_distribution_needs_every_other_one() -> None:
    needed = {str(line).partition("==")[0].partition("[")[0] for line in project(ROOT)["dependencies"]}  # type: ignore[attr-defined]
    assert needed == {project(folder)["name"] for folder in PROJECTS[1:]}


def test_every_module_of_core_has_a_layer() -> None:
    names = {path.stem for path in CORE.glob("*.py")} | {path.parent.name for path in CORE.glob("*/__init__.py")}
    assert names - {"__init__"} == set().union(*LAYERS)


def test_nothing_in_core_imports_upward() -> None:
    upward = []
    for path in CORE.rglob("*.py"):
        module = ".".join(("ptrl", "core", *path.relative_to(CORE).with_suffix("").parts))
        own = layer_of(module)
        for imported in imports_of(path):
            other = layer_of(imported)
            if own is not None and other is not None and other > own:
                upward.append(f"{module} imports {imported}")
    assert not upward


@pytest.mark.parametrize("command", ["import ptrl.core", "from ptrl.core import Reward, Rollout"])
def test_importing_core_imports_no_engine_and_no_plugin(command: str) -> None:
    heavy = "('torch', 'transformers', 'numpy', 'rich', 'stevedore')"
    code = f"{command}; import sys; print([m for m in sys.modules if m in {heavy} or m.startswith('ptrl_plugin')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_can_be_imported() -> None:
    import ptrl.core

    for name in ptrl.core.__all__:
        assert getattr(ptrl.core, name) is not None, name


def test_every_first_party_entry_point_is_found_like_a_strangers() -> None:
    from ptrl.core.registry import scan

    broken = [f"{entry.name}: {entry.reason}" for entry in scan()[1] if entry.package.name.startswith("ptrl")]
    assert not [line for line in broken if not line.endswith(": ")]


def test_core_needs_few_distributions() -> None:
    found: set[str] = set()
    waiting = ["ptrl-core"]
    while waiting:
        name = waiting.pop().lower()
        if name in found:
            continue
        found.add(name)
        for line in importlib.metadata.requires(name) or ():
            if "extra ==" not in line and "python_version <" not in line and "platform_system" not in line:
                waiting.append(re.match(r"[A-Za-z0-9._-]+", line)[0])  # type: ignore[index]
    assert len(found) <= 18, sorted(found)


def test_no_exception_is_swallowed_without_a_word() -> None:
    silent = []
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler) and len(node.body) == 1 and isinstance(node.body[0], ast.Pass):
                caught = ast.unparse(node.type) if node.type else "everything"
                if caught in ("Exception", "BaseException", "everything"):
                    silent.append(f"{path}:{node.lineno}")
    assert not silent


def test_no_file_names_a_place_that_only_one_machine_has() -> None:
    places = re.compile(r"/(?:work|root|home)/\w+/|" + "farm" + "-studio")
    found = [str(path) for path, text in tracked_text_files() if places.search(text)]
    assert not found
