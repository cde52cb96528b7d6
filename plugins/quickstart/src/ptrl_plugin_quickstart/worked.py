"""`quickstart.worked`: the demo's tasks with worked examples, for its supervised warm-up.

An example is careful or sloppy. The careful ones show the way to the right answer, the sloppy ones the habits
of a policy that has read much and checked little; RL then finds out which of them pays.
"""

import random
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from ptrl.core import Columns, Environment, Message, Split, State, Step, Task, TaskSource
from ptrl_plugin_quickstart.examples import EXAMPLES, Metadata
from ptrl_plugin_quickstart.shop import Shop
from ptrl_plugin_reasoning_gym.environment import ReasoningGym
from ptrl_plugin_reasoning_gym.packing import unpack

Domain = Literal["sum", "words", "sort", "boxed", "shop"]
HELD_BY: dict[str, type[Environment]] = {"shop": Shop}


class WorkedTasks(TaskSource):
    """Tasks of another source, each with a demonstration made from its key.

    Args:
        source: The tasks.
        domain: Whose examples to write.
        careful: Share of careful ones, 0 to 1.
    """

    def __init__(self, source: TaskSource, domain: Domain, careful: float) -> None:
        self._source = source
        self._examples = EXAMPLES[domain]
        self._careful = careful

    def __len__(self) -> int:
        """Number of tasks."""
        return len(self._source)

    def task(self, index: int) -> Task:
        """Returns the task of an index with its demonstration."""
        task = self._source.task(index)
        rng = random.Random(task.key)
        write = self._examples.careful if rng.random() < self._careful else self._examples.sloppy
        return replace(task, demonstration=tuple(write(_metadata(task), rng)))

    def columns(self) -> Columns:
        """Returns those of the other source."""
        return self._source.columns()


def _metadata(task: Task) -> Metadata:
    """Returns what an example is written from: the data set's own metadata, or the basket's prices."""
    if isinstance(task.reference, str):
        return dict(task.info)
    metadata: Metadata = unpack(task.reference["metadata"])
    return metadata


class Worked(Environment):
    """The tasks of another environment of the demo, with worked examples."""

    class Config(Environment.Config):
        """Options of quickstart.worked."""

        domain: Domain
        """Whose examples to write."""

        careful: Annotated[float, Field(ge=0, le=1)] = 0.3
        """Share of careful examples; the others are sloppy."""

        tasks: dict[str, Any] = Field(default_factory=dict)
        """Options of the environment that gives the tasks: `quickstart.shop` or `reasoning_gym.task`."""

        @field_validator("tasks")
        @classmethod
        def _check_tasks(cls, tasks: dict[str, Any], info: Any) -> dict[str, Any]:
            _environment(info.data.get("domain", "")).Config.model_validate(tasks)
            return tasks

    config: Config
    run_in = "inline"  # both environments are

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        kind = _environment(config.domain)
        self._inner = kind(kind.Config.model_validate(config.tasks))

    def tasks(self, split: Split) -> TaskSource:
        """Returns the tasks of a split with their demonstrations."""
        source = self._inner.tasks(split)
        assert isinstance(source, TaskSource)
        return WorkedTasks(source, self.config.domain, self.config.careful)

    def start(self, task: Task) -> State:
        """Starts the task as its own environment does."""
        return self._inner.start(task)

    def step(self, state: State, message: Message) -> Step:
        """Answers as the task's own environment does."""
        return self._inner.step(state, message)

    def end(self, state: State) -> None:
        """Ends the task as its own environment does."""
        self._inner.end(state)

    def close(self) -> None:
        """Closes the task's own environment."""
        self._inner.close()


def _environment(domain: str) -> type[Environment]:
    return HELD_BY.get(domain, ReasoningGym)
