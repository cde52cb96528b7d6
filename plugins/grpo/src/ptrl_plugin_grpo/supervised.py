"""`grpo.supervised`: the warm-up before RL, on worked examples."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from pydantic import Field

from ptrl.core import Optimizer, Problem, TrainingSession
from ptrl.core.episode import Transcript
from ptrl_plugin_grpo.batches import TrainingRow, padded_layouts
from ptrl_plugin_grpo.checkpoints import load_training_state, save_training_state
from ptrl_plugin_grpo.demonstrations import demonstration_row
from ptrl_plugin_grpo.local import LocalOptimizer, load_policy, scheduled_factor, set_threads
from ptrl_plugin_grpo.losses import log_probs_from_logits
from ptrl_plugin_grpo.optimizers import make_optimizers, take_step
from ptrl_plugin_grpo.policy import EmbeddedPolicy, chosen_logits
from ptrl_plugin_grpo.scheduling import set_learning_rate

UNUSED = ("estimator", "clip", "kl", "entropy", "aggregation", "epochs", "updates", "composition", "reward_clip")


class SupervisedOptimizer(Optimizer):
    """Trains on `Task.demonstration`: cross-entropy of the assistant's messages, everything else is context.

    `training.prompts` examples a step; the loss is their mean over tokens.
    """

    class Config(Optimizer.Config):
        """Keys of `[optimizer.grpo]`."""

        muon_learning_rate: float | None = Field(default=None, gt=0)
        """Peak learning rate of Muon for the hidden matrices; None trains them by AdamW like the rest."""

    config: Config

    capabilities: ClassVar[frozenset[str]] = frozenset({"variable_group", "masking"})

    def check(self, session: TrainingSession) -> Sequence[Problem]:
        """Refuses the keys of RL, which would change nothing here."""
        problems = list(LocalOptimizer().check(session))
        training = session.settings.training
        for key in UNUSED:  # a run folder's config, from which a run is resumed, gives every key
            if getattr(training, key) != type(training).model_fields[key].get_default(call_default_factory=True):
                message = "a supervised stage has no rewards to estimate, clip, weigh or penalize"
                problems.append(Problem(key=f"training.{key}", message=message, fix="remove it"))
        if session.settings.filters:
            problems.append(Problem(key="filters", message="a supervised stage makes no groups to filter"))
        return problems

    def policy(self, session: TrainingSession, path: str) -> EmbeddedPolicy:
        """Loads a policy to evaluate it."""
        return load_policy(session, path)

    def run(self, session: TrainingSession) -> None:
        """Trains until the session is finished."""
        training = session.settings.training
        set_threads(session)
        policy = load_policy(session)
        transcript = Transcript(policy.tokenizer)
        optimizers = make_optimizers(policy.model, training, self.config.muon_learning_rate)

        def save(folder: Path) -> None:
            save_training_state(folder, policy, optimizers)

        def load(folder: Path) -> None:
            load_training_state(folder, policy, optimizers)

        session.begin(policy, stage="supervised", load=load)
        while not session.finished:
            rows = _draw(session, policy, transcript)
            set_learning_rate(optimizers, scheduled_factor(session))
            numbers = train_step(policy, rows, optimizers, training.micro_batch_tokens, training.max_grad_norm)
            policy.updates += 1
            session.finish_step(policy, numbers, save)
        session.end(policy, save)


def _draw(session: TrainingSession, policy: EmbeddedPolicy, transcript: Transcript) -> list[TrainingRow]:
    tickets = session.draw()
    session.release(tickets)
    return [
        demonstration_row(session.task(ticket), transcript, policy.tokenizer, number)
        for number, ticket in enumerate(tickets)
    ]


def train_step(
    policy: EmbeddedPolicy,
    rows: Sequence[TrainingRow],
    optimizers: list[torch.optim.Optimizer],
    token_budget: int,
    max_grad_norm: float,
) -> dict[str, float]:
    """Takes one update and returns `loss` in nats per token, `grad_norm` and `learning_rate`."""
    policy.model.train()
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    tokens = sum(sum(row.mask) for row in rows)
    total = 0.0
    for layout in padded_layouts(rows, token_budget, policy.model.device):
        logprobs = log_probs_from_logits(chosen_logits(policy.model, layout), layout.target)
        loss = -logprobs.sum() / tokens
        loss.backward()
        total += float(loss.detach())
    norm = take_step(policy.model, optimizers, max_grad_norm)
    rate = optimizers[0].param_groups[0]["lr"]
    return {"loss": total, "grad_norm": norm, "learning_rate": float(rate)}
