"""One step's update: advantages, then clipped policy-gradient passes over micro-batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import torch
from transformers import PreTrainedModel

from ptrl.core.settings import TrainingSection
from ptrl_plugin_grpo.advantages import token_advantages
from ptrl_plugin_grpo.batches import (
    Layout,
    TrainingRow,
    chosen_counts,
    packed_layouts,
    padded_layouts,
)
from ptrl_plugin_grpo.fast_decoding import is_supported
from ptrl_plugin_grpo.losses import (
    RatioStatistics,
    aggregate,
    clipped_policy_loss,
    entropy_from_logits,
    kl_divergence,
    log_probs_from_logits,
    ratio_statistics,
    rollout_weights,
)
from ptrl_plugin_grpo.optimizers import take_step
from ptrl_plugin_grpo.policy import chosen_logits


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows to learn from, with their rewards.

    Args:
        rows: The rollouts, each with at least one token that the policy chose.
        rewards: One training reward per row.
    """

    rows: Sequence[TrainingRow]
    rewards: Sequence[float]


@dataclass(slots=True)
class _Totals:
    """What a step's passes add up to, from which its metrics are made."""

    ratios: list[RatioStatistics] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    entropy: float = 0.0
    policy_kl: float = 0.0
    kl: float = 0.0
    tokens: int = 0


def _can_pack(model: PreTrainedModel) -> bool:
    """Tells whether the model takes a block mask: eager attention would add its booleans to the scores."""
    return is_supported(model) and model.config._attn_implementation == "sdpa"


class Update:
    """Updates a policy from scored rollouts, by the config's training keys.

    Args:
        model: The policy.
        reference: The initial policy, frozen; None where there is no KL penalty.
        training: The config's training keys.
        packed: Compute each group's prompt once, where the model allows it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        reference: PreTrainedModel | None,
        training: TrainingSection,
        *,
        packed: bool = True,
    ) -> None:
        self.model = model
        self.reference = reference
        self.training = training
        self._make_layouts = packed_layouts if packed and _can_pack(model) else padded_layouts

    def step(self, batch: Batch, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, float]:
        """Takes `training.epochs` × `training.updates` updates from one step's rollouts.

        Returns:
            `loss` per update; `entropy`, `policy_kl` (sampling policy to policy) and, where there is a
            reference, `kl` (policy to initial policy), all in nats per token; `clip_fraction`, `grad_norm`,
            `learning_rate`.
        """
        self.model.eval()  # the policy that is updated is the one that sampled, which had no dropout
        advantages = self._advantages(batch)
        totals = _Totals()
        for epoch in range(self.training.epochs):
            for part, tokens in self._parts(batch.rows, epoch):
                self._update(part, advantages[tokens], optimizers, totals)
        ratios = RatioStatistics.total(totals.ratios)
        metrics = {
            "loss": fmean(totals.losses),
            "entropy": totals.entropy / totals.tokens,
            "policy_kl": totals.policy_kl / totals.tokens,
            "clip_fraction": ratios.clip_fraction,
            "grad_norm": fmean(totals.norms),
            "learning_rate": optimizers[0].param_groups[0]["lr"],
        }
        return metrics if self.reference is None else {**metrics, "kl": totals.kl / totals.tokens}

    def _layouts(self, rows: Sequence[TrainingRow]) -> Iterator[Layout]:
        return self._make_layouts(rows, self.training.micro_batch_tokens, self.model.device)

    def _advantages(self, batch: Batch) -> torch.Tensor:
        """Returns the advantage of every chosen token, row after row, (tokens,)."""
        device = self.model.device
        counts = chosen_counts(batch.rows)
        return token_advantages(
            self.training.estimator,
            torch.tensor(batch.rewards, device=device),
            torch.tensor([row.group for row in batch.rows], device=device),
            torch.ones(len(batch.rows), dtype=torch.bool, device=device),
            torch.arange(len(batch.rows)).repeat_interleave(counts).to(device),
            self._penalties(batch.rows, int(counts.sum())),
        )

    @torch.no_grad()
    def _penalties(self, rows: Sequence[TrainingRow], tokens: int) -> torch.Tensor | None:
        """Returns each chosen token's KL penalty where it is taken from the reward, (tokens,)."""
        penalty = self.training.kl
        if self.reference is None or penalty.apply != "reward":
            return None
        found = torch.zeros(tokens, device=self.model.device)
        for layout in self._layouts(rows):
            reference = self._log_probs(self.reference, layout)[0]
            found[layout.token] = penalty.coefficient * kl_divergence(layout.logprobs, reference, penalty.estimator)
        return found

    def _parts(self, rows: Sequence[TrainingRow], epoch: int) -> Iterator[tuple[list[TrainingRow], torch.Tensor]]:
        """Yields the rows of each update, whole groups dealt out in turn, and their chosen tokens' places."""
        places = torch.arange(int(chosen_counts(rows).sum())).split(chosen_counts(rows).tolist())
        turn = {group: number for number, group in enumerate(dict.fromkeys(row.group for row in rows))}
        for update in range(self.training.updates):
            part = [
                number for number, row in enumerate(rows) if (turn[row.group] + epoch) % self.training.updates == update
            ]
            if part:
                yield [rows[number] for number in part], torch.cat([places[number] for number in part])

    def _update(
        self,
        rows: Sequence[TrainingRow],
        advantages: torch.Tensor,
        optimizers: Sequence[torch.optim.Optimizer],
        totals: _Totals,
    ) -> None:
        """Accumulates the gradient of one update over micro-batches, then takes it."""
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        weights = self._weights(rows)
        share = 0.0
        for layout in self._layouts(rows):
            loss = self._loss(layout, advantages[layout.token], weights[layout.row], totals)
            loss.backward()
            share += float(loss.detach())
        totals.losses.append(share)
        totals.norms.append(take_step(self.model, optimizers, self.training.max_grad_norm))

    def _weights(self, rows: Sequence[TrainingRow]) -> torch.Tensor:
        """Returns each row's weight per token in the loss of the update, (rows,)."""
        aggregation = self.training.aggregation
        length = self.training.max_new_tokens if aggregation == "constant" else None
        return rollout_weights(chosen_counts(rows), aggregation, length=length).to(self.model.device)

    def _loss(self, layout: Layout, advantages: torch.Tensor, weights: torch.Tensor, totals: _Totals) -> torch.Tensor:
        """Returns a micro-batch's share of the update's loss."""
        low, high = self.training.clip
        log_probs, logits = self._log_probs(self.model, layout)
        old = layout.logprobs if self._is_off_policy else log_probs.detach()
        terms = clipped_policy_loss(log_probs, old, advantages, clip_low=low, clip_high=high)
        entropy = self._entropy(logits)
        if self.training.entropy:
            terms = terms - self.training.entropy * entropy
        if self.reference is not None:
            terms = terms + self._kl_terms(layout, log_probs, totals)
        totals.tokens += len(layout.row)
        totals.policy_kl += float((layout.logprobs - log_probs.detach()).sum())
        totals.entropy += float(entropy.detach().sum())
        totals.ratios.append(ratio_statistics(log_probs, old, advantages, clip_low=low, clip_high=high))
        return aggregate(terms, weights)

    def _entropy(self, logits: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(self.training.entropy > 0):
            return entropy_from_logits(logits, self.training.temperature)

    def _kl_terms(self, layout: Layout, log_probs: torch.Tensor, totals: _Totals) -> torch.Tensor:
        """Returns each token's KL penalty in the loss; 0 where it was taken from the reward."""
        assert self.reference is not None
        with torch.no_grad():
            reference = self._log_probs(self.reference, layout)[0]
        kl = kl_divergence(log_probs, reference, self.training.kl.estimator)
        totals.kl += float(kl.detach().sum())
        return self.training.kl.coefficient * kl if self.training.kl.apply == "loss" else torch.zeros_like(kl)

    @property
    def _is_off_policy(self) -> bool:
        """Whether the weights change between sampling and some of a step's updates."""
        return self.training.epochs * self.training.updates > 1

    def _log_probs(self, model: PreTrainedModel, layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the chosen tokens' log-probabilities under the sampling temperature, and their logits."""
        logits = chosen_logits(model, layout)
        return log_probs_from_logits(logits, layout.target, self.training.temperature), logits
