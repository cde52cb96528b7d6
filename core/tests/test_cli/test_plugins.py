import json

import pytest

REWARD = """
from ptrl.core import Reward

class Fine(Reward):
    def score(self, rollouts):
        return [1.0] * len(rollouts)
"""

BROKEN = {
    "ptrl_plugin_broken_exit": "raise SystemExit(3)",
    "ptrl_plugin_broken_kill": "import os\nos.kill(os.getpid(), 9)",
    "ptrl_plugin_broken_missing": "import ptrl_no_such_library",
    "ptrl_plugin_broken_noisy": "print('[1]')\n" + REWARD,
    "ptrl_plugin_broken_hook": REWARD.replace("score", "scores"),
}


@pytest.fixture
def rows(ptrl):
    def run(*arguments):
        result = ptrl("plugins", "--json", *arguments)
        return {row["name"]: row for row in json.loads(result.output)}, result.exit_code

    return run


@pytest.fixture
def broken(install):
    names = [module.removeprefix("ptrl_plugin_broken_") for module in BROKEN]
    lines = [f"broken.{name} = ptrl_plugin_broken_{name}:Fine" for name in names]
    install("ptrl-plugin-broken", "[ptrl.rewards]\n" + "\n".join(lines) + "\n", BROKEN)


def test_every_component_is_a_row(toy, rows):
    found, status = rows()
    assert status == 0
    assert found["toy.exact"] == {
        "name": "toy.exact",
        "kind": "rewards",
        "distribution": "ptrl-plugin-toy",
        "version": "1.0",
        "status": "ok",
        "reason": "",
        "fix": "",
    }


def test_the_table_shows_the_reason_and_the_fix(install, ptrl):
    install("ptrl-plugin-gone", "[ptrl.rewards]\ngone.x = ptrl_plugin_gone_x:X\n", {})
    lines = ptrl("plugins").output.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("gone.x "))
    assert lines[at].split() == ["gone.x", "rewards", "ptrl-plugin-gone", "1.0", "unavailable"]
    assert lines[at + 1].strip() == "reason: its module ptrl_plugin_gone_x is not there"
    assert lines[at + 2].strip() == "fix: pip install --force-reinstall ptrl-plugin-gone"


def test_metadata_cannot_drive_the_terminal(install, ptrl):
    entries = "[ptrl.rewards]\nred\x1b[31m.x = ptrl_plugin_red:X\n"
    install("ptrl-plugin-red", entries, {"ptrl_plugin_red": ""}, version="1.0+[bold]")
    output = ptrl("plugins").output
    assert "\x1b" not in output
    assert "1.0+[bold]" in output


def test_one_kind_can_be_listed(toy, rows, ptrl):
    found, _ = rows("--kind", "optimizers")
    assert "toy.copy" in found
    assert {row["kind"] for row in found.values()} == {"optimizers"}
    assert rows("--kind", "sandboxes")[1] == 0
    result = ptrl("plugins", "--kind", "reward")
    assert result.exit_code == 1
    assert "'reward' is not a kind of component; did you mean 'rewards'" in result.output


def test_nothing_is_imported_without_load(broken, rows):
    found, status = rows("--kind", "rewards")
    assert status == 0
    assert {found[name]["status"] for name in found if name.startswith("broken.")} == {"ok"}


def test_load_imports_each_one_in_a_process_of_its_own(broken, rows, monkeypatch):
    monkeypatch.setenv("PTRL_PLUGINS", "ptrl-plugin-broken")
    found, status = rows("--kind", "rewards", "--load")
    assert status == 1
    reasons = {name.removeprefix("broken."): row["reason"] for name, row in found.items()}
    assert "SystemExit: 3" in reasons["exit"]
    assert reasons["kill"] == "its import ended the process (SIGKILL)"
    assert "No module named 'ptrl_no_such_library'" in reasons["missing"]
    assert "pip install the package" in found["broken.missing"]["fix"]
    assert reasons["noisy"] == ""
    assert "misspelling" in reasons["hook"]


def test_an_import_that_hangs_is_ended(install, monkeypatch):
    from ptrl.core.cli.probe import probe

    entries = "[ptrl.rewards]\nhang.x = ptrl_plugin_hang:X\n"
    install("ptrl-plugin-hang", entries, {"ptrl_plugin_hang": "import threading\nthreading.Event().wait()"})
    assert "took longer than 0.5 s" in probe("rewards", "hang.x", timeout=0.5)
