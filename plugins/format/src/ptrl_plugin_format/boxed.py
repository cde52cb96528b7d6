r"""`format.boxed`: the answer ends in exactly one box."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

from pydantic import Field

from ptrl.core import Reward, Rollout, Score
from ptrl_plugin_format.boxes import find_boxes, is_blank
from ptrl_plugin_format.thinking import after_thinking

_TAIL = re.compile(r"""(?:\s++|[$.,;:!?*_`'")\]}]|\\[)\]]|\\end\{[a-z]+\*?\}|</[A-Za-z][\w.-]{0,63}>)*+""")


class Boxed(Reward):
    r"""1 when the answer has exactly one `\boxed{...}`, balanced, not empty, and nothing after it; else 0.

    Range: 0 or 1, so that it can be a gate. Formula: the product of the conditions; a broken one stands in
    `info["reason"]`. The convention is that of the MATH data set (arXiv 2103.03874); braces count as LaTeX
    counts them. After the box may stand white space, punctuation, closing math delimiters and closing tags.
    Only the text after the last `</think>` is judged, as long as `after_thinking` is set. A box within a box
    is more than one. Judges `rollout.text`.

    Runs inline: one pass over the braces and one match of the tail, neither of which backtracks, so that its
    time is linear in the text (10 MB of nothing but braces: some seconds; of prose: milliseconds).
    """

    run_in = "inline"

    class Config(Reward.Config):
        """Options of `format.boxed`."""

        final: bool = Field(
            default=True, description="Whether nothing but punctuation and closing marks may follow the box."
        )
        after_thinking: bool = Field(
            default=True, description="Whether only the text after the last </think> is judged."
        )

    config: Config

    def score(self, rollouts: Sequence[Rollout]) -> list[Score | float]:
        """Returns 1.0, or 0 with the reason, per rollout."""
        fault = self._fault
        return [
            1.0 if (reason := fault(rollout.text)) is None else Score(value=0.0, info={"reason": reason})
            for rollout in rollouts
        ]

    def _fault(self, text: str) -> str | None:
        """Returns the first fault of `text`, or None."""
        if self.config.after_thinking:
            text = after_thinking(text)
        boxes = list(islice(find_boxes(text), 2))
        if not boxes:
            return r"no \boxed{...}"
        if len(boxes) > 1:
            return "more than one box"
        [box] = boxes
        if not box.closed:
            return "the box is not closed"
        content = box.content(text)
        if is_blank(content):
            return "the box is empty"
        if next(find_boxes(content), None) is not None:
            return "a box within the box"
        if self.config.final and _TAIL.fullmatch(text, box.end) is None:
            return "text after the box"
        return None
