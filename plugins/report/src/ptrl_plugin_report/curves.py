"""Which curves a run has, in the groups that the page shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ptrl_plugin_report.charts import Chart, Series, make_chart
from ptrl_plugin_report.overview import metric_of
from ptrl_plugin_report.reading import Run
from ptrl_plugin_report.text import shown

PHASES = ("generation", "update", "scoring", "bookkeeping")


@dataclass(frozen=True, slots=True)
class ChartGroup:
    """Charts under one heading."""

    title: str
    charts: Sequence[Chart]


def chart_groups(run: Run) -> list[ChartGroup]:
    """Returns the run's curves; groups and charts without data are left out."""
    groups = {
        "Learning": [
            _held_out(run),
            make_chart("Training metric", _by_domain(run, "metric"), share=True, whole=True),
            make_chart("Reward (total)", _by_domain(run, "reward")),
        ],
        "Rollouts": [
            make_chart("Tokens per rollout", _by_domain(run, "tokens")),
            make_chart("Rollouts without a verdict (masked)", _by_domain(run, "masked"), share=True),
            make_chart("Rollouts cut by a limit", _by_domain(run, "truncated"), share=True),
        ],
        "Update": [
            make_chart("Groups with zero advantage", _by_domain(run, "zero_advantage"), share=True, whole=True),
            make_chart("KL to the initial policy, nats per token", _one(run, "kl")),
            make_chart("Entropy, nats per token", _one(run, "entropy")),
            make_chart("Loss", _one(run, "loss")),
            make_chart("Gradient norm", _one(run, "grad_norm")),
            make_chart("Clipped probability ratios", _one(run, "clip_fraction"), share=True),
        ],
        "Speed": [
            make_chart("Tokens per second", _one(run, "tokens_per_second")),
            make_chart("Seconds of a step", _series(run, [(phase, f"seconds/{phase}") for phase in PHASES])),
        ],
        "Each reward's mean value": [make_chart(shown(domain, 60), _parts(run, domain)) for domain in run.domains],
    }
    found = [ChartGroup(title, [one for one in charts if one is not None]) for title, charts in groups.items()]
    return [group for group in found if group.charts]


def _held_out(run: Run) -> Chart | None:
    """Returns the evaluations of the decoding that is used throughout the run."""
    if not run.evaluations:
        return None
    decoding = run.evaluations[0].get("decoding")
    rows = [row for row in run.evaluations if row.get("decoding") == decoding]
    places: list[tuple[str, int | None]] = [(name, place) for place, name in enumerate(run.domains)]
    series = [
        Series(shown(name, 60), [(row["step"], metric_of(row, name)) for row in rows], place, marked=True)
        for name, place in [*places, *([("mean", None)] if len(places) > 1 else [])]
    ]
    return make_chart(f"Held-out metric, {shown(decoding, 30)}", series, share=True, whole=True)


def _by_domain(run: Run, key: str) -> list[Series]:
    return _series(run, [(domain, f"{key}/{domain}") for domain in run.domains])


def _parts(run: Run, domain: str) -> list[Series]:
    prefix = f"reward_part/{domain}/"
    keys = {key: None for row in run.metrics for key in row if key.startswith(prefix)}
    return _series(run, [(key.removeprefix(prefix), key) for key in keys])


def _one(run: Run, key: str) -> list[Series]:
    return _series(run, [(key, key)])


def _series(run: Run, names: Iterable[tuple[str, str]]) -> list[Series]:
    return [
        Series(shown(name, 60), [(row["step"], row.get(key)) for row in run.metrics], place)
        for place, (name, key) in enumerate(names)
    ]
