import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptrl_plugin_format import after_thinking


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", ""),
        ("42", "42"),
        ("<think>a</think>42", "42"),
        ("a</think>42", "42"),
        ("<think>a</think>b</think>42", "42"),
        ("<think>cut while it thought", ""),
        ("<think>a</think>42<think>more", "42"),
        ("41<think>a</think>42", "42"),
    ],
)
def test_the_answer_is_what_follows_the_last_thought(text, answer):
    assert after_thinking(text) == answer


@given(st.text(), st.text())
def test_a_thought_never_shows(thought, answer):
    assert after_thinking(f"<think>{thought}</think>{answer}") == after_thinking(answer)
