"""The optimizer's part of a checkpoint: the policy, and the state of what updates it."""

from pathlib import Path

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

    Raises:
        OptimizerError: When the checkpoint is another model's.
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
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
