"""Which models the lean forward pass takes, and that every other one is sampled and trained as it computes."""

from collections.abc import Callable, Sequence

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM, PreTrainedModel

from ptrl.core import OptimizerError
from ptrl.core.policy import Sampling, Turn
from ptrl.core.settings import TrainingSection
from ptrl_plugin_grpo.batches import TrainingRow, packed_layouts, padded_layouts
from ptrl_plugin_grpo.decoding import TransformersDecoder
from ptrl_plugin_grpo.fast_decoding import FastDecoder, decoder_for, is_supported
from ptrl_plugin_grpo.generation import Generator
from ptrl_plugin_grpo.policy import EmbeddedPolicy, chosen_logits
from ptrl_plugin_grpo.tokenizer import ChatTokenizer
from ptrl_plugin_grpo.update import Update

MakeModel = Callable[..., PreTrainedModel]
NEW = 12
DEFAULT_ROPE = {"rope_theta": 10000.0}

COMPUTED = [
    ("llama", {"attention_bias": True}),
    ("llama", {"head_dim": 12}),
    ("llama", {"num_key_value_heads": 1}),
    ("llama", {"rms_norm_eps": 0.1}),
    ("llama", {"attention_dropout": 0.5}),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
    ("llama", {"max_position_embeddings": 8}),
    ("llama", {"tie_word_embeddings": True}),
    ("qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    ("qwen2", {"sliding_window": 4, "use_sliding_window": False}),
    ("qwen2", {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 2}),
    ("qwen2", {"hidden_act": "silu", "rms_norm_eps": 0.1}),
    ("qwen3", {"attention_bias": True, "num_key_value_heads": 2}),
    ("qwen3", {"head_dim": 4, "tie_word_embeddings": True}),
    ("qwen3", {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
]

LEFT_TO_TRANSFORMERS = [
    ("llama", {"rope_parameters": {**DEFAULT_ROPE, "rope_type": "linear", "factor": 2.0}}),
    ("llama", {"rope_parameters": {**DEFAULT_ROPE, "rope_type": "dynamic", "factor": 2.0}}),
    ("qwen2", {"rope_parameters": {**DEFAULT_ROPE, "rope_type": "yarn", "factor": 2.0}}),
    (
        "llama",
        {
            "rope_parameters": {
                **DEFAULT_ROPE,
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        },
    ),
    ("llama", {"mlp_bias": True}),
    ("llama", {"hidden_act": "gelu"}),
    ("llama", {"is_causal": False}),
    ("qwen3", {"hidden_act": "relu"}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}),
    (
        "qwen3",
        {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 4, "use_sliding_window": True},
    ),
]


def names(cases: Sequence[tuple[str, dict[str, object]]]) -> list[str]:
    return [f"{family}-{'-'.join(changes)}-{number}" for number, (family, changes) in enumerate(cases)]


class OneTurn:
    """Ends every row after its first turn."""

    def __init__(self) -> None:
        self.turns: dict[int, Turn] = {}

    def turn_limit(self, row: int) -> int:
        return NEW

    def stop_strings(self, row: int) -> tuple[str, ...]:
        return ()

    def turns_finished(self, turns: Sequence[Turn]) -> list[None]:
        self.turns |= {turn.row: turn for turn in turns}
        return [None for _ in turns]


def prompts() -> list[list[int]]:
    rng = torch.Generator().manual_seed(3)
    return [torch.randint(12, 268, (length,), generator=rng).tolist() for length in (3, 9, 1, 6)]


def sampled(
    decoder: FastDecoder | TransformersDecoder, tokenizer: ChatTokenizer, temperature: float, group: int = 1
) -> list[TrainingRow]:
    driver = OneTurn()
    rows = [prompt for prompt in prompts() for _ in range(group)]
    sampling = Sampling(temperature=temperature, max_new_tokens=NEW, seed=4)
    Generator(decoder, tokenizer, rows, sampling, driver).run()
    return [
        TrainingRow(prompt, turn.ids, [1] * len(turn.ids), turn.logprobs, row // group)
        for row, (prompt, turn) in enumerate(zip(rows, (driver.turns[row] for row in range(len(rows))), strict=True))
    ]


def generated(model: PreTrainedModel, prompt: Sequence[int]) -> list[int]:
    ids = torch.tensor([list(prompt)])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False)
    found: list[int] = output[0, len(prompt) :].tolist()
    return found


def farthest_logprob(model: PreTrainedModel, rows: Sequence[TrainingRow]) -> float:
    """The largest difference between a sampled token's log-probability and that of a training pass."""
    farthest = 0.0
    for layout in padded_layouts(rows, 10_000, model.device):
        logits = chosen_logits(model, layout)
        trained = logits.log_softmax(-1).gather(-1, layout.target[:, None]).squeeze(-1)
        farthest = max(farthest, float((trained - layout.logprobs).detach().abs().max()))
    return farthest


def other_model(kind: str, **changes: object) -> PreTrainedModel:
    """A tiny model of an architecture that the lean pass does not know, with large weights."""
    options = {
        "vocab_size": 268,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    torch.manual_seed(7)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options, **changes))
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.mark.parametrize(("family", "changes"), COMPUTED, ids=names(COMPUTED))
def test_what_the_lean_pass_takes_it_computes_as_the_model_does(
    family: str, changes: dict[str, object], make_model: MakeModel, tokenizer: ChatTokenizer
) -> None:
    model = make_model(family, **changes)
    assert isinstance(decoder_for(model), FastDecoder)
    for row in sampled(FastDecoder(model), tokenizer, temperature=0.0):
        assert row.tokens == generated(model, row.prompt)
    assert farthest_logprob(model, sampled(FastDecoder(model), tokenizer, temperature=1.0)) < 1e-4


@pytest.mark.parametrize(("family", "changes"), LEFT_TO_TRANSFORMERS, ids=names(LEFT_TO_TRANSFORMERS))
def test_what_changes_the_forward_pass_is_left_to_transformers(
    family: str, changes: dict[str, object], make_model: MakeModel
) -> None:
    model = make_model(family, **changes)
    assert not is_supported(model)
    assert isinstance(decoder_for(model), TransformersDecoder)


def _adapter_on_the_head(model: PreTrainedModel) -> None:
    model.lm_head = torch.nn.Sequential(model.lm_head)


def _adapter_in_a_layer(model: PreTrainedModel) -> None:
    class Adapter(torch.nn.Linear):
        pass

    model.model.layers[1].mlp.down_proj = Adapter(48, 32, bias=False)


def _adapter_on_the_embedding(model: PreTrainedModel) -> None:
    class Adapter(torch.nn.Embedding):
        pass

    model.model.embed_tokens = Adapter(268, 32)


def _parametrized_weight(model: PreTrainedModel) -> None:
    torch.nn.utils.parametrizations.weight_norm(model.model.layers[0].self_attn.o_proj)


def _quantized_weight(model: PreTrainedModel) -> None:
    projection = model.model.layers[0].self_attn.v_proj
    projection.weight = torch.nn.Parameter(projection.weight.detach().to(torch.int8), requires_grad=False)


def _float8_weights(model: PreTrainedModel) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.float8_e4m3fn)


def _weight_of_another_type(model: PreTrainedModel) -> None:
    model.model.layers[0].self_attn.v_proj.to(torch.bfloat16)


@pytest.mark.parametrize(
    "change",
    [
        _adapter_on_the_head,
        _adapter_in_a_layer,
        _adapter_on_the_embedding,
        _parametrized_weight,
        _quantized_weight,
        _float8_weights,
        _weight_of_another_type,
    ],
)
def test_adapters_and_weights_that_are_no_plain_floats_are_left_to_transformers(
    change: Callable[[PreTrainedModel], None], make_model: MakeModel
) -> None:
    model = make_model("llama")
    assert is_supported(model)
    change(model)
    assert not is_supported(model)


def test_a_class_derived_from_the_family_is_left_to_transformers(make_model: MakeModel) -> None:
    class Derived(LlamaForCausalLM):
        pass

    assert not is_supported(Derived(make_model("llama").config))


def test_bfloat16_weights_give_the_model_s_own_logprobs(make_model: MakeModel, tokenizer: ChatTokenizer) -> None:
    model = make_model("qwen3", initializer_range=0.05).to(torch.bfloat16)
    assert is_supported(model)
    assert farthest_logprob(model, sampled(FastDecoder(model), tokenizer, temperature=1.0)) < 0.1


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("mistral", {"sliding_window": 4}),
        ("gemma2", {"head_dim": 8, "sliding_window": 4, "final_logit_softcapping": 2.0}),
        ("cohere", {"logit_scale": 0.25}),
        ("granite", {"logits_scaling": 3.0, "embedding_multiplier": 2.0, "residual_multiplier": 0.5}),
        ("gpt2", {"n_positions": 128}),
        ("bloom", {}),
    ],
)
def test_other_architectures_are_sampled_and_trained_as_they_compute(
    kind: str, changes: dict[str, object], tokenizer: ChatTokenizer
) -> None:
    model = other_model(kind, **changes)
    assert not is_supported(model)
    for row in sampled(TransformersDecoder(model), tokenizer, temperature=0.0):
        assert row.tokens == generated(model, row.prompt)
    assert farthest_logprob(model, sampled(TransformersDecoder(model), tokenizer, temperature=1.0, group=3)) < 1e-4
    assert EmbeddedPolicy(model, tokenizer).context_length >= 128


@pytest.mark.parametrize("kind", ["mamba", "rwkv"])
def test_a_recurrent_model_is_refused_in_words(kind: str) -> None:
    with pytest.raises(OptimizerError, match=r"model\.path: \w+ keeps a recurrent state"):
        TransformersDecoder(other_model(kind))


def test_rollouts_are_packed_only_where_attention_takes_a_block_mask(make_model: MakeModel) -> None:
    model = make_model("llama")
    assert Update(model, None, TrainingSection())._make_layouts is packed_layouts
    assert Update(model, None, TrainingSection(), packed=False)._make_layouts is padded_layouts
    model.set_attn_implementation("eager")
    assert Update(model, None, TrainingSection())._make_layouts is padded_layouts
    assert Update(other_model("gpt2"), None, TrainingSection())._make_layouts is padded_layouts
