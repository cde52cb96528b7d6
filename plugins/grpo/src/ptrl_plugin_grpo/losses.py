"""Losses of the policy's update: per token, then aggregated with weights of the whole batch.

Formulas are those of OpenRLHF 0.11.2 (`models/loss.py`, `models/utils.py`). Per-token functions take tensors
of one shape, either (tokens,), the chosen tokens of some rollouts one after another, or (rollouts, length)
with a mask; where the mask is False the result is 0, its gradient is 0, and the inputs are not read.

A loss of many passes equals that of the whole batch because the weight of a token is fixed before the first
pass:

    weights = rollout_weights(token_counts, "token", valid=valid)       # whole batch, once
    for layout in layouts:                                              # gradients accumulate
        loss = clipped_policy_loss(log_probs, old_log_probs, advantages[layout.row])
        aggregate(loss, weights[layout.row]).backward()
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch

KLEstimator = Literal["k1", "k2", "k3"]
Aggregation = Literal["token", "sequence", "constant"]

LOG_RATIO_BOUND = 20.0
"""A log-probability ratio is clamped to this before exp, as OpenRLHF does."""

KL_BOUND = 10.0
"""A token's KL estimate is clamped to this, as OpenRLHF does."""

KL_IMPORTANCE_BOUND = 10.0
"""Bound on the importance weight of the unbiased KL gradient, as OpenRLHF does."""


def log_probs_from_logits(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float = 1.0, chunk_size: int | None = None
) -> torch.Tensor:
    """Returns the log-probability of chosen tokens under `softmax(logits / temperature)`.

    As OpenRLHF's function of that name, which divides the logits in place; this one leaves them. A logit of
    -inf bans a token, which then must not be a target.

    Args:
        logits: (..., vocabulary).
        targets: (...), token ids.
        temperature: That of sampling, above 0.
        chunk_size: Positions converted to float32 at a time, to bound memory; None for all at once.

    Returns:
        Log-probabilities in nats, (...), float32 (float64 for float64 logits).

    Raises:
        ValueError: Empty input, shapes that do not fit, a temperature or chunk size that is not positive, or
            a result that is NaN or infinite.
    """
    _check_logits(logits, temperature)
    if targets.shape != logits.shape[:-1]:
        raise ValueError(f"targets: expected shape {tuple(logits.shape[:-1])}, got {tuple(targets.shape)}")
    flat = targets.reshape(-1)

    def chunk(rows: torch.Tensor, start: int) -> torch.Tensor:
        chosen = rows.gather(-1, flat[start : start + len(rows), None]).squeeze(-1)
        return chosen - torch.logsumexp(rows, dim=-1)

    result = _by_chunks(chunk, logits, temperature, chunk_size).reshape(targets.shape)
    _check_finite("log-probabilities from logits", result)
    return result


def entropy_from_logits(logits: torch.Tensor, temperature: float = 1.0, chunk_size: int | None = None) -> torch.Tensor:
    """Returns the entropy of `softmax(logits / temperature)` at each position.

    OpenRLHF's `compute_entropy`, which gives NaN where a logit is -inf; here such a token contributes 0.
    Positions are independent: entropies of parts, concatenated, are those of the whole.

    Args:
        logits: (..., vocabulary).
        temperature: That of sampling, above 0.
        chunk_size: Positions converted to float32 at a time, to bound memory; None for all at once.

    Returns:
        Entropies in nats, (...), float32 (float64 for float64 logits).

    Raises:
        ValueError: Empty input, a temperature or chunk size that is not positive, or a result that is NaN.
    """
    _check_logits(logits, temperature)

    def chunk(rows: torch.Tensor, start: int) -> torch.Tensor:
        log_probs = torch.log_softmax(rows, dim=-1)
        finite = log_probs.clamp(min=torch.finfo(log_probs.dtype).min)  # 0 × -inf would be NaN
        return -(log_probs.exp() * finite).sum(-1)

    result = _by_chunks(chunk, logits, temperature, chunk_size).reshape(logits.shape[:-1])
    _check_finite("entropies from logits", result)
    return result


def clipped_policy_loss(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns PPO's clipped loss of each token, to be minimised.

    With `ratio = exp(clamp(log_probs - old_log_probs, -20, 20))`:
    `-min(ratio × advantage, clamp(ratio, 1 - clip_low, 1 + clip_high) × advantage)`. OpenRLHF's `PolicyLoss`
    of type `ppo`, exactly, before aggregation and without dual clip and importance correction.
    Schulman et al., "Proximal Policy Optimization Algorithms", 2017, arXiv:1707.06347; a `clip_high` above
    `clip_low` is clip-higher of Yu et al., "DAPO", 2025, arXiv:2503.14476.

    Args:
        log_probs: Of the chosen tokens under the policy, with gradient.
        old_log_probs: The same under the policy that the update began with.
        advantages: Of a shape that expands to log_probs'.
        clip_low: 0 to below 1.
        clip_high: At least 0.
        mask: True where a token is in the loss; None for all.

    Returns:
        Losses in the advantages' unit, of the shape of `log_probs`; 0 where masked.

    Raises:
        ValueError: Empty input, shapes that do not fit, an unmasked value that is NaN or infinite, a clip
            range out of bounds.
    """
    surrogate, clipped, _ = _surrogates(log_probs, old_log_probs, advantages, clip_low, clip_high, mask)
    return -torch.minimum(surrogate, clipped)


@dataclass(frozen=True, slots=True)
class RatioStatistics:
    """How far the policy has moved from the one that the update began with: sums that add over passes."""

    tokens: int = 0
    clipped: float = 0.0
    log_ratio_total: float = 0.0
    ratio_total: float = 0.0
    ratio_min: float = math.inf
    ratio_max: float = -math.inf

    def plus(self, other: "RatioStatistics") -> "RatioStatistics":
        """Returns the statistics of both."""
        return RatioStatistics(
            tokens=self.tokens + other.tokens,
            clipped=self.clipped + other.clipped,
            log_ratio_total=self.log_ratio_total + other.log_ratio_total,
            ratio_total=self.ratio_total + other.ratio_total,
            ratio_min=min(self.ratio_min, other.ratio_min),
            ratio_max=max(self.ratio_max, other.ratio_max),
        )

    @classmethod
    def total(cls, parts: Iterable["RatioStatistics"]) -> "RatioStatistics":
        """Returns the statistics of all parts."""
        result = cls()
        for part in parts:
            result = result.plus(part)
        return result

    @property
    def clip_fraction(self) -> float:
        """Share of tokens whose loss is the clipped one (OpenRLHF's `ppo_clip_ratio`); NaN without tokens."""
        return self.clipped / self.tokens if self.tokens else math.nan

    @property
    def approximate_kl(self) -> float:
        """Mean of `old_log_probs - log_probs`: k1 of KL(old || policy) (`ppo_kl`); NaN without tokens."""
        return -self.log_ratio_total / self.tokens if self.tokens else math.nan

    @property
    def ratio_mean(self) -> float:
        """Mean probability ratio, near 1; NaN without tokens."""
        return self.ratio_total / self.tokens if self.tokens else math.nan


@torch.no_grad()
def ratio_statistics(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    mask: torch.Tensor | None = None,
) -> RatioStatistics:
    """Returns clip fraction, approximate KL and ratio statistics of what `clipped_policy_loss` is given.

    A token counts as clipped where the clipped surrogate is below the other, as in OpenRLHF. Sums are in
    float64.

    Args:
        log_probs: As in `clipped_policy_loss`, as are all others.
        old_log_probs: Under the policy that the update began with.
        advantages: Of a shape that expands to log_probs'.
        clip_low: 0 to below 1.
        clip_high: At least 0.
        mask: True where a token is in the loss; None for all.

    Raises:
        ValueError: As `clipped_policy_loss`.
    """
    surrogate, clipped, log_ratio = _surrogates(log_probs, old_log_probs, advantages, clip_low, clip_high, mask)
    if mask is not None:
        surrogate, clipped, log_ratio = surrogate[mask], clipped[mask], log_ratio[mask]
    if not log_ratio.numel():
        return RatioStatistics()
    log_ratio = log_ratio.double()
    ratio = log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
    sums = ((clipped < surrogate).double().sum(), log_ratio.sum(), ratio.sum(), ratio.min(), ratio.max())
    return RatioStatistics(log_ratio.numel(), *torch.stack(sums).tolist())  # one transfer from the device


def kl_divergence(
    log_probs: torch.Tensor,
    reference_log_probs: torch.Tensor,
    estimator: KLEstimator,
    *,
    mask: torch.Tensor | None = None,
    unbiased_gradient: bool = False,
    sampled_log_probs: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns an estimate of KL(policy || reference) at each chosen token.

    With `d = log_probs - reference_log_probs`: k1 is `d`; k2 is `d² / 2`; k3 is `exp(-d) - 1 + d`; each
    clamped to [-10, 10], outside which its gradient is 0. OpenRLHF's `compute_approx_kl`, exactly (float64 is
    kept here, other types become float32). Schulman, "Approximating KL Divergence", 2020,
    joschu.net/blog/kl-approx.html.

    In the reward, any estimator will do (`advantages.token_advantages` with coefficient × KL as penalties).
    In the loss, differentiating k1 gives a gradient whose expectation is 0, and k3 one that is not that of
    KL(policy || reference); k2's is, on policy. `unbiased_gradient` keeps the estimator's value and takes
    that gradient for all three: `weight × d × ∇log_probs`, where
    `weight = min(exp(log_probs - sampled_log_probs), 10)`, as in OpenRLHF.

    Args:
        log_probs: Of the chosen tokens under the policy.
        reference_log_probs: The same under the reference model.
        estimator: `k1`, `k2` or `k3`.
        mask: True where a token counts; None for all.
        unbiased_gradient: Whether to take the gradient of the reverse KL itself.
        sampled_log_probs: Under the policy that sampled the tokens, for the weight; None for weight 1.

    Returns:
        Estimates in nats, of the shape of `log_probs`; 0 where masked.

    Raises:
        ValueError: An unknown estimator, empty input, shapes that do not fit, an unmasked value that is NaN
            or infinite.
    """
    if estimator not in ("k1", "k2", "k3"):
        raise ValueError(f"estimator: unknown name {estimator!r}; expected one of k1, k2, k3")
    log_ratio = _log_ratio(log_probs, reference_log_probs, "reference_log_probs", mask)
    value = _kl_value(log_ratio, estimator).clamp(-KL_BOUND, KL_BOUND)
    if not unbiased_gradient:
        return value
    surrogate = log_ratio.square() / 2
    if sampled_log_probs is not None:
        since = _log_ratio(log_probs, sampled_log_probs, "sampled_log_probs", mask)
        surrogate = surrogate * since.exp().clamp(max=KL_IMPORTANCE_BOUND).detach()
    return value.detach() + (surrogate - surrogate.detach())


def rollout_weights(
    token_counts: torch.Tensor,
    aggregation: Aggregation,
    *,
    valid: torch.Tensor | None = None,
    length: int | None = None,
) -> torch.Tensor:
    """Returns the weight of each token of each rollout in the loss of the whole batch.

    Over the valid rollouts that have tokens:

    - `token`: mean over all tokens (DAPO, arXiv:2503.14476; OpenRLHF's `token-mean`): 1 / all tokens;
    - `sequence`: mean of each rollout's mean (GRPO, arXiv:2402.03300; OpenRLHF's `seq-mean-token-mean`):
      1 / (rollouts × tokens of the rollout);
    - `constant`: mean of each rollout's sum divided by a constant length (Dr. GRPO, arXiv:2503.20783;
      OpenRLHF has none): 1 / (rollouts × length).

    The first two equal OpenRLHF's `aggregate_loss`, whose denominators are also those of one optimizer step.

    Args:
        token_counts: (rollouts,) tokens in the loss of each rollout of the batch, over all passes.
        aggregation: `token`, `sequence` or `constant`.
        valid: (rollouts,) bool, False where a rollout has no part in the loss; None where all have.
        length: The constant's length in tokens, such as `max_new_tokens`; only for `constant`.

    Returns:
        Weights, (rollouts,), float32; 0 for a rollout without part or tokens.

    Raises:
        ValueError: No token in the batch, shapes that do not fit, a negative count, an unknown aggregation, a
            length where there is none to be or none where there is.
    """
    counts = _checked_counts(token_counts, valid)
    if (aggregation == "constant") != (length is not None):
        raise ValueError(f"length: for the aggregation constant and no other, got {length} for {aggregation}")
    has_tokens = counts > 0
    if aggregation == "token":
        weights = torch.ones_like(counts) / counts.sum()
    elif aggregation == "sequence":
        weights = 1 / (has_tokens.sum() * counts)
    elif aggregation == "constant" and length is not None and length > 0:
        weights = torch.ones_like(counts) / (has_tokens.sum() * length)
    elif aggregation == "constant":
        raise ValueError(f"length: expected a positive number of tokens, got {length}")
    else:
        raise ValueError(f"aggregation: unknown name {aggregation!r}; expected token, sequence or constant")
    return torch.where(has_tokens, weights, 0.0).float()


def aggregate(values: torch.Tensor, weights: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Returns the weighted sum of per-token values: this pass's share of the whole batch's loss.

    The shares of all passes add up to the loss of the whole batch, and so do their gradients, however the
    rollouts are divided.

    Args:
        values: Per token: policy loss, KL, entropy.
        weights: Of `rollout_weights`, of a shape that expands to the values': `weights[row]` for (tokens,),
            `weights[rows, None]` for (rollouts, length).
        mask: True where a token is in the loss; None for all.

    Returns:
        A scalar.

    Raises:
        ValueError: Empty values, shapes that do not fit, an unmasked value or a weight that is not finite.
    """
    values = _masked("values", values, mask)
    _check_finite("weights", weights)
    return (values * _expanded("weights", weights, values)).sum()


def _surrogates(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    clip_low: float,
    clip_high: float,
    mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the surrogate, the clipped surrogate (each 0 where masked) and the unclamped log-ratio."""
    if not (0 <= clip_low < 1 and 0 <= clip_high < math.inf):
        raise ValueError(f"clip range: expected 0 <= low < 1 and high >= 0, got [{clip_low}, {clip_high}]")
    log_ratio = _log_ratio(log_probs, old_log_probs, "old_log_probs", mask)
    advantages = _masked("advantages", _expanded("advantages", advantages, log_ratio), mask)
    ratio = log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return ratio * advantages, clipped * advantages, log_ratio


def _log_ratio(log_probs: torch.Tensor, other: torch.Tensor, name: str, mask: torch.Tensor | None) -> torch.Tensor:
    """Returns log_probs - other in at least float32, 0 where masked, and refuses what is not finite."""
    if other.shape != log_probs.shape:
        raise ValueError(f"{name}: expected shape {tuple(log_probs.shape)}, got {tuple(other.shape)}")
    log_probs, other = _masked("log_probs", log_probs, mask), _masked(name, other, mask)
    return _at_least_float32(log_probs) - _at_least_float32(other)


def _kl_value(log_ratio: torch.Tensor, estimator: KLEstimator) -> torch.Tensor:
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return log_ratio.square() / 2
    # Below -10 the result is over its bound anyhow; exp of more would give 0 × inf as gradient.
    bounded = log_ratio.clamp(min=-KL_BOUND)
    return (-bounded).exp() - 1 + bounded


def _by_chunks(
    function: Callable[[torch.Tensor, int], torch.Tensor],
    logits: torch.Tensor,
    temperature: float,
    chunk_size: int | None,
) -> torch.Tensor:
    """Returns the function's results over rows of tempered logits, (positions,)."""
    rows = logits.reshape(-1, logits.shape[-1])
    size = len(rows) if chunk_size is None else chunk_size
    if size < 1:
        raise ValueError(f"chunk_size: expected at least 1, got {size}")
    results = []
    for start in range(0, len(rows), size):
        chunk = _at_least_float32(rows[start : start + size])
        results.append(function(chunk if temperature == 1 else chunk / temperature, start))
    return results[0] if len(results) == 1 else torch.cat(results)


def _at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _masked(name: str, values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Returns values with 0 (and gradient 0) where masked; refuses empty ones and those not finite."""
    if not values.numel():
        raise ValueError(f"{name}: there is no token; skip this pass")
    if mask is not None:
        if mask.shape != values.shape or mask.dtype != torch.bool:
            expected = f"booleans of shape {tuple(values.shape)}"
            raise ValueError(f"mask: expected {expected}, got {mask.dtype} of shape {tuple(mask.shape)}")
        values = torch.where(mask, values, 0.0)
    _check_finite(name, values)
    return values


def _expanded(name: str, values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    try:
        return values.expand_as(like)
    except RuntimeError:
        shapes = f"{tuple(values.shape)} to {tuple(like.shape)}"
        raise ValueError(f"{name}: cannot expand shape {shapes}") from None


def _check_finite(name: str, values: torch.Tensor) -> None:
    finite = torch.isfinite(values)
    if not bool(finite.all()):
        first = (~finite).nonzero()[0].tolist()
        raise ValueError(
            f"{name}: {int((~finite).sum())} of {values.numel()} are NaN or infinite, the first at index "
            f"{first}; the model's weights or outputs are no longer finite (the usual cause is a learning "
            "rate too high)"
        )


def _check_logits(logits: torch.Tensor, temperature: float) -> None:
    if logits.ndim < 1 or not logits.numel():
        raise ValueError(f"logits: expected shape (..., vocabulary), not empty, got {tuple(logits.shape)}")
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature: expected a positive number, got {temperature}")


def _checked_counts(token_counts: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
    """Returns counts in float64, 0 where not valid."""
    if token_counts.ndim != 1:
        raise ValueError(f"token_counts: expected shape (rollouts,), got {tuple(token_counts.shape)}")
    if valid is not None and (valid.shape != token_counts.shape or valid.dtype != torch.bool):
        expected = f"booleans of shape {tuple(token_counts.shape)}"
        raise ValueError(f"valid: expected {expected}, got {valid.dtype} of shape {tuple(valid.shape)}")
    counts = token_counts.double() if valid is None else torch.where(valid, token_counts.double(), 0.0)
    if not bool((counts >= 0).all()) or not bool(torch.isfinite(counts).all()):
        raise ValueError("token_counts: a number of tokens is negative or not finite")
    if not bool((counts > 0).any()):
        raise ValueError("token_counts: no valid rollout has a token in the loss; skip this update")
    return counts
