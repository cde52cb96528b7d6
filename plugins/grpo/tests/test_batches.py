"""Both layouts give the same log-probabilities and gradients."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from ptrl_plugin_grpo.batches import TrainingRow, chosen_counts, packed_layouts, padded_layouts
from ptrl_plugin_grpo.policy import chosen_logits

CPU = torch.device("cpu")


@st.composite
def groups(draw: st.DrawFn) -> list[TrainingRow]:
    """Ragged groups with tool tokens in between; each row has at least one chosen token."""
    rows = []
    for group in range(draw(st.integers(1, 3))):
        prompt = draw(st.lists(st.integers(0, 267), min_size=1, max_size=6))
        for _ in range(draw(st.integers(1, 3))):
            tokens = draw(st.lists(st.integers(0, 267), min_size=1, max_size=7))
            mask = draw(st.lists(st.integers(0, 1), min_size=len(tokens), max_size=len(tokens)))
            mask[draw(st.integers(0, len(tokens) - 1))] = 1
            rows.append(TrainingRow(prompt, tokens, mask, [0.0] * len(tokens), group))
    return rows


def logprobs_and_gradient(
    model: PreTrainedModel, rows: list[TrainingRow], layouts: Callable[..., object], budget: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns each chosen token's log-probability, row after row, and the gradient of a weighted sum."""
    model.zero_grad()
    total = int(chosen_counts(rows).sum())
    found = torch.full((total,), torch.nan)
    for layout in layouts(rows, budget, CPU):  # type: ignore[attr-defined]
        logits = chosen_logits(model, layout)
        chosen = logits.log_softmax(-1).gather(-1, layout.target[:, None]).squeeze(-1)
        (chosen * (1 + layout.token % 3)).sum().backward()
        found[layout.token] = chosen.detach()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return found, gradient


@pytest.fixture(scope="module", params=["llama-grouped", "qwen3"])
def model(request: pytest.FixtureRequest, make_model: Callable[..., PreTrainedModel]) -> PreTrainedModel:
    return make_model(request.param)


@settings(max_examples=25)
@given(rows=groups(), budget=st.sampled_from([1, 20, 1000]))
def test_packed_and_padded_passes_agree(model: PreTrainedModel, rows: list[TrainingRow], budget: int) -> None:
    padded, padded_gradient = logprobs_and_gradient(model, rows, padded_layouts, 1000)
    packed, packed_gradient = logprobs_and_gradient(model, rows, packed_layouts, budget)
    assert not padded.isnan().any()
    torch.testing.assert_close(packed, padded, atol=1e-4, rtol=1e-4)
    scale = padded_gradient.abs().max().clamp(min=1)
    torch.testing.assert_close(packed_gradient / scale, padded_gradient / scale, atol=1e-5, rtol=1e-4)


@given(rows=groups(), budget=st.integers(1, 60))
def test_a_layout_keeps_its_budget_unless_one_rollout_alone_exceeds_it(rows: list[TrainingRow], budget: int) -> None:
    for layouts in (padded_layouts, packed_layouts):
        for layout in layouts(rows, budget, CPU):
            assert layout.input_ids.numel() <= budget or len(layout.row.unique()) == 1


@given(rows=groups())
def test_every_chosen_token_is_laid_out_once_with_its_own_id(rows: list[TrainingRow]) -> None:
    wanted = [
        (number, token) for number, row in enumerate(rows) for token, c in zip(row.tokens, row.mask, strict=True) if c
    ]
    for layouts in (padded_layouts, packed_layouts):
        found: dict[int, tuple[int, int]] = {}
        for layout in layouts(rows, 40, CPU):
            for place, row, target in zip(
                *(t.tolist() for t in (layout.token, layout.row, layout.target)), strict=True
            ):
                assert place not in found
                found[place] = (row, target)
        assert [found[place] for place in range(len(found))] == wanted


def test_a_group_of_long_responses_takes_several_packed_rows() -> None:
    rows = [TrainingRow([20] * 4, [30] * 100, [1] * 100, [0.0] * 100, 0) for _ in range(8)]
    (layout,) = packed_layouts(rows, 100_000, CPU)
    assert layout.input_ids.shape == (8, 104)
    short = [TrainingRow([20] * 40, [30] * 5, [1] * 5, [0.0] * 5, 0) for _ in range(8)]
    (layout,) = packed_layouts(short, 100_000, CPU)
    assert layout.input_ids.shape == (1, 80)


def test_members_of_a_group_with_other_prompts_are_not_packed_together(
    make_model: Callable[..., PreTrainedModel],
) -> None:
    model = make_model("llama")
    rows = [TrainingRow([20, 21 + number % 2], [30, 31], [1, 1], [0.0] * 2, 0) for number in range(4)]
    padded, _ = logprobs_and_gradient(model, rows, padded_layouts, 1000)
    packed, _ = logprobs_and_gradient(model, rows, packed_layouts, 1000)
    torch.testing.assert_close(packed, padded, atol=1e-4, rtol=1e-4)
