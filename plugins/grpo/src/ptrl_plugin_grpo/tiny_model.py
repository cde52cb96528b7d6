"""Architecture and tokenizer of the tiny model: `python -m ptrl_plugin_grpo.tiny_model FOLDER` writes both.

A byte-level tokenizer, in which any text survives encoding and decoding, with one token for each tag and each
role; and a Llama of 0.17 M parameters with untrained weights. `ptrl train examples/warmup.toml` trains them.
"""

import sys
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTROL = ("<pad>", "<bos>", "<eos>", "<|user|>", "<|assistant|>", "<|tool|>")
TAGS = ("<think>", "</think>", "<answer>", "</answer>", "<call>", "</call>")


def chat_template() -> str:
    """Returns a template in which every message of the assistant is closed by `<eos>`.

    What a user or a tool wrote cannot become a control token: a blank is put into its name.
    """
    harmless = "".join(f" | replace('{token}', '< {token[1:]}')" for token in CONTROL)
    return (
        "{%- macro plain(text) -%}{{ text" + harmless + " }}{%- endmacro -%}"
        "{{- '<bos>' -}}"
        "{%- for message in messages -%}"
        "{%- if message['role'] == 'assistant' -%}{{- '<|assistant|>' + message['content'] + '<eos>' -}}"
        "{%- elif message['role'] == 'tool' -%}{{- '<|tool|>' + plain(message['content']) -}}"
        "{%- else -%}{{- '<|user|>' + plain(message['content']) -}}{%- endif -%}"
        "{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
    )


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Returns the byte-level tokenizer."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*CONTROL, *TAGS, *letters])}
    core = Tokenizer(models.BPE(vocabulary, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    core.add_tokens([AddedToken(token, special=False, normalized=False) for token in TAGS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    tokenizer.chat_template = chat_template()
    return tokenizer


def make_config(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """Returns the architecture."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def main(folder: Path) -> None:
    """Writes the tokenizer and an untrained model."""
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(str(folder))
    LlamaForCausalLM(make_config(tokenizer)).save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
