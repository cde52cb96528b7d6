"""`core.console`: a run's progress, live in a terminal, as plain lines everywhere else."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field
from rich import get_console
from rich.console import Console as Terminal
from rich.live import Live
from rich.text import Text

from ptrl.core.contracts.observer import Evaluation, Observer, RunInfo
from ptrl.core.observers.console_state import RunState
from ptrl.core.observers.console_view import alarm_line, evaluation_line, live_view, step_line
from ptrl.core.records import Group

REFRESHES_PER_SECOND = 2.0


class Console(Observer):
    """Shows each step's reward, raw metric by domain, length, KL, entropy, speed and time left.

    A domain of whose rollouts too many got no verdict raises an alarm, with the commonest reason.
    """

    class Config(Observer.Config):
        """Options of `core.console`."""

        display: Literal["auto", "live", "plain", "none"] = "auto"
        """`live` redraws in place, `plain` prints lines; `auto` is live in a terminal only."""

        every: int = Field(default=10, ge=1)
        """Plain lines are printed each n steps, and for the first and last step."""

        alarm: float = Field(default=0.1, ge=0, le=1)
        """Share of a domain's rollouts without a verdict above which an alarm is shown."""

    config: Config

    _state: RunState | None = None
    _live: Live | None = None

    def __init__(self, config: Config | None = None, terminal: Terminal | None = None) -> None:
        super().__init__(config)
        self._terminal = terminal

    @property
    def terminal(self) -> Terminal:
        """Where it prints: the console that rich shares, so that other lines come above a live display."""
        return self._terminal or get_console()

    def run_started(self, run: RunInfo) -> None:
        """Begins the display."""
        self._state = RunState(run, self.config.alarm)
        self._began = time.monotonic()
        display = self.config.display
        if display == "live" or (display == "auto" and self.terminal.is_interactive):
            self._live = Live(
                console=self.terminal,
                get_renderable=self._render,
                refresh_per_second=REFRESHES_PER_SECOND,
            )
            self._live.start()
        elif run.first_step:
            self._print(f"going on after step {run.first_step}/{run.steps}")

    def _render(self) -> Any:
        if self._state is None:
            return Text()
        return live_view(self._state, self._began, self.terminal.width, self.terminal.height)

    def _print(self, line: str, style: str = "") -> None:
        """Prints one line, above a live display; nothing in it is markup."""
        if self.config.display != "none":
            self.terminal.print(Text(line), style=style or None, soft_wrap=self._live is None, highlight=False)

    def rollouts_scored(self, step: int, groups: Sequence[Group]) -> None:
        """Notes why rollouts got no verdict."""
        if self._state is not None:
            self._state.take_groups(groups)

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows a step."""
        state = self._state
        if state is None:
            return
        first = state.step == state.run.first_step
        alarming = state.take_step(step, metrics)
        if self._live is None:
            if first or step % self.config.every == 0 or step >= state.run.steps:
                self._print(step_line(state))
            for name in alarming:
                self._print(alarm_line(state.alarm_text(name)), "bold red")

    def evaluation_finished(self, evaluation: Evaluation) -> None:
        """Shows an evaluation."""
        if self._state is not None:
            self._state.take_evaluation(evaluation)
            self._print(evaluation_line(evaluation, by_domain=self._live is None))

    def run_finished(self, summary: Mapping[str, Any]) -> None:
        """Ends the display."""
        if self._state is not None:
            self._state.ending = str(summary.get("status", "finished"))
        self._stop()

    def close(self) -> None:
        """Ends the display, also after a failure."""
        self._stop()

    def _stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()
