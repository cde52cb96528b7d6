"""The embedded policy: a model and its tokenizer, as core's `TokenPolicy`."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from ptrl.core.policy import Sampling, TurnDriver
from ptrl_plugin_grpo.batches import Layout
from ptrl_plugin_grpo.fast_decoding import decoder_for
from ptrl_plugin_grpo.generation import Generator
from ptrl_plugin_grpo.tokenizer import ChatTokenizer


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
        self._context_length = int(model.config.max_position_embeddings)

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
    """Returns the logits that predict a layout's chosen tokens, (tokens, vocabulary)."""
    hidden = model.base_model(
        input_ids=layout.input_ids,
        attention_mask=layout.attention_mask,
        position_ids=layout.position_ids,
        use_cache=False,
    ).last_hidden_state
    head = model.get_output_embeddings()
    logits: torch.Tensor = head(hidden.reshape(-1, hidden.shape[-1])[layout.source])
    return logits
