"""What the console shows of a run: the newest numbers, their history, the time left, and alarms."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from ptrl.core.contracts.observer import Decoding, Evaluation, RunInfo
from ptrl.core.records import Group, ScoredRollout

HISTORY = 60
"""Steps that are remembered for the curves."""

RECENT = 20
"""Steps whose mean time predicts the time of the next ones."""


@dataclass(slots=True)
class DomainState:
    """One domain as it stands.

    Args:
        metric: Raw metric of the newest steps that practised the domain.
        tokens: Mean length of its newest rollouts.
        zero_advantage: Share of its newest groups that teach nothing.
        masked: Share of its newest rollouts without a verdict.
        alarmed: Whether that share is above the threshold.
        reasons: Why rollouts got no verdict, since the alarm was last silent.
        before: Held-out metric of the first evaluation that was seen.
        held_out: Held-out metric of the newest one.
    """

    metric: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    tokens: float | None = None
    zero_advantage: float | None = None
    masked: float = 0.0
    alarmed: bool = False
    reasons: Counter[str] = field(default_factory=Counter)
    before: float | None = None
    held_out: float | None = None


class RunState:
    """A run as it stands.

    Args:
        run: What the run told when it began.
        alarm: Share of masked rollouts from which on a domain is alarming.
    """

    def __init__(self, run: RunInfo, alarm: float) -> None:
        self.run = run
        self.alarm = alarm
        self.step = run.first_step
        self.metrics: Mapping[str, float] = {}
        self.domains = {name: DomainState() for name in run.domains}
        self.before: float | None = None
        self.held_out: float | None = None
        self.ending = ""
        self._seconds: deque[float] = deque(maxlen=RECENT)
        self._evaluation_seconds: dict[Decoding, float] = {}
        evaluation = run.settings.get("evaluation", {})
        self._every = int(evaluation.get("every", 0))
        self._decodings: Sequence[Decoding] = tuple(evaluation.get("decoding", ("greedy",)))

    def take_groups(self, groups: Sequence[Group]) -> None:
        """Notes why rollouts of a step got no verdict."""
        for group in groups:
            domain = self.domains.get(group.ticket.domain)
            if domain is not None:
                domain.reasons.update(filter(None, map(reason_of, group.members)))

    def take_step(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        """Takes a step's numbers, and returns the domains that became alarming with it."""
        self.step, self.metrics = step, metrics
        if "seconds" in metrics:
            self._seconds.append(metrics["seconds"])
        new = []
        for name, domain in self.domains.items():
            if f"metric/{name}" in metrics:
                domain.metric.append(metrics[f"metric/{name}"])
            domain.tokens = metrics.get(f"tokens/{name}", domain.tokens)
            domain.zero_advantage = metrics.get(f"zero_advantage/{name}", domain.zero_advantage)
            domain.masked = metrics.get(f"masked/{name}", domain.masked)
            before, domain.alarmed = domain.alarmed, domain.masked > self.alarm
            if domain.alarmed and not before:
                new.append(name)
            elif not domain.alarmed:
                domain.reasons.clear()
        return new

    def take_evaluation(self, evaluation: Evaluation) -> None:
        """Takes an evaluation; the curves follow the config's first decoding."""
        self._evaluation_seconds[evaluation.decoding] = evaluation.seconds
        if evaluation.decoding != self._decodings[0]:
            return
        self.held_out = evaluation.mean
        self.before = evaluation.mean if self.before is None else self.before
        for name, result in evaluation.domains.items():
            domain = self.domains.get(name)
            if domain is not None:
                domain.held_out = result.metric
                domain.before = result.metric if domain.before is None else domain.before

    @property
    def phase(self) -> str:
        """What the run is doing, in words; empty during plain steps."""
        if self.ending:
            return self.ending
        if self.step >= self.run.steps:
            return "measuring the trained policy"
        return "" if self._seconds else "measuring the untrained policy" if not self.step else "resuming"

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the remaining steps and evaluations take; None when unknown or over."""
        if not self._seconds or self.ending:
            return None
        steps = self.run.steps - self.step
        known = self._evaluation_seconds
        during = len([s for s in range(self.step + 1, self.run.steps) if s % self._every == 0]) if self._every else 0
        after = sum(known.values())
        return steps * fmean(self._seconds) + during * known.get(self._decodings[0], 0.0) + after

    def alarm_text(self, name: str) -> str:
        """Returns what is alarming about a domain, in words."""
        domain = self.domains[name]
        text = f"{name}: {domain.masked:.0%} of rollouts got no verdict and teach nothing"
        common = domain.reasons.most_common(1)
        return f"{text}; most often: {common[0][0]}" if common else text


def reason_of(member: ScoredRollout) -> str:
    """Returns why a rollout got no verdict; empty when it has one."""
    if member.valid:
        return ""
    if member.rollout.status == "error":
        return str(member.rollout.info.get("reason", "the rollout failed"))
    for label, score in member.scores.items():
        if score.status != "ok":
            return f"{label}: {score.status}: {score.info.get('reason', 'no reason given')}"
    return "a reward gave no verdict"
