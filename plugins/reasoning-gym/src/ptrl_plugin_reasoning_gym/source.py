"""Tasks drawn from one or several data sets, by index, with splits that share no prompt."""

from __future__ import annotations

import hashlib
import math
import operator
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar, overload

from ptrl.core import Columns, Message, Split, Task, TaskSource
from ptrl_plugin_reasoning_gym.generation import Generator, ItemError
from ptrl_plugin_reasoning_gym.known import POOLS
from ptrl_plugin_reasoning_gym.library import DataSetSpec, ReasoningGymError
from ptrl_plugin_reasoning_gym.packing import pack
from ptrl_plugin_reasoning_gym.prompts import Prompt

Value = TypeVar("Value")


class Lazy(Sequence[Value]):
    """A sequence whose elements are made when they are asked for."""

    def __init__(self, size: int, make: Callable[[int], Value]) -> None:
        self._size = size
        self._make = make

    def __len__(self) -> int:
        """How many there are."""
        return self._size

    @overload
    def __getitem__(self, index: int) -> Value: ...

    @overload
    def __getitem__(self, index: slice) -> list[Value]: ...

    def __getitem__(self, index: int | slice) -> Value | list[Value]:
        """Makes the element, or a list of the elements, at `index`."""
        if isinstance(index, slice):
            return [self._make(each) for each in range(*index.indices(self._size))]
        position = operator.index(index)
        if position < 0:
            position += self._size
        if not 0 <= position < self._size:
            raise IndexError(f"index {index} is outside 0..{self._size - 1}")
        return self._make(position)


@dataclass(frozen=True)
class Stratum:
    """One data set at one level, with its share of the tasks."""

    spec: DataSetSpec
    weight: float
    prompt: Prompt
    generator: Generator


@dataclass(frozen=True, kw_only=True)
class Draw:
    """How tasks are drawn; the same for both splits but for `split` and `size`.

    Args:
        split: Which side of the partition.
        size: Number of tasks.
        stride: At least the size of the larger split; keeps the positions tried by two tasks apart.
        seed: Seed of the choice between strata.
        test_share: Share of all prompts that belong to the test split.
        system: System prompt.
    """

    split: Split
    size: int
    stride: int
    seed: int
    test_share: float
    system: str | None

    @property
    def attempts(self) -> int:
        """How many items are tried for one task; each is on the wrong side with `miss` chance."""
        miss = 1 - self.test_share if self.split == "test" else self.test_share
        return attempts_at(miss)


def attempts_at(miss: float) -> int:
    """Returns how many independent tries fail together less often than once in 2**64."""
    return math.ceil(64 * math.log(2) / -math.log(miss))


def is_test(prompt: str, share: float) -> bool:
    """Whether a prompt belongs to the test split: a matter of its text alone.

    It is so in every run and under every seed, parameter and level: a model trained under one config can be
    tested under another.
    """
    digest = hashlib.blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=8, person=b"ptrl-split")
    return int.from_bytes(digest.digest(), "big") < share * 2**64


class DrawnTasks(TaskSource):
    """Tasks by index: the first item of the index's own positions whose prompt is on this split's side.

    Args:
        strata: What is drawn from.
        draw: How.
        fingerprint: Of everything that the tasks depend on.
    """

    def __init__(self, strata: Sequence[Stratum], draw: Draw, fingerprint: str) -> None:
        self._strata = tuple(strata)
        self._draw = draw
        self._fingerprint = fingerprint
        self._ends = list(accumulate(stratum.weight for stratum in self._strata))
        self._leveled = any(stratum.spec.level is not None for stratum in self._strata)

    def __len__(self) -> int:
        """How many tasks there are."""
        return self._draw.size

    def task(self, index: int) -> Task:
        """Returns the task at `index`.

        Raises:
            IndexError: When there is no such index.
            ReasoningGymError: When the data set has no prompt on this split's side.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"task {index} is outside 0..{len(self) - 1}")
        stratum = self.stratum(index)
        item, prompt = self._item(stratum, index)
        return Task(
            key=self._key(index),
            messages=self._messages(prompt),
            reference={"dataset": stratum.spec.name, "spec": stratum.spec.key, **pack(item)},
            difficulty=_difficulty(stratum),
            tags=(stratum.spec.name,),
        )

    def columns(self) -> Columns:
        """Returns keys, levels and names of data sets; generates no task."""
        size = len(self)
        levels = Lazy(size, lambda index: _difficulty(self.stratum(index))) if self._leveled else None
        return Columns(
            keys=Lazy(size, self._key),
            difficulty=levels,
            tags=Lazy(size, lambda index: (self.stratum(index).spec.name,)),
            fingerprint=self._fingerprint,
        )

    def check(self) -> None:
        """Draws one task of every stratum, so that what is wrong shows before a run.

        Raises:
            ReasoningGymError: When a data set cannot be drawn from, or a prompt names an unknown field.
        """
        for stratum in self._strata:
            self._item(stratum, 0)

    def stratum(self, index: int) -> Stratum:
        """Returns what a task is drawn from; a matter of its index alone."""
        if len(self._strata) == 1:
            return self._strata[0]
        text = f"{self._draw.seed}:{self._draw.split}:{index}".encode()
        share = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") / 2**64
        return self._strata[min(bisect_right(self._ends, share * self._ends[-1]), len(self._strata) - 1)]

    def _item(self, stratum: Stratum, index: int) -> tuple[dict[str, Any], str]:
        wanted = self._draw.split == "test"
        failure: ItemError | None = None
        for attempt in range(self._draw.attempts):
            try:
                item = stratum.generator.item(_position(stratum, index, attempt, self._draw.stride))
            except ItemError as error:
                failure = error
                continue
            prompt = stratum.prompt(item)
            if is_test(prompt, self._draw.test_share) is wanted:
                return item, prompt
        raise self._too_small(stratum) from failure

    def _too_small(self, stratum: Stratum) -> ReasoningGymError:
        draw = self._draw
        return ReasoningGymError(
            f"data set {stratum.spec.name!r}: {draw.attempts} items were tried and none fell into the"
            f" {draw.split} split (test_share = {draw.test_share}); with these parameters it has too few"
            " different prompts to be split, so widen its parameters or change test_share"
        )

    def _key(self, index: int) -> str:
        return f"{self._draw.split}-{index}"

    def _messages(self, prompt: str) -> tuple[Message, ...]:
        user: Message = {"role": "user", "content": prompt}
        if self._draw.system is None:
            return (user,)
        return ({"role": "system", "content": self._draw.system}, user)


def _difficulty(stratum: Stratum) -> float | None:
    return None if stratum.spec.level is None else float(stratum.spec.level)


def _position(stratum: Stratum, index: int, attempt: int, stride: int) -> int:
    pool = POOLS.get(stratum.spec.name)
    if pool is None:
        return index + attempt * stride
    return (index * 2_147_483_647 + attempt * 7_919) % pool  # both prime: a walk through the whole pool
