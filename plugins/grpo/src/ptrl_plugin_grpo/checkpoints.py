"""The optimizer's part of a checkpoint: the policy, and the state of what updates it."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from ptrl.core import OptimizerError
from ptrl_plugin_grpo.models import save_model
from ptrl_plugin_grpo.policy import EmbeddedPolicy

STATE = "optimizer.pt"


def save_training_state(folder: Path, policy: EmbeddedPolicy, optimizers: list[torch.optim.Optimizer]) -> None:
    """Writes `model/` as `from_pretrained` loads it, and the optimizers' states."""
    save_model(policy.model, policy.tokenizer, folder / "model")
    state = {"updates": policy.updates, "optimizers": [optimizer.state_dict() for optimizer in optimizers]}
    torch.save(state, folder / STATE)


def load_training_state(folder: Path, policy: EmbeddedPolicy, optimizers: list[torch.optim.Optimizer]) -> None:
    """Takes up what `save_training_state` wrote, in place.

    Learning rates, betas and the like stay those of the config, which a resume may change.

    Raises:
        OptimizerError: When the checkpoint is another model's, or of other optimizers.
    """
    weights = {}
    for file in sorted((folder / "model").glob("*.safetensors")):
        weights.update(load_file(file, device=str(policy.model.device)))
    try:
        missing, unexpected = policy.model.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        raise OptimizerError(f"{folder} holds another model than the config names: {error}") from error
    tied = set(policy.model.all_tied_weights_keys or ())
    if unexpected or set(missing) - tied:
        raise OptimizerError(f"{folder} holds another model than the config names; restore model.path")
    policy.model.tie_weights()
    state = torch.load(folder / STATE, weights_only=True, map_location=policy.model.device)
    policy.updates = state["updates"]
    try:
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            _load_optimizer(optimizer, saved)
    except ValueError as error:
        message = f"{folder} was saved with other optimizers; restore optimizer.grpo.muon_learning_rate ({error})"
        raise OptimizerError(message) from error


def _load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Takes up the moments, and keeps the settings that the optimizer was made with."""
    settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict(saved)
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.pop("peak", None)  # remembered anew from the config's rate
        group.update(own)
