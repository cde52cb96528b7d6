import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptrl_plugin_format import find_boxes, is_blank, last_box

pieces = st.lists(st.sampled_from(["\\boxed{", "\\boxed {", "\\boxed", "{", "}", "\\", "\\{", "\\}", "a", " ", "é"]))
latex = pieces.map("".join)


def boxes_by_hand(text):
    """Outermost boxes by reading characters one by one, quadratic and plain."""
    found, i = [], 0
    while i < len(text):
        opening = re.compile(r"\\boxed\s*\{").match(text, i)
        if opening:
            end = closing_by_hand(text, opening.end())
            found.append((i, opening.end(), end))
            i = end if end >= 0 else opening.end()
        elif text[i] == "\\" and text[i + 1 : i + 2] in ("\\", "{", "}"):
            i += 2
        else:
            i += 1
    return found


def closing_by_hand(text, i):
    depth = 1
    while i < len(text):
        if text[i] == "\\" and text[i + 1 : i + 2] in ("\\", "{", "}"):
            i += 2
            continue
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        i += 1
        if depth == 0:
            return i
    return -1


@given(latex)
def test_the_scanner_finds_what_reading_by_hand_finds(text):
    assert [tuple(box) for box in find_boxes(text)] == boxes_by_hand(text)


@given(latex)
def test_the_last_box_is_the_last_of_all_boxes(text):
    assert last_box(text) == (list(find_boxes(text)) or [None])[-1]


@given(st.text())
def test_any_text_can_be_scanned_and_every_box_lies_within_it(text):
    text = f"{text}\\boxed{{{text}"
    for box in find_boxes(text):
        assert text[box.start : box.inside].startswith("\\boxed")
        assert box.content(text) in text


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        ("", []),
        ("no box", []),
        (r"\boxed{42}", ["42"]),
        (r"{\boxed{42}", ["42"]),
        (r"} \boxed{\frac{1}{2}}", [r"\frac{1}{2}"]),
        (r"\boxed{1} and \boxed{2}", ["1", "2"]),
        (r"\boxed{\boxed{3}}", [r"\boxed{3}"]),
        (r"\boxed{\{1, 2\}}", [r"\{1, 2\}"]),
        (r"\boxed{a\\}", [r"a\\"]),
        (r"a\\boxed{5}", []),
        (r"a\\\boxed{5}", ["5"]),
        (r"\boxed{42} wait no \boxed{", ["42", ""]),
        (r"\boxed{ as asked: \boxed{42}", [r" as asked: \boxed{42}", "42"]),
        ("\\boxed\n{42}", ["42"]),
    ],
)
def test_braces_count_as_latex_counts_them(text, contents):
    assert [box.content(text) for box in find_boxes(text)] == contents


@pytest.mark.parametrize("content", ["", " ", "{}", "$$", r"\text{}", r"\boxed{}", r"\, \ ", "\u200b", "{ {\n} }"])
def test_a_shell_is_blank(content):
    assert is_blank(content)


@pytest.mark.parametrize("content", ["0", "-", "é", "雪", r"\{\}", r"\emptyset", "$x$", r"\text{a}", "🙂"])
def test_an_answer_is_not_blank(content):
    assert not is_blank(content)
