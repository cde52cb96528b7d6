"""`format.tags`: the completion is made of named sections, in order and once each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from ptrl.core import Reward, Rollout, Score
from ptrl_plugin_format.boxes import is_visible

SectionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$")]


class Tags(Reward):
    """1 when the completion is exactly the named sections in order, once each, none empty; else 0.

    Range: 0 or 1, so that it can be a gate. Formula: the product of the conditions; a broken one stands in
    `info["reason"]`. The form is that of DeepSeek-R1's format reward (arXiv 2501.12948, section 2.2.2), but
    an empty shell earns nothing: a section needs a visible character. Tags are case-sensitive and have no
    attributes; a section's tag inside another section counts as out of place. Judges `rollout.text`.

    Runs inline: it reads the tags once and stops at the first that is out of place, and no step of it
    backtracks, so that its time is linear in the text (10 MB: milliseconds, at worst half a second).
    """

    run_in = "inline"

    class Config(Reward.Config):
        """Options of `format.tags`."""

        sections: tuple[SectionName, ...] = Field(
            default=("think", "answer"), min_length=1, description="Names of the sections, in their order."
        )
        optional: tuple[SectionName, ...] = Field(
            default=(), description="Those of them that may be left out; at least one must be required."
        )
        outside: bool = Field(default=False, description="Whether text may stand outside the sections.")
        white_space: bool = Field(default=True, description="Whether white space may stand outside the sections.")

        @model_validator(mode="after")
        def _names_fit(self) -> Self:
            if len(set(self.sections)) < len(self.sections):
                raise ValueError(f"sections must differ, got {list(self.sections)}")
            if strangers := [name for name in self.optional if name not in self.sections]:
                raise ValueError(f"optional names {strangers}, not among sections {list(self.sections)}")
            if set(self.optional) == set(self.sections):
                raise ValueError("optional names every section; leave at least one required")
            return self

    config: Config

    def __init__(self, config: Config | None = None) -> None:
        """Compiles the pattern of the sections' tags."""
        super().__init__(config)
        names = self.config.sections
        self._tag = re.compile(rf"<(/?)({'|'.join(map(re.escape, names))})>")
        self._order = {name: place for place, name in enumerate(names)}
        self._required = [name not in self.config.optional for name in names]

    def score(self, rollouts: Sequence[Rollout]) -> list[Score | float]:
        """Returns 1.0, or 0 with the reason, per rollout."""
        fault = self._fault
        return [
            1.0 if (reason := fault(rollout.text)) is None else Score(value=0.0, info={"reason": reason})
            for rollout in rollouts
        ]

    def _fault(self, text: str) -> str | None:
        """Returns the first fault of `text`, or None."""
        place, past = 0, 0  # the next section that may come, and where the last one ended
        tags = self._tag.finditer(text)
        for opening in tags:
            closes, name = opening.groups()
            if closes:
                return f"</{name}> closes nothing"
            if self._order[name] < place:
                return f"<{name}> is repeated or out of order"
            if (missing := self._missing(place, self._order[name])) is not None:
                return f"<{missing}> does not come before <{name}>"
            if (reason := self._between(text[past : opening.start()])) is not None:
                return reason
            closing = next(tags, None)
            if closing is None:
                return f"<{name}> is not closed"
            if closing[0] != f"</{name}>":
                return f"{closing[0]} stands inside <{name}>"
            if not is_visible(text[opening.end() : closing.start()]):
                return f"<{name}> is empty"
            place, past = self._order[name] + 1, closing.end()
        if (missing := self._missing(place, len(self._required))) is not None:
            return f"<{missing}> is missing"
        return self._between(text[past:])

    def _missing(self, begin: int, end: int) -> str | None:
        """Returns the first required section among the places `begin` to `end - 1`."""
        for place in range(begin, end):
            if self._required[place]:
                return self.config.sections[place]
        return None

    def _between(self, text: str) -> str | None:
        """Returns what is wrong with a stretch outside the sections, or None."""
        if not text:
            return None
        if text.isspace():
            return None if self.config.white_space else "white space outside the sections"
        return None if self.config.outside else "text outside the sections"
