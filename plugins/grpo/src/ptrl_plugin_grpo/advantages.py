"""Advantages of rollouts, estimated from the rewards of a batch of groups.

The estimators have the names and formulas of OpenRLHF 0.11.2 (`experience_maker.py`). Each takes

- `rewards`, (rollouts,): one reward per rollout, in any unit;
- `groups`, (rollouts,): an integer per rollout; rollouts with the same one answered the same task. Groups may
  have different sizes, stand in any order, and bear any numbers;
- `valid`, (rollouts,), bool: False where there is no verdict. Such a rollout has advantage 0 and influences
  no other; its reward is not read and may be NaN;
- `lengths`, (rollouts,), optional: tokens of each rollout that are trained on. The estimators that normalise
  over the batch weigh every rollout by it, since OpenRLHF's moments run over tokens; without it every rollout
  counts once. The others take it for the sake of one interface, and do not read it;

and returns advantages, (rollouts,), of the rewards' type but at least float32, without gradient. A batch
without a valid rollout has advantages 0.

What differs from OpenRLHF, for all of them: groups may have different sizes and invalid members; arithmetic
is in float64, and a group of equal rewards has centred rewards of exactly 0 (in float32 the rounding of a
mean, divided by a deviation of rounding errors, can give `group_norm` advantages of order 1); and rewards are
not clipped to [-10, 10] after the baseline (composition has clipped them before). A group with one valid
rollout, which OpenRLHF refuses, has no baseline: its advantage is 0 and enters no moment, except in
`reinforce`, which has no groups.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import torch

GROUP_NORM_EPSILON = 1e-9
"""Added to a group's standard deviation, as OpenRLHF does."""

MINIMUM_VARIANCE = 1e-8
"""Least variance by which a batch is normalised, as OpenRLHF does."""


class AdvantageEstimator(Protocol):
    """Estimates advantages from rewards; the module's docstring says what the arguments are."""

    def __call__(
        self,
        rewards: torch.Tensor,
        groups: torch.Tensor,
        valid: torch.Tensor,
        lengths: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns advantages, (rollouts,)."""
        ...


def reinforce(
    rewards: torch.Tensor, groups: torch.Tensor, valid: torch.Tensor, lengths: torch.Tensor | None = None
) -> torch.Tensor:
    """REINFORCE++: the reward, normalised over the batch; groups play no part.

    `(reward - mean) / sqrt(max(variance, 1e-8))`, mean and (biased) variance over the valid rollouts, each
    weighed by its length. OpenRLHF's `reinforce`, exactly, when `lengths` is given and discounting is off.
    Hu et al., "REINFORCE++: Stabilizing Critic-Free Policy Optimization", 2025, arXiv:2501.03262.

    Args:
        rewards: (rollouts,).
        groups: (rollouts,) integers.
        valid: (rollouts,) bool.
        lengths: (rollouts,) trained tokens, or None to count every rollout once.

    Returns:
        Advantages, (rollouts,), in standard deviations of the batch.

    Raises:
        ValueError: Empty input, shapes or types that do not fit, a valid reward or length that is not finite.
    """
    batch = _Batch.of(rewards, groups, valid)
    return batch.finish(_whiten(batch.rewards, _weights(batch, batch.valid, lengths)), batch.valid)


def reinforce_baseline(
    rewards: torch.Tensor, groups: torch.Tensor, valid: torch.Tensor, lengths: torch.Tensor | None = None
) -> torch.Tensor:
    """REINFORCE++ with baseline: the reward less its group's mean, normalised over the batch.

    With `centred = reward - mean of the group`: `(centred - mean) / sqrt(max(variance, 1e-8))`, mean and
    (biased) variance over the batch, each rollout weighed by its length. OpenRLHF's `reinforce_baseline`,
    exactly, when `lengths` is given. The batch's mean is 0 without `lengths`, and is not where length and
    reward go together: then even a group of equal rewards has an advantage, as it has in OpenRLHF.
    Hu et al., "REINFORCE++: Stabilizing Critic-Free Policy Optimization", 2025, arXiv:2501.03262.

    Args:
        rewards: (rollouts,).
        groups: (rollouts,) integers.
        valid: (rollouts,) bool.
        lengths: (rollouts,) trained tokens, or None to count every rollout once.

    Returns:
        Advantages, (rollouts,), in standard deviations of the batch's centred rewards; 0 in a group with one
        valid rollout.

    Raises:
        ValueError: Empty input, shapes or types that do not fit, a valid reward or length that is not finite.
    """
    batch = _Batch.of(rewards, groups, valid)
    counted = batch.has_sibling
    # A mean of centred rewards is 0; subtracting its rounding would make zeros into non-zeros.
    whitened = _whiten(_centred(batch), _weights(batch, counted, lengths), centre=lengths is not None)
    return batch.finish(whitened, counted)


def rloo(
    rewards: torch.Tensor, groups: torch.Tensor, valid: torch.Tensor, lengths: torch.Tensor | None = None
) -> torch.Tensor:
    """REINFORCE leave-one-out: the reward less the mean reward of the other valid rollouts of its group.

    Computed as `(reward - mean of the group) × n / (n - 1)`, which is the same. OpenRLHF's `rloo`, exactly.
    Kool et al., "Buy 4 REINFORCE Samples, Get a Baseline for Free!", 2019; Ahmadian et al., "Back to Basics",
    2024, arXiv:2402.14740.

    Args:
        rewards: (rollouts,).
        groups: (rollouts,) integers.
        valid: (rollouts,) bool.
        lengths: Not read.

    Returns:
        Advantages, (rollouts,), in the rewards' unit; 0 in a group with one valid rollout.

    Raises:
        ValueError: Empty input, shapes or types that do not fit, a valid reward that is not finite.
    """
    batch = _Batch.of(rewards, groups, valid)
    return batch.finish(_leave_one_out(batch), batch.has_sibling)


def group_norm(
    rewards: torch.Tensor, groups: torch.Tensor, valid: torch.Tensor, lengths: torch.Tensor | None = None
) -> torch.Tensor:
    """GRPO: the reward less its group's mean, divided by its group's standard deviation.

    `(reward - mean) / (deviation + 1e-9)` with the unbiased deviation (n - 1). OpenRLHF's `group_norm`,
    exactly. Shao et al., "DeepSeekMath", 2024, arXiv:2402.03300.

    Args:
        rewards: (rollouts,).
        groups: (rollouts,) integers.
        valid: (rollouts,) bool.
        lengths: Not read.

    Returns:
        Advantages, (rollouts,), in standard deviations of the group; 0 in a group with one valid rollout.

    Raises:
        ValueError: Empty input, shapes or types that do not fit, a valid reward that is not finite.
    """
    batch = _Batch.of(rewards, groups, valid)
    return batch.finish(_group_normalised(batch), batch.has_sibling)


def dr_grpo(
    rewards: torch.Tensor, groups: torch.Tensor, valid: torch.Tensor, lengths: torch.Tensor | None = None
) -> torch.Tensor:
    """Dr. GRPO: the reward less its group's mean, divided by nothing.

    OpenRLHF's `dr_grpo`, exactly. The paper's other half, a loss divided by a constant and not by a rollout's
    length, is the aggregation `constant` (`losses.rollout_weights`); OpenRLHF has no such aggregation.
    Liu et al., "Understanding R1-Zero-Like Training", 2025, arXiv:2503.20783.

    Args:
        rewards: (rollouts,).
        groups: (rollouts,) integers.
        valid: (rollouts,) bool.
        lengths: Not read.

    Returns:
        Advantages, (rollouts,), in the rewards' unit; 0 in a group with one valid rollout.

    Raises:
        ValueError: Empty input, shapes or types that do not fit, a valid reward that is not finite.
    """
    batch = _Batch.of(rewards, groups, valid)
    return batch.finish(_centred(batch), batch.has_sibling)


ESTIMATORS: Mapping[str, AdvantageEstimator] = MappingProxyType(
    {
        "reinforce": reinforce,
        "reinforce_baseline": reinforce_baseline,
        "rloo": rloo,
        "group_norm": group_norm,
        "dr_grpo": dr_grpo,
    }
)
"""Every estimator by its name."""


def token_advantages(
    estimator: str,
    rewards: torch.Tensor,
    groups: torch.Tensor,
    valid: torch.Tensor,
    rollout: torch.Tensor,
    penalties: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns the advantage of every trained token, where each token's reward may bear a penalty.

    A token's advantage is its rollout's shaped reward less the penalties of that token and all later ones of
    its rollout (no discounting); `reinforce` and `reinforce_baseline` then normalise over the batch's tokens.
    So the KL divergence is taken "in the reward", as OpenRLHF does, after the baseline and before the
    normalisation. Without penalties this is the estimator with `lengths`, indexed by `rollout`.

    Args:
        estimator: A name of `ESTIMATORS`.
        rewards: (rollouts,).
        groups: (rollouts,) integers.
        valid: (rollouts,) bool.
        rollout: (tokens,) integers: which rollout each token belongs to; a rollout's tokens stand in their
            order, other rollouts' may stand between them.
        penalties: (tokens,) in the rewards' unit, such as coefficient × KL of each token; None for none.

    Returns:
        Advantages, (tokens,); 0 for tokens of an invalid rollout and, except for `reinforce`, of one whose
        group has no other valid rollout.

    Raises:
        ValueError: An unknown estimator, empty input, shapes or types that do not fit, an index out of range,
            a valid reward or its token's penalty that is not finite.
    """
    if estimator not in _SHAPES:
        raise ValueError(f"estimator: unknown name {estimator!r}; expected one of {', '.join(_SHAPES)}")
    batch = _Batch.of(rewards, groups, valid)
    _check_index(rollout, len(rewards))
    counted = (batch.valid if estimator == "reinforce" else batch.has_sibling)[rollout]
    values = _SHAPES[estimator](batch)[rollout]
    if penalties is not None:
        values = values - _sum_to_go(_checked("penalties", penalties, counted), rollout)
    if estimator in _WHITENED:
        values = _whiten(values, counted.to(values.dtype))
    return batch.finish(values, counted)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Checked inputs: rewards in float64 with 0 where invalid, groups numbered from 0."""

    rewards: torch.Tensor
    group: torch.Tensor
    groups: int
    valid: torch.Tensor
    siblings: torch.Tensor
    """Valid rollouts in each rollout's group, itself included."""
    dtype: torch.dtype

    @classmethod
    def of(cls, rewards: torch.Tensor, groups: torch.Tensor, valid: torch.Tensor) -> "_Batch":
        _check_rollouts(rewards, groups, valid)
        values = _checked("rewards", rewards, valid)
        numbers, group = torch.unique(groups, return_inverse=True)
        count = values.new_zeros(len(numbers)).index_add(0, group, valid.to(values.dtype))
        dtype = torch.promote_types(rewards.dtype, torch.float32)
        return cls(values, group, len(numbers), valid, count[group], dtype)

    @property
    def has_sibling(self) -> torch.Tensor:
        """(rollouts,) True where a valid rollout has another one in its group."""
        return self.valid & (self.siblings > 1)

    def group_sum(self, values: torch.Tensor) -> torch.Tensor:
        """Returns for every rollout the sum over its group; values must be 0 where invalid."""
        return values.new_zeros(self.groups).index_add(0, self.group, values)[self.group]

    def finish(self, values: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
        """Returns values in the caller's type, 0 where not counted."""
        return torch.where(counted, values, 0.0).to(self.dtype)


def _raw(batch: _Batch) -> torch.Tensor:
    return batch.rewards


def _centred(batch: _Batch) -> torch.Tensor:
    centred = batch.rewards - batch.group_sum(batch.rewards) / batch.siblings.clamp(min=1)
    return torch.where(batch.valid & _varies(batch), centred, 0.0)


def _leave_one_out(batch: _Batch) -> torch.Tensor:
    return _centred(batch) * batch.siblings / (batch.siblings - 1).clamp(min=1)


def _group_normalised(batch: _Batch) -> torch.Tensor:
    centred = _centred(batch)
    variance = batch.group_sum(centred.square()) / (batch.siblings - 1).clamp(min=1)
    return centred / (variance.sqrt() + GROUP_NORM_EPSILON)


def _varies(batch: _Batch) -> torch.Tensor:
    """(rollouts,) True where the valid rewards of a rollout's group are not all equal."""
    infinity = float("inf")
    least = torch.where(batch.valid, batch.rewards, infinity)
    most = torch.where(batch.valid, batch.rewards, -infinity)
    empty = batch.rewards.new_zeros(batch.groups)
    least = empty.scatter_reduce(0, batch.group, least, "amin", include_self=False)
    most = empty.scatter_reduce(0, batch.group, most, "amax", include_self=False)
    return (most > least)[batch.group]


_SHAPES: Mapping[str, Callable[[_Batch], torch.Tensor]] = MappingProxyType(
    {
        "reinforce": _raw,
        "reinforce_baseline": _centred,
        "rloo": _leave_one_out,
        "group_norm": _group_normalised,
        "dr_grpo": _centred,
    }
)
_WHITENED = frozenset({"reinforce", "reinforce_baseline"})


def _whiten(values: torch.Tensor, weights: torch.Tensor, centre: bool = True) -> torch.Tensor:
    """Returns values less their weighted mean, divided by their weighted deviation."""
    total = weights.sum()
    if not total > 0:
        return torch.zeros_like(values)
    mean = (weights * values).sum() / total if centre else values.new_zeros(())
    variance = (weights * (values - mean).square()).sum() / total
    return (values - mean) * variance.clamp(min=MINIMUM_VARIANCE).rsqrt()


def _weights(batch: _Batch, counted: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """Returns the weight of each rollout in the batch's moments."""
    if lengths is None:
        return counted.to(batch.rewards.dtype)
    if lengths.shape != counted.shape:
        raise ValueError(f"lengths: expected shape {tuple(counted.shape)}, got {tuple(lengths.shape)}")
    weights = _checked("lengths", lengths, counted)
    if bool((weights < 0).any()):
        raise ValueError("lengths: a number of tokens is negative")
    if bool(counted.any()) and not bool((weights > 0).any()):
        raise ValueError("lengths: no rollout that counts has a trained token; skip this update")
    return weights


def _sum_to_go(values: torch.Tensor, rollout: torch.Tensor) -> torch.Tensor:
    """Returns for each token the sum of its value and those of its rollout's later tokens."""
    order = torch.argsort(rollout, stable=True)
    owner = rollout[order]
    before = values[order].cumsum(0) - values[order]
    last = torch.searchsorted(owner, owner, right=True) - 1
    through_last = before[last] + values[order][last]
    return torch.empty_like(values).index_copy_(0, order, through_last - before)


def _check_rollouts(rewards: torch.Tensor, groups: torch.Tensor, valid: torch.Tensor) -> None:
    if rewards.ndim != 1 or not len(rewards):
        raise ValueError(f"rewards: expected shape (rollouts,), at least one, got {tuple(rewards.shape)}")
    for name, tensor in (("groups", groups), ("valid", valid)):
        if tensor.shape != rewards.shape:
            raise ValueError(f"{name}: expected shape {tuple(rewards.shape)}, got {tuple(tensor.shape)}")
    if not _is_integer(groups):
        raise ValueError(f"groups: expected integers, got {groups.dtype}")
    if valid.dtype != torch.bool:
        raise ValueError(f"valid: expected booleans, got {valid.dtype}")


def _check_index(rollout: torch.Tensor, rollouts: int) -> None:
    if rollout.ndim != 1 or not len(rollout) or not _is_integer(rollout):
        raise ValueError(
            f"rollout: expected integers of shape (tokens,), at least one, got {rollout.dtype} of shape "
            f"{tuple(rollout.shape)}"
        )
    if int(rollout.min()) < 0 or int(rollout.max()) >= rollouts:
        raise ValueError(f"rollout: an index lies outside 0 to {rollouts - 1}")


def _checked(name: str, values: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """Returns values in float64 with 0 where not counted; refuses NaN and infinity where counted."""
    if values.shape != counted.shape:
        raise ValueError(f"{name}: expected shape {tuple(counted.shape)}, got {tuple(values.shape)}")
    bad = counted & ~torch.isfinite(values)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise ValueError(
            f"{name}: {int(bad.sum())} of {int(counted.sum())} that count are NaN or infinite, the first at "
            f"index {first} ({float(values[first])}); mark a rollout without a verdict as invalid"
        )
    return torch.where(counted, values.detach().to(torch.float64), 0.0)


def _is_integer(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
