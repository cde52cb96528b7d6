"""One update against an oracle that takes every rollout by itself, and what must not change it."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from ptrl.core import Group, Rollout, Score, ScoredRollout, Task, Ticket
from ptrl.core.settings import KLSection, TrainingSection
from ptrl_plugin_grpo.batches import TrainingRow
from ptrl_plugin_grpo.local import batch_of
from ptrl_plugin_grpo.update import Batch, Update

MakeModel = Callable[..., PreTrainedModel]
REWARDS = [1.0, 0.0, 0.25, 0.5, 0.5, 1.0, 0.0, 1.0]
GROUPS = [0, 0, 0, 1, 1, 1, 2, 2]
TEMPERATURE = 0.7


class Noted(torch.optim.Optimizer):
    """Changes nothing, and notes each step's gradient."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model.parameters(), {"lr": 1.0})
        self.gradients: list[torch.Tensor] = []

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        found = [p.grad for group in self.param_groups for p in group["params"]]
        self.gradients.append(torch.cat([grad.flatten().clone() for grad in found if grad is not None]))


def logprobs_of(model: PreTrainedModel, row: TrainingRow) -> tuple[torch.Tensor, torch.Tensor]:
    """A rollout's chosen tokens' log-probabilities and entropies, by a plain forward pass of it alone."""
    ids = torch.tensor([[*row.prompt, *row.tokens]])
    logits = model(ids).logits[0, len(row.prompt) - 1 : -1] / TEMPERATURE
    whole = logits.log_softmax(-1)
    chosen = torch.tensor(row.mask, dtype=torch.bool)
    logprobs = whole.gather(-1, torch.tensor(row.tokens)[:, None]).squeeze(-1)
    return logprobs[chosen], -(whole.exp() * whole).sum(-1)[chosen]


@pytest.fixture(scope="module")
def model(make_model: MakeModel) -> PreTrainedModel:
    return make_model("llama-grouped", initializer_range=0.1)


@pytest.fixture(scope="module")
def rows(model: PreTrainedModel) -> list[TrainingRow]:
    """Ragged rollouts with tool tokens, whose logprobs are the model's own but for some noise."""
    rng = torch.Generator().manual_seed(1)

    def ids(length: int) -> list[int]:
        return torch.randint(12, 268, (length,), generator=rng).tolist()

    given = {group: ids(3 + group) for group in set(GROUPS)}
    found = []
    for number, group in enumerate(GROUPS):
        tokens = ids(4 + number % 4)
        mask = [1, *[int(number % 3 != 1 or place != 1) for place in range(1, len(tokens))]]
        row = TrainingRow(given[group], tokens, mask, [0.0] * len(tokens), group)
        with torch.no_grad():
            chosen = iter(logprobs_of(model, row)[0].tolist())
        noise = torch.randn(len(tokens), generator=rng).tolist()
        logprobs = [next(chosen) + 0.3 * noise[place] if mask[place] else 0.0 for place in range(len(tokens))]
        found.append(TrainingRow(given[group], tokens, mask, logprobs, group))
    return found


def training(**keys: Any) -> TrainingSection:
    return TrainingSection(**{"temperature": TEMPERATURE, "max_grad_norm": 1e9, "clip": (0.2, 0.3), **keys})


def gradients(
    model: PreTrainedModel,
    rows: Sequence[TrainingRow],
    rewards: Sequence[float],
    reference: PreTrainedModel | None = None,
    packed: bool = True,
    **keys: Any,
) -> list[torch.Tensor]:
    optimizer = Noted(model)
    Update(model, reference, training(**keys), packed=packed).step(Batch(rows, rewards), [optimizer])
    return optimizer.gradients


def leave_one_out(rewards: Sequence[float], groups: Sequence[int]) -> list[float]:
    found = []
    for number, group in enumerate(groups):
        others = [r for place, r in enumerate(rewards) if groups[place] == group and place != number]
        found.append(rewards[number] - sum(others) / len(others))
    return found


def oracle(
    model: PreTrainedModel, rows: Sequence[TrainingRow], kl: float, entropy: float, off_policy: bool
) -> torch.Tensor:
    """The gradient of the clipped loss, mean over all tokens, written down from the papers."""
    model.zero_grad(set_to_none=True)
    reference = moved(model)
    total = sum(sum(row.mask) for row in rows)
    loss = torch.zeros(())
    for row, advantage in zip(rows, leave_one_out(REWARDS, GROUPS), strict=True):
        logprobs, entropies = logprobs_of(model, row)
        sampled = torch.tensor([value for value, chosen in zip(row.logprobs, row.mask, strict=True) if chosen])
        ratio = (logprobs - (sampled if off_policy else logprobs.detach())).exp()
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.3) * advantage)
        with torch.no_grad():
            other = logprobs_of(reference, row)[0]
        k3 = (other - logprobs).exp() - 1 - (other - logprobs)
        loss = loss + (-surrogate + kl * k3 - entropy * entropies).sum() / total
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def moved(model: PreTrainedModel) -> PreTrainedModel:
    """An initial policy from which the model has moved."""
    reference = deepcopy(model)
    with torch.no_grad():
        for number, parameter in enumerate(reference.parameters()):
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)), alpha=0.02)
    return reference


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("budget", [16, 10_000])
@pytest.mark.parametrize(("kl", "entropy"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.3, 0.2)])
def test_an_update_s_gradient_is_that_of_the_formulas(
    model: PreTrainedModel, rows: list[TrainingRow], kl: float, entropy: float, budget: int, packed: bool
) -> None:
    reference = moved(model) if kl else None
    keys = {"kl": KLSection(coefficient=kl), "entropy": entropy, "micro_batch_tokens": budget}
    (found,) = gradients(model, rows, REWARDS, reference, packed, **keys)
    torch.testing.assert_close(found, oracle(model, rows, kl, entropy, off_policy=False), atol=1e-5, rtol=1e-4)


def test_a_second_epoch_takes_the_ratio_to_the_policy_that_sampled(
    model: PreTrainedModel, rows: list[TrainingRow]
) -> None:
    first, second = gradients(model, rows, REWARDS, epochs=2)
    wanted = oracle(model, rows, 0.0, 0.0, off_policy=True)
    torch.testing.assert_close(first, wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(second, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("epochs", "updates", "steps"), [(1, 1, 1), (1, 2, 2), (3, 1, 3), (2, 3, 6), (1, 7, 3)])
def test_a_step_takes_an_update_per_part_and_epoch(
    model: PreTrainedModel, rows: list[TrainingRow], epochs: int, updates: int, steps: int
) -> None:
    assert len(gradients(model, rows, REWARDS, epochs=epochs, updates=updates)) == steps


def test_parts_hold_whole_groups_and_together_every_rollout(model: PreTrainedModel, rows: list[TrainingRow]) -> None:
    update = Update(model, None, training(updates=2))
    for epoch in (0, 1):
        parts = list(update._parts(rows, epoch))
        groups = [{row.group for row in part} for part, _ in parts]
        assert not groups[0] & groups[1]
        assert sorted(row.tokens for part, _ in parts for row in part) == sorted(row.tokens for row in rows)
        for part, places in parts:
            assert len(places) == sum(sum(row.mask) for row in part)


def test_a_kl_penalty_in_the_reward_lowers_the_reward_of_what_has_moved(
    model: PreTrainedModel, rows: list[TrainingRow]
) -> None:
    keys = {"kl": KLSection(coefficient=0.5, estimator="k1", apply="reward"), "estimator": "dr_grpo"}
    update = Update(model, moved(model), training(**keys))
    advantages = update._advantages(Batch(rows, [0.0] * len(rows)))
    with torch.no_grad():
        reference = torch.cat([logprobs_of(moved(model), row)[0] for row in rows])
    counts = [sum(row.mask) for row in rows]
    sampled = torch.tensor([v for row in rows for v, c in zip(row.logprobs, row.mask, strict=True) if c])
    for values, kl in zip(advantages.split(counts), (sampled - reference).split(counts), strict=True):
        to_go = -0.5 * kl.flip(0).cumsum(0).flip(0)
        torch.testing.assert_close(values, to_go, atol=1e-4, rtol=1e-4)


def group_of(rows: Sequence[TrainingRow], rewards: Sequence[float], broken: Sequence[int] = ()) -> Group:
    """A scored group; the members numbered in `broken` got no verdict."""
    task = Task(key="t", messages=({"role": "user", "content": "?"},))
    members = []
    for number, (row, reward) in enumerate(zip(rows, rewards, strict=True)):
        valid = number not in broken
        rollout = Rollout(
            index=number,
            task=task,
            prompt_ids=row.prompt,
            token_ids=row.tokens,
            loss_mask=row.mask,
            logprobs=row.logprobs,
        )
        score = Score(value=reward) if valid else Score.failure("down")
        members.append(
            ScoredRollout(
                rollout=rollout,
                scores={"answer": score},
                metric=score.value,
                total=score.value,
                training_reward=reward if valid else float("nan"),
                valid=valid,
            )
        )
    ticket = Ticket(id="1", index=0, domain="d", group_size=len(rows))
    return Group(ticket=ticket, task=task, members=tuple(members))


def test_rollouts_without_a_verdict_change_no_sibling_s_gradient(
    model: PreTrainedModel, rows: list[TrainingRow]
) -> None:
    whole = batch_of([group_of(rows[:3], REWARDS[:3]), group_of(rows[3:6], REWARDS[3:6])])
    extra = TrainingRow(rows[0].prompt, [99] * 9, [1] * 9, [-1.0] * 9, 0)
    silent = TrainingRow(rows[3].prompt, [99] * 9, [0] * 9, [0.0] * 9, 0)
    masked = batch_of(
        [
            group_of([extra, *rows[:3], extra], [5.0, *REWARDS[:3], 5.0], broken=(0, 4)),
            group_of([*rows[3:6], silent], [*REWARDS[3:6], 5.0]),
            group_of([extra], [5.0], broken=(0,)),
        ]
    )
    (wanted,) = gradients(model, whole.rows, whole.rewards)
    (found,) = gradients(model, masked.rows, masked.rewards)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)


def test_a_batch_in_which_nothing_can_be_learnt_from_is_empty(rows: list[TrainingRow]) -> None:
    assert not batch_of([group_of(rows[:2], [1.0, 0.0], broken=(0, 1))]).rows
    assert not batch_of([]).rows


def test_dropout_does_not_part_the_policy_from_itself(make_model: MakeModel, rows: list[TrainingRow]) -> None:
    model = make_model("llama", attention_dropout=0.5)
    model.train()
    update = Update(model, deepcopy(model).eval(), training(kl=KLSection(coefficient=0.1)))
    numbers = update.step(Batch(rows, REWARDS), [Noted(model)])
    assert abs(numbers["kl"]) < 1e-6
