"""AdamW, alone or with Muon for the hidden matrices."""

import torch
from transformers import PreTrainedModel

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
        torch.optim.AdamW(
            rest, lr=training.learning_rate, betas=training.betas, weight_decay=training.weight_decay
        )
    ]
    if matrices and muon_learning_rate is not None:
        found.append(Muon(matrices, lr=muon_learning_rate))
    return found
