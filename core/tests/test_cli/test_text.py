import io
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from ptrl.core.text import encodable, terminal_safe

HOSTILE = st.text(st.one_of(st.characters(), st.sampled_from("\x1b\x9b\x07\x9c\x9d[]0;mHJ\\\r\n\u202e\ud800")))


@given(HOSTILE, st.booleans())
def test_nothing_that_drives_a_terminal_is_left(text, lines):
    safe = terminal_safe(text, lines=lines)
    kinds = {unicodedata.category(letter) for letter in safe if letter not in "\n\t"}
    assert not kinds & {"Cc", "Cs", "Zl", "Zp"}
    assert not set(safe) & set("\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u2069")
    assert lines or not set(safe) & set("\n\t")
    safe.encode("utf-8")


@given(HOSTILE)
def test_safe_text_stays_as_it_is(text):
    safe = terminal_safe(text)
    assert terminal_safe(safe) == safe


@given(st.text(st.characters(categories=["L", "N", "P", "Sm"])))
def test_plain_text_is_not_changed(text):
    assert terminal_safe(text) == text


@given(HOSTILE, st.integers(1, 40))
def test_a_limit_is_kept(text, limit):
    assert len(terminal_safe(text, limit=limit)) <= limit


def test_sequences_go_with_all_that_belongs_to_them():
    assert terminal_safe("a\x1b[1;31mb\x1b]0;title\x07c\x1b]52;c;ZXZpbA==\x1b\\d\x9b2Je") == "abcde"


def test_an_unfinished_sequence_hides_nothing_after_it():
    assert terminal_safe("\x1b]0;no end, and the verdict is: failed") == "]0;no end, and the verdict is: failed"


def test_a_carriage_return_cannot_write_over_the_line():
    assert terminal_safe("error: bad\rall is well", lines=True) == "error: badall is well"


def test_many_unfinished_sequences_are_read_in_linear_time():
    assert len(terminal_safe("\x1b]" * 200_000)) == 200_000


def test_a_narrow_encoding_costs_characters_and_not_the_program():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    encodable(stream)
    stream.write("0% → 80%")
    stream.flush()
    assert stream.buffer.getvalue() == b"0% ? 80%"
