"""`math.answer`: does the completion state the reference's answer?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, StringConstraints

from ptrl.core import Reward, Rollout, Score
from ptrl_plugin_math.extract import Extraction, NoAnswerError, extract_answer
from ptrl_plugin_math.normalize import normalize
from ptrl_plugin_math.number import OverLimitError
from ptrl_plugin_math.reference import ReferenceForm, ReferenceUnparsableError, read_reference

_SHOWN = 200


class Answer(Reward):
    """1 when the extracted answer equals the task's reference, else 0, with the reason in `info`.

    Range: 0 or 1; the value is the metric. Formula: [answer = reference], exactly as rational numbers where
    the reference is one, as normalized texts otherwise; no tolerance. The reference is `task.reference`: a
    string, a number, or a mapping that has one under `answer`. This is the rule-based accuracy reward of
    DeepSeek-R1 (arXiv 2501.12948, section 2.2.2); it does no algebra.

    Only the text after the last `</think>` is judged. No answer, an empty or unfinished last one, and one
    beyond the limits (4,000 characters, 1,000 digits, exponents to 1,000) are the candidate's doing: 0. A
    reference that is missing or unparsable is not: status `error`, masked.

    Runs inline: extraction is linear in the text, and everything after it works on at most 4,000 characters
    and 1,000 digits, so that a verdict is bounded.
    """

    run_in = "inline"

    class Config(Reward.Config):
        """Options of `math.answer`."""

        extract: Extraction = Field(
            default="boxed",
            description="Where the answer stands: the last \\boxed{}, the last number, the last section "
            "`tag`, or after the last ####.",
        )
        tag: Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$")] = Field(
            default="answer", description='Name of the section for extract = "tag".'
        )
        reference: ReferenceForm = Field(
            default="whole",
            description="What a reference string is: the answer itself (whole), or a worked solution with "
            "the answer in its last box (boxed) or after its last #### (hash).",
        )

    config: Config

    def score(self, rollouts: Sequence[Rollout]) -> list[Score | float]:
        """Returns 1.0, 0 with the reason, or a failure with the reason, per rollout."""
        return [self._judge(rollout) for rollout in rollouts]

    def _judge(self, rollout: Rollout) -> Score | float:
        """Judges one rollout; the reference first, so that a bad one is never the candidate's fault."""
        config = self.config
        try:
            expected = read_reference(rollout.task.reference, config.reference)
            answer = extract_answer(rollout.text, config.extract, config.tag)
            given = normalize(answer)
        except ReferenceUnparsableError as error:
            return Score.failure(f"task {rollout.task.key!r}: {error}")
        except (NoAnswerError, OverLimitError) as error:
            return _wrong(str(error))
        if given == expected:
            return 1.0
        empty = isinstance(given, str) and not given
        return _wrong("the answer is empty" if empty else "not equal to the reference", answer)


def _wrong(reason: str, answer: str | None = None) -> Score:
    """Returns the verdict 0 with its reason and, where there is one, the answer's first characters."""
    info = {"reason": reason} if answer is None else {"reason": reason, "answer": answer[:_SHOWN]}
    return Score(value=0.0, info=info)
