"""Observers watch a run; they change nothing in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from ptrl.core.contracts.component import Component, hook
from ptrl.core.records import Group, ScoredRollout, Split

Decoding = Literal["greedy", "sampled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What an observer is told when a run begins.

    Args:
        name: The run's name.
        folder: The run folder.
        steps: Number of steps the run will take.
        domains: Names of the domains, in the config's order.
        first_step: Number of steps already done; above 0 after a resume.
        stage: What the optimizer does, such as `rl` or `supervised`.
        settings: The resolved config as plain data, without secrets.
    """

    name: str
    folder: Path
    steps: int
    domains: tuple[str, ...]
    first_step: int = 0
    stage: str = "rl"
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainResult:
    """One domain's evaluation.

    Args:
        metric: Mean raw metric over tasks that have a verdict; None when none has.
        total: Mean composed reward, without statistics.
        tasks: Number of tasks that have a verdict.
        masked: Number of rollouts without one.
        truncated: Share of rollouts that a limit cut.
        tokens: Mean number of tokens the policy chose.
    """

    metric: float | None
    total: float | None
    tasks: int
    masked: int
    truncated: float
    tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A policy measured on held-out tasks.

    Args:
        step: Number of training steps the policy had.
        split: The split evaluated.
        decoding: `greedy` or `sampled`.
        domains: Result by domain.
        mean: Mean of the domains' metrics; None when no domain has one.
        seconds: Wall time.
        rollouts: The scored rollouts, for reports.
    """

    step: int
    split: Split
    decoding: Decoding
    domains: Mapping[str, DomainResult]
    mean: float | None
    seconds: float
    rollouts: Sequence[ScoredRollout] = ()


class Observer(Component):
    """Watches a run. A failing observer loses its own view only; the run goes on. Methods may be async."""

    kind: ClassVar[str] = "observers"

    @hook()
    def run_started(self, run: RunInfo) -> None:
        """Called once before the first step, also after a resume."""

    @hook()
    def rollouts_scored(self, step: int, groups: Sequence[Group]) -> None:
        """Called with each step's scored groups, before filters."""

    @hook()
    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        """Called after each step with its numbers. Steps count from 1."""

    @hook()
    def evaluation_finished(self, evaluation: Evaluation) -> None:
        """Called after each evaluation."""

    @hook()
    def run_finished(self, summary: Mapping[str, Any]) -> None:
        """Called once at the end, with `summary.json`'s content; also when the run was interrupted."""
