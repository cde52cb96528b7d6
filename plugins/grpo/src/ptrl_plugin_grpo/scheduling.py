"""The learning rate over a run."""

import math
from typing import Literal

import torch


def learning_rate_factor(
    step: int, *, steps: int, warmup_steps: int, schedule: Literal["constant", "linear", "cosine"]
) -> float:
    """Returns the share of the peak learning rate at a step.

    Args:
        step: Steps done, from 0.
        steps: Steps of the run.
        warmup_steps: Steps over which it rises linearly.
        schedule: How it falls from the warm-up's end to 0 at the run's.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    done = (step - warmup_steps) / max(1, steps - warmup_steps)
    if schedule == "linear":
        return max(0.0, 1.0 - done)
    if schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
    return 1.0


def set_learning_rate(optimizers: list[torch.optim.Optimizer], factor: float) -> None:
    """Sets each parameter group's learning rate to a share of its peak, which it remembers as `peak`."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("peak", group["lr"]) * factor
