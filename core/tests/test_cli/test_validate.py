import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def test_a_good_config_is_ok(config, ptrl):
    result = ptrl("validate", config)
    assert result.exit_code == 0
    assert result.output == f"{config}: ok (1 domain, 1 reward, toy.copy)\n"


def test_warnings_are_shown_and_do_not_fail(config, ptrl):
    result = ptrl("validate", config, "--set", "training.estimator=group_norm")
    assert result.exit_code == 0
    assert "warning: training.estimator: group_norm divides" in result.output
    assert "ok, with 1 warning" in result.output


def test_all_problems_are_shown_at_once(config, ptrl):
    result = ptrl("validate", config, "--set", "domains.digits.environment.use=toy.digit", "--set", "sampler.use=x.y")
    assert result.exit_code == 2
    assert "2 problems in the config" in result.output
    assert "domains.digits.environment.use: no environment is called 'toy.digit'; did you mean" in result.output
    assert "Traceback" not in result.output


def test_what_the_optimizer_cannot_honour_is_a_problem(config, ptrl):
    result = ptrl("validate", config, "--set", "optimizer.toy.refuse='not here'")
    assert result.exit_code == 2
    assert "training.clip: not here" in result.output


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("run.steps", "'run.steps' is not key=value"),
        ("=1", "'=1' is not key=value"),
        ("run.steps=many", "run.steps: 'many' is not valid"),
        ("run.step=1", "run.step: unknown key — did you mean 'steps'"),
        ("run.steps.more=1", "'steps' is a value, not a table"),
    ],
)
def test_a_bad_override_names_the_key(config, ptrl, override, shown):
    result = ptrl("validate", config, "--set", override)
    assert result.exit_code == 2
    assert shown in result.output


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_characters="\x00"), min_size=1).filter(lambda text: not text.startswith("-")))
def test_no_override_ends_in_a_traceback_or_drives_the_terminal(config, ptrl, override):
    result = ptrl("validate", config, "--set", override)
    assert result.exit_code in (0, 2)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "\x1b" not in result.output


def test_a_hostile_config_is_printed_without_its_sequences(config, ptrl):
    config.write_text(config.read_text() + '["evil\\u001b]0;title\\u0007"]\nx = 1\n')
    result = ptrl("validate", config)
    assert result.exit_code == 2
    assert "evil: unknown key" in result.output
    assert "\x1b" not in result.output


def test_the_schema_can_be_printed_and_written(toy, ptrl, tmp_path, monkeypatch):
    monkeypatch.setenv("PTRL_PLUGINS", "ptrl-plugin-toy")
    printed = ptrl("schema")
    assert printed.exit_code == 0
    assert "toy.exact" in json.loads(printed.stdout)["$defs"]
    path = tmp_path / "schema.json"
    assert ptrl("schema", "--output", path).exit_code == 0
    assert json.loads(path.read_text()) == json.loads(printed.stdout)
    assert ptrl("schema", "--output", tmp_path / "no" / "folder.json").exit_code == 1
