"""AdamW, alone or with Muon for the hidden matrices."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from ptrl.core import OptimizerError
from ptrl.core.settings import TrainingSection
from ptrl_plugin_grpo.muon import Muon, split_parameters


def make_optimizers(
    model: PreTrainedModel, training: TrainingSection, muon_learning_rate: float | None
) -> list[torch.optim.Optimizer]:
    """Returns what updates a model's weights.

    Args:
        model: The model.
        training: Learning rate, betas and weight decay of AdamW.
        muon_learning_rate: Learning rate of Muon for the hidden matrices; None leaves them to AdamW.
    """
    matrices: list[torch.nn.Parameter] = []
    rest = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if muon_learning_rate is not None:
        matrices, rest = split_parameters(model)
    found: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(rest, lr=training.learning_rate, betas=training.betas, weight_decay=training.weight_decay)
    ]
    if matrices and muon_learning_rate is not None:
        found.append(Muon(matrices, lr=muon_learning_rate))
    return found


def take_step(model: PreTrainedModel, optimizers: Sequence[torch.optim.Optimizer], max_grad_norm: float) -> float:
    """Clips the accumulated gradient, takes one step, and returns the gradient's norm before clipping.

    Raises:
        OptimizerError: When the gradient is NaN or infinite; no weight has changed.
    """
    try:
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm, error_if_nonfinite=True)
    except RuntimeError as error:
        raise OptimizerError(
            "the gradient is NaN or infinite, so no weight was changed; lower training.learning_rate,"
            " or go on from the last checkpoint with --resume"
        ) from error
    for optimizer in optimizers:
        optimizer.step()
    return float(norm)
