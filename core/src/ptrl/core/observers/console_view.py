"""How the console shows a run: as a live display of a terminal, and as plain lines everywhere else."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ptrl.core.contracts.observer import Evaluation
from ptrl.core.observers.console_state import DomainState, RunState
from ptrl.core.text import terminal_safe

BLOCKS = "▁▂▃▄▅▆▇█"
NAME_WIDTH = 24
CURVE_WIDTH = 16
WIDE = 100
"""Columns of a terminal from which on names and curves have their full width."""

PLAIN_DOMAINS = 8
"""Domains that a plain line names; the rest are counted."""

TABLE_FRAME = 15
"""Lines of the live display that are no domain's."""

ALARMS = 3
"""Alarms that the live display shows at a time."""

NUMBERS = (
    ("reward", "reward", "{:.3f}"),
    ("metric", "metric", "{:.1%}"),
    ("tokens", "length", "{:.1f}"),
    ("kl", "KL", "{:.2g}"),
    ("entropy", "entropy", "{:.3f}"),
    ("zero_advantage", "zero advantage", "{:.0%}"),
    ("truncated", "truncated", "{:.0%}"),
    ("loss", "loss", "{:.3g}"),
    ("grad_norm", "gradient norm", "{:.3g}"),
    ("clip_fraction", "clipped", "{:.1%}"),
    ("learning_rate", "learning rate", "{:.2g}"),
    ("tokens_per_second", "tokens/s", "{:,.0f}"),
)
"""Metric, the name it is shown under, and its format, in the order they are shown."""

PLAIN = frozenset({"reward", "tokens", "kl", "entropy", "zero_advantage", "loss", "tokens_per_second"})
"""What a plain line shows beside the metric."""


def name_text(name: str, limit: int = NAME_WIDTH) -> str:
    """Returns a domain's or run's name, safe and short."""
    return terminal_safe(name, limit=limit)


def share(value: float | None) -> str:
    """Returns a share as a percentage; a dash when there is none."""
    return "—" if value is None or math.isnan(value) else f"{value:.0%}"


def duration(seconds: float) -> str:
    """Returns `m:ss`, or `h:mm:ss` from an hour on."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def curve(values: Sequence[float], width: int = CURVE_WIDTH) -> str:
    """Returns the newest values, each 0 to 1, as a line of blocks."""
    shown = [value for value in values if math.isfinite(value)][-width:]
    return "".join(BLOCKS[int(7.999 * min(1.0, max(0.0, value)))] for value in shown)


def live_view(state: RunState, began: float, width: int = 120, height: int = 40) -> RenderableType:
    """Returns the whole display of a terminal.

    Args:
        state: The run as it stands.
        began: `time.monotonic()` when the display began.
        width: Columns of the terminal.
        height: Its lines; domains that do not fit are counted.
    """
    parts: list[RenderableType] = [Text(), _headline(state, began)]
    numbers = _numbers(state)
    if numbers.plain:
        parts += [Text(), numbers]
    alarmed = [name for name, domain in state.domains.items() if domain.alarmed]
    shown = _names_that_fit(state, height - TABLE_FRAME - min(len(alarmed), ALARMS))
    parts.append(_domain_table(state, shown, wide=width >= WIDE))
    parts += [_alarm_line(state.alarm_text(name)) for name in alarmed[:ALARMS]]
    return Group(*parts)


def _names_that_fit(state: RunState, rows: int) -> list[str]:
    """Returns the domains that the terminal has lines for: alarmed ones first."""
    first = sorted(state.domains, key=lambda name: not state.domains[name].alarmed)
    shown = set(first[: max(3, rows)])
    return [name for name in state.domains if name in shown]


def _headline(state: RunState, began: float) -> RenderableType:
    run = state.run
    line = Table.grid(padding=(0, 2), expand=False)
    left = state.seconds_left
    clock = f"{duration(time.monotonic() - began)} gone"
    if left:
        clock += f", {duration(left)} left"
    doing = f"  {state.phase}" if state.phase else ""
    line.add_row(
        Text(f"{name_text(run.name)} ", style="bold").append(terminal_safe(run.stage), style="dim"),
        Text(f"step {state.step}/{run.steps}"),
        ProgressBar(total=run.steps, completed=state.step, width=24, complete_style="cyan", finished_style="green"),
        Text(clock + doing, style="cyan"),
    )
    return line


def _numbers(state: RunState) -> Text:
    text = Text(overflow="fold")
    for name, value in _shown(state, None):
        text.append(f"{name} ", style="dim").append(value, style="bold").append("   ")
    text.rstrip()
    return text


def _shown(state: RunState, wanted: frozenset[str] | None) -> Iterator[tuple[str, str]]:
    for key, name, form in NUMBERS:
        if key in state.metrics and (wanted is None or key in wanted):
            yield name, form.format(state.metrics[key])


def _domain_table(state: RunState, names: Sequence[str], *, wide: bool) -> Table:
    width, longest = (CURVE_WIDTH, NAME_WIDTH) if wide else (CURVE_WIDTH // 2, NAME_WIDTH * 2 // 3)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim", border_style="dim")
    table.add_column("domain", no_wrap=True)
    table.add_column("metric", no_wrap=True, min_width=width + 5)
    for column, least in (("held out", 11), ("length", 6), ("zero adv.", 9), ("masked", 6)):
        table.add_column(column, justify="right", no_wrap=True, min_width=least)
    for name in names:
        domain = state.domains[name]
        table.add_row(
            Text(name_text(name, longest)),
            Text(curve(domain.metric, width).ljust(width), style="cyan").append(
                f" {share(domain.metric[-1] if domain.metric else None):>4}", style="bold default"
            ),
            _held_out(domain.before, domain.held_out),
            Text("—" if domain.tokens is None else f"{domain.tokens:.1f}"),
            Text(share(domain.zero_advantage)),
            _masked(domain),
        )
    if len(names) < len(state.domains):
        table.add_row(Text(f"and {len(state.domains) - len(names)} more", style="dim"))
    if len(state.domains) > 1 and state.held_out is not None:
        table.add_section()
        mean = state.metrics.get("metric")
        row = Text(" " * width + f" {share(mean):>4}", style="bold")
        table.add_row(Text("mean", style="bold"), row, _held_out(state.before, state.held_out))
    return table


def _held_out(before: float | None, now: float | None) -> Text:
    if before is None or now is None or before == now:
        return Text(share(now))
    style = "bold green" if now > before else "bold red"
    return Text(f"{share(before)} → ").append(share(now), style=style)


def _masked(domain: DomainState) -> Text:
    return Text(share(domain.masked), style="bold red" if domain.alarmed else "")


def _alarm_line(text: str) -> Text:
    line = Text("ALARM ", style="bold red", no_wrap=True, overflow="ellipsis")
    return line.append(terminal_safe(text, limit=300), style="default")


def step_line(state: RunState) -> str:
    """Returns one step as a plain line."""
    parts = [f"step {state.step}/{state.run.steps}"]
    overall = state.metrics.get("metric")
    if overall is not None:
        parts.append(f"metric {overall:.1%}" + _listed([
            f"{name_text(name)} {share(domain.metric[-1])}"
            for name, domain in state.domains.items()
            if domain.metric and len(state.domains) > 1
        ]))  # fmt: skip
    parts += [f"{name} {value}" for name, value in _shown(state, PLAIN)]
    masked = state.metrics.get("masked", 0.0)
    if masked:
        parts.append(f"masked {masked:.0%}")
    if state.seconds_left is not None and state.step < state.run.steps:
        parts.append(f"{duration(state.seconds_left)} left")
    return "  ".join(parts)


def _listed(parts: Sequence[str]) -> str:
    if not parts:
        return ""
    more = f", and {len(parts) - PLAIN_DOMAINS} more" if len(parts) > PLAIN_DOMAINS else ""
    return f" ({', '.join(parts[:PLAIN_DOMAINS])}{more})"


def evaluation_line(evaluation: Evaluation, *, by_domain: bool = True) -> str:
    """Returns an evaluation as a plain line."""
    domains = []
    for name, result in evaluation.domains.items() if by_domain else ():
        text = f"{name_text(name)} {share(result.metric) if result.metric is not None else 'no verdict'}"
        if result.masked:
            text += f" [{result.masked} of {result.masked + result.tasks} masked]"
        domains.append(text)
    mean = "no verdict" if evaluation.mean is None else f"{evaluation.mean:.1%}"
    masked = sum(result.masked for result in evaluation.domains.values())
    hidden = f"  {masked} masked" if masked and not by_domain else ""
    head = f"evaluation at step {evaluation.step}  {evaluation.decoding}"
    return f"{head}  {evaluation.split} metric {mean}{_listed(domains)}{hidden}  {evaluation.seconds:.1f} s"


def alarm_line(text: str) -> str:
    """Returns an alarm as a plain line."""
    return f"ALARM {terminal_safe(text, limit=300)}"
