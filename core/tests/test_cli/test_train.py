import json
import re

import pytest

REPORT = """
import typer
from pathlib import Path
app = typer.Typer()
@app.command()
def report(run: Path):
    (run / 'report.html').write_text('<html>')
"""


def test_a_run_shows_what_it_learnt_and_where_it_is(config, ptrl, tmp_path):
    result = ptrl("train", config)
    assert result.exit_code == 0, result.output
    assert re.search(r"digits +0.0% +40.0% +\+40.0 +0.0% +40.0% +\+40.0", result.output)
    assert f"run folder  {tmp_path / 'runs' / 'toy'}" in result.output
    assert json.loads((tmp_path / "runs" / "toy" / "summary.json").read_text())["status"] == "finished"


def test_ctrl_c_ends_with_a_checkpoint_and_status_130_and_the_run_goes_on_from_there(config, ptrl, tmp_path):
    result = ptrl("train", config, "--set", "optimizer.toy.interrupt_at=2")
    assert result.exit_code == 130, result.output
    assert "note: ending after this step" in result.output
    folder = tmp_path / "runs" / "toy"
    assert f"go on with: ptrl train {folder} --resume" in result.output
    assert json.loads((folder / "summary.json").read_text())["status"] == "interrupted"
    again = ptrl("train", config, "--resume")
    assert again.exit_code == 0, again.output
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["steps"], summary["after"]["greedy"]["digits"]) == (4, 0.4)


def test_a_config_that_the_optimizer_refuses_leaves_no_folder(config, ptrl, tmp_path):
    result = ptrl("train", config, "--set", "optimizer.toy.refuse='not here'")
    assert result.exit_code == 2
    assert not (tmp_path / "runs").exists()


def test_a_folder_can_be_named_and_is_not_overwritten(config, ptrl, tmp_path):
    folder = tmp_path / "mine"
    assert ptrl("train", config, "--folder", folder).exit_code == 0
    result = ptrl("train", config, "--folder", folder)
    assert result.exit_code == 1
    assert "is not empty — pass --resume" in result.output
    more = ptrl("train", config, "--folder", folder, "--resume", "--set", "run.steps=6")
    assert more.exit_code == 0, more.output
    assert json.loads((folder / "summary.json").read_text())["steps"] == 6


def test_a_run_folder_without_resume_is_refused(config, ptrl, tmp_path):
    ptrl("train", config)
    result = ptrl("train", tmp_path / "runs" / "toy")
    assert result.exit_code == 2
    assert "pass --resume" in result.output


def test_force_without_resume_is_refused(config, ptrl):
    assert ptrl("train", config, "--force").exit_code == 2


def test_a_missing_config_is_an_error_without_a_traceback(toy, ptrl, tmp_path):
    result = ptrl("train", tmp_path / "no.toml")
    assert result.exit_code == 2
    assert "no such file" in result.output
    assert "Traceback" not in result.output


def test_the_report_plugins_command_makes_the_report(config, install, ptrl, monkeypatch):
    entries = "[ptrl.commands]\nreport = ptrl_plugin_page:app\n"
    install("ptrl-plugin-page", entries, {"ptrl_plugin_page": REPORT})
    monkeypatch.setenv("PTRL_PLUGINS", "ptrl-plugin-page,ptrl-plugin-toy")
    assert "report      " in (output := ptrl("train", config).output)
    assert "report.html" in output


@pytest.mark.parametrize("fault", ["raise SystemExit(1)", "1 / 0", "raise KeyError('\x1b[31m')", "raise typer.Exit(1)"])
def test_a_report_that_fails_does_not_fail_the_run(config, install, ptrl, monkeypatch, fault):
    name = f"ptrl_plugin_torn_{abs(hash(fault))}"
    entries = f"[ptrl.commands]\nreport = {name}:app\n"
    source = REPORT.replace("(run / 'report.html').write_text('<html>')", fault)
    install("ptrl-plugin-torn", entries, {name: source})
    monkeypatch.setenv("PTRL_PLUGINS", "ptrl-plugin-torn,ptrl-plugin-toy")
    result = ptrl("train", config)
    assert result.exit_code == 0
    assert "warning: no report was made" in result.output
    assert "\x1b" not in result.output


def test_a_masked_domain_raises_an_alarm_with_the_reason(config, ptrl):
    result = ptrl("train", config, "--set", 'domains.digits.rewards.answer.broken="[bold]disk \\u001b[2Jfull"')
    assert result.exit_code == 0, result.output
    assert "ALARM digits: 100% of rollouts got no verdict" in result.output
    assert "most often: answer: error: RuntimeError: [bold]disk full" in result.output
    assert "no verdict [10 of 10 masked]" in result.output
    assert "\x1b" not in result.output


def test_export_copies_the_policy(config, ptrl, tmp_path):
    ptrl("train", config)
    target = tmp_path / "out" / "model"
    assert ptrl("export", tmp_path / "runs" / "toy", "--to", target).exit_code == 0
    assert (target / "skill").read_text() == "4"
    result = ptrl("export", tmp_path / "runs" / "toy", "--to", target)
    assert result.exit_code == 1
    assert "is there already" in result.output
    assert (target / "skill").read_text() == "4"


def test_export_of_what_is_no_run_says_so(toy, ptrl, tmp_path):
    result = ptrl("export", tmp_path, "--to", tmp_path / "out")
    assert result.exit_code == 1
    assert "is not a run folder" in result.output
