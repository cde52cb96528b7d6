from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ptrl.core import OptimizerError, Task
from ptrl.core.contracts.environment import State, Step
from ptrl.core.episode import Episode, Transcript
from ptrl.core.policy import Sampling
from ptrl.core.settings import ModelSection, TrainingSection
from ptrl_plugin_grpo.checkpoints import load_training_state, save_training_state
from ptrl_plugin_grpo.demonstrations import demonstration_row
from ptrl_plugin_grpo.models import load_model, load_tokenizer, locate, save_model
from ptrl_plugin_grpo.optimizers import make_optimizers, take_step
from ptrl_plugin_grpo.policy import EmbeddedPolicy
from ptrl_plugin_grpo.scheduling import learning_rate_factor
from ptrl_plugin_grpo.tokenizer import ChatTokenizer

CPU = torch.device("cpu")
TINY = ModelSection(path="package:ptrl_plugin_grpo/tiny")


def test_the_shipped_model_is_small_and_loads_as_transformers_loads_it() -> None:
    folder = Path(locate(TINY.path))
    assert (folder / "model.safetensors").stat().st_size < 1_000_000
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert sum(parameter.numel() for parameter in model.parameters()) < 250_000
    assert AutoTokenizer.from_pretrained(folder).chat_template


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("package:not_installed/tiny", "no installed package is called 'not_installed'"),
        ("package:ptrl_plugin_grpo/huge", "has no model in 'huge'"),
        ("package:../../etc/passwd", "no installed package"),
        ("package:", "no installed package"),
    ],
)
def test_a_package_without_the_model_is_an_error_that_names_the_key(path: str, message: str) -> None:
    with pytest.raises(OptimizerError, match=message):
        locate(path)


def test_a_folder_without_a_model_is_an_error_that_names_the_key(tmp_path: Path) -> None:
    section = ModelSection(path=str(tmp_path))
    with pytest.raises(OptimizerError, match=r"model\.path"):
        load_tokenizer(section)
    with pytest.raises(OptimizerError, match=r"model\.path"):
        load_model(section, 0, CPU)


def test_a_missing_chat_template_file_is_an_error_that_names_the_key() -> None:
    section = TINY.model_copy(update={"chat_template": "not/there.jinja"})
    with pytest.raises(OptimizerError, match=r"model\.chat_template"):
        load_tokenizer(section)


def test_random_weights_depend_on_the_seed_alone() -> None:
    section = TINY.model_copy(update={"initialize": "random"})
    torch.manual_seed(1)
    first = load_model(section, 5, CPU).state_dict()
    torch.manual_seed(2)
    again, other = load_model(section, 5, CPU).state_dict(), load_model(section, 6, CPU).state_dict()
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])


def test_a_checkpoint_restores_weights_and_optimizers_exactly(tmp_path: Path) -> None:
    def policy_and_optimizers() -> tuple[EmbeddedPolicy, list[torch.optim.Optimizer]]:
        policy = EmbeddedPolicy(load_model(TINY, 0, CPU), load_tokenizer(TINY))
        return policy, make_optimizers(policy.model, TrainingSection(learning_rate=1e-3), 0.02)

    def step(policy: EmbeddedPolicy, optimizers: list[torch.optim.Optimizer]) -> None:
        policy.model.zero_grad()
        policy.model(torch.arange(12, 30)[None]).logits.square().mean().backward()
        take_step(policy.model, optimizers, 1.0)
        policy.updates += 1

    policy, optimizers = policy_and_optimizers()
    step(policy, optimizers)
    save_training_state(tmp_path, policy, optimizers)
    step(policy, optimizers)
    restored, others = policy_and_optimizers()
    load_training_state(tmp_path, restored, others)
    assert restored.updates == 1
    step(restored, others)
    for left, right in zip(policy.model.parameters(), restored.model.parameters(), strict=True):
        assert torch.equal(left, right)
    assert restored.model.lm_head.weight is restored.model.model.embed_tokens.weight


def test_a_checkpoint_of_another_model_is_refused(
    tmp_path: Path, make_model: Callable[..., PreTrainedModel], tokenizer: ChatTokenizer
) -> None:
    other = EmbeddedPolicy(make_model("qwen2"), tokenizer)
    save_training_state(tmp_path, other, [])
    policy = EmbeddedPolicy(load_model(TINY, 0, CPU), tokenizer)
    with pytest.raises(OptimizerError, match="another model"):
        load_training_state(tmp_path, policy, [])


def test_a_gradient_that_is_not_finite_changes_no_weight() -> None:
    model = load_model(TINY, 0, CPU)
    optimizers = make_optimizers(model, TrainingSection(learning_rate=1e-3), 0.02)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, torch.nan)
    with pytest.raises(OptimizerError, match="no weight was changed"):
        take_step(model, optimizers, 1.0)
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


def test_a_saved_model_loads_elsewhere(
    tmp_path: Path, make_model: Callable[..., PreTrainedModel], tokenizer: ChatTokenizer
) -> None:
    model = make_model("qwen3")
    save_model(model, tokenizer, tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([[20, 21, 22]])
    torch.testing.assert_close(again(ids).logits, model(ids).logits)


@given(st.text(max_size=100))
def test_any_text_survives_the_byte_level_tokenizer(text: str) -> None:
    tokenizer = load_tokenizer(TINY)
    whole = text.encode("utf-8", "ignore").decode()
    assert tokenizer.decode(tokenizer.encode(whole)) == whole


@given(st.text(alphabet="<|>eosuserbospad/assistant ", max_size=60))
def test_what_a_user_writes_cannot_become_a_control_token(text: str) -> None:
    tokenizer = load_tokenizer(TINY)
    ids = tokenizer.encode(tokenizer.render([{"role": "user", "content": text}], add_generation_prompt=True))
    control = set(tokenizer.inner.all_special_ids) | set(range(6))
    assert [token for token in ids if token in control] == [1, 3, 4]  # <bos>, <|user|>, <|assistant|>


def test_a_demonstration_is_tokenized_as_a_rollout_of_it_would_be(tokenizer: ChatTokenizer) -> None:
    answer = [{"role": "tool", "content": "3"}]
    turns = ["<call>a</call>", "<answer>3</answer>"]
    demonstration = (
        {"role": "assistant", "content": turns[0]},
        *answer,
        {"role": "assistant", "content": turns[1]},
    )
    task = Task(key="k", messages=({"role": "user", "content": "shop a"},), demonstration=demonstration)  # type: ignore[arg-type]
    transcript = Transcript(tokenizer)
    row = demonstration_row(task, transcript, tokenizer, 0)
    episode = Episode(task=task, state=State(task=task), transcript=transcript, sampling=Sampling(max_new_tokens=99))
    prompt = episode.prompt_ids()
    for number, text in enumerate(turns):
        ids = [*tokenizer.encode(text), tokenizer.end_of_turn_id]
        episode.feed(ids, [0.0] * len(ids), "stop")
        episode.advance(Step(append=answer) if number == 0 else Step(done=True))  # type: ignore[arg-type]
    rollout = episode.rollout()
    assert list(row.prompt) == prompt
    assert list(row.tokens) == list(rollout.token_ids)
    assert list(row.mask) == list(rollout.loss_mask)


def test_a_task_without_demonstration_is_an_error_that_names_it(tokenizer: ChatTokenizer) -> None:
    task = Task(key="k7", domain="sums", messages=({"role": "user", "content": "1+1"},))
    with pytest.raises(OptimizerError, match=r"'k7' of domain 'sums'"):
        demonstration_row(task, Transcript(tokenizer), tokenizer, 0)


@pytest.mark.parametrize(
    ("step", "warmup", "schedule", "factor"),
    [
        (0, 0, "linear", 1.0),
        (50, 0, "linear", 0.5),
        (0, 10, "linear", 0.1),
        (9, 10, "cosine", 1.0),
        (55, 10, "cosine", 0.5),
        (99, 0, "constant", 1.0),
        (100, 0, "linear", 0.0),
    ],
)
def test_the_learning_rate_follows_its_schedule(step: int, warmup: int, schedule: str, factor: float) -> None:
    found = learning_rate_factor(step, steps=100, warmup_steps=warmup, schedule=schedule)  # type: ignore[arg-type]
    assert found == pytest.approx(factor)
