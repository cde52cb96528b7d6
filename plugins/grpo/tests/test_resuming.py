"""A run that is broken off at any step goes on from its checkpoint to the same weights and numbers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ptrl.core.config import load_plan
from ptrl.core.run import training
from ptrl.core.session import Session

PLUGIN = """
from ptrl.core import Environment, Reward, Task

class Digits(Environment):
    def tasks(self, split):
        for number in range(30):
            yield Task(key=f"{split}{number}", messages=({"role": "user", "content": f"digit {number}"},),
                       demonstration=({"role": "assistant", "content": str(number % 10)},))

class IsDigit(Reward):
    \"\"\"Pays 1 when the answer begins with a digit.\"\"\"
    def score(self, rollouts):
        return [float(rollout.text[:1].isdigit()) for rollout in rollouts]
"""

CONFIG = """
[run]
name = "digits"
seed = 3
steps = {steps}
checkpoint_every = 2
[model]
path = "{model}"
[training]
prompts = 6
learning_rate = 3e-3
max_new_tokens = 4
threads = 1
warmup_steps = 2
{keys}
[domains.digits]
environment = {{ use = "file:plug.py:Digits" }}
rewards = {{ digit = {{ use = "file:plug.py:IsDigit" }} }}
[evaluation]
tasks = 20
[[observers]]
use = "core.jsonl"
[optimizer]
use = "{optimizer}"
[optimizer.grpo]
{own}
"""

RL = "group_size = 6"
KINDS = {
    "rl": ("grpo.local", RL, ""),
    "rl with much to remember": (
        "grpo.local",
        f"{RL}\nepochs = 2\nupdates = 2\ntop_p = 0.9\nkl = {{ coefficient = 0.05 }}",
        "muon_learning_rate = 0.01",
    ),
    "supervised": ("grpo.supervised", "", "muon_learning_rate = 0.01"),
}


class Killed(KeyboardInterrupt):
    """Stands for the end of the process: what is an interrupt is caught by nothing on its way."""


def write(folder: Path, model: Path, kind: str, steps: int) -> Path:
    folder.mkdir()
    optimizer, keys, own = KINDS[kind]
    (folder / "plug.py").write_text(PLUGIN)
    config = folder / "run.toml"
    config.write_text(CONFIG.format(steps=steps, model=model, optimizer=optimizer, keys=keys, own=own))
    return config


def train(config: Path) -> dict[str, Any]:
    plan = load_plan(config, allow_local_code=True)
    return training.train(plan, training.start(plan, config.parent / "run"))


def resume(config: Path) -> dict[str, Any]:
    plan, folder = training.reopen(config.parent / "run", allow_local_code=True)
    return training.train(plan, folder)


def result(config: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    run = config.parent / "run"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timed = ("seconds", "elapsed", "tokens_per_second")
    numbers = [{key: value for key, value in line.items() if not key.startswith(timed)} for line in lines]
    return load_file(run / "model/model.safetensors"), numbers


@pytest.fixture
def kill_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Ends the process, as it were, in the middle of the step after the given one."""
    finish = Session.finish_step

    def arm(steps: int) -> None:
        def killed(session: Session, *arguments: Any) -> None:
            if session.step == steps:
                monkeypatch.setattr(Session, "finish_step", finish)
                raise Killed
            finish(session, *arguments)

        monkeypatch.setattr(Session, "finish_step", killed)

    return arm


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_killed_run_goes_on_to_the_same_weights_and_numbers(
    kind: str, tmp_path: Path, model_folder: Path, kill_after: Callable[[int], None]
) -> None:
    whole = write(tmp_path / "whole", model_folder, kind, steps=5)
    train(whole)
    broken = write(tmp_path / "broken", model_folder, kind, steps=5)
    kill_after(3)
    with pytest.raises(Killed):
        train(broken)
    resume(broken)
    (weights, numbers), (wanted, wanted_numbers) = result(broken), result(whole)
    assert numbers == wanted_numbers
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)
