"""Muon: momentum whose update of every matrix is made orthogonal by Newton-Schulz iterations.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024,
kellerjordan.github.io/posts/muon. It is for the matrices of hidden layers; embeddings, the output head, norms
and biases are AdamW's.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, overload

import torch
from torch import nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration: steepest at 0, at the price of singular values only near 1 (0.7 to 1.2)."""

NORM_EPSILON = 1e-7


def orthogonalize(matrices: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    """Returns matrices with the same singular vectors and singular values near 1.

    The quintic Newton-Schulz iteration `X ← aX + (bXXᵀ + c(XXᵀ)²)X` from `X = matrix / (‖matrix‖ + 1e-7)`, in
    float32; Jordan's and DeepSpeed's run it in bfloat16, which is slow on CPUs and no use to small matrices.

    Args:
        matrices: (..., rows, columns); leading dimensions are a batch.
        iterations: Number of iterations.

    Returns:
        (..., rows, columns), float32 (float64 for float64 matrices). A matrix of zeros stays one.

    Raises:
        ValueError: Fewer than two dimensions, or no element.
    """
    if matrices.ndim < 2 or not matrices.numel():
        raise ValueError(f"matrices: expected a shape (..., rows, columns), got {tuple(matrices.shape)}")
    first, second, third = COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    result: torch.Tensor = matrices.to(torch.promote_types(matrices.dtype, torch.float32))
    result = result.mT if tall else result  # the smaller Gram matrix
    result = result / (torch.linalg.matrix_norm(result, keepdim=True) + NORM_EPSILON)
    for _ in range(iterations):
        gram = result @ result.mT
        result = first * result + (second * gram + third * (gram @ gram)) @ result
    return result.mT if tall else result


class Muon(torch.optim.Optimizer):
    """Muon for matrices.

    With gradient G: `M ← momentum × M + (1 - momentum) × G`; U is `orthogonalize(M)`, or of
    `(1 - momentum) × G + momentum × M` with Nesterov; `W ← W × (1 - lr × weight_decay)`, then
    `W ← W - lr × sqrt(max(1, rows / columns)) × U`. Momentum is kept in the parameter's type, so that a
    loaded state continues bit for bit. Matrices of one shape are orthogonalized together.

    Args:
        parameters: Matrices, or parameter groups of them.
        lr: Learning rate: the spectral norm of an update of a square or wide matrix, about.
        momentum: 0 to below 1.
        weight_decay: Decoupled weight decay, at least 0.
        nesterov: Whether momentum looks ahead.
        iterations: Newton-Schulz iterations, at least 1.

    Raises:
        ValueError: A parameter that is no matrix or is empty, or a setting out of bounds.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        nesterov: bool = True,
        iterations: int = 5,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "iterations": iterations,
        }
        super().__init__(parameters, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of matrices; raises ValueError as the class does."""
        super().add_param_group(param_group)
        try:
            _check_group(self.param_groups[-1])
        except ValueError:
            self.param_groups.pop()
            raise

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Takes one step over all matrices that have a gradient.

        Args:
            closure: Computes the loss and its gradients anew.

        Returns:
            The closure's loss, None without one.

        Raises:
            ValueError: A gradient is NaN or infinite; no parameter or state has changed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        _check_gradients(item.grad for group in self.param_groups for item in group["params"])
        for group in self.param_groups:
            for alike in _by_shape(item for item in group["params"] if item.grad is not None):
                self._update(alike, group)
        return loss

    def _update(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> None:
        """Updates matrices of one shape."""
        directions = torch.stack([self._direction(parameter, group) for parameter in parameters])
        rows, columns = directions.shape[-2:]
        rate = group["lr"] * math.sqrt(max(1.0, rows / columns))
        for parameter, update in zip(parameters, orthogonalize(directions, group["iterations"]), strict=True):
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.add_(update.to(parameter.dtype), alpha=-rate)

    def _direction(self, parameter: nn.Parameter, group: dict[str, Any]) -> torch.Tensor:
        """Advances a parameter's momentum and returns what is to be orthogonalized."""
        gradient = parameter.grad
        assert gradient is not None  # step has chosen those that have one
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        momentum: torch.Tensor = state["momentum_buffer"]
        momentum.lerp_(gradient, 1 - group["momentum"])
        return gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum


class ParameterSplit(NamedTuple):
    """A model's trainable parameters, each in one of two lists, in the model's order."""

    matrices: list[nn.Parameter]
    """Weights of hidden layers, for `Muon`."""

    rest: list[nn.Parameter]
    """Embeddings, output head, norms, biases: for AdamW."""


def split_parameters(model: nn.Module) -> ParameterSplit:
    """Splits a model's trainable parameters into Muon's matrices and AdamW's rest.

    Matrices are all parameters of two dimensions except the weights of `nn.Embedding` and of the output head.
    The head is what `model.get_output_embeddings()` returns (transformers' models have it) or, in a model
    without that method, every `nn.Linear` with as many outputs as some embedding has entries. A tied weight
    is one parameter and belongs to the rest.

    Args:
        model: The model; parameters that require no gradient are left out.

    Raises:
        ValueError: The model has no trainable parameter.
    """
    apart = {id(parameter) for module in _embeddings_and_head(model) for parameter in module.parameters()}
    split = ParameterSplit([], [])
    for parameter in model.parameters():
        if parameter.requires_grad:
            is_matrix = parameter.ndim == 2 and id(parameter) not in apart
            (split.matrices if is_matrix else split.rest).append(parameter)
    if not (split.matrices or split.rest):
        raise ValueError(f"model: {type(model).__name__} has no parameter that requires a gradient")
    return split


def _embeddings_and_head(model: nn.Module) -> list[nn.Module]:
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    head_of: Callable[[], nn.Module | None] | None = getattr(model, "get_output_embeddings", None)
    if head_of is not None:
        head = head_of()
        return [*embeddings, *([] if head is None else [head])]
    entries = {embedding.num_embeddings for embedding in embeddings}
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return [*embeddings, *(module for module in linear if module.out_features in entries)]


def _by_shape(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Returns the parameters that can be stacked, together."""
    alike: dict[tuple[torch.Size, torch.dtype, torch.device], list[nn.Parameter]] = {}
    for parameter in parameters:
        alike.setdefault((parameter.shape, parameter.dtype, parameter.device), []).append(parameter)
    return list(alike.values())


def _check_group(group: dict[str, Any]) -> None:
    for parameter in group["params"]:
        if parameter.ndim != 2 or not parameter.numel():
            raise ValueError(
                f"parameters: Muon takes matrices only, got shape {tuple(parameter.shape)}; "
                "give the others to AdamW (split_parameters tells them apart)"
            )
    for name, least in (("lr", 0.0), ("momentum", 0.0), ("weight_decay", 0.0), ("iterations", 1)):
        if not least <= group[name] < math.inf:
            raise ValueError(f"{name}: expected at least {least}, got {group[name]}")
    if group["momentum"] >= 1:
        raise ValueError(f"momentum: expected below 1, got {group['momentum']}")


def _check_gradients(gradients: Iterable[torch.Tensor | None]) -> None:
    present = [gradient for gradient in gradients if gradient is not None]
    if present and not bool(torch.isfinite(nn.utils.get_total_norm(present))):
        raise ValueError(
            "gradients: their norm is NaN or infinite; nothing was updated. The loss overflowed: lower the "
            "learning rate or clip the gradient's norm"
        )
