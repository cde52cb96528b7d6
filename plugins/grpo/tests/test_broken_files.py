"""Folders that hold no whole model are errors that name the key; a checkpoint takes up what is its own."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from ptrl.core import OptimizerError
from ptrl.core.settings import ModelSection, TrainingSection
from ptrl_plugin_grpo.checkpoints import load_training_state, save_training_state
from ptrl_plugin_grpo.models import load_model, load_tokenizer, save_model
from ptrl_plugin_grpo.optimizers import make_optimizers, take_step
from ptrl_plugin_grpo.policy import EmbeddedPolicy
from ptrl_plugin_grpo.scheduling import set_learning_rate
from ptrl_plugin_grpo.tokenizer import ChatTokenizer

CPU = torch.device("cpu")
MakeModel = Callable[..., PreTrainedModel]


@pytest.fixture
def folder(tmp_path: Path, model_folder: Path) -> Path:
    return shutil.copytree(model_folder, tmp_path / "model")


def section(folder: Path, **changes: object) -> ModelSection:
    return ModelSection(path=str(folder), **changes)  # type: ignore[arg-type]


def edit_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_weights_that_the_checkpoint_lacks_are_not_drawn_at_random(folder: Path) -> None:
    edit_config(folder, num_hidden_layers=3)
    with pytest.raises(OptimizerError, match=r"model\.path: .* lacks 9 weights of its config"):
        load_model(section(folder), 0, CPU)


def test_weights_of_other_shapes_are_refused(folder: Path) -> None:
    edit_config(folder, intermediate_size=40)
    with pytest.raises(OptimizerError, match=r"model\.path: no model can be loaded"):
        load_model(section(folder), 0, CPU)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_broken_file_of_a_model_is_an_error_that_names_the_key(name: str, folder: Path) -> None:
    (folder / name).write_bytes(b"{ no")
    with pytest.raises(OptimizerError, match=r"model\.path"):
        load_model(section(folder), 0, CPU)


def test_a_broken_tokenizer_is_an_error_that_names_the_key(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{ no")
    with pytest.raises(OptimizerError, match=r"model\.path"):
        load_tokenizer(section(folder))


def test_a_tokenizer_without_a_chat_template_is_refused_with_the_way_out(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(OptimizerError, match=r"no chat template; name a file in model\.chat_template"):
        load_tokenizer(section(folder))


def test_a_chat_template_of_the_config_s_own_is_used(folder: Path) -> None:
    template = folder / "own.jinja"
    template.write_text("{% for m in messages %}[{{ m['content'] }}]{% endfor %}")
    tokenizer = load_tokenizer(section(folder, chat_template=str(template)))
    assert tokenizer.render([{"role": "user", "content": "hi"}]) == "[hi]"


@pytest.mark.parametrize(("family", "tied"), [("llama", False), ("llama-grouped", True), ("qwen2", False)])
def test_a_saved_model_comes_back_whole_tied_or_not(
    family: str, tied: bool, tmp_path: Path, make_model: MakeModel, tokenizer: ChatTokenizer
) -> None:
    model = make_model(family)
    save_model(model, tokenizer, tmp_path)
    again = load_model(section(tmp_path), 0, CPU)
    elsewhere = AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
        assert torch.equal(weight, elsewhere.state_dict()[name])
    assert (again.lm_head.weight is again.model.embed_tokens.weight) == tied
    saved = load_tokenizer(section(tmp_path))
    assert saved.end_of_turn_ids == tokenizer.end_of_turn_ids
    assert saved.encode("<answer>ü</answer>") == tokenizer.encode("<answer>ü</answer>")


def test_a_type_of_the_config_s_own_is_used(folder: Path) -> None:
    assert load_model(section(folder, dtype="bfloat16"), 0, CPU).dtype == torch.bfloat16
    assert load_model(section(folder, dtype="bfloat16", initialize="random"), 0, CPU).dtype == torch.bfloat16
    assert load_model(section(folder), 0, CPU).dtype == torch.float32


def trained(model: PreTrainedModel, tokenizer: ChatTokenizer, rate: float, muon: float | None = None) -> tuple:
    """A policy after one update, and what updated it."""
    policy = EmbeddedPolicy(model, tokenizer)
    optimizers = make_optimizers(model, TrainingSection(learning_rate=rate), muon)
    set_learning_rate(optimizers, 0.5)
    model(torch.arange(12, 30)[None]).logits.square().mean().backward()
    take_step(model, optimizers, 1.0)
    policy.updates += 1
    return policy, optimizers


def test_a_resume_with_another_learning_rate_uses_it(
    tmp_path: Path, make_model: MakeModel, tokenizer: ChatTokenizer
) -> None:
    save_training_state(tmp_path, *trained(make_model("llama"), tokenizer, rate=1e-3))
    policy = EmbeddedPolicy(make_model("llama"), tokenizer)
    optimizers = make_optimizers(policy.model, TrainingSection(learning_rate=1e-4, weight_decay=0.1), None)
    load_training_state(tmp_path, policy, optimizers)
    set_learning_rate(optimizers, 0.5)
    assert optimizers[0].param_groups[0]["lr"] == 0.5e-4
    assert optimizers[0].param_groups[0]["weight_decay"] == 0.1
    assert policy.updates == 1


def test_a_checkpoint_of_other_optimizers_is_refused_with_the_key(
    tmp_path: Path, make_model: MakeModel, tokenizer: ChatTokenizer
) -> None:
    save_training_state(tmp_path, *trained(make_model("llama"), tokenizer, rate=1e-3, muon=0.02))
    policy = EmbeddedPolicy(make_model("llama"), tokenizer)
    with pytest.raises(OptimizerError, match=r"optimizer\.grpo\.muon_learning_rate"):
        load_training_state(tmp_path, policy, make_optimizers(policy.model, TrainingSection(), None))


def test_a_checkpoint_that_lacks_a_weight_is_refused(
    tmp_path: Path, make_model: MakeModel, tokenizer: ChatTokenizer
) -> None:
    policy, optimizers = trained(make_model("llama"), tokenizer, rate=1e-3)
    save_training_state(tmp_path, policy, optimizers)
    file = tmp_path / "model/model.safetensors"
    weights = load_file(file)
    del weights["model.norm.weight"]
    save_file(weights, file)
    with pytest.raises(OptimizerError, match="another model"):
        load_training_state(tmp_path, policy, optimizers)
