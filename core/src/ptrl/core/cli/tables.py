"""Tables of evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ptrl.core.text import terminal_safe

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ptrl.core.contracts.observer import Evaluation

NO_VERDICT = "—"


def percent(share: float | None) -> str:
    """Returns a share as a percentage; a dash when there is none."""
    return NO_VERDICT if share is None else f"{share:.1%}"


def before_and_after(summary: Mapping[str, Any]) -> Table | None:
    """Returns a run's raw metric per domain before and after, greedy and sampled; None without an evaluation.

    Args:
        summary: `summary.json`'s content.
    """
    from rich.text import Text

    before, after = summary["before"], summary["after"]
    decodings = [decoding for decoding in ("greedy", "sampled") if decoding in {**before, **after}]
    if not decodings:
        return None
    table = _table("\nheld-out metric")
    for decoding in decodings:
        for column in (f"{decoding}\nbefore", "\nafter", "\nchange"):
            table.add_column(column, justify="right")
    names = [name for name in {**before, **after}[decodings[0]] if name != "mean"]
    for name in [*names, "mean"]:
        cells: list[Text] = []
        for decoding in decodings:
            pair = (before.get(decoding, {}).get(name), after.get(decoding, {}).get(name))
            cells += [Text(percent(pair[0])), Text(percent(pair[1]), style="bold"), _change(*pair)]
        if name == "mean":
            table.add_section()
        table.add_row(Text(terminal_safe(name), style="bold" if name == "mean" else ""), *cells)
    return table


def _change(before: float | None, after: float | None) -> Text:
    from rich.text import Text

    if before is None or after is None:
        return Text(NO_VERDICT)
    change = after - before
    style = "green" if change > 0 else "red" if change < 0 else ""
    return Text(f"{100 * change:+.1f}", style=style)


def evaluation_table(evaluation: Evaluation) -> Table:
    """Returns one evaluation, domain by domain."""
    from rich.text import Text

    table = _table(f"{evaluation.split}, {evaluation.decoding}")
    for column in ("metric", "total", "judged", "masked", "truncated", "tokens"):
        table.add_column(column, justify="right")
    for name, result in evaluation.domains.items():
        table.add_row(
            Text(terminal_safe(name)),
            Text(percent(result.metric), style="bold"),
            Text(NO_VERDICT if result.total is None else f"{result.total:.3f}"),
            Text(str(result.tasks)),
            Text(str(result.masked), style="bold red" if result.masked else ""),
            Text(percent(result.truncated)),
            Text(f"{result.tokens:.1f}" if result.tokens else NO_VERDICT),
        )
    table.add_section()
    table.add_row(Text("mean", style="bold"), Text(percent(evaluation.mean), style="bold"))
    return table


def _table(first: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, header_style="", pad_edge=False)
    table.add_column(first, no_wrap=True, max_width=32)
    return table


def masked_reasons(evaluations: Sequence[Evaluation], count: int = 5) -> list[tuple[str, int]]:
    """Returns the commonest reasons why rollouts got no verdict, with how many there were."""
    from collections import Counter

    from ptrl.core.observers.console_state import reason_of

    reasons = Counter(reason for evaluation in evaluations for one in evaluation.rollouts if (reason := reason_of(one)))
    return reasons.most_common(count)
