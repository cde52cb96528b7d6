"""What a run was, what it reached and what deserves a look: the top of the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from ptrl_plugin_report.plain import Row, as_number, table
from ptrl_plugin_report.reading import Run
from ptrl_plugin_report.text import duration, number, percent, shown


def status(run: Run) -> str:
    """Returns the run's status; a run without a summary has not ended by itself."""
    return shown(run.summary.get("status", "going on, or killed"), 40)


def facts(run: Run) -> list[tuple[str, str]]:
    """Returns what a run was, as names and values."""
    section, training = table(run.config, "run"), table(run.config, "training")
    seconds = run.summary.get("seconds_of_run", run.metrics[-1].get("elapsed") if run.metrics else None)
    done = max(run.step, int(as_number(run.summary.get("steps")) or 0))
    found: list[tuple[str, object]] = [
        ("steps", f"{done} of {section.get('steps', '?')}"),
        ("time", duration(seconds)),
        ("seed", section.get("seed", "–")),
        ("model", table(run.config, "model").get("path", "–")),
        ("optimizer", table(run.config, "optimizer").get("use", "–")),
        *_practice(training, run.makes_rollouts),
        ("sampler", table(run.config, "sampler").get("use", "–")),
    ]
    return [(name, shown(value, 200)) for name, value in found]


def _practice(training: Row, makes_rollouts: bool) -> list[tuple[str, object]]:
    """Returns what a step learns from; a supervised stage has no rollouts and no estimator."""
    prompts, group = as_number(training.get("prompts")), as_number(training.get("group_size"))
    if not makes_rollouts:
        return [("examples per step", number(prompts))]
    batch = "–" if prompts is None or group is None else f"{prompts * group:,.0f} ({prompts:g} × {group:g})"
    return [("estimator", training.get("estimator", "–")), ("rollouts per step", batch)]


@dataclass(frozen=True, slots=True)
class Change:
    """A raw metric before and after; either may be missing."""

    before: float | None
    after: float | None

    @property
    def difference(self) -> float | None:
        """How much it rose."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True, slots=True)
class Comparison:
    """Held-out tasks before and after.

    Args:
        caption: Which steps are compared, and on how many tasks.
        decodings: Names of the columns.
        rows: A domain's name and its change by each decoding.
        mean: The mean's.
    """

    caption: str
    decodings: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Change]]]
    mean: Sequence[Change]


def comparison(run: Run) -> Comparison | None:
    """Returns the first evaluation against the newest one of each decoding; None without an evaluation."""
    if not run.evaluations:
        return None
    first = min(row["step"] for row in run.evaluations)
    last = max(row["step"] for row in run.evaluations)
    before, after = _by_decoding(run.evaluations, first), _by_decoding(run.evaluations, last) if last > first else {}
    decodings = list(before)

    def change(decoding: str, name: str) -> Change:
        return Change(metric_of(before[decoding], name), metric_of(after.get(decoding, {}), name))

    return Comparison(
        caption=_caption(run, before.values(), after.values(), last),
        decodings=[shown(decoding, 30) for decoding in decodings],
        rows=[(shown(name, 60), [change(decoding, name) for decoding in decodings]) for name in run.domains],
        mean=[change(decoding, "mean") for decoding in decodings],
    )


def _by_decoding(evaluations: Iterable[Row], step: int) -> dict[str, Row]:
    return {str(row.get("decoding")): row for row in evaluations if row["step"] == step}


def metric_of(evaluation: Row, name: str) -> float | None:
    """Returns a domain's raw metric in an evaluation, or that of `mean`."""
    return as_number(evaluation.get("mean") if name == "mean" else table(evaluation, "domains", name).get("metric"))


def _caption(run: Run, before: Iterable[Row], after: Iterable[Row], last: int) -> str:
    counts = [_tasks(before), _tasks(after)]
    if not counts[1]:
        return f"before training, {counts[0]} tasks per domain"
    steps = as_number(table(run.config, "run").get("steps"))
    end = f"after {last} steps" if steps is not None and last >= steps else f"at step {last}, not the end"
    if counts[0] == counts[1]:
        return f"before training and {end}, {counts[0]} tasks per domain"
    return f"before training on {counts[0]} tasks per domain and {end} on {counts[1]}"


def _tasks(evaluations: Iterable[Row]) -> str:
    """Returns how many tasks of a domain were evaluated, with and without a verdict."""
    counts = {
        int((as_number(result.get("tasks")) or 0) + (as_number(result.get("masked")) or 0))
        for row in evaluations
        for name in table(row, "domains")
        if (result := table(row, "domains", name))
    }
    return "" if not counts else number(max(counts)) if len(counts) == 1 else f"{min(counts):,} to {max(counts):,}"


def warnings(run: Run) -> list[str]:
    """Returns what deserves a look: rollouts without a verdict, in training and in evaluations, by domain."""
    found = [judge(run, domain) for domain in run.domains for judge in (_masked_in_training, _masked_in_evaluations)]
    return [text for text in found if text is not None]


def _masked_in_training(run: Run, domain: str) -> str | None:
    shares = [(as_number(row.get(f"masked/{domain}")) or 0.0, row["step"]) for row in run.metrics]
    worst, step = max(shares, default=(0.0, 0))
    if not worst:
        return None
    return (
        f"{shown(domain, 60)}: {percent(fmean(share for share, _ in shares))} of rollouts had no verdict"
        f" (at most {percent(worst)}, at step {step}); they were masked, not scored 0"
    )


def _masked_in_evaluations(run: Run, domain: str) -> str | None:
    counts = [(as_number(table(row, "domains", domain).get("masked")) or 0.0, row["step"]) for row in run.evaluations]
    worst, step = max(counts, default=(0.0, 0))
    if not worst:
        return None
    return (
        f"{shown(domain, 60)}: held-out tasks without a verdict in {sum(count > 0 for count, _ in counts)}"
        f" of {len(counts)} evaluations (at most {number(worst)}, at step {step}); its metric is that of the others"
    )
