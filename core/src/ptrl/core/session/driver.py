"""Driving episodes: a batch of them through a token policy, or each by itself through a chat endpoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from ptrl.core.contracts.environment import State, Step
from ptrl.core.contracts.hooks import describe, resolve
from ptrl.core.episode import Episode, Transcript, TurnEnd
from ptrl.core.errors import EpisodeError
from ptrl.core.policy import ChatPolicy, Policy, Sampling, TokenPolicy, Turn
from ptrl.core.records import Rollout, Task
from ptrl.core.session.worker import Worker


def drive(
    worker: Worker,
    policy: Policy,
    orders: Sequence[tuple[Task, int, str]],
    sampling: Sampling,
    transcript: Transcript | None,
) -> list[Rollout]:
    """Makes one rollout per order.

    Args:
        worker: Whose environments answer.
        policy: Who takes the turns.
        orders: `(task, index in its group, ticket id)`; rollouts of one group stand side by side.
        sampling: How tokens are chosen, and limits.
        transcript: Renders for the policy's tokenizer; None for a chat policy.

    Returns:
        Rollouts in the order of `orders`; one that failed has the status `error`.
    """
    episodes = _start(worker, policy, orders, sampling, transcript)
    running = [episode for episode in episodes if not episode.done]
    try:
        if running and isinstance(policy, TokenPolicy):
            _drive_tokens(worker, policy, running, sampling)
        elif running:
            assert isinstance(policy, ChatPolicy)
            resolve(_drive_chat(worker, policy, running, sampling))
    finally:
        worker.end([(episode.task.domain, episode.state) for episode in episodes])
    return [episode.rollout() for episode in episodes]


def _start(
    worker: Worker,
    policy: Policy,
    orders: Sequence[tuple[Task, int, str]],
    sampling: Sampling,
    transcript: Transcript | None,
) -> list[Episode]:
    answers = worker.start([task for task, _, _ in orders])
    tokens = isinstance(policy, TokenPolicy)
    episodes = []
    for (task, index, ticket), answer in zip(orders, answers, strict=True):
        good = not answer.failure
        episode = Episode(
            task=task,
            state=answer.value if good else State(task=task),
            transcript=transcript if tokens else None,
            sampling=sampling,
            context_length=policy.context_length if isinstance(policy, TokenPolicy) else None,
            index=index,
            ticket=ticket,
            policy_version=policy.version if isinstance(policy, TokenPolicy) else 0,
        )
        if not good:
            episode.fail(answer.failure)
        elif tokens:
            _prepare(episode)
        episodes.append(episode)
    return episodes


def _prepare(episode: Episode) -> None:
    try:
        episode.prompt_ids()
    except Exception as error:
        episode.fail(describe(error))


def _drive_tokens(worker: Worker, policy: TokenPolicy, episodes: list[Episode], sampling: Sampling) -> None:
    driver = BatchedDriver(worker, episodes)
    try:
        policy.generate([episode.prompt_ids() for episode in episodes], sampling, driver)
    finally:
        for episode in episodes:
            if not episode.done:
                episode.fail("generation ended before the episode did")


class BatchedDriver:
    """Answers a token policy's turns with the environments' steps, batch by batch.

    Args:
        worker: Whose environments answer.
        episodes: One per row.
    """

    def __init__(self, worker: Worker, episodes: Sequence[Episode]) -> None:
        self._worker = worker
        self._episodes = episodes
        self._begin = time.perf_counter()

    def turn_limit(self, row: int) -> int:
        """Returns how many tokens the row may choose in its present turn."""
        return self._episodes[row].turn_limit()

    def stop_strings(self, row: int) -> tuple[str, ...]:
        """Returns the strings that end a turn of the row."""
        return self._episodes[row].state.stop

    def turns_finished(self, turns: Sequence[Turn]) -> list[list[int] | None]:
        """Feeds turns to their episodes and asks the environments of those that go on."""
        forced: list[list[int] | None] = [None] * len(turns)
        asking: list[tuple[int, Episode, TurnEnd]] = []
        for number, turn in enumerate(turns):
            episode = self._episodes[turn.row]
            end = episode.feed(turn.ids, turn.logprobs, turn.finish)
            if end.message is not None:
                asking.append((number, episode, end))
        forced_ids = advance(self._worker, [(episode, end) for _, episode, end in asking])
        for (number, _, _), ids in zip(asking, forced_ids, strict=True):
            forced[number] = ids
        now = time.perf_counter() - self._begin
        for turn, ids in zip(turns, forced, strict=True):
            if ids is None:
                self._episodes[turn.row].timings["generation"] = now
        return forced


def advance(worker: Worker, ends: Sequence[tuple[Episode, TurnEnd]]) -> list[list[int] | None]:
    """Asks the environments for their steps and takes them; None where an episode is over."""
    turns = []
    for episode, end in ends:
        assert end.message is not None
        turns.append((episode.task.domain, episode.state, end.message))
    forced: list[list[int] | None] = []
    for (episode, _), answer in zip(ends, worker.step(turns), strict=True):
        step = answer.value if not answer.failure else None
        forced.append(_take(episode, step, answer.failure))
    return forced


def _take(episode: Episode, step: Step | None, failure: str) -> list[int] | None:
    if step is None:
        episode.fail(failure)
        return None
    try:
        return episode.advance(step)
    except EpisodeError as error:
        episode.fail(str(error))
    except Exception as error:
        episode.fail(f"the environment's step cannot be taken: {describe(error)}")
    return None


async def _drive_chat(worker: Worker, policy: ChatPolicy, episodes: Sequence[Episode], sampling: Sampling) -> None:
    gate = asyncio.Semaphore(max(1, policy.concurrency))

    async def one(episode: Episode) -> None:
        begin = time.perf_counter()
        async with gate:
            await _chat_episode(worker, policy, episode, sampling)
        episode.timings["generation"] = time.perf_counter() - begin

    await asyncio.gather(*(one(episode) for episode in episodes))


async def _chat_episode(worker: Worker, policy: ChatPolicy, episode: Episode, sampling: Sampling) -> None:
    while not episode.done:
        state = episode.state
        try:
            reply = await policy.reply(episode.conversation, sampling, state.stop, state.tools, episode.turn_limit())
            end = episode.feed_text(reply.text, reply.tokens, reply.finish)
        except Exception as error:
            episode.fail(describe(error))
            return
        if end.message is None:
            return
        await asyncio.to_thread(advance, worker, [(episode, end)])
