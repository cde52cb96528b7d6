"""`report.html`: the report, written when a run ends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from ptrl.core import Observer, RunInfo


class HtmlReport(Observer):
    """Leaves `report.html` in the run folder, also of a run that was interrupted."""

    class Config(Observer.Config):
        """Options of `report.html`."""

        rollouts: int = Field(default=4, ge=0, description="Rollouts shown per domain and part of the run.")

    config: Config

    _folder: Path | None = None

    def run_started(self, run: RunInfo) -> None:
        """Remembers the run folder."""
        self._folder = run.folder

    def run_finished(self, summary: Mapping[str, Any]) -> None:
        """Writes the page."""
        from ptrl_plugin_report.page import write_report

        if self._folder is not None:
            write_report(self._folder, rollouts=self.config.rollouts)
