"""Generation: equal to transformers', with groups, compaction, forced tokens, limits and stop strings."""

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from ptrl.core.policy import Sampling, Turn
from ptrl_plugin_grpo.batches import TrainingRow, padded_layouts
from ptrl_plugin_grpo.decoding import TransformersDecoder
from ptrl_plugin_grpo.fast_decoding import FastDecoder, is_supported
from ptrl_plugin_grpo.generation import Generator, nucleus
from ptrl_plugin_grpo.policy import chosen_logits
from ptrl_plugin_grpo.tokenizer import ChatTokenizer

FAMILIES = ["llama", "llama-grouped", "qwen2", "qwen3"]
DECODERS = [FastDecoder, TransformersDecoder]
NEW = 20
MakeModel = Callable[..., PreTrainedModel]


class Driver:
    """Ends each row after its first turn, or forces tokens once where `forced` says so."""

    def __init__(
        self,
        forced: dict[int, list[int]] | None = None,
        limit: Callable[[int], int] = lambda row: NEW,
        stop: tuple[str, ...] = (),
    ) -> None:
        self.forced = dict(forced or {})
        self.limit = limit
        self.stop = stop
        self.turns: dict[int, list[Turn]] = {}
        self.used: dict[int, int] = {}

    def turn_limit(self, row: int) -> int:
        return min(self.limit(row), NEW - self.used.get(row, 0))

    def stop_strings(self, row: int) -> tuple[str, ...]:
        return self.stop

    def turns_finished(self, turns: Sequence[Turn]) -> list[list[int] | None]:
        answers: list[list[int] | None] = []
        for turn in turns:
            self.turns.setdefault(turn.row, []).append(turn)
            forced = self.forced.pop(turn.row, None)
            self.used[turn.row] = self.used.get(turn.row, 0) + len(turn.ids) + len(forced or ())
            answers.append(forced if self.used[turn.row] < NEW else None)
        return answers

    def ids(self, row: int) -> list[int]:
        return [token for turn in self.turns[row] for token in turn.ids]


def generate(
    model: PreTrainedModel,
    tokenizer: ChatTokenizer,
    prompts: list[list[int]],
    driver: Driver,
    decoder: type = FastDecoder,
    **sampling: float,
) -> Driver:
    chosen = Sampling(**{"temperature": 0.0, "max_new_tokens": NEW, **sampling})  # type: ignore[arg-type]
    Generator(decoder(model), tokenizer, prompts, chosen, driver).run()
    return driver


def ragged_prompts() -> list[list[int]]:
    rng = torch.Generator().manual_seed(3)
    lengths = [3, 9, 1, 14, 6]
    return [torch.randint(12, 268, (length,), generator=rng).tolist() for length in lengths]


def reference(model: PreTrainedModel, prompt: list[int], new: int = NEW) -> list[int]:
    """Greedy tokens by transformers' own generate, for one prompt at a time."""
    ids = torch.tensor([prompt])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False)
    found: list[int] = output[0, len(prompt) :].tolist()
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("decoder", DECODERS)
def test_greedy_tokens_equal_transformers_generate(
    family: str, decoder: type, make_model: MakeModel, tokenizer: ChatTokenizer
) -> None:
    model = make_model(family)
    assert is_supported(model)
    prompts = ragged_prompts()
    driver = generate(model, tokenizer, prompts, Driver(), decoder)
    for row, prompt in enumerate(prompts):
        assert driver.ids(row) == reference(model, prompt)


@pytest.mark.parametrize("family", FAMILIES)
def test_both_decoders_sample_the_same_tokens(family: str, make_model: MakeModel, tokenizer: ChatTokenizer) -> None:
    model = make_model(family)
    prompts = [prompt for prompt in ragged_prompts() for _ in range(3)]
    fast, plain = (generate(model, tokenizer, prompts, Driver(), d, temperature=1.0, seed=5) for d in DECODERS)
    for row in range(len(prompts)):
        assert fast.ids(row) == plain.ids(row)
        left = [value for turn in fast.turns[row] for value in turn.logprobs]
        right = [value for turn in plain.turns[row] for value in turn.logprobs]
        assert left == pytest.approx(right, abs=1e-4)


def test_rows_of_a_group_differ_and_seeds_repeat(make_model: MakeModel, tokenizer: ChatTokenizer) -> None:
    model = make_model("llama")
    prompts = [ragged_prompts()[1]] * 4
    first, again, other = (
        generate(model, tokenizer, prompts, Driver(), temperature=1.0, seed=seed) for seed in (1, 1, 2)
    )
    rows = [first.ids(row) for row in range(4)]
    assert rows == [again.ids(row) for row in range(4)]
    assert rows != [other.ids(row) for row in range(4)]
    assert len({tuple(row) for row in rows}) > 1


@pytest.mark.parametrize("decoder", DECODERS)
def test_tokens_after_forced_ones_are_those_of_a_fresh_prompt(
    decoder: type, make_model: MakeModel, tokenizer: ChatTokenizer
) -> None:
    model = make_model("llama")
    prompts = ragged_prompts()
    forced = {1: [40, 41, 42], 3: [50]}
    driver = generate(model, tokenizer, prompts, Driver(forced, limit=lambda row: 5), decoder)
    for row, prompt in enumerate(prompts):
        first = driver.turns[row][0]
        assert first.ids == reference(model, prompt, 5)[: len(first.ids)]
        if row in forced:
            second = driver.turns[row][1]
            context = [*prompt, *first.ids, *forced[row]]
            assert second.ids == reference(model, context, len(second.ids))
            assert not set(forced[row]) & set(second.ids[:0])
        else:
            assert len(driver.turns[row]) == 1


def test_a_turn_ends_at_its_limit_and_says_so(make_model: MakeModel, tokenizer: ChatTokenizer) -> None:
    driver = generate(make_model("llama"), tokenizer, ragged_prompts(), Driver(limit=lambda row: row + 1))
    for row, (turn,) in driver.turns.items():
        assert len(turn.ids) <= row + 1
        assert turn.finish == ("stop" if turn.ids[-1] == 2 else "length")


def test_a_stop_string_ends_a_turn_across_tokens(make_model: MakeModel, tokenizer: ChatTokenizer) -> None:
    model = make_model("llama")
    prompt = ragged_prompts()[3]
    whole = reference(model, prompt)
    text = tokenizer.decode(whole[:8])
    stop = text[-3:]
    driver = generate(model, tokenizer, [prompt], Driver(stop=(stop,)))
    (turn,) = driver.turns[0]
    assert turn.finish == "stop"
    assert stop in tokenizer.decode(turn.ids)
    assert stop not in tokenizer.decode(turn.ids[:-1])
    assert turn.ids == whole[: len(turn.ids)]


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_logprobs_are_those_of_a_training_pass(
    temperature: float, make_model: MakeModel, tokenizer: ChatTokenizer
) -> None:
    model = make_model("qwen2")
    prompts = ragged_prompts()
    driver = generate(model, tokenizer, prompts, Driver(), temperature=temperature, seed=9)
    rows = [
        TrainingRow(prompt, turn.ids, [1] * len(turn.ids), turn.logprobs, row)
        for row, prompt in enumerate(prompts)
        for turn in driver.turns[row]
    ]
    for layout in padded_layouts(rows, 10_000, model.device):
        logits = chosen_logits(model, layout) / temperature
        trained = logits.log_softmax(-1).gather(-1, layout.target[:, None]).squeeze(-1)
        assert trained.tolist() == pytest.approx(layout.logprobs.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}),
        ("llama", {"hidden_act": "gelu"}),
        ("llama", {"mlp_bias": True}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}),
    ],
)
def test_what_the_fast_path_does_not_compute_takes_the_plain_one(
    family: str, changes: dict[str, object], make_model: MakeModel
) -> None:
    assert not is_supported(make_model(family, **changes))


def test_a_model_with_adapters_takes_the_plain_path(make_model: MakeModel) -> None:
    class Adapter(torch.nn.Linear):
        pass

    model = make_model("llama")
    model.model.layers[0].self_attn.q_proj = Adapter(32, 32, bias=False)
    assert not is_supported(model)


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 1000), min_size=2, max_size=12).map(lambda row: [value / sum(row) for value in row]),
    st.floats(0.05, 1.0),
)
def test_the_nucleus_is_the_smallest_set_that_holds_its_share(row: list[float], share: float) -> None:
    kept = nucleus(torch.tensor([row], dtype=torch.float64), share)[0]
    order = sorted(range(len(row)), key=lambda place: -row[place])
    mass, wanted = 0.0, set()
    for place in order:
        if mass < share or share >= 1:
            wanted.add(place)
        mass += row[place]
    found = set(kept.nonzero().flatten().tolist())
    borderline = any(abs(sum(row[p] for p in order[:n]) - share) < 1e-9 for n in range(1, len(row) + 1))
    assert found == wanted or borderline or len({*row}) < len(row)
