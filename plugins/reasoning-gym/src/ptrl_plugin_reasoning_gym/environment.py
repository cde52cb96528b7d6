"""`reasoning_gym.task`: the tasks of any data set of reasoning-gym, or of a mixture of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from ptrl.core import Environment, Split, TaskSource
from ptrl_plugin_reasoning_gym.generation import POSITIONS, generator
from ptrl_plugin_reasoning_gym.library import (
    DataSetSpec,
    LevelRange,
    ReasoningGymError,
    check_name,
    check_parameters,
    configure,
)
from ptrl_plugin_reasoning_gym.prompts import prompt_of
from ptrl_plugin_reasoning_gym.source import Draw, DrawnTasks, Stratum, attempts_at

Argument = TypeVar("Argument")
Result = TypeVar("Result")
Levels = int | tuple[int, ...] | None


class Member(BaseModel):
    """One data set of a mixture."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str
    """Name of the data set."""

    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Its share of the tasks, relative to the others'."""

    parameters: dict[str, Any] = {}
    """Options of the data set's own config."""

    level: Levels = None
    """Level or levels of its curriculum; the environment's `level` by default."""

    prompt: str | None = None
    """Its prompt template; the environment's `prompt` by default."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return _checked(check_name, name)


class ReasoningGym(Environment):
    """Tasks of reasoning-gym: one data set by name, or a weighted mixture; one turn each.

    Every task's prompt belongs to one split, decided by its text alone. Tasks are generated when they are
    asked for; `task(index)` is the same in any process and any order.
    """

    class Config(Environment.Config):
        """Options of reasoning_gym.task."""

        dataset: str | None = None
        """Name of the data set; this or `datasets`."""

        parameters: dict[str, Any] = Field(default_factory=dict)
        """Options of the data set's own config, such as `min_terms`; they win over the level's."""

        datasets: tuple[Member, ...] = ()
        """A mixture: `[{name, weight, parameters, level, prompt}, ...]`."""

        level: Levels = None
        """Level of the curriculum, from 0; a list draws from all of them alike. It is the difficulty."""

        level_range: LevelRange = "inclusive"
        """Whether a level's ranges begin at level 0 (`inclusive`) or just below it (`upper_bound`)."""

        prompt: str | None = None
        """Template such as `reverse {word}`, of `{question}` and metadata fields; the question by default."""

        system: str | None = None
        """System prompt."""

        size: int = Field(default=10_000, ge=1)
        """Number of training tasks."""

        test_size: int = Field(default=200, ge=1)
        """Number of test tasks."""

        test_share: float = Field(default=0.2, ge=0.01, le=0.5)
        """Share of all prompts that belongs to the test split."""

        seed: int = Field(default=0, ge=0)
        """Seed of the tasks."""

        @field_validator("dataset")
        @classmethod
        def _check_dataset(cls, name: str | None) -> str | None:
            return name if name is None else _checked(check_name, name)

        @field_validator("parameters")
        @classmethod
        def _check_parameters(cls, parameters: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
            name = info.data.get("dataset")
            if name is not None:
                _checked(check_parameters, DataSetSpec(name, parameters))
            return parameters

        @model_validator(mode="after")
        def _check_whole(self) -> ReasoningGym.Config:
            if (self.dataset is None) == (not self.datasets):
                raise ValueError('give either `dataset` or `datasets`, as in dataset = "chain_sum"')
            if self.datasets and self.parameters:
                raise ValueError("`parameters` belongs to `dataset`; in a mixture each entry has its own")
            largest = max(self.size, self.test_size)
            if largest * attempts_at(1 - self.test_share) > POSITIONS:
                raise ValueError(f"size {largest} is too large for test_share {self.test_share}")
            for _, _, spec in self.members():
                _check_plain(spec)
                _checked(partial(configure, seed=0, size=10), spec)
            return self

        def members(self) -> list[tuple[float, str | None, DataSetSpec]]:
            """Returns weight, prompt template and specification of each data set at each level."""
            alone = (Member(name=self.dataset, parameters=self.parameters),) if self.dataset else ()
            found = []
            for member in alone or self.datasets:
                levels = _levels(self.level if member.level is None else member.level)
                prompt = self.prompt if member.prompt is None else member.prompt
                for level in levels:
                    spec = DataSetSpec(member.name, member.parameters, level, self.level_range)
                    found.append((member.weight / len(levels), prompt, spec))
            return found

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._strata: tuple[Stratum, ...] = ()

    def tasks(self, split: Split) -> TaskSource:
        """Returns the tasks of a split; one task of each data set is generated to check them.

        Raises:
            ReasoningGymError: When a data set cannot be drawn from, or its prompts are too few to be split.
        """
        if not self._strata:
            self._strata = tuple(
                Stratum(spec, weight, prompt_of(prompt), generator(spec, self.config.seed))
                for weight, prompt, spec in self.config.members()
            )
        source = DrawnTasks(self._strata, self._draw(split), self._fingerprint(split))
        source.check()
        return source

    def close(self) -> None:
        """Ends the helper processes of data sets that need one."""
        for stratum in self._strata:
            stratum.generator.close()

    def _draw(self, split: Split) -> Draw:
        config = self.config
        return Draw(
            split=split,
            size=config.size if split == "train" else config.test_size,
            stride=max(config.size, config.test_size),
            seed=config.seed,
            test_share=config.test_share,
            system=config.system,
        )

    def _fingerprint(self, split: Split) -> str:
        options = self.config.model_dump(mode="json")
        made_by = {"split": split, "reasoning-gym": version("reasoning-gym"), "version": self.version}
        return hashlib.sha256(json.dumps([options, made_by], sort_keys=True).encode()).hexdigest()


def _levels(level: Levels) -> Sequence[int | None]:
    if level is None or isinstance(level, int):
        return (level,)
    if not level:
        raise ValueError("`level` needs at least one level")
    return level


def _checked(check: Callable[[Argument], Result], argument: Argument) -> Result:
    """Returns what a check does; its error becomes one that pydantic reports with the key."""
    try:
        return check(argument)
    except ReasoningGymError as error:
        raise ValueError(str(error)) from None


def _check_plain(spec: DataSetSpec) -> None:
    for key, value in spec.parameters.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            kind = type(value).__name__
            text = f"data set {spec.name!r}: parameter {key!r} is a {kind}; use text, numbers or lists"
            raise ValueError(text) from None
