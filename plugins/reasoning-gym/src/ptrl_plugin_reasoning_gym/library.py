"""The door to reasoning-gym: imports it late and lightly, finds data sets by name, and builds them."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from types import ModuleType
from typing import Any, Literal, Protocol

from ptrl.core import PtrlError

LevelRange = Literal["inclusive", "upper_bound"]

SCORER_SIZE = 10
"""Size of a data set that only scores: two of them generate all their items when they are built."""


class ReasoningGymError(PtrlError):
    """A data set of reasoning-gym that cannot be found, built, or drawn from."""


class DataSet(Protocol):
    """What is used of a `reasoning_gym.dataset.ProceduralDataset`."""

    size: int

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Generates one item: `question`, `answer` and `metadata`."""

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """Judges an answer, 0 to 1."""


@dataclasses.dataclass(frozen=True)
class DataSetSpec:
    """Which data set, and how hard: plain data that rebuilds it in any process.

    Args:
        name: A name of reasoning-gym's registry, such as `chain_sum`.
        parameters: Options of the data set's own config; they win over the level's.
        level: Level of its curriculum, from 0; None for the data set's defaults.
        level_range: Whether a level's ranges begin at level 0 (`inclusive`) or just below it (`upper_bound`).
    """

    name: str
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    level: int | None = None
    level_range: LevelRange = "inclusive"

    @functools.cached_property
    def key(self) -> str:
        """The specification as canonical JSON."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def of_key(cls, key: str) -> DataSetSpec:
        """Returns the specification that `key` was made of."""
        return cls(**json.loads(key))


class _Deferred(ModuleType):
    """Stands for a module until one of its attributes is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def _deferring(name: str) -> Iterator[None]:
    """While it holds, `import name` binds a stand-in that imports the module when it is first used."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = _Deferred(name)
    try:
        yield
    finally:
        del sys.modules[name]


@functools.cache
def factory() -> Any:
    """Returns `reasoning_gym.factory` with every data set registered.

    cellpylib, which two data sets use, brings matplotlib: half of the import's 0.8 CPU seconds. It is
    deferred until one of them generates an item.
    """
    with _deferring("cellpylib"):
        importlib.import_module("reasoning_gym")
    return importlib.import_module("reasoning_gym.factory")


def names() -> list[str]:
    """Returns the names of all data sets, sorted; the composite is this plugin's own."""
    return sorted(name for name in factory().DATASETS if name != "composite")


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns `did you mean ...?`; empty when nothing looks alike."""
    near = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else ""


def choices(name: str, known: Iterable[str]) -> str:
    """Returns the nearest names and all that there are."""
    options = sorted(known)
    return " ".join(filter(None, [nearest(name, options), f"it has {', '.join(options) or 'none'}"]))


def check_name(name: str) -> str:
    """Returns the name of a data set that exists.

    Raises:
        ReasoningGymError: With the nearest names.
    """
    if name == "composite":
        raise ReasoningGymError("a composite is written as `datasets = [{name = ..., weight = ...}, ...]`")
    if name not in factory().DATASETS:
        all_names = f"it has {', '.join(names())}"
        raise ReasoningGymError(f"reasoning-gym has no data set {name!r}; {nearest(name, names()) or all_names}")
    return name


def configure(spec: DataSetSpec, *, seed: int, size: int) -> Any:
    """Returns the data set's own, validated config.

    Raises:
        ReasoningGymError: Naming the data set and the parameter or level that is wrong.
    """
    check_parameters(spec)
    values: dict[str, Any] = {}
    if spec.level is not None:
        config = _of_level(spec, spec.level)
        values = {name: getattr(config, name) for name in _parameters(spec.name)}
    values.update(spec.parameters)
    try:
        config = factory().DATASETS[spec.name][1](**values, seed=seed, size=size)
        if hasattr(config, "validate"):
            config.validate()
    except Exception as error:
        given = f"parameters {dict(spec.parameters)}" if spec.parameters else "its own defaults"
        level = "" if spec.level is None else f" at level {spec.level} ({spec.level_range})"
        text = f"data set {spec.name!r} refuses {given}{level}: {type(error).__name__}: {error}"
        raise ReasoningGymError(text) from error
    return config


def check_parameters(spec: DataSetSpec) -> None:
    """Checks that the data set has every parameter, whatever its value.

    Raises:
        ReasoningGymError: Naming the data set, the parameter, and what there is.
    """
    known = _parameters(spec.name)
    for name in spec.parameters:
        if name in ("seed", "size"):
            raise ReasoningGymError(
                f"data set {spec.name!r}: `{name}` is no parameter but an option of reasoning_gym.task"
            )
        if name not in known:
            text = f"data set {spec.name!r} has no parameter {name!r}; {choices(name, known)}"
            raise ReasoningGymError(text)


def _parameters(name: str) -> set[str]:
    config_class = factory().DATASETS[check_name(name)][1]
    return {field.name for field in dataclasses.fields(config_class)} - {"seed", "size"}


def _of_level(spec: DataSetSpec, level: int) -> Any:
    curricula = factory().CURRICULA
    if spec.name not in curricula:
        raise ReasoningGymError(f"data set {spec.name!r} has no curriculum; leave `level` out")
    curriculum = curricula[spec.name]()
    highest = max(len(attribute.levels) for attribute in curriculum.attributes.values()) - 1
    if not 0 <= level <= highest:
        raise ReasoningGymError(f"data set {spec.name!r} has the levels 0 to {highest}, not {level}")
    curriculum.set_global_level(level)
    context = importlib.import_module("reasoning_gym.coaching.base_curriculum").DefaultCurriculumContext
    return curriculum.generate_configuration(context=context(mode=spec.level_range))


def build(spec: DataSetSpec, *, seed: int, size: int) -> DataSet:
    """Returns the data set itself; a few of them read word lists or generate all their items here.

    Raises:
        ReasoningGymError: When the data set cannot be built.
    """
    config = configure(spec, seed=seed, size=size)
    try:
        with redirect_stdout(io.StringIO()):  # acre prints dots
            built: DataSet = factory().DATASETS[spec.name][0](config)
    except Exception as error:
        text = f"data set {spec.name!r} cannot be built: {type(error).__name__}: {error}"
        raise ReasoningGymError(text) from error
    return built


@functools.lru_cache(maxsize=256)
def scorer(spec_key: str) -> DataSet:
    """Returns the data set whose scorer judges items of a specification; built once per process."""
    return build(DataSetSpec.of_key(spec_key), seed=0, size=SCORER_SIZE)
