"""Rows that end early, several turns, forced tokens, stop strings and sampling: what one batch may hold."""

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from ptrl.core import OptimizerError
from ptrl.core.policy import Sampling, Turn
from ptrl_plugin_grpo.batches import TrainingRow, packed_layouts
from ptrl_plugin_grpo.decoding import TransformersDecoder
from ptrl_plugin_grpo.fast_decoding import FastDecoder
from ptrl_plugin_grpo.generation import Generator, sample
from ptrl_plugin_grpo.policy import chosen_logits
from ptrl_plugin_grpo.tokenizer import ChatTokenizer

MakeModel = Callable[..., PreTrainedModel]
DECODERS = [FastDecoder, TransformersDecoder]
NEW = 40
ENDS = frozenset(range(12, 60))
"""So many tokens end a turn that rows end at different times, some at once."""


class ManyEnds:
    """The byte-level tokenizer, with many tokens that end a turn."""

    def __init__(self, inner: ChatTokenizer, ends: frozenset[int] = ENDS) -> None:
        self.end_of_turn_ids = ends
        self.render, self.encode, self.decode = inner.render, inner.encode, inner.decode


class Conversation:
    """Answers each row's turns by its script of forced tokens, then ends it."""

    def __init__(
        self,
        scripts: dict[int, list[list[int]]] | None = None,
        turn_limit: int = NEW,
        stop: tuple[str, ...] = (),
    ) -> None:
        self.scripts = scripts or {}
        self.limit = turn_limit
        self.stop = stop
        self.parts: dict[int, list[Turn | list[int]]] = {}
        self.batches: list[int] = []

    def used(self, row: int) -> int:
        return sum(len(part.ids) if isinstance(part, Turn) else len(part) for part in self.parts.get(row, []))

    def turn_limit(self, row: int) -> int:
        return min(self.limit, NEW - self.used(row))

    def stop_strings(self, row: int) -> tuple[str, ...]:
        return self.stop

    def turns_finished(self, turns: Sequence[Turn]) -> list[list[int] | None]:
        self.batches.append(len(turns))
        answers: list[list[int] | None] = []
        for turn in turns:
            parts = self.parts.setdefault(turn.row, [])
            parts.append(turn)
            number = sum(isinstance(part, Turn) for part in parts) - 1
            script = self.scripts.get(turn.row, [])
            if number < len(script) and self.used(turn.row) + len(script[number]) < NEW:
                parts.append(script[number])
                answers.append(script[number])
            else:
                answers.append(None)
        return answers

    def turns(self, row: int) -> list[Turn]:
        return [part for part in self.parts[row] if isinstance(part, Turn)]

    def row(self, number: int, prompt: Sequence[int], group: int) -> TrainingRow:
        """The row's tokens as an update sees them, forced ones masked."""
        tokens: list[int] = []
        mask: list[int] = []
        logprobs: list[float] = []
        for part in self.parts[number]:
            chosen = isinstance(part, Turn)
            ids = part.ids if isinstance(part, Turn) else part
            tokens += ids
            mask += [int(chosen)] * len(ids)
            logprobs += part.logprobs if isinstance(part, Turn) else [0.0] * len(ids)
        return TrainingRow(prompt, tokens, mask, logprobs, group)


def prompts(group: int = 1) -> list[list[int]]:
    rng = torch.Generator().manual_seed(5)
    lengths = (4, 11, 1, 7, 2, 9)
    return [ids for n in lengths for ids in [torch.randint(12, 268, (n,), generator=rng).tolist()] * group]


def run(
    model: PreTrainedModel,
    tokenizer: object,
    rows: list[list[int]],
    driver: Conversation,
    decoder: type = FastDecoder,
    **sampling: float,
) -> Conversation:
    chosen = Sampling(**{"temperature": 0.0, "max_new_tokens": NEW, **sampling})  # type: ignore[arg-type]
    Generator(decoder(model), tokenizer, rows, chosen, driver).run()  # type: ignore[arg-type]
    return driver


def reference(model: PreTrainedModel, context: Sequence[int], limit: int) -> list[int]:
    """One greedy turn by transformers' own generate from a fresh prefill of all that came before."""
    ids = torch.tensor([list(context)])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=limit,
        do_sample=False,
        eos_token_id=sorted(ENDS),
    )
    found: list[int] = output[0, len(context) :].tolist()
    return found


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("family", ["llama-grouped", "qwen2", "qwen3"])
def test_rows_that_end_at_different_times_are_compacted_without_a_trace(
    family: str, decoder: type, make_model: MakeModel, tokenizer: ChatTokenizer
) -> None:
    model = make_model(family)
    driver = run(model, ManyEnds(tokenizer), prompts(2), Conversation(), decoder)
    lengths = set()
    for row, prompt in enumerate(prompts(2)):
        (turn,) = driver.turns(row)
        assert turn.ids == reference(model, prompt, NEW)
        assert turn.finish == ("stop" if turn.ids[-1] in ENDS else "length")
        lengths.add(len(turn.ids))
    assert len(lengths) > 2


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_turn_of_a_conversation_is_that_of_a_fresh_prefill(
    decoder: type, make_model: MakeModel, tokenizer: ChatTokenizer
) -> None:
    model = make_model("llama")
    scripts = {0: [[70, 71], [72]], 2: [[80] * 9], 3: [[]], 5: [[90], [91, 92], [93]]}
    driver = run(model, ManyEnds(tokenizer), prompts(), Conversation(scripts, turn_limit=6), decoder)
    for row, prompt in enumerate(prompts()):
        context = list(prompt)
        for part in driver.parts[row]:
            if isinstance(part, Turn):
                assert part.ids == reference(model, context, len(part.ids))
                assert len(part.ids) == len(part.logprobs) <= 6
                assert part.ids[-1] in ENDS or part.finish == "length"
                assert not ENDS & set(part.ids[:-1])
            context += part.ids if isinstance(part, Turn) else part
        assert len(driver.turns(row)) == 1 + len(scripts.get(row, []))


def test_logprobs_of_a_sampled_conversation_are_those_of_a_packed_training_pass(
    make_model: MakeModel, tokenizer: ChatTokenizer
) -> None:
    model = make_model("qwen3")
    scripts = {row: [[70 + row, 71], [72]] for row in range(0, 18, 2)}
    driver = Conversation(scripts, turn_limit=5)
    run(model, ManyEnds(tokenizer), prompts(3), driver, temperature=0.8, seed=3)
    rows = [driver.row(number, prompt, number // 3) for number, prompt in enumerate(prompts(3))]
    assert any(0 in row.mask for row in rows)
    for layout in packed_layouts(rows, 10_000, model.device):
        logits = chosen_logits(model, layout) / 0.8
        trained = logits.log_softmax(-1).gather(-1, layout.target[:, None]).squeeze(-1)
        torch.testing.assert_close(trained, layout.logprobs, atol=1e-4, rtol=0)


def test_a_group_s_prompt_is_prefilled_once(
    make_model: MakeModel, tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = []
    forward = FastDecoder._forward

    def noted(self: FastDecoder, ids: torch.Tensor, *rest: object) -> torch.Tensor:
        shapes.append(tuple(ids.shape))
        return forward(self, ids, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(FastDecoder, "_forward", noted)
    run(make_model("llama"), ManyEnds(tokenizer), prompts(8), Conversation())
    assert shapes[0] == (6, 11)
    assert shapes[1][0] > 6
    assert shapes[-1][0] < shapes[1][0]


def test_a_row_whose_first_token_ends_its_turn_has_that_token_alone(
    make_model: MakeModel, tokenizer: ChatTokenizer
) -> None:
    everything = ManyEnds(tokenizer, frozenset(range(268)))
    driver = run(make_model("llama"), everything, prompts(), Conversation())
    assert driver.batches == [6]
    assert all(len(turn.ids) == 1 and turn.finish == "stop" for row in range(6) for turn in driver.turns(row))


def test_a_stop_string_of_many_bytes_is_found(make_model: MakeModel, tokenizer: ChatTokenizer) -> None:
    stop = "停止" * 10
    ids = tokenizer.encode(f"x{stop}")

    class Scripted:
        """Logits that choose the tokens of a text."""

        device = torch.device("cpu")

        def __init__(self) -> None:
            self.place = -1

        def prefill(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> torch.Tensor:
            return self.step(torch.zeros(1))

        def step(self, tokens: torch.Tensor) -> torch.Tensor:
            self.place += 1
            return torch.nn.functional.one_hot(torch.tensor([(ids * 2)[self.place]]), 268).float()

        def keep(self, places: torch.Tensor) -> None:
            raise AssertionError("one row is never compacted")

    driver = Conversation(turn_limit=99, stop=(stop,))
    driver.turn_limit = lambda row: 99  # type: ignore[method-assign]
    sampling = Sampling(temperature=0.0, max_new_tokens=99)
    Generator(Scripted(), tokenizer, [[20]], sampling, driver).run()
    (turn,) = driver.turns(0)
    assert turn.ids == ids
    assert turn.finish == "stop"


def test_a_model_whose_outputs_are_nan_ends_in_words(make_model: MakeModel, tokenizer: ChatTokenizer) -> None:
    model = make_model("llama")
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    for temperature in (0.0, 1.0):
        with pytest.raises(OptimizerError, match="NaN"):
            run(model, tokenizer, prompts(), Conversation(), temperature=temperature)


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 5), min_size=2, max_size=8).filter(any),
    st.integers(0, 2**31),
)
def test_tokens_are_sampled_as_often_as_they_are_likely(weights: list[int], seed: int) -> None:
    count = 20_000
    shares = torch.tensor(weights, dtype=torch.float32)
    drawn = sample(shares.expand(count, -1), torch.Generator().manual_seed(seed))
    frequency = torch.bincount(drawn, minlength=len(weights)) / count
    expected = shares / shares.sum()
    assert not frequency[expected == 0].any()
    assert float((frequency - expected).abs().max()) < 6 * (0.25 / count) ** 0.5


def test_the_tail_of_a_large_vocabulary_is_sampled_too() -> None:
    probabilities = torch.full((600, 50_000), 0.5 / 49_999)
    probabilities[:, 7] = 0.5
    drawn = sample(probabilities, torch.Generator().manual_seed(1))
    assert abs(float((drawn == 7).float().mean()) - 0.5) < 0.1
    assert abs(float((drawn > 25_000).float().mean()) - 0.25) < 0.1
    assert int(drawn.max()) < 50_000


def test_only_tokens_of_the_nucleus_are_chosen_and_their_logprobs_are_of_the_whole_distribution(
    make_model: MakeModel, tokenizer: ChatTokenizer
) -> None:
    model = make_model("llama", initializer_range=0.1)
    driver = run(model, ManyEnds(tokenizer), prompts(4), Conversation(), temperature=1.0, top_p=0.3, seed=2)
    rows = [driver.row(number, prompt, number // 4) for number, prompt in enumerate(prompts(4))]
    for layout in packed_layouts(rows, 10_000, model.device):
        probabilities = chosen_logits(model, layout).detach().softmax(-1)
        chosen = probabilities.gather(-1, layout.target[:, None])
        likelier = probabilities.where(probabilities > chosen, 0.0).sum(-1)
        assert float(likelier.max()) < 0.3 + 1e-4
        torch.testing.assert_close(chosen.squeeze(-1).log(), layout.logprobs, atol=1e-4, rtol=0)
