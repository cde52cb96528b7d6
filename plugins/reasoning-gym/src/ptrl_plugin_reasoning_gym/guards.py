"""Texts that are refused before a scorer sees them. A guard can refuse an answer, never pay one.

Nine scorers of reasoning-gym 0.1.25 evaluate the candidate's text as Python, four with `eval` and five
through sympy's `parse_expr`. Eight of them can be kept to texts in which nothing can be called and no power
explodes; `intermediate_integration` cannot. Four more scorers pay for answers that solve nothing, or never
return; the guard asks what they forgot to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Entry = Mapping[str, Any]
Guard = Callable[[str, Entry], str]
"""Returns why an answer is refused; empty when the scorer may see it."""


def _only(pattern: str, description: str, longest: int) -> Guard:
    allowed = re.compile(pattern)

    def guard(answer: str, entry: Entry) -> str:
        if len(answer) > longest:
            return f"longer than the {longest} characters that may be evaluated"
        return "" if allowed.fullmatch(answer) else f"not {description}, so it is not evaluated"

    return guard


_ARITHMETIC = _only(r"(?!.*\*\s*\*)[\d\s+\-*/()]*", "plain arithmetic of + - * / and brackets", 200)
_FACTOR = r"(?:\d{1,15}|\(\d{1,15}/\d{1,15}\)|[A-Za-z](?:\*\*\d{1,2})?)"
_TERM = rf"[\s+-]*{_FACTOR}(?:\s?[*/]\s?{_FACTOR})*"
_POLYNOMIAL = _only(rf"{_TERM}(?:\s?[+-]{_TERM})*\s*", "a polynomial written out in terms", 1_000)
_INTEGER_ROWS = _only(r"[\[\]\d\s,\-]*", "integers in rows or a list", 20_000)


def _game_of_24(answer: str, entry: Entry) -> str:
    used = sorted(number.lstrip("0") for number in re.findall(r"\d+", answer))
    if used != sorted(map(str, entry["metadata"]["numbers"])):
        return "does not use the puzzle's four numbers once each, which the scorer does not check"
    return ""


def _finite(answer: str, entry: Entry) -> str:
    if re.search(r"nan|inf", answer, re.IGNORECASE):
        return "not a finite number; the scorer pays 1 for not-a-number"
    return ""


def _small_exponent(answer: str, entry: Entry) -> str:
    exponents = re.findall(r"[eE][+-]?([\d_]+)", answer)
    return "an exponent that the scorer would not finish" if any(len(e) > 3 for e in exponents) else ""


def _the_same_word(answer: str, entry: Entry) -> str:
    if answer.strip().lower() == str(entry["answer"]).lower():
        return ""
    return "not the answer; the scorer pays 1 for any text"


EVALUATED: dict[str, Guard | None] = {
    "binary_matrix": _INTEGER_ROWS,
    "countdown": _ARITHMETIC,
    "intermediate_integration": None,
    "n_queens": _only(r"[\[\]\s,'\"Q_]*", "a board of Q and _", 20_000),
    "polynomial_multiplication": _POLYNOMIAL,
    "puzzle24": _ARITHMETIC,
    "simple_integration": _POLYNOMIAL,
    "spiral_matrix": _INTEGER_ROWS,
    "string_insertion": _only(r"[\[\]\s,'\"A-E]*", "a string or list of the letters A to E", 20_000),
}
"""Scorers that evaluate the candidate's text, each with what it may see; None where no form is safe."""

INCOMPLETE: dict[str, Guard] = {
    "coin_flip": _small_exponent,
    "complex_arithmetic": _finite,
    "game_of_life_halting": _the_same_word,
    "puzzle24": _game_of_24,
}
"""Scorers that pay for wrong answers or never return, each with what they do not ask."""


def is_unsafe(name: str) -> bool:
    """Whether a data set's scorer evaluates text that no guard makes safe."""
    return name in EVALUATED and EVALUATED[name] is None


def refusal(name: str, answer: str, entry: Entry, *, allow_unsafe: bool = False) -> str:
    """Returns why the answer is not given to the data set's scorer; empty when it is."""
    evaluated = None if allow_unsafe else EVALUATED.get(name)
    guards = [guard for guard in (evaluated, INCOMPLETE.get(name)) if guard is not None]
    return next(filter(None, (guard(answer, entry) for guard in guards)), "")
