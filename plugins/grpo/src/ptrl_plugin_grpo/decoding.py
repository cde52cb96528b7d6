"""Forward passes over a key-value cache, for generation."""

import inspect
from collections.abc import Sequence
from typing import Protocol

import torch
from transformers import DynamicCache, PreTrainedModel

from ptrl.core import OptimizerError


class Decoder(Protocol):
    """What generation needs of a model. Made anew for each batch."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        ...

    def prefill(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> torch.Tensor:
        """Takes the prompts in and returns the logits of each row's next token, (rows, vocabulary)."""
        ...

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Takes one token per row, (rows,), and returns the next logits, (rows, vocabulary)."""
        ...

    def keep(self, places: torch.Tensor) -> None:
        """Drops all rows but those at `places`, (kept,)."""
        ...


def unique_prompts(prompts: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[int]]:
    """Returns the different prompts in order, and for each row which of them it has."""
    known: dict[tuple[int, ...], int] = {}
    places = [known.setdefault(tuple(prompt), len(known)) for prompt in prompts]
    return [list(prompt) for prompt in known], places


def pad_left(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ids and mask, both (prompts, longest), padded on the left."""
    longest = max(len(prompt) for prompt in prompts)
    gaps = [longest - len(prompt) for prompt in prompts]
    ids = [[0] * gap + list(prompt) for gap, prompt in zip(gaps, prompts, strict=True)]
    mask = [[0] * gap + [1] * len(prompt) for gap, prompt in zip(gaps, prompts, strict=True)]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


class TransformersDecoder:
    """Any causal language model of transformers, through its own forward and cache.

    Args:
        model: The model.

    Raises:
        OptimizerError: When it keeps more than keys and values, as recurrent models do.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._cache = DynamicCache(config=model.config)
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = next((name for name in ("cache", "past_key_values") if name in parameters), "")
        if not self._cache_argument or any(hasattr(layer, "update_recurrent_state") for layer in self._cache.layers):
            raise OptimizerError(
                f"model.path: {type(model).__name__} keeps a recurrent state, which cannot be padded or shared by a"
                " group; choose a model with attention alone"
            )
        self._mask = torch.empty(0)
        self._length = torch.empty(0)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self._model.device

    def prefill(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> torch.Tensor:
        """Takes each different prompt in once, and gives its rows copies of the cache."""
        different, places = unique_prompts(prompts)
        ids, mask = pad_left(different, self.device)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        logits = self._forward(ids, mask, positions)
        index = torch.tensor(places, device=self.device)
        self._cache.batch_select_indices(index)
        self._mask = mask[index]
        self._length = mask.sum(-1)[index]
        return logits[index]

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Takes one token per row."""
        self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        logits = self._forward(tokens[:, None], self._mask, self._length[:, None])
        self._length = self._length + 1
        return logits

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: self._cache},
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def keep(self, places: torch.Tensor) -> None:
        """Drops rows from the cache."""
        self._cache.batch_select_indices(places)
        self._mask = self._mask[places]
        self._length = self._length[places]
