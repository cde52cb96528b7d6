"""Chat templates of the field: where a turn ends, and that text survives."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ptrl.core import OptimizerError
from ptrl.core.episode import Transcript
from ptrl_plugin_grpo.tokenizer import ChatTokenizer

END_OF_TEXT, START, END = 0, 1, 2
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
THINKING = CHATML.replace("m['content']", "('<think>\n\n</think>\n\n' if loop.last else '') + m['content'] | trim")
SPACED = CHATML.replace("+ '<|im_end|>\n'", "+ ' <|im_end|>\n'")
TEXT_ONLY = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"


def make(template: str, *, named: bool = True, eos: str | None = "<|endoftext|>") -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with ChatML's tokens, which have a role in the tokenizer where `named`."""
    core = Tokenizer(models.BPE({token: number for number, token in enumerate([*CONTROL, *BYTES])}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    roles = {"extra_special_tokens": list(CONTROL[1:])} if named else {}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=eos, clean_up_tokenization_spaces=False, **roles
    )
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("template", [CHATML, THINKING, SPACED])
def test_the_token_that_closes_a_turn_is_found_though_it_is_not_the_end_of_text(template: str, named: bool) -> None:
    tokenizer = ChatTokenizer(make(template, named=named))
    assert tokenizer.end_of_turn_ids == {END_OF_TEXT, END}
    assert tokenizer.end_of_turn_id == END


def test_a_template_without_control_tokens_ends_turns_by_the_end_of_text() -> None:
    tokenizer = ChatTokenizer(make(TEXT_ONLY))
    assert tokenizer.end_of_turn_ids == {END_OF_TEXT}
    assert tokenizer.end_of_turn_id == END_OF_TEXT


def test_a_tokenizer_with_no_way_to_end_a_turn_is_refused() -> None:
    with pytest.raises(OptimizerError, match="no turn could end"):
        ChatTokenizer(make(TEXT_ONLY, eos=None))


def test_what_follows_a_turn_is_the_template_s_own_text() -> None:
    tokenizer = ChatTokenizer(make(CHATML))
    delta = Transcript(tokenizer).delta_ids([{"role": "tool", "content": "7"}], closed=True)
    assert tokenizer.decode(delta) == "\n<|im_start|>tool\n7<|im_end|>\n<|im_start|>assistant\n"
    cut = Transcript(tokenizer).delta_ids([{"role": "tool", "content": "7"}], closed=False)
    assert tokenizer.decode(cut) == "<|im_end|>\n<|im_start|>tool\n7<|im_end|>\n<|im_start|>assistant\n"


def test_a_tokenizer_file_that_asks_for_truncation_and_padding_gets_neither(tmp_path: Path) -> None:
    saved = make(CHATML)
    saved.backend_tokenizer.enable_truncation(4)
    saved.backend_tokenizer.enable_padding(length=9)
    saved.save_pretrained(str(tmp_path))
    tokenizer = ChatTokenizer(AutoTokenizer.from_pretrained(tmp_path))
    for text in ("a", "more than four bytes"):
        assert len(tokenizer.encode(text)) == len(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text


CHAT = ChatTokenizer(make(CHATML))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_text_survives_encoding_and_decoding(text: str) -> None:
    ids = CHAT.encode(text)
    assert CHAT.decode(ids) == text
    if not any(token in text for token in CONTROL):
        assert len(ids) == len(text.encode())


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_rendered_prompts_are_encoded_without_further_tokens(text: str) -> None:
    rendered = CHAT.render([{"role": "user", "content": text}], add_generation_prompt=True)
    assert rendered == f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    assert CHAT.decode(CHAT.encode(rendered)) == rendered
