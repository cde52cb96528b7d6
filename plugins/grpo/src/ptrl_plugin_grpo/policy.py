"""The embedded policy: a model and its tokenizer, as core's `TokenPolicy`."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from ptrl.core.policy import Sampling, TurnDriver
from ptrl_plugin_grpo.batches import Layout
from ptrl_plugin_grpo.fast_decoding import decoder_for, is_of_family
from ptrl_plugin_grpo.generation import Generator
from ptrl_plugin_grpo.tokenizer import ChatTokenizer

UNBOUNDED = 1 << 30
"""Context length of a model whose config names none, such as one with relative positions."""


class EmbeddedPolicy:
    """A causal language model in this process.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: ChatTokenizer) -> None:
        self.model = model
        self._tokenizer = tokenizer
        self.updates = 0
        self._context_length = int(getattr(model.config, "max_position_embeddings", None) or UNBOUNDED)

    @property
    def tokenizer(self) -> ChatTokenizer:
        """Its tokenizer."""
        return self._tokenizer

    @property
    def version(self) -> int:
        """Number of updates its weights have had."""
        return self.updates

    @property
    def context_length(self) -> int:
        """Most tokens it can attend to."""
        return self._context_length

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling, driver: TurnDriver) -> None:
        """Generates until the driver says that every row is over."""
        self.model.eval()
        Generator(decoder_for(self.model), self._tokenizer, prompts, sampling, driver).run()


def chosen_logits(model: PreTrainedModel, layout: Layout) -> torch.Tensor:
    """Returns the logits that predict a layout's chosen tokens, (tokens, vocabulary).

    In the Llama family logits are the head's output. Other models may scale or cap them (Gemma 2, Cohere,
    Granite), so theirs come from the model's own forward, at all rows' columns where any token is predicted.
    """
    inputs = {
        "input_ids": layout.input_ids,
        "attention_mask": layout.attention_mask,
        "position_ids": layout.position_ids,
        "use_cache": False,
    }
    logits: torch.Tensor
    if is_of_family(model):
        hidden = model.base_model(**inputs).last_hidden_state
        logits = model.get_output_embeddings()(hidden.reshape(-1, hidden.shape[-1])[layout.source])
        return logits
    length = layout.input_ids.shape[1]
    columns, places = (layout.source % length).unique(return_inverse=True)
    logits = model(**inputs, logits_to_keep=columns).logits
    return logits[layout.source // length, places]
