"""One IO-free episode: it makes token ids, loss mask and limits; drivers do the waiting.

A driver takes `prompt_ids()`, samples a turn, gives it to `feed`, asks the environment for its step with
the message that comes back, and gives that to `advance`, which returns the ids to force next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from ptrl.core.contracts.environment import State, Step
from ptrl.core.errors import EpisodeError
from ptrl.core.policy import Sampling, Tokenizer
from ptrl.core.records import FinishReason, Message, Rollout, RolloutStatus, Task

PLACEHOLDER = "x"


class Transcript:
    """Renders prompts, and what follows a turn as the template's delta, so that sampled ids stay as they are.

    The delta is taken from a rendering with a placeholder in the policy's place: it never depends on what
    the policy wrote. One instance serves all episodes of a policy.

    Args:
        tokenizer: The policy's tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._delta = lru_cache(maxsize=4096)(self._render_delta)
        self._stable: bool | None = None
        self._last: tuple[Sequence[Message] | None, Sequence[Mapping[str, Any]], list[int]] = (None, (), [])

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Returns the ids of a prompt, up to where the policy begins.

        Raises:
            EpisodeError: When it has no token.
        """
        last_messages, last_tools, ids = self._last
        if messages is not last_messages or tools != last_tools:  # a group's rollouts follow one another
            text = self.tokenizer.render(messages, tools=tools, add_generation_prompt=True)
            ids = self.tokenizer.encode(text)
            if not ids:
                raise EpisodeError("the prompt has no token; give the task a message")
            self._last = (messages, tools, ids)
        return ids

    def delta_ids(self, messages: Sequence[Message], closed: bool) -> list[int]:
        """Returns the ids between a turn of the policy and its next one.

        Args:
            messages: What the environment says.
            closed: Whether the policy chose its end-of-turn token itself.

        Raises:
            EpisodeError: When the chat template rewrites earlier turns.
        """
        key = tuple((message["role"], message["content"], message.get("name", "")) for message in messages)
        return list(self._delta(key, closed))

    def _render_delta(self, key: tuple[tuple[str, str, str], ...], closed: bool) -> tuple[int, ...]:
        if self._stable is None:
            self._stable = self._is_prefix_stable()
        if not self._stable:
            raise EpisodeError(
                "the chat template rewrites earlier turns when a turn follows, so the policy would be trained"
                " on other tokens than it saw; set model.chat_template to one that keeps them"
            )
        messages = [
            cast(Message, {"role": role, "content": content} | ({"name": name} if name else {}))
            for role, content, name in key
        ]
        base = _conversation(PLACEHOLDER)
        before = self.tokenizer.render(base)
        after = self.tokenizer.render([*base, *messages], add_generation_prompt=True)
        opening = self.tokenizer.render(base[:1], add_generation_prompt=True)
        closing = before[len(opening) + len(PLACEHOLDER) :]
        if closed:
            closing = self._without_end_of_turn(closing)
        return tuple(self.tokenizer.encode(closing + after[len(before) :]))

    def _without_end_of_turn(self, closing: str) -> str:
        for token in self.tokenizer.end_of_turn_ids:
            text = self.tokenizer.decode([token])
            if text and closing.startswith(text):
                return closing[len(text) :]
        return closing

    def _is_prefix_stable(self) -> bool:
        """Tells whether a turn, thinking included, is rendered the same when others follow it."""
        for content in (PLACEHOLDER, f"<think>\n{PLACEHOLDER}\n</think>\n\n{PLACEHOLDER}"):
            base = _conversation(content)
            opening = self.tokenizer.render(base[:1], add_generation_prompt=True)
            before = self.tokenizer.render(base)
            later: Message = {"role": "user", "content": PLACEHOLDER}
            after = self.tokenizer.render([*base, later], add_generation_prompt=True)
            if not (before.startswith(opening + content) and after.startswith(before)):
                return False
        return True


def _conversation(content: str) -> list[Message]:
    return [{"role": "user", "content": PLACEHOLDER}, {"role": "assistant", "content": content}]


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """What `feed` says of a turn: the message for the environment, or None when a limit ended the episode."""

    message: Message | None


class Episode:
    """One attempt at a task, grown token by token and frozen to a Rollout when it is over.

    Args:
        task: The task.
        state: The environment's state, with stop strings and limits.
        transcript: Renders for the policy's tokenizer; None for a policy reached through text.
        sampling: Limits.
        context_length: Most tokens the policy can attend to.
        index: Position in the group.
        ticket: Id of the ticket.
        policy_version: Version of the weights.
    """

    def __init__(
        self,
        *,
        task: Task,
        state: State,
        transcript: Transcript | None,
        sampling: Sampling,
        context_length: int | None = None,
        index: int = 0,
        ticket: str = "",
        policy_version: int = 0,
    ) -> None:
        self.task = task
        self.state = state
        self._transcript = transcript
        self._identity = (index, ticket, policy_version)
        self._prompt: list[int] | None = None
        self._sampling = sampling
        self._context_length = context_length
        self._ids: list[int] = []
        self._mask: list[int] = []
        self._logprobs: list[float] = []
        self._messages: list[Message] = []
        self._open = False
        self._closed_by_policy = False
        self._text = ""
        self._turns = 0
        self._step_rewards: list[float] = []
        self._info: dict[str, Any] = {}
        self._finish: FinishReason = "stop"
        self._status: RolloutStatus = "ok"
        self._tokens_chosen = 0
        self.timings: dict[str, float] = {}
        self.done = False

    @property
    def conversation(self) -> list[Message]:
        """The prompt and all that followed."""
        return [*self.task.messages, *self._messages]

    def prompt_ids(self) -> list[int]:
        """Returns the prompt's token ids."""
        if self._prompt is None:
            assert self._transcript is not None, "a policy reached through text has no token ids"
            self._prompt = self._transcript.prompt_ids(self.task.messages, self.state.tools)
            if self.turn_limit() <= 0:
                self.fail(
                    f"the prompt has {len(self._prompt)} tokens, which leaves none of the context of"
                    f" {self._room_in_context() + len(self._prompt)}"
                )
        return self._prompt

    def _room_in_context(self) -> int:
        limits = [limit for limit in (self._sampling.max_length, self._context_length) if limit is not None]
        used = len(self._prompt or ()) + len(self._ids)
        return (min(limits) - used) if limits else self._sampling.max_new_tokens

    def turn_limit(self) -> int:
        """Returns how many tokens the policy may choose now."""
        used = len(self._ids) if self._transcript is not None else self._tokens_chosen
        limits = [self._sampling.max_new_tokens - used, self._room_in_context()]
        if self.state.tokens_per_turn is not None:
            limits.append(self.state.tokens_per_turn)
        return max(0, min(limits))

    def _at_total_limit(self) -> bool:
        used = len(self._ids) if self._transcript is not None else self._tokens_chosen
        return used >= self._sampling.max_new_tokens or self._room_in_context() <= 0

    def feed(self, ids: Sequence[int], logprobs: Sequence[float], finish: FinishReason) -> TurnEnd:
        """Takes one turn of the policy.

        Args:
            ids: Token ids as sampled, the end-of-turn token included.
            logprobs: Their log-probabilities.
            finish: Why the turn ended.

        Returns:
            The message for the environment, or None when the episode is over.
        """
        assert self._transcript is not None
        self._ids.extend(ids)
        self._mask.extend([1] * len(ids))
        self._logprobs.extend(logprobs)
        ends = self._transcript.tokenizer.end_of_turn_ids
        self._closed_by_policy = bool(ids) and ids[-1] in ends
        text = self._transcript.tokenizer.decode(ids[:-1] if self._closed_by_policy else ids)
        return self._take_turn(text, len(ids), finish)

    def feed_text(self, text: str, tokens: int, finish: FinishReason) -> TurnEnd:
        """Takes one turn of a policy reached through text; as `feed`.

        Where the endpoint does not count tokens they are guessed at four characters each, so that turns have an end.
        """
        self._closed_by_policy = True
        return self._take_turn(text, tokens or len(text) // 4 + 1, finish)

    def _take_turn(self, text: str, tokens: int, finish: FinishReason) -> TurnEnd:
        self._turns += 1
        self._tokens_chosen += tokens
        self._finish = finish
        if self._open:
            self._messages[-1] = {**self._messages[-1], "content": self._messages[-1]["content"] + text}
        else:
            self._messages.append({"role": "assistant", "content": text})
        self._open = True
        self._text = text
        if finish == "length" and (self._transcript is None or self._at_total_limit()):
            self._end("length", "truncated")
            return TurnEnd(None)
        return TurnEnd({"role": "assistant", "content": text})

    def advance(self, step: Step) -> list[int] | None:
        """Takes the environment's step.

        Returns:
            The ids to force before the policy's next turn, or None when the episode is over.

        Raises:
            EpisodeError: When what the environment appends cannot follow.
        """
        self._info.update(step.info)
        if step.reward is not None:
            self._step_rewards.append(float(step.reward))
        if step.status == "error":
            self.fail(str(step.info.get("reason", "the environment failed")))
            return None
        if step.done or not step.append:
            self._end("environment" if step.truncated else self._finish, "truncated" if step.truncated else "ok")
            return None
        forced = self._append(step.append)
        self._ids.extend(forced)
        self._mask.extend([0] * len(forced))
        self._logprobs.extend([0.0] * len(forced))
        if self._at_total_limit() or self.turn_limit() == 0:
            self._end("length", "truncated")
            return None
        return forced

    def _append(self, append: str | Sequence[Message]) -> list[int]:
        if isinstance(append, str):
            return self._append_text(append)
        self._messages.extend({**message} for message in append)  # the environment may change its own
        self._open = False
        if self._transcript is None:
            return []
        return self._transcript.delta_ids(append, self._closed_by_policy)

    def _append_text(self, text: str) -> list[int]:
        if self._transcript is None:
            raise EpisodeError("this environment continues the policy's own message, which a chat endpoint cannot")
        if self._closed_by_policy:
            raise EpisodeError(
                "the environment appended text to a message that the policy had ended;"
                " append messages, or declare the stop string after which text is appended"
            )
        self._messages[-1] = {**self._messages[-1], "content": self._messages[-1]["content"] + text}
        return self._transcript.tokenizer.encode(text)

    def fail(self, reason: str) -> None:
        """Ends the episode by a failure that is not the policy's: the rollout is masked."""
        self._info["reason"] = reason
        self._end("error", "error")

    def _end(self, finish: FinishReason, status: RolloutStatus) -> None:
        self.done = True
        self._finish, self._status = finish, status
        excess = len(self._ids) - self._allowed()
        if excess > 0:  # the environment's text ran over the limit: it is cut, and the policy never saw it
            del self._ids[-excess:], self._mask[-excess:], self._logprobs[-excess:]

    def _allowed(self) -> int:
        return min(self._sampling.max_new_tokens, len(self._ids) + self._room_in_context())

    def rollout(self) -> Rollout:
        """Returns the finished episode as a record."""
        index, ticket, version = self._identity
        return Rollout(
            index=index,
            ticket=ticket,
            task=self.task,
            messages=tuple(self._messages),
            text=self._text,
            prompt_ids=tuple(self._prompt or ()),
            token_ids=tuple(self._ids),
            loss_mask=tuple(self._mask),
            logprobs=tuple(self._logprobs),
            finish=self._finish,
            status=self._status,
            turns=self._turns,
            policy_version=version,
            step_rewards=tuple(self._step_rewards),
            info=self._info,
            timings=self.timings,
        )
