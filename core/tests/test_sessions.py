"""A run over a toy policy: it is repeatable, can be cut anywhere and taken up again, and says how it ended."""

import json
from pathlib import Path
from typing import Any

import pytest

from ptrl.core import ConfigError, ContractError, LockMismatchError, RunFolderError
from ptrl.core.config import load_plan
from ptrl.core.run.training import check, reopen, start, train
from ptrl.core.run_folder import RunFolder
from ptrl.core.session import Session

TOY = '''
import json, random
from ptrl.core import (
    Drop, Environment, Filter, Keep, Observer, Optimizer, Problem, Proposal, Reward, Sampler, Task, TaskSource, Ticket
)
from ptrl.core.policy import Turn

class Source(TaskSource):
    """Words by index; the one at 3 cannot be read."""
    def __init__(self, split):
        self.split = split
    def __len__(self):
        return 6
    def task(self, index):
        if index == 3:
            raise SystemExit("corrupt row")
        word = f"{self.split}{index}"
        return Task(key=word, messages=({"role": "user", "content": word},), reference=word[-1])
    def columns(self):
        from ptrl.core import Columns
        return Columns(keys=[f"{self.split}{index}" for index in range(6)])

class Words(Environment):
    def tasks(self, split):
        return Source(split)

class Digit(Reward):
    """Pays where the answer's last digit is at least the task's."""
    def score(self, rollouts):
        return [float(rollout.text[-1:] >= rollout.task.reference) for rollout in rollouts]

class Uniform(Sampler):
    def prepare(self, catalog, rng):
        self.catalog, self.rng, self.count, self.seen = catalog, rng, 0, {}
    def propose(self, n, context):
        tickets = []
        for _ in range(n):
            index = self.rng.randrange(len(self.catalog))
            domain, _ = self.catalog.locate(index)
            tickets.append(Ticket(id=f"t{self.count}", index=index, domain=domain, group_size=context.group_size))
            self.count += 1
        return Proposal(tickets=tuple(tickets))
    def observe(self, outcomes):
        for outcome in outcomes:
            self.seen[outcome.index] = self.seen.get(outcome.index, 0) + 1
    def metrics(self):
        return {"seen": len(self.seen), "nonsense": "x"}
    def state_dict(self):
        version, numbers, gauss = self.rng.getstate()
        return {"count": self.count, "seen": self.seen, "rng": [version, list(numbers), gauss]}
    def load_state_dict(self, state, catalog):
        version, numbers, gauss = state["rng"]
        self.rng.setstate((version, tuple(numbers), gauss))
        self.count, self.seen = state["count"], state["seen"]

class Varied(Filter):
    def decide(self, group):
        return Drop("all alike") if group.zero_variance else Keep()

class Broken(Observer):
    def step_finished(self, step, metrics):
        raise SystemExit("no disk")

class Letters:
    end_of_turn_ids = frozenset({1})
    def render(self, messages, *, tools=(), add_generation_prompt=False):
        return "".join(f"{m['role'][0]}:{m['content']}$" for m in messages) + ("a:" if add_generation_prompt else "")
    def encode(self, text):
        return [1 if letter == "$" else ord(letter) for letter in text]
    def decode(self, ids):
        return "".join("$" if token == 1 else chr(token) for token in ids)

class Toy:
    """Answers a random digit above its level, which training raises."""
    tokenizer, context_length, version, level = Letters(), 100, 0, 0
    def generate(self, prompts, sampling, driver):
        rng = random.Random(sampling.seed)
        turns = []
        for row in range(len(prompts)):
            digit = rng.randint(min(self.level, 9), 9) if sampling.temperature else min(self.level, 9)
            turns.append(Turn(row, self.tokenizer.encode(f"{digit}$"), [-1.0, -1.0], "stop"))
        driver.turns_finished(turns)

class Train(Optimizer):
    capabilities = frozenset({"drop"})
    class Config(Optimizer.Config):
        stop_after: int = 0
        exits: bool = False
        refuses: bool = False
    def check(self, session):
        return [Problem(key="training.entropy", message="not here")] if self.config.refuses else []
    def run(self, session):
        policy = Toy()
        def save(folder):
            (folder / "model").mkdir()
            (folder / "model" / "level.json").write_text(json.dumps([policy.level, policy.version]))
        def load(folder):
            policy.level, policy.version = json.loads((folder / "model" / "level.json").read_text())
        session.begin(policy, load=load)
        while not session.finished:
            first = session.collect(policy, session.draw(2))
            second = session.collect(policy, session.draw(1))
            selection = session.select([*first, *second])
            policy.level += len(selection.kept)
            policy.version += 1
            if self.config.exits:
                raise SystemExit(0)
            session.finish_step(policy, {"level": policy.level}, save)
            if session.step == self.config.stop_after:
                session.interrupted = True
        session.end(policy, save)
'''

CONFIG = """
[run]
name = "toy"
seed = 3
steps = 6
folder = "FOLDER"
checkpoint_every = 2
[training]
group_size = 4
prompts = 3
[sampler]
use = "file:toy.py:Uniform"
[[filters]]
use = "file:toy.py:Varied"
[[observers]]
use = "core.jsonl"
[[observers]]
use = "file:toy.py:Broken"
[domains.words]
environment = { use = "file:toy.py:Words" }
rewards = { digit = { use = "file:toy.py:Digit" } }
[evaluation]
every = 2
tasks = 6
[optimizer]
use = "file:toy.py:Train"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "toy.py").write_text(TOY)
    path = tmp_path / "toy.toml"
    path.write_text(CONFIG.replace("FOLDER", str(tmp_path / "runs")))
    return path


def option(name: str, value: str) -> str:
    return f'optimizer."file:toy".{name}={value}'


def run(config: Path, *overrides: str, notes: list[str] | None = None) -> RunFolder:
    plan = load_plan(config, overrides=overrides, allow_local_code=True)
    folder = start(plan)
    train(plan, folder, (notes if notes is not None else []).append)
    return folder


def resume(config: Path, *overrides: str, **options: Any) -> RunFolder:
    plan, folder = reopen(config, overrides=overrides, allow_local_code=True, **options)
    train(plan, folder)
    return folder


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def result(folder: RunFolder) -> dict[str, Any]:
    """What two equal runs have in common: everything but times."""
    timed = ("seconds", "elapsed", "tokens_per_second")
    return {
        "level": (folder.model / "level.json").read_text(),
        "metrics": [{k: v for k, v in row.items() if not k.startswith(timed)} for row in lines(folder.metrics)],
        "evaluations": [{k: v for k, v in row.items() if k != "seconds"} for row in lines(folder.evaluations)],
        "rollouts": {path.name: path.read_bytes() for path in sorted(folder.rollouts.iterdir())},
        "state": folder.load_session_state(folder.checkpoints / "step-000006")[1]["coordinator"],
    }


def test_a_run_leaves_its_numbers_and_says_what_it_reached(config: Path) -> None:
    notes: list[str] = []
    folder = run(config, notes=notes)
    summary = json.loads(folder.summary.read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 6)
    assert summary["before"]["greedy"]["words"] < summary["after"]["greedy"]["words"]
    assert "ptrl-core" in summary["versions"]
    assert [row["step"] for row in lines(folder.metrics)] == [1, 2, 3, 4, 5, 6]
    row = lines(folder.metrics)[0]
    assert row["sampler/seen"] >= 1
    assert "sampler/nonsense" not in row
    assert {"reward", "metric/words", "seconds/scoring", "seconds/generation"} <= set(row)
    assert [(one["step"], one["decoding"]) for one in lines(folder.evaluations)] == [
        (0, "greedy"), (0, "sampled"), (2, "greedy"), (4, "greedy"), (6, "greedy"), (6, "sampled"),
    ]  # fmt: skip
    assert notes == ["observers.1: step_finished raised SystemExit: no disk; the run goes on"]


def test_a_task_that_cannot_be_read_is_masked_and_the_run_goes_on(config: Path) -> None:
    folder = run(config)
    (before, *_) = lines(folder.evaluations)
    assert (before["domains"]["words"]["tasks"], before["domains"]["words"]["masked"]) == (5, 1)


def test_equal_configs_give_equal_runs_and_other_seeds_others(config: Path) -> None:
    first, second, other = run(config), run(config), run(config, "run.seed=4")
    assert [folder.path.name for folder in (first, second, other)] == ["toy", "toy-2", "toy-3"]
    assert result(first) == result(second)
    assert result(first)["rollouts"] != result(other)["rollouts"]


def test_batches_of_one_step_are_sampled_with_other_noise(config: Path) -> None:
    plan = load_plan(config, overrides=["evaluation.every=0"], allow_local_code=True)
    session = Session(plan)
    seeds = []

    class Policy:
        tokenizer, context_length, version = None, 100, 0

        def generate(self, prompts: Any, sampling: Any, driver: Any) -> None:
            seeds.append(sampling.seed)

    policy: Any = Policy()
    policy.tokenizer = plan.optimizer.loaded.factory.run.__globals__["Letters"]()
    for _ in range(2):
        for _ in range(2):
            session.collect(policy, session.draw(2))
        session.finish_step(policy, {}, lambda folder: None)
    session.close()
    assert len(set(seeds)) == 4


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(config: Path, stop: int) -> None:
    whole = result(run(config))
    folder = run(config, option("stop_after", str(stop)))
    summary = json.loads(folder.summary.read_text())
    assert (summary["status"], summary["steps"]) == ("interrupted", stop)
    assert result(resume(config, option("stop_after", "0"))) == whole


def test_a_run_that_was_killed_goes_on_from_its_newest_checkpoint(config: Path) -> None:
    folder = run(config)
    whole = result(folder)
    (folder.checkpoints / "step-000006").rename(folder.checkpoints / ".step-000006.0a1b2c3d")  # torn
    with folder.metrics.open("a") as file:
        file.write('{"step": 7, "rew')
    assert result(resume(config)) == whole
    assert {path.name for path in folder.checkpoints.iterdir()} == {"step-000004", "step-000006"}


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(config: Path) -> None:
    folder = run(config)
    whole = result(folder)
    for path in folder.checkpoints.iterdir():
        for file in sorted(path.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        path.rmdir()
    assert result(resume(config)) == whole


def test_a_finished_run_can_be_given_more_steps(config: Path) -> None:
    folder = run(config)
    again = resume(folder.path, "run.steps=8")
    assert json.loads(again.summary.read_text())["steps"] == 8
    assert [row["step"] for row in lines(again.metrics)] == list(range(1, 9))


def test_local_code_that_changed_is_refused_without_force(config: Path) -> None:
    run(config, option("stop_after", "2"))
    (config.parent / "toy.py").write_text(TOY + "\n# another version\n")
    with pytest.raises(LockMismatchError, match=r"local file .*toy\.py changed"):
        resume(config, option("stop_after", "0"))
    assert resume(config, option("stop_after", "0"), force=True).summary.is_file()


def test_there_is_nothing_to_resume_where_nothing_ran(config: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="there is no run of"):
        reopen(config, allow_local_code=True)
    RunFolder.create(tmp_path / "runs", "toy")  # killed before it wrote its config
    with pytest.raises(RunFolderError, match="there is no run of"):
        reopen(config, allow_local_code=True)


def test_a_folder_that_is_taken_or_cannot_be_made_is_an_error(config: Path, tmp_path: Path) -> None:
    plan = load_plan(config, allow_local_code=True)
    with pytest.raises(RunFolderError, match="pass --resume"):
        start(plan, tmp_path)
    with pytest.raises(RunFolderError, match="cannot be made"):
        start(plan, config)
    with pytest.raises(RunFolderError, match="cannot be made"):
        start(plan, config / "below-a-file")


def test_what_the_optimizer_cannot_honour_is_a_config_error(config: Path) -> None:
    plan = load_plan(config, overrides=[option("refuses", "true")], allow_local_code=True)
    with pytest.raises(ConfigError, match=r"training\.entropy: not here"):
        check(plan)
    with pytest.raises(ConfigError, match=r"training\.entropy: not here"):
        train(plan, start(plan))


def test_an_optimizer_that_exits_is_an_error_and_no_finished_run(config: Path) -> None:
    with pytest.raises(ContractError, match="run raised SystemExit: 0"):
        run(config, option("exits", "true"))
