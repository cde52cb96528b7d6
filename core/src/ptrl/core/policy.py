"""What a session needs of a policy: a tokenizer, and a way to take turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ptrl.core.records import FinishReason, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen.

    Args:
        temperature: 0 takes the likeliest token.
        top_p: Nucleus sampling's share; 1 samples from all tokens.
        max_new_tokens: Limit on all tokens after the prompt, over all turns.
        max_length: Limit on prompt and response together; None for the model's own.
        seed: Seed of this batch of rollouts.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 512
    max_length: int | None = None
    seed: int = 0


@runtime_checkable
class Tokenizer(Protocol):
    """Turns chat messages to text and text to token ids, and back."""

    @property
    def end_of_turn_ids(self) -> frozenset[int]:
        """Tokens that end a turn of the policy."""
        ...

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = False,
    ) -> str:
        """Returns the chat template's text of the messages."""
        ...

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of rendered text, adding none."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of token ids, special tokens included."""
        ...


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the policy, as sampled.

    Args:
        row: Which prompt of the batch.
        ids: Token ids the policy chose, the end-of-turn token included.
        logprobs: Their log-probabilities in nats.
        finish: `stop` by an end-of-turn token or stop string, `length` by a limit.
    """

    row: int
    ids: list[int]
    logprobs: list[float]
    finish: FinishReason


class TurnDriver(Protocol):
    """What a token policy asks while it generates a batch."""

    def turn_limit(self, row: int) -> int:
        """Returns how many tokens the row may choose in its present turn."""
        ...

    def stop_strings(self, row: int) -> tuple[str, ...]:
        """Returns the strings that end a turn of the row."""
        ...

    def turns_finished(self, turns: Sequence[Turn]) -> Sequence[Sequence[int] | None]:
        """Takes finished turns; returns for each the token ids to force next, or None when the row is over."""
        ...


@runtime_checkable
class TokenPolicy(Protocol):
    """A policy whose tokens are seen: the embedded one."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        ...

    @property
    def version(self) -> int:
        """Number of updates its weights have had."""
        ...

    @property
    def context_length(self) -> int:
        """Most tokens it can attend to."""
        ...

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling, driver: TurnDriver) -> None:
        """Generates until the driver says that every row is over. Equal prompts stand side by side."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A chat endpoint's answer.

    Args:
        text: What the policy wrote.
        finish: `stop` or `length`.
        tokens: How many tokens it chose, as the endpoint counts them; 0 when it does not say.
    """

    text: str
    finish: FinishReason = "stop"
    tokens: int = 0


@runtime_checkable
class ChatPolicy(Protocol):
    """A policy reached through text only: any chat endpoint."""

    @property
    def concurrency(self) -> int:
        """How many replies may be asked for at a time."""
        ...

    async def reply(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        stop: Sequence[str],
        tools: Sequence[Mapping[str, Any]],
        limit: int,
    ) -> Reply:
        """Returns the next assistant message, of at most `limit` tokens.

        Raises:
            OSError: When the endpoint fails: the rollout is then masked.
        """
        ...


Policy = TokenPolicy | ChatPolicy
