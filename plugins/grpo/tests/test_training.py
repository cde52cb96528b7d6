"""Both optimizers train a tiny model through whole runs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ptrl.core import ConfigError
from ptrl.core.config import load_plan
from ptrl.core.run import training
from ptrl.core.settings import KLSection, ModelSection, TrainingSection
from ptrl_plugin_grpo.batches import TrainingRow
from ptrl_plugin_grpo.models import load_model
from ptrl_plugin_grpo.optimizers import make_optimizers
from ptrl_plugin_grpo.update import Batch, Update

TINY = ModelSection(path="package:ptrl_plugin_grpo/tiny")

PLUGIN = '''
from ptrl.core import Environment, Reward, Score, Task

class Letters(Environment):
    def tasks(self, split):
        for number in range(40):
            yield Task(key=f"{split}{number}", messages=({"role": "user", "content": f"sum {number}"},),
                       demonstration=({"role": "assistant", "content": "eeee"},))

class Small(Reward):
    """Pays the share of twelve characters that are small letters; half of them solve the task."""
    def score(self, rollouts):
        shares = [sum("a" <= letter <= "z" for letter in r.text[:12]) / 12 for r in rollouts]
        return [Score(value=share, metric=float(share >= 0.5)) for share in shares]

class Flaky(Small):
    """Fails on every second rollout, whatever it says."""
    def score(self, rollouts):
        good = super().score(rollouts)
        return [Score.failure("down") if r.index % 2 else s for r, s in zip(rollouts, good)]
'''

CONFIG = """
[run]
name = "letters"
steps = {steps}
rollouts = {{ every = 0 }}
[model]
path = "package:ptrl_plugin_grpo/tiny"
initialize = "random"
[training]
prompts = 8
group_size = 8
learning_rate = 3e-3
max_new_tokens = 12
threads = 1
schedule = "constant"
{training}
[domains.letters]
environment = {{ use = "file:plug.py:Letters" }}
rewards = {{ small = {{ use = "file:plug.py:{reward}" }} }}
[evaluation]
tasks = 8
decoding = ["sampled"]
[optimizer]
use = "{optimizer}"
"""


def run(
    folder: Path, steps: int = 20, training_keys: str = "", reward: str = "Small", optimizer: str = "grpo.local"
) -> list[dict[str, Any]]:
    """Trains and returns the metrics of each step."""
    (folder / "plug.py").write_text(PLUGIN)
    text = CONFIG.format(steps=steps, training=training_keys, reward=reward, optimizer=optimizer)
    (folder / "run.toml").write_text(text)
    plan = load_plan(folder / "run.toml", overrides=['observers=[{use="core.jsonl"}]'], allow_local_code=True)
    run_folder = training.start(plan, folder / "run")
    training.train(plan, run_folder)
    return [json.loads(line) for line in run_folder.metrics.read_text().splitlines()]


@pytest.mark.parametrize("estimator", ["reinforce", "reinforce_baseline", "rloo", "group_norm", "dr_grpo"])
def test_every_estimator_learns(estimator: str, tmp_path: Path) -> None:
    steps = run(tmp_path, training_keys=f'estimator = "{estimator}"')
    first = sum(step["reward"] for step in steps[:3]) / 3
    last = sum(step["reward"] for step in steps[-3:]) / 3
    assert last > first + 0.2


@pytest.mark.parametrize(
    "keys",
    [
        'kl = { coefficient = 0.01, estimator = "k2" }',
        'kl = { coefficient = 0.01, estimator = "k1", apply = "reward" }',
        "epochs = 2\nupdates = 2",
        'aggregation = "sequence"\nentropy = 0.01',
        'estimator = "dr_grpo"\naggregation = "constant"',
        "micro_batch_tokens = 64",
        'composition = "sum"\ntop_p = 0.9',
    ],
)
def test_every_way_of_updating_runs_and_reports(keys: str, tmp_path: Path) -> None:
    steps = run(tmp_path, steps=3, training_keys=keys)
    for step in steps:
        assert all(value is not None for value in step.values()), step
        assert step["entropy"] > 0
        assert step["grad_norm"] >= 0
    if "kl" in keys:
        assert abs(steps[0]["kl"]) < 1e-5  # nothing has been learnt yet
        assert steps[-1]["kl"] != 0


def test_a_verifier_that_fails_masks_its_rollouts_and_the_rest_is_learnt_from(tmp_path: Path) -> None:
    steps = run(tmp_path, reward="Flaky")
    assert all(step["masked"] == 0.5 for step in steps)
    assert steps[-1]["reward"] > steps[0]["reward"] + 0.15


def test_the_supervised_stage_learns_its_demonstrations(tmp_path: Path) -> None:
    steps = run(tmp_path, steps=30, optimizer="grpo.supervised")
    assert steps[-1]["loss"] < 0.3 * steps[0]["loss"]
    evaluation = json.loads((tmp_path / "run/evaluations.jsonl").read_text().splitlines()[-1])
    assert evaluation["domains"]["letters"]["tokens"] < 12


def test_the_supervised_stage_refuses_the_keys_of_rl_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.clip.*remove it"):
        run(tmp_path, training_keys="clip = [0.1, 0.1]", optimizer="grpo.supervised")


def rows(extra: int = 0) -> list[TrainingRow]:
    rng = torch.Generator().manual_seed(1)

    def tokens() -> list[int]:
        return torch.randint(12, 268, (6,), generator=rng).tolist()

    found = []
    for group in range(3 + extra):
        prompt = tokens()
        found += [TrainingRow(prompt, tokens(), [1] * 6, [-2.0] * 6, group) for _ in range(3)]
    return found


def gradient(batch: Batch, **keys: Any) -> torch.Tensor:
    model = load_model(TINY, 0, torch.device("cpu"))
    training_keys = TrainingSection(learning_rate=1e-9, max_grad_norm=1e9, **keys)
    Update(model, None, training_keys).step(batch, make_optimizers(model, training_keys, None))
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


REWARDS = [1.0, 0.0, 0.0, 0.5, 0.5, 1.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_gradient_accumulation_changes_nothing(aggregation: str) -> None:
    whole = gradient(Batch(rows(), REWARDS), aggregation=aggregation)
    parts = gradient(Batch(rows(), REWARDS), aggregation=aggregation, micro_batch_tokens=20)
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-4)


def test_the_order_of_rollouts_changes_nothing() -> None:
    order = torch.randperm(9, generator=torch.Generator().manual_seed(4)).tolist()
    shuffled = Batch([rows()[place] for place in order], [REWARDS[place] for place in order])
    torch.testing.assert_close(gradient(shuffled), gradient(Batch(rows(), REWARDS)), atol=1e-6, rtol=1e-4)


def test_a_kl_penalty_in_the_reward_is_that_of_the_initial_policy() -> None:
    model = load_model(TINY, 0, torch.device("cpu"))
    reference = load_model(TINY, 0, torch.device("cpu"))
    keys = TrainingSection(learning_rate=1e-3, kl=KLSection(coefficient=0.1, apply="reward"))
    update = Update(model, reference, keys)
    optimizers = make_optimizers(model, keys, None)
    first = update.step(Batch(rows(), REWARDS), optimizers)
    second = update.step(Batch(rows(), REWARDS), optimizers)
    assert abs(first["kl"]) < 1e-6
    assert second["kl"] > 0
