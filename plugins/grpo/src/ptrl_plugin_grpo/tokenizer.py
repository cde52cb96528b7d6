"""A transformers tokenizer as core's `Tokenizer`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from ptrl.core import Message, OptimizerError

PLACEHOLDER = "PLACEHOLDER"
"""Content of a rendered turn, to find what the template writes after it."""


class ChatTokenizer:
    """Renders chat templates to text, and text to ids without adding any.

    Args:
        tokenizer: A tokenizer with a chat template.

    Raises:
        OptimizerError: When it has no token that ends a turn.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.inner = tokenizer
        self._closing: int | None = None
        # The Rust tokenizer itself, without the wrapper's cost of ten times its own; slow tokenizers have none.
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is not None:  # a tokenizer.json may ask for either
            self._backend.no_truncation()
            self._backend.no_padding()
        self._ends = frozenset(self._find_end_of_turn_ids())
        if not self._ends:
            raise OptimizerError("the tokenizer has no end-of-sequence token, so no turn could end")
        first = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        self.pad_id = int(first) if first is not None else 0

    def _find_end_of_turn_ids(self) -> set[int]:
        """The end-of-sequence token, and the first special token with which the template closes a turn."""
        found = {int(self.inner.eos_token_id)} if self.inner.eos_token_id is not None else set()
        turn: list[Message] = [{"role": "user", "content": "x"}, {"role": "assistant", "content": PLACEHOLDER}]
        closing = self.encode(self.render(turn).rpartition(PLACEHOLDER)[2])
        self._closing = next((token for token in closing if token in self._special_ids()), None)
        if self._closing is not None:
            found.add(self._closing)
        return found

    def _special_ids(self) -> set[int]:
        """Special tokens, also those that have no role, as the end of a turn often has none."""
        added = {number for number, token in self.inner.added_tokens_decoder.items() if token.special}
        return added | set(self.inner.all_special_ids)

    @property
    def end_of_turn_id(self) -> int:
        """The token with which the chat template closes a turn."""
        return self._closing if self._closing is not None else min(self._ends)

    @property
    def end_of_turn_ids(self) -> frozenset[int]:
        """Tokens that end a turn of the policy."""
        return self._ends

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = False,
    ) -> str:
        """Returns the chat template's text of the messages."""
        text = self.inner.apply_chat_template(
            cast(list[dict[str, str]], list(messages)),
            tools=[dict(tool) for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
        )
        return str(text)

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of rendered text, adding none."""
        if self._backend is not None:
            return list(self._backend.encode(text, add_special_tokens=False).ids)
        return list(self.inner(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of token ids, special tokens included."""
        if self._backend is not None:
            return str(self._backend.decode(list(ids), skip_special_tokens=False))
        text = self.inner.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text)

    def save(self, folder: Path) -> None:
        """Writes the tokenizer's files."""
        self.inner.save_pretrained(str(folder))
