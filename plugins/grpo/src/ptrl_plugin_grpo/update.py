"""One step's update: advantages, then clipped policy-gradient passes over micro-batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from ptrl.core.settings import TrainingSection
from transformers import PreTrainedModel

from ptrl_plugin_grpo.advantages import ESTIMATORS
from ptrl_plugin_grpo.batches import Layout, TrainingRow, packed_layouts, padded_layouts
from ptrl_plugin_grpo.fast_decoding import is_supported
from ptrl_plugin_grpo.losses import (
    entropy_from_logits,
    kl_estimate,
    policy_loss,
    token_logprobs,
    token_weights,
)
from ptrl_plugin_grpo.policy import chosen_logits


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows to learn from, with their rewards.

    Args:
        rows: The rollouts.
        rewards: One training reward per row.
    """

    rows: Sequence[TrainingRow]
    rewards: Sequence[float]


@dataclass(slots=True)
class _Totals:
    """Sums over a step's passes, from which its metrics are made."""

    tokens: float = 0.0
    loss: float = 0.0
    entropy: float = 0.0
    policy_kl: float = 0.0
    kl: float = 0.0
    clipped: float = 0.0
    norms: list[float] = field(default_factory=list)


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
        self._layouts = packed_layouts if packed and is_supported(model) else padded_layouts

    def step(self, batch: Batch, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, float]:
        """Takes `training.epochs` × `training.updates` updates from one step's rollouts.

        Returns:
            `loss`, `entropy` and `policy_kl` (of the sampling policy) in nats per token, `kl` (of the initial
            policy) where there is a reference, `clip_fraction`, `grad_norm`, `learning_rate`.
        """
        self.model.train()
        advantages = self._advantages(batch)
        totals = _Totals()
        for epoch in range(self.training.epochs):
            for part in self._parts(batch.rows, epoch):
                rows = [batch.rows[number] for number in part]
                self._update(rows, advantages[part], optimizers, totals)
        tokens = max(1.0, totals.tokens)
        metrics = {
            "loss": totals.loss / max(1, len(totals.norms)),
            "entropy": totals.entropy / tokens,
            "policy_kl": totals.policy_kl / tokens,
            "clip_fraction": totals.clipped / tokens,
            "grad_norm": sum(totals.norms) / max(1, len(totals.norms)),
            "learning_rate": optimizers[0].param_groups[0]["lr"],
        }
        return metrics if self.reference is None else {**metrics, "kl": totals.kl / tokens}

    def _advantages(self, batch: Batch) -> torch.Tensor:
        device = self.model.device
        rewards = torch.tensor(batch.rewards, dtype=torch.float32, device=device)
        groups = torch.tensor([row.group for row in batch.rows], device=device)
        if self.training.kl.apply == "reward" and self.reference is not None:
            rewards = rewards - self.training.kl.coefficient * self._divergence(batch.rows)
        valid = torch.ones(len(batch.rows), dtype=torch.bool, device=device)
        return ESTIMATORS[self.training.estimator](rewards, groups, valid)

    @torch.no_grad()
    def _divergence(self, rows: Sequence[TrainingRow]) -> torch.Tensor:
        """Returns the estimated KL from the initial policy, summed over each row's chosen tokens, (rows,)."""
        assert self.reference is not None
        sums = torch.zeros(len(rows), device=self.model.device)
        for layout in self._layouts(rows, self.training.micro_batch_tokens, self.model.device):
            reference = self._logprobs(self.reference, layout)[0]
            sums.index_add_(0, layout.row, kl_estimate(self.training.kl.estimator, layout.logprobs, reference))
        return sums

    def _parts(self, rows: Sequence[TrainingRow], epoch: int) -> Iterator[torch.Tensor]:
        """Yields the rows of each update: whole groups, dealt out in turn."""
        groups = torch.tensor([row.group for row in rows])
        number = torch.unique(groups, return_inverse=True)[1]
        for update in range(self.training.updates):
            part = ((number + epoch) % self.training.updates == update).nonzero().flatten()
            if len(part):
                yield part

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
        counts = torch.tensor([sum(row.mask) for row in rows], dtype=torch.float32, device=self.model.device)
        for layout in self._layouts(rows, self.training.micro_batch_tokens, self.model.device):
            loss = self._loss(layout, advantages, counts, totals)
            loss.backward()  # type: ignore[no-untyped-call]
            totals.loss += float(loss.detach())
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.training.max_grad_norm)
        totals.norms.append(float(norm))
        for optimizer in optimizers:
            optimizer.step()

    def _loss(
        self, layout: Layout, advantages: torch.Tensor, counts: torch.Tensor, totals: _Totals
    ) -> torch.Tensor:
        """Returns a micro-batch's share of the update's loss."""
        logprobs, logits = self._logprobs(self.model, layout)
        old = layout.logprobs if self._off_policy else logprobs.detach()
        weights = token_weights(counts, layout.row, self.training.aggregation)
        terms = policy_loss(logprobs, old, advantages[layout.row], self.training.clip)
        loss = (terms.loss * weights).sum()
        entropy = entropy_from_logits(logits if self.training.entropy else logits.detach())
        if self.training.entropy:
            loss = loss - self.training.entropy * (entropy * weights).sum()
        if self.reference is not None:
            with torch.no_grad():
                reference = self._logprobs(self.reference, layout)[0]
            kl = kl_estimate(self.training.kl.estimator, logprobs, reference)
            totals.kl += float(kl.detach().sum())
            if self.training.kl.apply == "loss":
                loss = loss + self.training.kl.coefficient * (kl * weights).sum()
        totals.tokens += len(layout.row)
        totals.entropy += float(entropy.detach().sum())
        totals.policy_kl += float((layout.logprobs - logprobs.detach()).sum())
        totals.clipped += float(terms.clipped.sum())
        return loss

    @property
    def _off_policy(self) -> bool:
        """Whether the weights change between sampling and some of a step's updates."""
        return self.training.epochs * self.training.updates > 1

    def _logprobs(self, model: PreTrainedModel, layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the chosen tokens' log-probabilities, (tokens,), and the tempered logits."""
        logits = chosen_logits(model, layout).float() / self.training.temperature
        return token_logprobs(logits, layout.target), logits
