import copy
import io
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ptrl_plugin_grpo.muon import Muon, orthogonalize, split_parameters

A, B, C = 3.4445, -4.7750, 2.0315


def product(left, right):
    return [
        [math.fsum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*right, strict=True)]
        for row in left
    ]


def orthogonalized_by_oracle(matrix, iterations):
    """The quintic iteration in plain Python, never transposing."""
    norm = math.sqrt(math.fsum(v * v for row in matrix for v in row))
    current = [[v / (norm + 1e-7) for v in row] for row in matrix]
    for _ in range(iterations):
        gram = product(current, [list(column) for column in zip(*current, strict=True)])
        square = product(gram, gram)
        inner = [[B * g + C * s for g, s in zip(*rows, strict=True)] for rows in zip(gram, square, strict=True)]
        step = product(inner, current)
        current = [[A * x + s for x, s in zip(*rows, strict=True)] for rows in zip(current, step, strict=True)]
    return current


def matrices(rows, columns):
    return st.lists(
        st.lists(st.floats(-3, 3, width=32), min_size=columns, max_size=columns), min_size=rows, max_size=rows
    )


def test_one_iteration_on_a_diagonal_gives_the_hand_worked_matrix():
    # diag(3, 4) / 5 = diag(0.6, 0.8), and each s becomes a s + b s³ + c s⁵:
    #   0.6: 2.0667 - 1.0314 + 0.15796944 = 1.19326944; 0.8: 2.7556 - 2.4448 + 0.66568192 = 0.97648192.
    result = orthogonalize(torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=torch.float64), iterations=1)
    assert result.tolist() == [
        pytest.approx([1.19326944, 0.0], abs=1e-6),
        pytest.approx([0.0, 0.97648192], abs=1e-6),
    ]


@given(data=st.data(), rows=st.integers(1, 4), columns=st.integers(1, 4), iterations=st.integers(1, 5))
@settings(max_examples=60)
def test_orthogonalizing_equals_the_plain_oracle(data, rows, columns, iterations):
    matrix = data.draw(matrices(rows, columns))
    actual = orthogonalize(torch.tensor(matrix, dtype=torch.float64), iterations)
    expected = orthogonalized_by_oracle(matrix, iterations)
    assert torch.allclose(actual, torch.tensor(expected, dtype=torch.float64), atol=1e-6)


@pytest.mark.parametrize("shape", [(8, 8), (4, 16), (16, 4), (3, 8, 5)])
def test_singular_values_end_near_one(shape):
    matrix = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    before, after = torch.linalg.svdvals(matrix), torch.linalg.svdvals(orthogonalize(matrix))
    # Five iterations lift what is above about 1/100 of the norm.
    lifted = before > 0.02 * torch.linalg.matrix_norm(matrix)[..., None]
    assert lifted.float().mean() > 0.8
    assert after[lifted].min() > 0.5 and after.max() < 1.3


def test_a_matrix_of_zeros_stays_one_and_a_batch_is_its_matrices():
    batch = torch.stack([torch.zeros(2, 3), torch.arange(6.0).reshape(2, 3)])
    result = orthogonalize(batch)
    assert not result[0].any()
    assert torch.allclose(result[1], orthogonalize(batch[1]), atol=1e-6)


@pytest.mark.parametrize("matrix", [torch.zeros(3), torch.zeros(0, 3)])
def test_what_is_no_matrix_is_not_orthogonalized(matrix):
    with pytest.raises(ValueError, match="matrices: expected a shape"):
        orthogonalize(matrix)


def test_two_steps_give_the_hand_worked_weight():
    # A 1 × 1 matrix g becomes the fifth iterate of a s + b s³ + c s⁵ from s = ±1, whatever its size: ±u. With
    # momentum 0.5 and Nesterov, gradients 1 then -4: M = 0.5, direction 0.75; M = 0.25 - 2 = -1.75, direction
    # -2.875: signs + and -. Decay 0.1 at rate 0.1 multiplies the weight by 0.99 each time.
    unit = 1.0
    for _ in range(5):
        unit = A * unit + B * unit**3 + C * unit**5
    weight = nn.Parameter(torch.tensor([[2.0]], dtype=torch.float64))
    optimizer = Muon([weight], lr=0.1, momentum=0.5, weight_decay=0.1)
    for gradient in (1.0, -4.0):
        weight.grad = torch.tensor([[gradient]], dtype=torch.float64)
        optimizer.step()
    expected = (2.0 * 0.99 - 0.1 * unit) * 0.99 + 0.1 * unit
    assert weight.item() == pytest.approx(expected, abs=1e-5)
    assert optimizer.state[weight]["momentum_buffer"].item() == pytest.approx(-1.75)


def test_a_tall_matrix_moves_further_by_the_root_of_its_proportion():
    gradient = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    tall, wide = nn.Parameter(torch.zeros(8, 2)), nn.Parameter(torch.zeros(2, 8))
    tall.grad, wide.grad = gradient, gradient.T.contiguous()
    Muon([tall, wide], lr=0.1).step()
    assert torch.allclose(tall, wide.T * 2, atol=1e-6)


def ten_steps(optimizer, parameters, seed=0, first=0):
    for number in range(first, first + 10):
        generator = torch.Generator().manual_seed(seed + number)
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        optimizer.step()


def some_matrices(dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    shapes = [(6, 4), (4, 4), (6, 4), (3, 9)]
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch.optim.Muon came with torch 2.9")
@pytest.mark.parametrize("nesterov", [True, False])
def test_it_agrees_with_the_muon_of_torch_but_for_its_bfloat16(nesterov):
    ours, theirs = some_matrices(), some_matrices()
    options = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1, "nesterov": nesterov}
    start = some_matrices()
    ten_steps(Muon(ours, **options), ours)
    ten_steps(torch.optim.Muon(theirs, adjust_lr_fn="original", **options), theirs)
    for mine, other, before in zip(ours, theirs, start, strict=True):
        assert (mine - other).norm() < 0.05 * (mine - before).norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_run_continues_bit_for_bit(dtype):
    straight = some_matrices(dtype)
    optimizer = Muon(straight, lr=0.02, weight_decay=0.01)
    ten_steps(optimizer, straight)
    file = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "parameters": copy.deepcopy(straight)}, file)
    ten_steps(optimizer, straight, first=10)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = [nn.Parameter(parameter.detach().clone()) for parameter in saved["parameters"]]
    again = Muon(resumed, lr=0.5)  # settings come from the state
    again.load_state_dict(saved["optimizer"])
    ten_steps(again, resumed, first=10)
    assert all(torch.equal(one, other) for one, other in zip(straight, resumed, strict=True))


def test_a_schedule_of_the_learning_rate_is_heard():
    weight = nn.Parameter(torch.zeros(2, 2))
    optimizer = Muon([weight], lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    weight.grad = torch.ones(2, 2)
    optimizer.step()
    schedule.step()
    assert not weight.any()


def test_a_parameter_without_a_gradient_stays_as_it_is():
    moving, still = some_matrices()[:2]
    before = still.detach().clone()
    moving.grad = torch.ones_like(moving)
    optimizer = Muon([moving, still], weight_decay=0.5)
    optimizer.step()
    assert torch.equal(still, before) and still not in optimizer.state


def test_the_closure_computes_the_loss_anew():
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = Muon([weight], lr=0.01)

    def closure():
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss.item()

    losses = [optimizer.step(closure) for _ in range(3)]
    assert losses == sorted(losses, reverse=True) and losses[0] == 4.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(bad):
    parameters = some_matrices()
    optimizer = Muon(parameters)
    ten_steps(optimizer, parameters)
    before = copy.deepcopy(([p.detach() for p in parameters], optimizer.state_dict()))
    parameters[2].grad[1, 1] = bad
    with pytest.raises(ValueError, match="gradients: their norm is NaN or infinite; nothing was updated"):
        optimizer.step()
    assert all(torch.equal(p, old) for p, old in zip(parameters, before[0], strict=True))
    for number, state in optimizer.state_dict()["state"].items():
        assert torch.equal(state["momentum_buffer"], before[1]["state"][number]["momentum_buffer"])


@pytest.mark.parametrize("shape", [(3,), (), (2, 2, 2), (0, 3)])
def test_what_is_no_matrix_is_refused_with_the_way_out(shape):
    with pytest.raises(ValueError, match=r"Muon takes matrices only.*AdamW.*split_parameters"):
        Muon([nn.Parameter(torch.zeros(shape))])


@pytest.mark.parametrize(
    "options",
    [
        {"lr": -1.0},
        {"lr": math.nan},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"weight_decay": -1},
        {"iterations": 0},
    ],
)
def test_a_setting_out_of_bounds_is_refused_by_name(options):
    with pytest.raises(ValueError, match=f"^{next(iter(options))}: expected"):
        Muon([nn.Parameter(torch.zeros(2, 2))], **options)


def test_a_refused_group_is_not_added():
    optimizer = Muon([nn.Parameter(torch.zeros(2, 2))])
    with pytest.raises(ValueError, match="matrices only"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    assert len(optimizer.param_groups) == 1


class Language(nn.Module):
    """A small model of plain torch, without transformers' methods."""

    def __init__(self, tied=False):
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.hidden = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.frozen = nn.Linear(4, 4, bias=False).requires_grad_(False)
        self.head = nn.Linear(4, 11, bias=False)
        if tied:
            self.head.weight = self.embedding.weight


class WithMethod(Language):
    def get_output_embeddings(self):
        return self.hidden  # whatever the model says


@pytest.mark.parametrize("tied", [False, True])
def test_hidden_matrices_are_for_muon_and_embeddings_head_norms_and_biases_are_not(tied):
    model = Language(tied)
    split = split_parameters(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert [names[id(parameter)] for parameter in split.matrices] == ["hidden.weight"]
    rest = ["embedding.weight", "hidden.bias", "norm.weight", "norm.bias"]
    assert [names[id(parameter)] for parameter in split.rest] == rest + ([] if tied else ["head.weight"])


def test_the_head_is_what_the_model_says_it_is():
    model = WithMethod()
    assert [id(parameter) for parameter in split_parameters(model).matrices] == [id(model.head.weight)]


@pytest.mark.parametrize("tied", [False, True])
def test_a_llama_of_transformers_is_split_completely(tied):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=tied,
    )
    model = transformers.LlamaForCausalLM(config)
    split = split_parameters(model)
    assert len(split.matrices) == 2 * 7  # four of attention, three of the feed-forward
    together = {id(parameter) for parameter in [*split.matrices, *split.rest]}
    assert together == {id(parameter) for parameter in model.parameters()}
    assert len(together) == len(split.matrices) + len(split.rest)


def test_a_model_with_nothing_to_train_is_refused():
    with pytest.raises(ValueError, match="Identity has no parameter"):
        split_parameters(nn.Identity())
