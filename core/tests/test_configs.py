"""Config errors name file, key and value, say what was expected, and what is near."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ptrl.core import ConfigError
from ptrl.core.config import build_schema, load_plan, read_settings
from ptrl.core.plan import RunPlan
from ptrl.core.settings import RewardTable, Secret

PLUGIN = """
from pydantic import field_validator

from ptrl.core import Environment, Optimizer, Proposal, Reward, Sampler, Task

class Tasks(Environment):
    class Config(Environment.Config):
        count: int = 3
    def tasks(self, split):
        for number in range(self.config.count):
            yield Task(key=split + str(number), messages=({"role": "user", "content": "x"},))

class Pay(Reward):
    class Config(Reward.Config):
        much: float = 1.0
    def score(self, rollouts):
        return [self.config.much] * len(rollouts)

class Wide(Pay):
    range = (-1.0, 1.0)

class Backwards(Pay):
    range = (1.0, 0.0)

class Ranges(Pay):
    range = "0..1"

class Eternal(Pay):
    timeout = None

class Grouped(Pay):
    scope = "groups"

class Letters(Pay):
    needs = "pay"

class Selfish(Pay):
    needs = ("selfish",)

class Exits(Pay):
    def __init__(self, config):
        raise SystemExit(0)

class Validates(Pay):
    class Config(Reward.Config):
        much: float = 1.0
        @field_validator("much")
        @classmethod
        def check(cls, value):
            return {"a": 1}[value]

class Optional(Pay):
    class Config(Reward.Config):
        limit: int | None = 5
        table: dict = {}

class Needy(Pay):
    needs = ("other",)

class Fails(Pay):
    def __init__(self, config):
        raise RuntimeError("no license")

class Order(Sampler):
    def prepare(self, catalog, rng): pass
    def propose(self, n, context): return Proposal(tickets=())
    def state_dict(self): return {}
    def load_state_dict(self, state, catalog): pass

class Greedy(Order):
    capabilities = frozenset({"continue"})

class Train(Optimizer):
    version = 3
    def run(self, session): pass

class Misspelt(Reward):
    def scores(self, rollouts): pass

def plain(completion, task):
    return float(len(completion))
"""

CONFIG: dict[str, Any] = {
    "run": {"name": "toy", "steps": 2},
    "sampler": {"use": "file:plug.py:Order"},
    "domains": {
        "words": {
            "environment": {"use": "file:plug.py:Tasks"},
            "rewards": {"pay": {"use": "file:plug.py:Pay", "role": "outcome"}},
        }
    },
    "optimizer": {"use": "file:plug.py:Train"},
    "observers": [],
}


def write(folder: Path, changes: dict[str, Any] | None = None) -> Path:
    """Writes the toy config with dotted keys changed; None removes one."""
    data = json.loads(json.dumps(CONFIG))
    for key, value in (changes or {}).items():
        *path, last = key.split(".")
        table = data
        for part in path:
            table = table.setdefault(part, {})
        if value is None:
            table.pop(last)
        else:
            table[last] = value
    (folder / "plug.py").write_text(PLUGIN)
    path_ = folder / "toy.json"
    path_.write_text(json.dumps(data))
    return path_


def plan(folder: Path, changes: dict[str, Any] | None = None, *overrides: str) -> RunPlan:
    return load_plan(write(folder, changes), overrides=overrides, allow_local_code=True)


def test_a_good_config_is_a_plan(tmp_path: Path) -> None:
    found = plan(tmp_path, {"domains.words.rewards.pay.much": 0.5})
    (domain,) = found.domains
    assert domain.outcome.config.much == 0.5  # type: ignore[attr-defined]
    assert found.components()[0].label == "domains.words.environment"
    assert set(found.local_code) == {str(tmp_path / "plug.py")}


PAY = "domains.words.rewards.pay"


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ({"run.stpes": 5}, "run.stpes", "did you mean 'steps'"),
        ({"runn": {}}, "runn", "did you mean 'run'"),
        ({"run.steps": "many"}, "run.steps", "'many' is not valid"),
        ({"run.steps": 0}, "run.steps", "greater than 0"),
        ({"run.name": None}, "run.name", "missing"),
        ({"run.name": "../x"}, "run.name", "should match pattern"),
        ({"training.estimator": "rlo"}, "training.estimator", "'rlo' is not valid"),
        ({"training.clip": [2, 0]}, "training.clip", "0 <= low < 1"),
        ({"training.kl.estimatr": "k1"}, "training.kl.estimatr", "did you mean 'estimator'"),
        ({"domains.mean": CONFIG["domains"]["words"]}, "domains", "no domain may be called `mean`"),
        ({"domains.../x": CONFIG["domains"]["words"]}, "domains", "should match pattern"),
        ({"domains.words.rewards": {}}, "domains.words.rewards", "at least 1"),
        ({f"{PAY}.much": "x"}, f"{PAY}.much", "'x' is not valid"),
        ({f"{PAY}.muhc": 1}, f"{PAY}.muhc", "did you mean 'much'"),
        ({f"{PAY}.weight": -1}, f"{PAY}.weight", "greater than or equal to 0"),
        ({f"{PAY}.schedule": [[0.5, 1], [0.2, 1]]}, f"{PAY}.schedule", "ascending progress"),
        ({f"{PAY}.use": "nowhere.thing"}, f"{PAY}.use", "pip install ptrl-plugin-nowhere"),
        ({f"{PAY}.use": "file:plug.py:Pya"}, f"{PAY}.use", "did you mean 'Pay'"),
        ({f"{PAY}.use": "file:plgu.py:Pay"}, f"{PAY}.use", "there is no file"),
        ({f"{PAY}.use": "file:Pay"}, f"{PAY}.use", "file:PATH:NAME"),
        ({f"{PAY}.use": "file:plug.py:Tasks"}, f"{PAY}.use", "not a subclass of ptrl.core.Reward"),
        ({f"{PAY}.use": "file:plug.py:Misspelt"}, f"{PAY}.use", "is its 'scores' a misspelling?"),
        ({f"{PAY}.use": "file:plug.py:Fails"}, PAY, "cannot be built: RuntimeError: no license"),
        ({f"{PAY}.use": "file:plug.py:Exits"}, PAY, "cannot be built: SystemExit: 0"),
        ({f"{PAY}.use": "file:plug.py:Validates", f"{PAY}.much": 2}, PAY, "fail: KeyError: 2.0"),
        ({f"{PAY}.use": "file:plug.py:Backwards"}, PAY, "declares the range (1.0, 0.0)"),
        ({f"{PAY}.use": "file:plug.py:Ranges"}, PAY, "expected (lowest, highest)"),
        ({f"{PAY}.use": "file:plug.py:Eternal"}, PAY, "declares the timeout None"),
        ({f"{PAY}.use": "file:plug.py:Grouped"}, PAY, "expected 'rollout' or 'group'"),
        ({f"{PAY}.use": "file:plug.py:Letters"}, PAY, "expected a tuple, ('pay',)"),
        (
            {f"{PAY}.use": "file:plug.py:Selfish", f"{PAY}.label": "selfish"},
            "domains.words.rewards",
            "a cycle of needs",
        ),
        ({f"{PAY}.weight": 1e9}, f"{PAY}.weight", "less than or equal to 1000000"),
        ({f"{PAY}.schedule": [[0, 1], [1, -1]]}, f"{PAY}.schedule", "greater than or equal to 0"),
        ({f"{PAY}.much": math.inf}, f"{PAY}.much", "finite number"),
        ({"training.reward_clip": math.inf}, "training.reward_clip", "finite number"),
        ({"training.betas": [0.9, 2]}, "training.betas", "less than 1"),
        ({f"{PAY}.version": 2}, f"{PAY}.version", "has version 1, the config asserts 2"),
        ({f"{PAY}.role": "gate"}, "domains.words.rewards", "exactly one reward has the role outcome"),
        ({"domains.words.rewards.two": {"use": "file:plug.py:Pay"}}, "domains.words.rewards", "found pay and two"),
        ({f"{PAY}.weight": 0}, "domains.words.rewards", "all weights are zero"),
        (
            {"domains.words.rewards.gate": {"use": "file:plug.py:Wide", "role": "gate"}},
            "domains.words.rewards.gate.role",
            "lies within 0 to 1",
        ),
        (
            {"domains.words.rewards.needy": {"use": "file:plug.py:Needy", "role": "process"}},
            "domains.words.rewards.needy",
            "needs 'other'",
        ),
        (
            {"domains.words.rewards.x": {"use": "file:plug.py:Pay", "role": "process", "label": "pay"}},
            "domains.words.rewards",
            "two rewards have the label 'pay'",
        ),
        ({"sampler.use": "file:plug.py:Greedy"}, "sampler.use", "needs continue"),
        ({"optimizer.nodes": 2}, "optimizer", "engine keys stand under"),
        ({"training.max_length": 10}, "training.max_length", "leaves no room for a prompt"),
    ],
)
def test_what_is_wrong_is_said_by_its_key(tmp_path: Path, changes: dict[str, Any], key: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        plan(tmp_path, changes)
    assert raised.value.file is not None
    assert raised.value.file.endswith("toy.json")
    (problem,) = [one for one in raised.value.problems if one.key.startswith(key)][:1] or [raised.value.problems[0]]
    assert problem.key.startswith(key), str(raised.value)
    assert said in str(problem)


def test_every_problem_is_found_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        plan(tmp_path, {"run.steps": 0, "run.seed": -1, "training.prompts": 0})
    assert {problem.key for problem in raised.value.problems} == {"run.steps", "run.seed", "training.prompts"}


def test_needs_that_go_round_are_an_error(tmp_path: Path) -> None:
    needy = {"use": "file:plug.py:Needy", "role": "process"}
    changes = {"domains.words.rewards.other": needy, "domains.words.rewards.more": {**needy, "label": "third"}}
    with pytest.raises(ConfigError, match="a cycle of needs"):
        plan(tmp_path, changes)


def test_local_code_needs_leave(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--allow-local-code"):
        load_plan(write(tmp_path))


def test_the_code_that_runs_is_the_code_that_was_hashed(tmp_path: Path) -> None:
    path = write(tmp_path)
    moment = (tmp_path / "plug.py").stat().st_mtime
    for version in (3, 4):  # same size and time: Python's bytecode cache cannot tell them apart
        (tmp_path / "plug.py").write_text(PLUGIN.replace("version = 3", f"version = {version}"))
        os.utime(tmp_path / "plug.py", (moment, moment))
        assert load_plan(path, allow_local_code=True).optimizer.loaded.factory.version == version


def test_a_plain_function_is_a_reward(tmp_path: Path) -> None:
    found = plan(tmp_path, {f"{PAY}.use": "file:plug.py:plain"})
    assert found.domains[0].rewards[0].loaded.factory.__name__ == "plain"


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("run.steps=7", ("run", "steps"), 7),
        ('run.name="x-1"', ("run", "name"), "x-1"),
        ("run.name=bare", ("run", "name"), "bare"),
        ("training.clip=[0.1, 0.3]", ("training", "clip"), (0.1, 0.3)),
        ("training.kl.coefficient=0.5", ("training", "kl", "coefficient"), 0.5),
        ('"run"."seed" = 9', ("run", "seed"), 9),
    ],
)
def test_overrides_set_dotted_keys(tmp_path: Path, override: str, path: tuple[str, ...], value: object) -> None:
    found: Any = read_settings(write(tmp_path), [override])
    for part in path:
        found = getattr(found, part)
    assert found == value


@pytest.mark.parametrize(
    "override",
    ["run.name=" + "9" * 5000, "", "run.steps", "=5", "run.steps.x=5", "#=1", "a\nb=1", "run.seed=" + "[" * 5000],
)
def test_overrides_that_cannot_be_meant_are_errors(tmp_path: Path, override: str) -> None:
    with pytest.raises(ConfigError):
        read_settings(write(tmp_path), [override])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe", "not UTF-8"),
        (b"[run", "not well-formed"),
        (b"a = " + b"[" * 5000, "not well-formed"),
        (b"#" * (5 * 1024 * 1024), "larger than"),
        (b"", "missing"),
        (b"[" + b".".join([b"a"] * 9000) + b"]", "nested deeper than 50 levels"),
        (b"[run.steps." + b".".join([b"a"] * 9000) + b"]", "nested deeper than 50 levels"),
        (b"a = " + b"9" * 5000, "not well-formed"),
    ],
)
def test_files_that_are_no_config_are_errors(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"bad\.toml") as raised:
        load_plan(path)
    assert said in str(raised.value)


def test_no_more_of_a_file_is_read_than_a_config_may_have() -> None:
    with pytest.raises(ConfigError, match="larger than"):
        load_plan(Path("/dev/zero"))


def test_a_missing_file_names_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(ConfigError, match=r"did you mean 'toy\.json'"):
        load_plan(tmp_path / "tpy.json")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_a_plan_or_a_config_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        load_plan(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(
    key=st.sampled_from(["run", "training", "sampler", "domains", "evaluation", "optimizer", PAY, "filters"]),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=6,
    ),
)
def test_any_value_anywhere_is_a_plan_or_a_config_error(tmp_path: Path, key: str, value: object) -> None:
    try:
        plan(tmp_path, {key: value if value is not None else 0})
    except ConfigError as error:
        assert error.problems


def test_the_resolved_config_is_the_same_plan_again(tmp_path: Path) -> None:
    first = plan(tmp_path, {f"{PAY}.label": "shown", f"{PAY}.much": 0.25})
    folder = tmp_path / "again"
    folder.mkdir()
    (folder / "plug.py").write_text(PLUGIN)
    (folder / "config.json").write_text(json.dumps(first.dump()))
    again = load_plan(folder / "config.json", allow_local_code=True)
    assert again.dump() == first.dump()
    assert again.domains[0].rewards[0].name == "shown"


def test_an_option_that_is_none_is_none_again(tmp_path: Path) -> None:
    changes = {f"{PAY}.use": "file:plug.py:Optional", f"{PAY}.table": {"x": None}}
    path = write(tmp_path, changes)
    data = json.loads(path.read_text())
    data["domains"]["words"]["rewards"]["pay"]["limit"] = None
    path.write_text(json.dumps(data))
    first = load_plan(path, allow_local_code=True)
    path.write_text(json.dumps(first.dump()))
    again = load_plan(path, allow_local_code=True)
    assert again.domains[0].rewards[0].config == first.domains[0].rewards[0].config
    assert again.domains[0].rewards[0].config.limit is None  # type: ignore[attr-defined]


def test_a_secret_is_named_and_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = Secret(env="PTRL_TEST_SECRET")
    with pytest.raises(ConfigError, match="PTRL_TEST_SECRET is not set"):
        secret.reveal()
    monkeypatch.setenv("PTRL_TEST_SECRET", "hush")
    assert secret.reveal() == "hush"
    assert "hush" not in repr(secret) + secret.model_dump_json()


@pytest.mark.parametrize(("progress", "weight"), [(0.0, 0.0), (0.25, 0.5), (0.5, 1.0), (1.0, 1.0)])
def test_a_schedule_is_linear_between_its_points(progress: float, weight: float) -> None:
    table = RewardTable(use="a.b", schedule=((0.0, 0.0), (0.5, 1.0)))
    assert table.weight_at(progress) == weight


def test_the_schema_admits_what_is_installed() -> None:
    schema, skipped = build_schema()
    assert not skipped
    assert "core.jsonl" in schema["$defs"]
    assert schema["properties"]["observers"]["items"]["anyOf"]
    json.dumps(schema)
