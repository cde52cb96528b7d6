import json
import resource
import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "numpy", "rich", "stevedore", "httpx2", "ptrl_plugin_spy"}

SPY = """
import typer

app = typer.Typer()

@app.command()
def look(what: str = "all"):
    print("seen", what)
"""

MODULES = """
import json, sys
from ptrl.core.cli import main
try:
    main()
except SystemExit as end:
    modules = sorted({name.partition('.')[0] for name in sys.modules})
    print(json.dumps([end.code or 0, modules]), file=sys.stderr)
"""


def modules_after(*arguments):
    command = [sys.executable, "-c", MODULES, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    status, modules = json.loads(done.stderr.splitlines()[-1])
    return status, set(modules), done.stdout


@pytest.fixture
def spy(install):
    entries = "[ptrl.commands]\nspy = ptrl_plugin_spy:app\n"
    install("ptrl-plugin-spy", entries, {"ptrl_plugin_spy": SPY}, summary="Looks at \x1b[31mthings.")


@pytest.mark.parametrize("arguments", [["--help"], ["plugins"], ["--version"]])
def test_what_only_lists_imports_nothing_heavy_and_no_plugin(spy, arguments):
    status, modules, _ = modules_after(*arguments)
    assert status == 0
    assert not modules & HEAVY


def cpu_seconds(*arguments):
    """Returns the least CPU time of five runs of Python."""
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(spent)


def test_what_only_lists_costs_little_more_than_the_libraries_it_stands_on(site):
    """0.3 CPU seconds where importing typer and pydantic takes 0.1; see DESIGN.md."""
    libraries = cpu_seconds("-c", "import pydantic, typer")
    for command in ("--help", "plugins"):
        assert cpu_seconds("-m", "ptrl.core.cli", command) < 3.5 * libraries


def test_help_lists_a_plugins_command_with_its_distributions_summary(spy, ptrl):
    result = ptrl("--help")
    assert result.exit_code == 0
    assert "spy       Looks at things." in result.output
    for name in ("train", "eval", "plugins", "validate", "schema", "export"):
        assert f"\n  {name} " in result.output


def test_a_plugins_command_runs_with_its_own_options(spy, ptrl):
    assert ptrl("spy", "--what", "little").output == "seen little\n"
    assert "--what" in ptrl("spy", "--help").output


def test_an_unknown_command_names_the_nearest_ones_of_plugins_too(spy, ptrl):
    result = ptrl("spi")
    assert result.exit_code == 2
    assert "no command is called 'spi'; did you mean 'spy'?" in result.output
    assert "did you mean 'train'?" in ptrl("trian").output


def test_a_command_that_cannot_be_imported_fails_alone(install, ptrl):
    entries = "[ptrl.commands]\nlame = ptrl_plugin_lame:app\nodd = ptrl_plugin_odd:app\n"
    modules = {"ptrl_plugin_lame": "raise SystemExit('no \x1b[2Jscreen')", "ptrl_plugin_odd": "app = 1"}
    install("ptrl-plugin-lame", entries, modules, summary="Lame.")
    assert "lame      Lame." in ptrl("--help").output
    result = ptrl("lame")
    assert result.exit_code == 1
    assert "error: the command 'lame' of ptrl-plugin-lame cannot be imported: SystemExit: no screen" in result.output
    assert "its entry point must name a typer.Typer" in ptrl("odd").output


def test_a_command_whose_module_is_missing_says_so_in_help_and_when_it_is_called(install, ptrl):
    install("ptrl-plugin-gone", "[ptrl.commands]\ngone = ptrl_plugin_gone:app\n", {})
    assert "cannot be used: its module ptrl_plugin_gone" in ptrl("--help").output
    result = ptrl("gone")
    assert result.exit_code == 1
    assert "pip install --force-reinstall ptrl-plugin-gone" in result.output


def test_a_plugin_cannot_take_over_a_command_of_core(install, ptrl):
    entries = "[ptrl.commands]\nschema = ptrl_plugin_thief:app\n"
    install("ptrl-plugin-thief", entries, {"ptrl_plugin_thief": "raise SystemExit"})
    assert "Print the JSON Schema" in ptrl("schema", "--help").output
    [row] = [row for row in json.loads(ptrl("plugins", "--json").output) if row["name"] == "schema"]
    assert row["status"] == "refused"


def test_version_is_printed(ptrl):
    from ptrl.core import __version__

    assert ptrl("--version").output == f"ptrl {__version__}\n"
