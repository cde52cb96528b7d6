"""`reasoning_gym.score`: the data set's own scorer as an outcome reward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from ptrl.core import Reward, Rollout, Score
from ptrl_plugin_reasoning_gym.extraction import ExtractionPolicy, extract, missing
from ptrl_plugin_reasoning_gym.guards import is_unsafe, refusal
from ptrl_plugin_reasoning_gym.library import DataSet, ReasoningGymError, scorer
from ptrl_plugin_reasoning_gym.packing import unpack

_ITEM = ("question", "answer", "metadata")
FIELDS = {"dataset", "spec", *_ITEM}
"""What a task's reference must have to be judged here."""


class ReasoningGymScore(Reward):
    """Pays what the scorer of the task's data set says of the answer, 0 to 1.

    An answer that is missing, too long, refused by a guard, or of a form on which the scorer breaks is worth
    0, with the reason. A scorer that breaks on the data set's own answer too has failed, and so has one that
    returns no number from 0 to 1.
    """

    class Config(Reward.Config):
        """Options of reasoning_gym.score."""

        answer: ExtractionPolicy = "tag"
        """Where it stands: the last `<answer>...</answer>`, the last `\\boxed{...}`, or the whole text."""

        solved_at: float | None = Field(default=None, gt=0, le=1)
        """The metric is 1 where the value reaches this, else 0; by default the metric is the value."""

        max_chars: int = Field(default=20_000, ge=1)
        """A longer answer is worth 0; no data set's own answer comes near it."""

        allow_unsafe: bool = False
        """Gives scorers that evaluate the answer as Python code any text: only where you trust the policy."""

    config: Config

    def score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """Returns one verdict per rollout, in order."""
        return [self._judge(rollout) for rollout in rollouts]

    def _judge(self, rollout: Rollout) -> Score:
        reference = rollout.task.reference
        if not (isinstance(reference, Mapping) and reference.keys() >= FIELDS):
            return Score.failure("the task is none of reasoning_gym.task, whose items this reward judges")
        name = reference["dataset"]
        if is_unsafe(name) and not self.config.allow_unsafe:
            return Score.failure(
                f"the scorer of {name!r} evaluates the answer as Python code;"
                " set allow_unsafe = true where you trust the policy, or leave the data set out"
            )
        answer = extract(rollout.text, self.config.answer)
        if answer is None:
            return _worthless(missing(self.config.answer))
        if len(answer) > self.config.max_chars:
            return _worthless(f"the answer is longer than {self.config.max_chars} characters")
        item = _item(reference)
        reason = refusal(name, answer, item, allow_unsafe=self.config.allow_unsafe)
        if reason:
            return _worthless(f"refused: {reason}")
        return self._ask(reference, answer, item)

    def _ask(self, reference: Mapping[str, Any], answer: str, item: dict[str, Any]) -> Score:
        try:
            data_set = scorer(reference["spec"])
        except ReasoningGymError as error:
            return Score.failure(str(error))
        try:
            value = float(data_set.score_answer(answer, item))
        except Exception as error:
            return _decide_fault(data_set, reference, error)
        if not (math.isfinite(value) and 0.0 <= value <= 1.0):
            return Score.failure(f"the scorer of {reference['dataset']!r} returned {value}, not 0 to 1")
        if self.config.solved_at is None:
            return Score(value=value, metric=value)
        return Score(value=value, metric=float(value >= self.config.solved_at))


def _item(reference: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the item as its data set made it; a fresh copy, since one scorer writes into it."""
    item: dict[str, Any] = unpack({field: reference[field] for field in _ITEM})
    return item


def _worthless(reason: str) -> Score:
    return Score(value=0.0, metric=0.0, info={"reason": reason})


def _decide_fault(data_set: DataSet, reference: Mapping[str, Any], error: Exception) -> Score:
    """A scorer that can judge the data set's own answer broke on the form of this one: a verdict."""
    text = f"{type(error).__name__}: {error}"[:500]
    item = _item(reference)
    own = item["answer"] if isinstance(item["answer"], str) else ""
    try:
        data_set.score_answer(own, item)
    except Exception:
        return Score.failure(f"the scorer of {reference['dataset']!r} breaks on its own answer: {text}")
    return _worthless(f"the scorer cannot read an answer of this form: {text}")
