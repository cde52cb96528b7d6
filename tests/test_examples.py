"""Every config that is shown to users can be used."""

import re
from pathlib import Path

import pytest

from ptrl.core.config import load_plan

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```toml\n(.*?)```", re.DOTALL)


def shown_configs() -> list[tuple[str, str]]:
    """Returns the TOML blocks of all READMEs that are configs, whole or in part."""
    found = []
    for path in [ROOT / "README.md", *sorted(ROOT.glob("plugins/*/README.md"))]:
        for number, block in enumerate(BLOCK.findall(path.read_text())):
            if "environment" in block:
                found.append((f"{path.relative_to(ROOT)}:{number}", block))
    return found


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.toml")), ids=lambda path: path.name)
def test_an_example_is_a_plan_without_warnings(path: Path) -> None:
    plan = load_plan(path)
    assert not plan.warnings
    assert len(plan.domains) == 5


@pytest.mark.parametrize(("name", "block"), shown_configs())
def test_a_config_in_a_readme_is_a_plan(name: str, block: str, tmp_path: Path) -> None:
    path = tmp_path / "shown.toml"
    path.write_text(block if "[run]" in block else f'[run]\nname = "shown"\nsteps = 1\n{block}')
    assert load_plan(path).domains
