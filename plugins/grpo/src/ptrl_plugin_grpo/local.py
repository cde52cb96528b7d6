"""`grpo.local`: group-advantage policy gradients in this process, on torch and transformers."""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import ClassVar

import torch
from pydantic import Field
from transformers import PreTrainedModel

from ptrl.core import Group, Optimizer, OptimizerError, Problem, TrainingSession
from ptrl_plugin_grpo.batches import TrainingRow
from ptrl_plugin_grpo.checkpoints import load_training_state, save_training_state
from ptrl_plugin_grpo.models import default_device, load_model, load_tokenizer
from ptrl_plugin_grpo.optimizers import make_optimizers
from ptrl_plugin_grpo.policy import EmbeddedPolicy
from ptrl_plugin_grpo.scheduling import learning_rate_factor, set_learning_rate
from ptrl_plugin_grpo.update import Batch, Update


class LocalOptimizer(Optimizer):
    """Trains a causal language model in this process.

    Rollouts are sampled synchronously with the weights that they update. The same config, seed and machine
    give the same run on the CPU, also across a resume.
    """

    capabilities: ClassVar[frozenset[str]] = frozenset({"variable_group", "drop", "policy_version", "masking"})

    class Config(Optimizer.Config):
        """Keys of `[optimizer.grpo]`."""

        muon_learning_rate: float | None = Field(default=None, gt=0)
        """Peak learning rate of Muon for the hidden matrices; None trains them by AdamW like the rest."""

        packed: bool = True
        """Compute each group's prompt once, where the model allows it."""

    config: Config

    def check(self, session: TrainingSession) -> Sequence[Problem]:
        """Returns what it cannot honour."""
        if session.settings.model is None:
            fix = "name a folder, a hub id or a package: model"
            return [Problem(key="model.path", message="missing", fix=fix)]
        return ()

    def policy(self, session: TrainingSession, path: str) -> EmbeddedPolicy:
        """Loads a policy to evaluate it."""
        return load_policy(session, path)

    def run(self, session: TrainingSession) -> None:
        """Trains until the session is finished."""
        set_threads(session)
        policy = load_policy(session)
        reference = _reference(session, policy.model)
        optimizers = make_optimizers(policy.model, session.settings.training, self.config.muon_learning_rate)
        update = Update(policy.model, reference, session.settings.training, packed=self.config.packed)

        def save(folder: Path) -> None:
            save_training_state(folder, policy, optimizers)

        session.begin(policy, load=lambda folder: load_training_state(folder, policy, optimizers))
        while not session.finished:
            groups = session.collect(policy, session.draw())
            selection = session.select(groups)
            set_learning_rate(optimizers, scheduled_factor(session))
            numbers = _train(update, selection.kept, optimizers)
            numbers["kept_groups"] = float(len(selection.kept))
            policy.updates += 1
            session.finish_step(policy, numbers, save)
        session.end(policy, save)


def load_policy(session: TrainingSession, path: str | None = None) -> EmbeddedPolicy:
    """Loads the config's model, or the one at `path`.

    Raises:
        OptimizerError: When there is none, or it cannot be loaded.
    """
    section = session.settings.model
    if section is None:
        raise OptimizerError("the config has no [model] section; name a model in model.path")
    if path is not None:
        section = section.model_copy(update={"path": path, "initialize": "pretrained", "revision": None})
    tokenizer = load_tokenizer(section)
    model = load_model(section, session.seed("model") % 2**63, default_device())
    return EmbeddedPolicy(model, tokenizer)


def set_threads(session: TrainingSession) -> None:
    """Sets the CPU threads of the model's arithmetic, where the config does."""
    threads = session.settings.training.threads
    if threads:
        torch.set_num_threads(threads)


def _reference(session: TrainingSession, model: PreTrainedModel) -> PreTrainedModel | None:
    """Returns a frozen copy of the initial policy, where the KL penalty needs one."""
    if not session.settings.training.kl.coefficient:
        return None
    reference: PreTrainedModel = deepcopy(model).eval()
    return reference.requires_grad_(False)


def scheduled_factor(session: TrainingSession) -> float:
    """Returns the share of the peak learning rate at the session's step."""
    training = session.settings.training
    return learning_rate_factor(
        session.step, steps=session.steps, warmup_steps=training.warmup_steps, schedule=training.schedule
    )


def _train(update: Update, groups: Sequence[Group], optimizers: list[torch.optim.Optimizer]) -> dict[str, float]:
    batch = batch_of(groups)
    return update.step(batch, optimizers) if batch.rows else {}


def batch_of(groups: Sequence[Group]) -> Batch:
    """Returns the members of groups that can be learnt from, as rows with their rewards.

    A rollout without a verdict, or in which the policy chose no token, is left out: it changes no sibling.
    """
    rows: list[TrainingRow] = []
    rewards: list[float] = []
    for number, group in enumerate(groups):
        for member in group.members:
            rollout = member.rollout
            if member.valid and any(rollout.loss_mask):
                rows.append(
                    TrainingRow(
                        prompt=rollout.prompt_ids,
                        tokens=rollout.token_ids,
                        mask=rollout.loss_mask,
                        logprobs=rollout.logprobs,
                        group=number,
                    )
                )
                rewards.append(member.training_reward)
    return Batch(rows, rewards)
