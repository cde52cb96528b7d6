import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptrl_plugin_format.boxed import Boxed

MEGABYTES_10 = 10_000_000


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{42}",
        r"So it is $\boxed{42}$.",
        r"\[ \boxed{\frac{1}{2}} \]" + "\n",
        r"\(\boxed{x}\)**",
        r"<answer>\boxed{42}</answer>",
        r"<think>maybe \boxed{41}</think> \boxed{42}",
        r"\begin{align*} \boxed{42} \end{align*}",
        r"\boxed{雪}",
    ],
)
def test_one_full_box_at_the_end_earns_one(judge, text):
    assert judge(Boxed(), text) == [(1.0, None)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"no \boxed{...}"),
        ("42", r"no \boxed{...}"),
        (r"\boxed{}", "the box is empty"),
        (r"\boxed{ \text{ } }", "the box is empty"),
        ("\\boxed{\u200b}", "the box is empty"),
        (r"\boxed{\boxed{}}", "the box is empty"),
        (r"\boxed{\boxed{1}}", "a box within the box"),
        (r"\boxed{42", "the box is not closed"),
        (r"\boxed{42} wait no \boxed{", "more than one box"),
        (r"\boxed{1} \boxed{2}", "more than one box"),
        (r"\boxed{42} apples", "text after the box"),
        (r"<think>\boxed{42}</think> I do not know", r"no \boxed{...}"),
        (r"<think>\boxed{42}", r"no \boxed{...}"),
    ],
)
def test_a_fault_earns_nothing_and_is_named(judge, text, reason):
    assert judge(Boxed(), text) == [(0.0, reason)]


def test_text_after_the_box_is_an_option(judge):
    assert judge(Boxed(Boxed.Config(final=False)), r"\boxed{42} apples") == [(1.0, None)]


def test_the_thought_can_be_judged_too(judge):
    reward = Boxed(Boxed.Config(after_thinking=False))
    assert judge(reward, r"<think>\boxed{1}</think> \boxed{42}") == [(0.0, "more than one box")]


@given(st.text(alphabet=st.characters(exclude_characters="\\{}")).filter(lambda text: text[:1].isalnum()))
def test_anything_visible_in_a_box_earns_one(judge, content):
    assert judge(Boxed(Boxed.Config(after_thinking=False)), f"so $\\boxed{{{content}}}$.") == [(1.0, None)]


@given(st.text(), st.text())
def test_no_text_raises(judge, before, after):
    [(value, _)] = judge(Boxed(), f"{before}\\boxed{{{after}")
    assert value in (0.0, 1.0)


@pytest.mark.parametrize(
    "text",
    [
        "lorem ipsum " * (MEGABYTES_10 // 12) + r"\boxed{42}",
        r"\boxed{" + "{}" * (MEGABYTES_10 // 2),
        r"\boxed{" * (MEGABYTES_10 // 7),
        r"\boxed " * (MEGABYTES_10 // 7),
        r"\boxed{1}" + "." * MEGABYTES_10,
        r"\boxed" + " " * MEGABYTES_10,
        "\\" * MEGABYTES_10 + r"\boxed{1}",
    ],
    ids=["prose", "braces", "openings", "words", "tail", "spaces", "backslashes"],
)
def test_ten_megabytes_take_a_bounded_time(judge, text):
    began = time.process_time()
    judge(Boxed(), text)
    assert time.process_time() - began < 20
