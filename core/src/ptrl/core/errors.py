"""The error tree. Every message says what was wrong, where (file, key, plugin), and what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class PtrlError(Exception):
    """Base of every error that ptrl raises on purpose; the command line prints it without a traceback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with a config.

    Args:
        key: Dotted path of the key, such as `domains.words.rewards.answer.weight`.
        message: What was found and what was expected.
        fix: What to do next; empty when the message says it.
    """

    key: str
    message: str
    fix: str = ""

    def __str__(self) -> str:
        """`key: message. fix`."""
        text = f"{self.key}: {self.message}" if self.key else self.message
        return f"{text} — {self.fix}" if self.fix else text


class ConfigError(PtrlError):
    """A config that cannot be used, with every problem found and the file it is in."""

    def __init__(self, problems: Sequence[Problem], file: str | None = None) -> None:
        self.problems = tuple(problems)
        self.file = file
        where = f"{file}: " if file else ""
        count = len(self.problems)
        head = f"{where}{count} problem{'s' if count != 1 else ''} in the config"
        super().__init__("\n".join([head, *(f"  {problem}" for problem in self.problems)]))


class RegistryError(PtrlError):
    """A component that cannot be found or loaded."""


class UnknownNameError(RegistryError):
    """A name that no installed distribution provides."""


class NameConflictError(RegistryError):
    """Two distributions that claim one name."""


class PluginLoadError(RegistryError):
    """A plugin whose import failed, or whose class breaks its contract."""


class ContractError(PtrlError):
    """A component whose hooks do not match the specification of its kind."""


class EpisodeError(PtrlError):
    """An environment or chat template that breaks the rules of an episode."""


class RunFolderError(PtrlError):
    """A run folder that cannot be read, written or resumed."""


class LockMismatchError(RunFolderError):
    """A resume with other components than the run was started with."""


class OptimizerError(PtrlError):
    """A training run that an optimizer cannot go on with."""


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Returns the names of `known` that look most like `name`, best first."""
    return difflib.get_close_matches(name, list(known), n=count, cutoff=0.5)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `did you mean ...?`, or a list of what there is when nothing looks alike."""
    names = sorted(known)
    near = nearest(name, names)
    if near:
        return "did you mean " + " or ".join(repr(match) for match in near) + "?"
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return f"known: {shown}" if shown else "none is known"
