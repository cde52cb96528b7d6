import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ptrl_plugin_format.tags import Tags

GOOD = "<think>2 and 2</think>\n<answer>4</answer>"
MEGABYTES_10 = 10_000_000

tokens = st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "a", " ", "\n", "<", ">", "é", "\u200b"])
words = st.text(alphabet=st.characters(exclude_characters="<>")).filter(lambda text: text[:1].isalnum())


def fault_of(judge, text, **options):
    [(value, reason)] = judge(Tags(Tags.Config(**options)), text)
    assert (value == 1.0) is (reason is None)
    return reason


def test_both_sections_in_order_earn_one(judge):
    assert judge(Tags(), GOOD) == [(1.0, None)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "<think> is missing"),
        ("4", "<think> is missing"),
        ("<answer>4</answer>", "<think> does not come before <answer>"),
        ("<think>a</think>", "<answer> is missing"),
        ("<think></think><answer>4</answer>", "<think> is empty"),
        ("<think>a</think><answer> \n</answer>", "<answer> is empty"),
        ("<think>a</think><answer>\u200b\ufeff</answer>", "<answer> is empty"),
        ("<think>a</think><answer>4", "<answer> is not closed"),
        ("<think>a<answer>4</answer>", "<answer> stands inside <think>"),
        ("<think>a</think></think><answer>4</answer>", "</think> closes nothing"),
        ("<answer>4</answer><think>a</think>", "<think> does not come before <answer>"),
        ("<think>a</think><think>b</think><answer>4</answer>", "<think> is repeated or out of order"),
        (GOOD + "<answer>4</answer>", "<answer> is repeated or out of order"),
        ("so: " + GOOD, "text outside the sections"),
        (GOOD + " done", "text outside the sections"),
        ("<think>a</think> x <answer>4</answer>", "text outside the sections"),
        ("<THINK>a</THINK><answer>4</answer>", "<think> does not come before <answer>"),
    ],
)
def test_a_fault_earns_nothing_and_is_named(judge, text, reason):
    assert judge(Tags(), text) == [(0.0, reason)]


def test_an_optional_section_may_be_left_out_but_not_misused(judge):
    optional = {"optional": ["think"]}
    assert fault_of(judge, "<answer>4</answer>", **optional) is None
    assert fault_of(judge, GOOD, **optional) is None
    assert fault_of(judge, "<think>a</think>", **optional) == "<answer> is missing"
    assert fault_of(judge, "<answer>4</answer><think>a</think>", **optional) is not None


def test_white_space_outside_is_an_option(judge):
    assert fault_of(judge, GOOD, white_space=False) == "white space outside the sections"
    assert fault_of(judge, GOOD.replace("\n", ""), white_space=False) is None


def test_text_outside_is_an_option(judge):
    assert fault_of(judge, f"well {GOOD} there", outside=True) is None


def test_sections_are_named_in_the_config(judge):
    assert fault_of(judge, "<plan>a</plan><code>b</code>", sections=["plan", "code"]) is None
    assert fault_of(judge, "<code>b</code><plan>a</plan>", sections=["plan", "code"]) is not None


@pytest.mark.parametrize(
    "options",
    [
        {"sections": []},
        {"sections": ["a", "a"]},
        {"sections": ["a>b"]},
        {"sections": ["a"], "optional": ["b"]},
        {"sections": ["a"], "optional": ["a"]},
        {"sectoins": ["a"]},
    ],
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(ValidationError):
        Tags.Config(**options)


@given(words, words, st.sampled_from(["", " ", "\n\n", "\u3000"]))
def test_any_words_in_the_sections_earn_one(judge, thought, answer, space):
    text = f"{space}<think>{thought}</think>{space}<answer>{answer}</answer>{space}"
    assert judge(Tags(), text) == [(1.0, None)]


@given(st.lists(tokens).map("".join))
def test_only_the_whole_form_earns_one(judge, text):
    [(value, _)] = judge(Tags(), text)
    first, _, rest = text.strip().removeprefix("<think>").partition("</think>")
    second = rest.strip().removeprefix("<answer>").removesuffix("</answer>")
    rebuilt = f"<think>{first}</think><answer>{second}</answer>"
    whole = rebuilt == text.strip()[: len(first) + 15] + rest.strip()
    clean = not any(tag in part for tag in ("<think>", "</think>", "<answer>", "</answer>") for part in (first, second))
    shown = all(part.replace("\u200b", "").strip() for part in (first, second))
    assert value == float(whole and clean and shown)


@given(st.text())
def test_no_text_raises(judge, text):
    [(value, _)] = judge(Tags(Tags.Config(optional=["think"], outside=True)), text)
    assert value in (0.0, 1.0)


def test_a_lone_surrogate_and_a_null_are_text(judge):
    assert judge(Tags(), "<think>\ud800</think><answer>\x00 0</answer>")[0][0] in (0.0, 1.0)


@pytest.mark.parametrize(
    "text",
    [
        "<think>" * (MEGABYTES_10 // 7),
        "<" * MEGABYTES_10,
        " " * MEGABYTES_10,
        "<think>" + "\u200b" * MEGABYTES_10 + "</think>",
        "<think>" + "a" * MEGABYTES_10 + "</think><answer>b</answer>",
    ],
    ids=["openings", "angles", "spaces", "invisible", "long thought"],
)
def test_ten_megabytes_take_a_bounded_time(judge, text):
    began = time.process_time()
    judge(Tags(), text)
    assert time.process_time() - began < 10
