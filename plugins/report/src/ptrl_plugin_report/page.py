"""From a run's data to one self-contained page."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from ptrl.core.files import write_bytes
from ptrl_plugin_report.charts import Chart, Series, make_chart
from ptrl_plugin_report.reading import Row, Run, read_run

TEXT_LIMIT = 4000
"""Characters of one message that are shown."""

ROLLOUTS_PER_DOMAIN = 4


def write_report(run: Path, output: Path | None = None, rollouts: int = ROLLOUTS_PER_DOMAIN) -> Path:
    """Writes the report of a run.

    Args:
        run: The run folder.
        output: The page; `report.html` in the run folder by default.
        rollouts: How many rollouts of each domain are shown from each part of the run.

    Raises:
        RunFolderError: When it is no run folder.
    """
    page = render(read_run(run, rollouts))
    target = output or run / "report.html"
    write_bytes(target, page.encode("utf-8", "replace"))
    return target


def render(run: Run) -> str:
    """Returns the page of a run. All text in it is escaped; nothing in it is fetched or run."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(percent=percent, number=number, shown=shown)
    template = files("ptrl_plugin_report").joinpath("page.html.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        run=run,
        facts=facts(run),
        warnings=warnings(run),
        comparison=comparison(run),
        charts=[chart for chart in charts(run) if chart is not None],
        components=run.lock.get("components", {}),
        versions=run.lock.get("dependencies", {}),
        config=json.dumps(run.config, indent=2, ensure_ascii=False),
    )


def percent(value: Any) -> str:
    """Returns a share in percent; a dash where there is none."""
    return f"{value:.1%}" if isinstance(value, (int, float)) else "–"


def number(value: Any) -> str:
    """Returns a number in few digits; a dash where there is none."""
    return f"{value:.3g}" if isinstance(value, (int, float)) else "–"


def shown(value: Any, limit: int = TEXT_LIMIT) -> str:
    """Returns untrusted text as it may be shown: shortened, and with characters that hide or turn text named."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    rest = len(text) - limit
    visible = "".join(
        character if _is_harmless(character) else f"\\u{ord(character):04x}" for character in text[:limit]
    )
    return visible + (f" … {rest:,} more characters" if rest > 0 else "")


def _is_harmless(character: str) -> bool:
    return character in "\n\t" or (character.isprintable() and not "\u202a" <= character <= "\u202e")


def facts(run: Run) -> list[tuple[str, str]]:
    """Returns what a run was, as names and values."""
    section = run.config["run"]
    training = run.config.get("training", {})
    done = run.summary.get("steps", run.metrics[-1]["step"] if run.metrics else 0)
    seconds = run.summary.get("seconds_of_run", run.metrics[-1].get("elapsed") if run.metrics else None)
    found = [
        ("status", str(run.summary.get("status", "going on, or killed"))),
        ("steps", f"{done} of {section.get('steps', '?')}"),
        ("time", f"{seconds:.0f} s" if isinstance(seconds, (int, float)) else "–"),
        ("seed", str(section.get("seed", "–"))),
        ("model", str(run.config.get("model", {}).get("path", "–"))),
        ("optimizer", str(run.config.get("optimizer", {}).get("use", "–"))),
        ("estimator", str(training.get("estimator", "–"))),
        ("batch", f"{training.get('prompts', '?')} × {training.get('group_size', '?')} rollouts"),
    ]
    return [(name, shown(value, 200)) for name, value in found]


def warnings(run: Run) -> list[str]:
    """Returns what deserves a look: rollouts without a verdict, by domain."""
    found = []
    for domain in run.domains:
        shares = [row.get(f"masked/{domain}") or 0.0 for row in run.metrics]
        if any(shares):
            worst = max(range(len(shares)), key=shares.__getitem__)
            step = run.metrics[worst]["step"]
            found.append(
                f"{domain}: {percent(sum(shares) / len(shares))} of rollouts had no verdict"
                f" (at most {percent(shares[worst])}, at step {step}); they were masked, not scored 0"
            )
    return found


@dataclass(frozen=True, slots=True)
class Comparison:
    """A domain's held-out metric before and after, by decoding."""

    name: str
    values: Sequence[tuple[Any, Any, float | None]]


def comparison(run: Run) -> tuple[list[str], list[Comparison]]:
    """Returns the decodings, and a row for each domain and for their mean."""
    if not run.evaluations:
        return [], []
    first, last = run.evaluations[0]["step"], run.evaluations[-1]["step"]
    before, after = _by_decoding(run.evaluations, first), _by_decoding(run.evaluations, last)
    decodings = [decoding for decoding in before if decoding in after or first == last]
    rows = []
    for name in [*run.domains, "mean"]:
        values = []
        for decoding in decodings:
            old = _metric(before[decoding], name)
            new = _metric(after.get(decoding, {}), name) if last != first else None
            values.append((old, new, new - old if old is not None and new is not None else None))
        rows.append(Comparison(name, values))
    return decodings, rows


def _by_decoding(evaluations: Iterable[Row], step: int) -> dict[str, Row]:
    return {str(row.get("decoding")): row for row in evaluations if row["step"] == step}


def _metric(evaluation: Mapping[str, Any], name: str) -> float | None:
    found = evaluation.get("mean") if name == "mean" else evaluation.get("domains", {}).get(name, {}).get("metric")
    return float(found) if isinstance(found, (int, float)) else None


def charts(run: Run) -> list[Chart | None]:
    """Returns the curves of a run."""
    evaluations = [
        Series(name, _evaluated(run, name), marked=True, colour=place) for place, name in enumerate(run.domains)
    ]
    return [
        make_chart("held-out metric, first decoding", evaluations, percent=True),
        make_chart("training metric", _by_domain(run, "metric"), percent=True),
        make_chart("reward (total)", _by_domain(run, "reward")),
        make_chart("tokens per rollout", _by_domain(run, "tokens")),
        make_chart("zero-advantage share of groups", _by_domain(run, "zero_advantage"), percent=True),
        make_chart("rollouts without a verdict", _by_domain(run, "masked"), percent=True),
        make_chart("KL to the initial policy, nats per token", _one(run, "kl")),
        make_chart("entropy, nats per token", _one(run, "entropy")),
        make_chart("loss", _one(run, "loss")),
        make_chart("gradient norm", _one(run, "grad_norm")),
        make_chart("tokens per second", _one(run, "tokens_per_second")),
        make_chart("seconds of a step", _phases(run)),
    ]


def _evaluated(run: Run, name: str) -> list[tuple[float, Any]]:
    if not run.evaluations:
        return []
    decoding = run.evaluations[0].get("decoding")
    return [(row["step"], _metric(row, name)) for row in run.evaluations if row.get("decoding") == decoding]


def _by_domain(run: Run, key: str) -> list[Series]:
    names = [(domain, f"{key}/{domain}") for domain in run.domains]
    return _series(run, names)


def _one(run: Run, key: str) -> list[Series]:
    return _series(run, [(key, key)])


def _phases(run: Run) -> list[Series]:
    phases = ("generation", "update", "scoring", "bookkeeping")
    return _series(run, [(phase, f"seconds/{phase}") for phase in phases])


def _series(run: Run, names: Iterable[tuple[str, str]]) -> list[Series]:
    return [
        Series(name, [(row["step"], row[key]) for row in run.metrics if row.get(key) is not None], colour=place)
        for place, (name, key) in enumerate(names)
    ]
