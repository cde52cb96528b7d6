"""Environments give tasks and answer the policy's turns."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from ptrl.core.contracts.component import Component, hook
from ptrl.core.records import Message, Split, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """What a sampler may know of a task source without reading its tasks.

    Columns may be lazy sequences: a source of ten million seeds need not hold ten million strings.

    Args:
        keys: One key per task, unique within the source.
        difficulty: One prior difficulty per task, or None.
        tags: One tuple of tags per task, or None.
        fingerprint: Changes when the tasks do; made of the keys when left empty.
    """

    keys: Sequence[str]
    difficulty: Sequence[float | None] | None = None
    tags: Sequence[tuple[str, ...]] | None = None
    fingerprint: str = ""

    def __post_init__(self) -> None:
        """Fills in the fingerprint."""
        if not self.fingerprint:
            digest = hashlib.sha256()
            for key in self.keys:
                digest.update(key.encode("utf-8", "surrogatepass") + b"\n")
            object.__setattr__(self, "fingerprint", digest.hexdigest())


class TaskSource(ABC):
    """An indexed collection of tasks: `task(index)` is the same in any process and any order."""

    @abstractmethod
    def __len__(self) -> int:
        """How many tasks there are."""

    @abstractmethod
    def task(self, index: int) -> Task:
        """Returns the task at `index`, 0 to `len(self) - 1`."""

    def columns(self) -> Columns:
        """Returns keys, difficulty and tags of all tasks. Override it where reading every task is slow."""
        tasks = [self.task(index) for index in range(len(self))]
        return Columns(
            keys=[task.key for task in tasks],
            difficulty=[task.difficulty for task in tasks],
            tags=[task.tags for task in tasks],
        )


@dataclass(slots=True, kw_only=True)
class State:
    """One episode's state, private to its environment.

    Args:
        task: The task being attempted.
        stop: Strings that end a turn of the policy, beside the end-of-turn token.
        tools: JSON schemas of tools, given to the chat template.
        tokens_per_turn: Limit on the tokens of one turn; None for none.
        data: Whatever the environment keeps between steps.
    """

    task: Task
    stop: tuple[str, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    tokens_per_turn: int | None = None
    data: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An environment's answer to one turn of the policy.

    Args:
        append: Text that continues the policy's own message, or chat messages that follow it. Out of the loss.
        done: Whether the episode is over; `append` is then ignored.
        truncated: Over because of a limit of the environment's, not because the task ended.
        status: `error` when the environment itself failed: the rollout is masked.
        reward: A number for this step, kept in `Rollout.step_rewards`; None for none.
        info: Plain data merged into `Rollout.info` for rewards.
    """

    append: str | Sequence[Message] = ()
    done: bool = False
    truncated: bool = False
    status: Literal["ok", "error"] = "ok"
    reward: float | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


class Environment(Component):
    """Gives the tasks of a domain and answers the policy's turns. By default one turn.

    `start`, `step` and `end` may be async.
    """

    kind: ClassVar[str] = "environments"

    run_in: Literal["thread", "inline"] = "thread"
    """`inline` is the author's word that a step is quick and never blocks; `thread` keeps its deadline."""

    timeout: float = 30.0
    """Seconds that `start`, `step` and `end` may take; a later answer is a failure of the environment."""

    @hook(required=True)
    def tasks(self, split: Split) -> TaskSource | Iterable[Task]:
        """Returns the tasks of a split. Splits share no task.

        An iterable is spooled once, in order, to an indexed file in the run folder.
        """
        raise NotImplementedError

    @hook()
    def start(self, task: Task) -> State:
        """Begins an episode; nothing of it is shared with other episodes."""
        return State(task=task)

    @hook()
    def step(self, state: State, message: Message) -> Step:
        """Answers one turn of the policy. `message["content"]` is what it wrote, without the end-of-turn token."""
        return Step(done=True)

    @hook()
    def end(self, state: State) -> None:
        """Frees what the episode holds. Always called, also after a failure."""
