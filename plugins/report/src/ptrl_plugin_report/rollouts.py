"""A few rollouts of each domain, as a page shows them: only the files that are shown are read."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from ptrl_plugin_report.plain import Row, as_number, parse, table, tables
from ptrl_plugin_report.text import Clip, clip, number, shown

LINE_LIMIT = 64 * 1024 * 1024
"""Bytes of one saved rollout that are read; a longer one is left out."""

TURNS = 40
"""Turns of one rollout that are shown."""

FILE_NAME = re.compile(r"(step|evaluation)-(\d+)(?:-(\w+))?\.jsonl\.gz")

Verdict = Literal["solved", "partly", "failed", "masked"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message.

    Args:
        role: Who wrote it.
        chosen: Whether the policy wrote it; everything else is out of the loss.
        content: What it says.
        calls: The tool calls it makes, if any.
    """

    role: str
    chosen: bool
    content: Clip
    calls: Clip | None = None


@dataclass(frozen=True, slots=True)
class Verdicts:
    """One reward's verdict: a row of a rollout's table."""

    label: str
    role: str
    value: Any
    status: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """One rollout.

    Args:
        domain: Its domain.
        title: The end of its prompt, on one line.
        verdict: Whether it solved the task; `masked` when no reward could tell.
        metric: The raw metric.
        total: The composed reward, without statistics.
        training_reward: What the optimizer saw; None outside training.
        tokens: Number of tokens that the policy chose.
        ending: How it ended, where that is not as it should.
        prompt: The task's messages.
        turns: What followed.
        more_turns: Number of turns that are not shown.
        reference: What rewards judge by.
        scores: Each reward's verdict.
    """

    domain: str
    title: str
    verdict: Verdict
    metric: Any
    total: Any
    training_reward: Any
    tokens: Any
    ending: str
    prompt: Sequence[Turn]
    turns: Sequence[Turn]
    more_turns: int
    reference: Clip | None
    scores: Sequence[Verdicts]


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Some rollouts of one part of a run."""

    title: str
    rollouts: Sequence[RolloutView]


def read_excerpts(folder: Path, domains: Row, per_domain: int) -> list[Excerpt]:
    """Returns rollouts of the last evaluation, of the first training step and of the last one.

    Args:
        folder: The run's folder of rollouts; it may be missing.
        domains: The config's domains.
        per_domain: How many rollouts of each domain to take from each part.
    """
    if per_domain < 1:
        return []
    found = [Excerpt(title, _few(path, domains, per_domain)) for title, path in _parts(folder)]
    return [excerpt for excerpt in found if excerpt.rollouts]


def _parts(folder: Path) -> Iterator[tuple[str, Path]]:
    names = [match for path in folder.glob("*.jsonl.gz") if (match := FILE_NAME.fullmatch(path.name))]
    evaluations = [match for match in names if match[1] == "evaluation"]
    if evaluations:
        last = max(evaluations, key=lambda match: (int(match[2]), match[3] == "greedy"))
        yield f"Last evaluation: step {int(last[2])}, {last[3] or ''}".rstrip(", "), folder / last[0]
    steps = sorted((match for match in names if match[1] == "step"), key=lambda match: int(match[2]))
    if steps:
        yield f"First training step: {int(steps[0][2])}", folder / steps[0][0]
    if len(steps) > 1:
        yield f"Last training step: {int(steps[-1][2])}", folder / steps[-1][0]


@dataclass(slots=True)
class _Shelf:
    """The first rollouts of one domain and verdict, of different tasks before more of the same."""

    limit: int
    keys: set[str] = field(default_factory=set)
    different: list[RolloutView] = field(default_factory=list)
    more: list[RolloutView] = field(default_factory=list)

    def offer(self, row: Row, domains: Row) -> None:
        key = str(row.get("key"))
        target = self.more if key in self.keys else self.different
        if len(target) < self.limit:
            self.keys.add(key)
            target.append(view(row, table(domains, str(row.get("domain")), "rewards")))

    @property
    def best(self) -> list[RolloutView]:
        return [*self.different, *self.more][: self.limit]


def _few(path: Path, domains: Row, per_domain: int) -> list[RolloutView]:
    """Returns some rollouts of each domain, of each verdict in turn."""
    shelves = {
        (domain, verdict): _Shelf(per_domain)
        for domain in domains
        for verdict in ("failed", "solved", "partly", "masked")
    }
    for row in _compressed_rows(path):
        shelf = shelves.get((str(row.get("domain")), verdict_of(row)))
        if shelf is not None:
            shelf.offer(row, domains)
    chosen = []
    for domain in domains:
        kinds = [shelf.best for (name, _), shelf in shelves.items() if name == domain]
        turns = [one for row in zip_longest(*kinds) for one in row if one is not None]
        chosen += sorted(
            turns[:per_domain], key=lambda one: ("failed", "masked", "partly", "solved").index(one.verdict)
        )
    return chosen


def _compressed_rows(path: Path) -> Iterator[Row]:
    try:
        with gzip.open(path, "rb") as file:
            while line := file.readline(LINE_LIMIT):
                row = parse(line)
                if row is not None:
                    yield row
    except (OSError, EOFError, zlib.error):  # a file that was cut short gives what it has
        return


def verdict_of(row: Row) -> Verdict:
    """Returns a saved rollout's verdict by its raw metric."""
    metric = as_number(row.get("metric"))
    if metric is None or row.get("valid") is False:
        return "masked"
    return "solved" if metric >= 1 else "failed" if metric <= 0 else "partly"


def view(row: Row, rewards: Row) -> RolloutView:
    """Returns a saved rollout as it is shown, shortened.

    Args:
        row: A line of the saved rollouts' schema.
        rewards: The domain's rewards in the config.
    """
    prompt = tables(row.get("prompt"))
    messages = tables(row.get("messages"))
    asked = [message.get("content") for message in prompt if message.get("role") == "user"]
    return RolloutView(
        domain=shown(row.get("domain"), 60),
        title=" ".join(shown(asked[-1] if asked else "", 160).split()),
        verdict=verdict_of(row),
        metric=row.get("metric"),
        total=row.get("total"),
        training_reward=row.get("training_reward") if row.get("ticket") else None,
        tokens=row.get("tokens"),
        ending=_ending(row),
        prompt=[_turn(message, in_prompt=True) for message in prompt[-TURNS:]],
        turns=[_turn(message) for message in messages[:TURNS]],
        more_turns=max(0, len(messages) - TURNS) + max(0, len(prompt) - TURNS),
        reference=_reference(row.get("reference")),
        scores=[_verdict(label, score, rewards) for label, score in table(row, "scores").items()],
    )


def _turn(message: Row, *, in_prompt: bool = False) -> Turn:
    role = shown(message.get("role", "?"), 20)
    content = message.get("content")
    calls = message.get("tool_calls")
    return Turn(
        role=role,
        chosen=role == "assistant" and not in_prompt,
        content=clip("" if content is None else content),
        calls=clip(calls) if calls else None,
    )


def _ending(row: Row) -> str:
    """Returns what a rollout's status or end says beyond `ok` and `stop`."""
    words = [str(row.get("status", "ok")), str(row.get("finish", "stop"))]
    return shown(", ".join(word for word in words if word not in ("ok", "stop", "environment")), 60)


def _reference(reference: Any) -> Clip | None:
    """Returns a reference; of a data set's entry its answer."""
    if isinstance(reference, Mapping) and reference.get("answer") is not None:
        reference = reference["answer"]
    return None if reference is None else clip(reference, 400)


def _verdict(label: str, score: Any, rewards: Row) -> Verdicts:
    score = score if isinstance(score, Mapping) else {}
    info = dict(table(score, "info"))
    parts = [f"{name} {number(value)}" for name, value in table(score, "parts").items()]
    reasons = [str(info.pop("reason"))] if "reason" in info else []
    reasons += [*parts, *(f"{name}: {shown(value, 100)}" for name, value in info.items())]
    return Verdicts(
        label=shown(label, 60),
        role=_role(label, rewards),
        value=score.get("value"),
        status=shown(score.get("status", "–"), 20),
        reason=shown("; ".join(reasons), 400),
    )


def _role(label: str, rewards: Row) -> str:
    """Returns how a reward takes part, as the config says: its role, and its weight where that is not 1."""
    for key, reward in rewards.items():
        if isinstance(reward, Mapping) and (reward.get("label") or key) == label:
            role, weight = shown(reward.get("role", "outcome"), 20), as_number(reward.get("weight"))
            if reward.get("schedule"):
                return f"{role}, scheduled"
            return role if weight in (None, 1) or role == "gate" else f"{role} × {number(weight)}"
    return ""
