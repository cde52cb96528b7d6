"""Reads a task's reference answer, and says so when it cannot be judged by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Rational, Real
from typing import Any, Literal

from ptrl_plugin_math.extract import MAX_ANSWER, NoAnswerError, extract_answer
from ptrl_plugin_math.normalize import normalize
from ptrl_plugin_math.number import MAX_DIGITS, OverLimitError

ReferenceForm = Literal["whole", "boxed", "hash"]


class ReferenceUnparsableError(ValueError):
    """A reference is missing or cannot be judged by: the task's fault, never the candidate's."""


def read_reference(reference: Any, form: ReferenceForm = "whole") -> Fraction | str:
    """Returns a reference in the form that is compared.

    Args:
        reference: A string, a number, or a mapping that has one under `answer`.
        form: `whole`: the string is the answer; `boxed` or `hash`: it is a worked solution, and the answer is
            in its last box or after its last `####`.

    Raises:
        ReferenceUnparsableError: When it is missing, empty, not finite, over the limits or of another type.
    """
    if not isinstance(reference, str) and isinstance(reference, Mapping):
        reference = reference.get("answer")
    if isinstance(reference, str):
        return _from_text(reference, form)
    if reference is None:
        raise ReferenceUnparsableError("the task has no reference answer")
    if isinstance(reference, bool):
        return str(reference).casefold()
    return _from_number(reference)


def _from_text(reference: str, form: ReferenceForm) -> Fraction | str:
    """Reads a reference that is a string."""
    try:
        answer = reference if form == "whole" else extract_answer(reference, form)
        if len(answer) > MAX_ANSWER:
            raise ReferenceUnparsableError(f"the reference has more than {MAX_ANSWER} characters")
        value = normalize(answer)
    except (NoAnswerError, OverLimitError) as error:
        raise ReferenceUnparsableError(f"the reference holds {error}") from error
    if isinstance(value, str) and not value:
        raise ReferenceUnparsableError("the reference answer is empty")
    return value


def _from_number(reference: Any) -> Fraction | str:
    """Reads a reference that is a number; a float is the decimal that it prints as."""
    if isinstance(reference, Rational | Integral):
        value = Fraction(int(reference.numerator), int(reference.denominator))
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_DIGITS * math.log2(10):
            raise ReferenceUnparsableError(f"the reference has more than {MAX_DIGITS} digits")
        return value
    if isinstance(reference, Decimal | Real):
        if not (reference.is_finite() if isinstance(reference, Decimal) else math.isfinite(reference)):
            raise ReferenceUnparsableError(f"the reference is {reference}, not a finite number")
        printed = str(reference) if isinstance(reference, Decimal) else repr(float(reference))
        return _from_text(printed, "whole")
    raise ReferenceUnparsableError(
        f"the reference is a {type(reference).__name__}; "
        "it must be a string, a number, or a mapping with one under 'answer'"
    )
