from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from ptrl_plugin_grpo.tiny_model import make_tokenizer
from ptrl_plugin_grpo.tokenizer import ChatTokenizer

torch.set_num_threads(1)

FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama-grouped": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 12}),
}


def build(family: str, **changes: object) -> PreTrainedModel:
    """Returns a tiny model of a family with large random weights, so that logits differ."""
    config_class, model_class, own = FAMILIES[family]
    options = {
        "vocab_size": 268,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 128,
        "initializer_range": 0.3,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **own,
        **changes,
    }
    torch.manual_seed(7)
    model = model_class(config_class(**options))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.fixture(scope="session")
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer(make_tokenizer())


@pytest.fixture(scope="session")
def make_model() -> Callable[..., PreTrainedModel]:
    return build


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: ChatTokenizer) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build("llama-grouped", initializer_range=0.05).save_pretrained(folder)
    tokenizer.save(folder)
    return folder
