import math
import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ptrl.core import Rollout, Task
from ptrl_plugin_math.answer import Answer

MEGABYTES_10 = 10_000_000
numbers = st.fractions(min_value=-(10**12), max_value=10**12, max_denominator=10**6)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("42", "42"),
        ("42", 42),
        ("42.0", "42"),
        ("1,000", 1000),
        ("0.1", 0.1),
        ("0.5", Fraction(1, 2)),
        (r"\frac{1}{2}", "0.5"),
        ("0.30", Decimal("0.3")),
        ("$42$", "42"),
        (r"\$42", "42"),
        (r"\text{Paris}", "paris"),
        ("  New \n York. ", "new york"),
        (r"\boxed{7}", "$7$"),
        ("x = 5", "X = 5"),
        ("E\u0301cole", "\u00e9cole"),
        ("42", {"answer": "42", "metadata": {}}),
        ("42", {"answer": 42}),
        ("True", True),
    ],
)
def test_equal_answers_earn_one(judge, answer, reference):
    assert judge(rf"So \boxed{{{answer}}}.", reference) == (1.0, "ok", None)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("43", "42"),
        ("-42", "42"),
        ("5²", "52"),
        ("34+38", "72"),
        ("52_8", "52_9"),
        ("7 or 8", "7"),
        (r"7\text{ or any other number}", "7"),
        (r"42 \approx 43", "42"),
        ("x^2-5x+6=0", "0"),
        (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
        ("0.333333333333", "1/3"),
        ("1e5000", "1e500"),
        ("1" * 1500, "11"),
        ("1/0", "0"),
        ("nan", 0),
        ("NaN", "inf"),
    ],
)
def test_unequal_answers_earn_nothing_with_a_reason(judge, answer, reference):
    value, status, reason = judge(rf"\boxed{{{answer}}}", reference)
    assert (value, status) == (0.0, "ok")
    assert reason


@pytest.mark.parametrize(
    "text",
    [
        "",
        r"\boxed{42} wait no \boxed{",
        r"\boxed{42} \boxed{}",
        r"<think>\boxed{42}</think> I do not know",
        r"<think>\boxed{42}",
        r"\boxed{.}",
    ],
)
def test_no_answer_is_the_candidates_zero(judge, text):
    value, status, reason = judge(text, "42")
    assert (value, status) == (0.0, "ok")
    assert reason


@pytest.mark.parametrize(
    "reference",
    [
        None, "", "  ", "$$", {}, {"answer": None}, {"answer": ""}, [42], b"42", object(), math.nan, math.inf,
        Decimal("nan"), Decimal("snan"), Decimal("1e99999"), "1e99999", "9" * 2000, 10**5000,
        Fraction(1, 10**5000), "a" * 5000, 1j,
    ],
    ids=lambda reference: str(type(reference).__name__),
)  # fmt: skip
@pytest.mark.parametrize("text", [r"\boxed{42}", "", r"\boxed{1e99999}"])
def test_a_reference_that_cannot_be_judged_by_is_a_failure_and_not_a_zero(judge, text, reference):
    value, status, reason = judge(text, reference)
    assert (value, status) == (None, "error")
    assert "'t'" in reason


@pytest.mark.parametrize(
    ("extract", "text"),
    [
        ("boxed", r"\boxed{1,042}"),
        ("last_number", "It is 1,042."),
        ("tag", "<answer>1042</answer>"),
        ("tag", r"<answer>\boxed{1042}</answer>"),
        ("hash", "6 * 7\n#### 1042"),
    ],
)
def test_every_extraction_reaches_the_verdict(judge, extract, text):
    assert judge(text, "1042", extract=extract)[0] == 1.0
    assert judge(text, "1043", extract=extract)[0] == 0.0


def test_the_reference_may_be_a_worked_solution(judge):
    assert judge(r"\boxed{72}", "48+24 = <<48+24=72>>72\n#### 72", reference="hash")[0] == 1.0
    assert judge(r"\boxed{72}", r"Hence $\boxed{72}$.", reference="boxed")[0] == 1.0
    assert judge(r"\boxed{72}", "Hence 72.", reference="boxed")[1] == "error"


def test_unknown_options_are_refused():
    for options in ({"extract": "guess"}, {"tag": "a>b"}, {"boxed": True}):
        with pytest.raises(ValidationError):
            Answer.Config(**options)


@given(numbers)
def test_a_number_equals_itself_and_not_its_successor(judge, value):
    assert judge(rf"\boxed{{{value}}}", value)[0] == 1.0
    assert judge(rf"\boxed{{{value + 1}}}", value)[0] == 0.0
    assert judge(rf"\boxed{{{value}}}", str(value))[0] == 1.0


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_equals_what_it_prints_as(judge, value):
    assert judge(rf"\boxed{{{value!r}}}", value)[0] == 1.0


@given(st.text(), st.text())
def test_text_is_judged_without_raising_and_the_same_both_ways(judge, one, other):
    forth = judge(f"<answer>{one}</answer>", other, extract="tag")
    assert forth[1] in ("ok", "error")
    assert judge(f"<answer>{one}</answer>", other, extract="tag") == forth


def test_verdicts_come_in_the_order_of_the_rollouts():
    tasks = [Task(key=str(i), messages=(), reference=i) for i in range(5)]
    rollouts = [Rollout(task=task, text=rf"\boxed{{{min(i, 3)}}}") for i, task in enumerate(tasks)]
    verdicts = Answer().score(rollouts)
    assert [getattr(verdict, "value", verdict) for verdict in verdicts] == [1, 1, 1, 1, 0]
    assert Answer().score([]) == []


@pytest.mark.parametrize("extract", ["boxed", "last_number", "tag", "hash"])
@pytest.mark.parametrize(
    "text",
    [
        "lorem 12 ipsum " * (MEGABYTES_10 // 15),
        "1" * MEGABYTES_10,
        "1," * (MEGABYTES_10 // 2),
        r"\boxed{" * (MEGABYTES_10 // 7),
        "<answer>" * (MEGABYTES_10 // 8),
        "#" * MEGABYTES_10,
        "1" + " " * MEGABYTES_10,
    ],
    ids=["prose", "digits", "commas", "boxes", "tags", "hashes", "spaces"],
)
def test_ten_megabytes_take_a_bounded_time(judge, extract, text):
    began = time.process_time()
    assert judge(text, "42", extract=extract)[0] == 0.0
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    "answer",
    [
        r"\boxed{" * 500 + "1" + "}" * 500,
        "$" * 3999,
        r"\text{" * 600 + "1" + "}" * 600,
        "-" + " " * 3990 + "1x",
        "1" + " " * 3990 + "x",
        "1 " * 1999,
        ("1," * 1999)[:-1],
        r"\frac{" * 600,
        "9" * 3999,
        "1e" + "9" * 3990,
        "5^{5^{5^{5^5}}}",
    ],
)
def test_hostile_answers_take_a_bounded_time(judge, answer):
    began = time.process_time()
    judge(f"<answer>{answer}</answer>", "42", extract="tag")
    judge(rf"\boxed{{{answer}}}", "42")
    assert time.process_time() - began < 0.5
