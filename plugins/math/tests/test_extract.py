import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptrl_plugin_math.extract import MAX_ANSWER, NoAnswerError, extract_answer

EXTRACTIONS = ("boxed", "last_number", "tag", "hash")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", "42"),
        ("The answer is 42.", "42"),
        ("12 + 30 = 42 apples", "42"),
        ("= -5", "-5"),
        ("10-5", "5"),
        ("(3)-5", "5"),
        ("pages 3-5", "5"),
        ("It costs $1,234.50.", "1,234.50"),
        ("It costs -$5", "-5"),
        (r"\$18", "18"),
        ("**42**", "42"),
        ("_42_", "42"),
        ("so 3/4", "3/4"),
        ("so 3 1/2 cups", "3 1/2"),
        (r"so $\frac{3}{4}$", r"\frac{3}{4}"),
        (r"so $-2\frac{3}{4}$", r"-2\frac{3}{4}"),
        (r"so \frac{x}{4}", r"\frac{x}{4}"),
        ("an area of 42 m^2", "42"),
        ("an area of 42 cm²", "42"),
        ("42 kg of CO2", "42"),
        ("15kg", "15"),
        ("1,2,3", "3"),
        ("1, 2, 3", "3"),
        ("2^10 = 1024", "1024"),
        ("2^10=1024", "1024"),
        ("- 5 apples", "5"),
        (".5", ".5"),
        ("1e5", "1e5"),
        ("50%", "50"),
        ("<think>41</think> it is 42", "42"),
        (r"\boxed{42}", "42"),
        ("7" * 100, "7" * 100),
        ("in all, " + "7" * 600, "7" * 600),
    ],
)
def test_the_last_number_is_taken_as_it_is_written(text, number):
    assert extract_answer(text, "last_number") == number


@pytest.mark.parametrize(
    "text",
    ["", "none", "<think>42</think> I do not know", "2^10", "52_8", "1.2.3", "12/25/2024", "x2", "8" * 5000],
)
def test_what_is_not_a_number_of_its_own_is_no_answer(text):
    with pytest.raises(NoAnswerError):
        extract_answer(text, "last_number")


@given(st.integers(0, 10**30), st.text(alphabet=st.characters(exclude_categories=["N"], exclude_characters="<")))
def test_a_number_between_words_is_found(number, words):
    assert extract_answer(f"{words} {number} {words}", "last_number") == str(number)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{42}", "42"),
        (r"\boxed{41} no, \boxed{ 42 }", "42"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"<think>\boxed{41}</think>\boxed{42}", "42"),
    ],
)
def test_the_last_box_is_the_answer(text, answer):
    assert extract_answer(text, "boxed") == answer


@pytest.mark.parametrize(
    ("extraction", "text"),
    [
        ("boxed", ""),
        ("boxed", "42"),
        ("boxed", r"\boxed{42} wait no \boxed{"),
        ("boxed", r"\boxed{42} \boxed{}"),
        ("boxed", r"<think>\boxed{42}</think> I do not know"),
        ("boxed", r"\boxed{" + "1" * (MAX_ANSWER + 1) + "}"),
        ("tag", ""),
        ("tag", "<answer>42"),
        ("tag", "<answer>42</answer><answer></answer>"),
        ("tag", "<answer>42</answer><answer>43"),
        ("tag", "<answer>" + "1" * (MAX_ANSWER + 1) + "</answer>"),
        ("hash", "42"),
        ("hash", "#### 42\n####"),
        ("hash", "####   \n42"),
        ("hash", "#### " + "1" * (MAX_ANSWER + 1)),
    ],
)
def test_an_empty_unfinished_or_overlong_statement_is_no_answer(extraction, text):
    with pytest.raises(NoAnswerError):
        extract_answer(text, extraction)


def test_a_tag_or_a_hash_marks_the_answer():
    assert extract_answer("<answer>41</answer> no: <answer> 42 </answer>", "tag") == "42"
    assert extract_answer("<result>42</result>", "tag", "result") == "42"
    assert extract_answer("6*7\n#### 41\n#### 42 \nbye", "hash") == "42"


@given(st.text(), st.sampled_from(EXTRACTIONS), st.sampled_from(["", r"\boxed{", "<answer>", "####", r"\frac{"]))
def test_any_text_gives_an_answer_or_a_reason(text, extraction, mark):
    try:
        assert len(extract_answer(f"{text}{mark}{text}", extraction)) <= MAX_ANSWER
    except NoAnswerError as error:
        assert str(error)
