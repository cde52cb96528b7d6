import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ptrl_plugin_grpo.losses import (
    RatioStatistics,
    aggregate,
    clipped_policy_loss,
    entropy_from_logits,
    kl_divergence,
    log_probs_from_logits,
    ratio_statistics,
    rollout_weights,
)

LOG_PROBS = st.floats(-30, 0)
KL_ESTIMATORS = ["k1", "k2", "k3"]


def double(values, **options):
    return torch.tensor(values, dtype=torch.float64, **options)


def columns(width, elements, min_size=1, max_size=20):
    """Lists of one length."""
    return st.lists(st.tuples(*[elements] * width), min_size=min_size, max_size=max_size).map(
        lambda rows: [list(column) for column in zip(*rows, strict=True)]
    )


# ---- log-probabilities and entropy


def test_log_probs_are_those_of_the_tempered_softmax():
    # exp of [0, ln 3] is [1, 3]: probabilities 1/4 and 3/4. At temperature 2: 1 and sqrt(3).
    logits = double([[0.0, math.log(3)], [0.0, math.log(3)]])
    assert log_probs_from_logits(logits, torch.tensor([0, 1])).tolist() == pytest.approx(
        [math.log(0.25), math.log(0.75)]
    )
    total = 1 + math.sqrt(3)
    assert log_probs_from_logits(logits, torch.tensor([0, 1]), temperature=2.0).tolist() == pytest.approx(
        [math.log(1 / total), math.log(math.sqrt(3) / total)]
    )


def test_entropy_is_that_of_the_tempered_softmax():
    logits = double([[0.0, math.log(3)], [5.0, 5.0], [2 * math.log(3), 0.0]])
    quarter = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert entropy_from_logits(logits).tolist()[:2] == pytest.approx([quarter, math.log(2)])
    assert entropy_from_logits(logits, temperature=2.0).tolist()[2] == pytest.approx(quarter)


@given(
    rows=st.lists(st.lists(st.floats(-20, 20), min_size=4, max_size=4), min_size=1, max_size=9),
    temperature=st.floats(0.2, 3),
    chunk_size=st.one_of(st.none(), st.integers(1, 10)),
    data=st.data(),
)
@settings(max_examples=100)
def test_log_probs_and_entropy_equal_the_plain_oracle(rows, temperature, chunk_size, data):
    targets = data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    log_probs, entropies = [], []
    for row, target in zip(rows, targets, strict=True):
        tempered = [value / temperature for value in row]
        normaliser = max(tempered) + math.log(math.fsum(math.exp(v - max(tempered)) for v in tempered))
        log_probs.append(tempered[target] - normaliser)
        entropies.append(-math.fsum(math.exp(v - normaliser) * (v - normaliser) for v in tempered))
    logits = double(rows)
    chosen = log_probs_from_logits(logits, torch.tensor(targets), temperature, chunk_size)
    assert chosen.tolist() == pytest.approx(log_probs, abs=1e-9)
    assert entropy_from_logits(logits, temperature, chunk_size).tolist() == pytest.approx(entropies, abs=1e-9)


def test_logits_keep_their_leading_shape_and_are_left_as_they_were():
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    targets = torch.ones(2, 3, dtype=torch.long)
    whole = log_probs_from_logits(logits, targets, temperature=0.7)
    assert whole.shape == (2, 3)
    assert torch.equal(whole, log_probs_from_logits(logits, targets, temperature=0.7, chunk_size=4))
    assert entropy_from_logits(logits, temperature=0.7).shape == (2, 3)
    assert torch.equal(logits, before)


def test_half_precision_logits_give_float32():
    logits = torch.zeros(1, 4, dtype=torch.bfloat16)
    assert log_probs_from_logits(logits, torch.tensor([2])).dtype == torch.float32
    assert entropy_from_logits(logits).dtype == torch.float32


def test_a_banned_token_has_no_part_in_entropy_or_in_its_gradient():
    logits = torch.tensor([[0.0, 0.0, -math.inf]], requires_grad=True)
    entropy = entropy_from_logits(logits)
    assert entropy.tolist() == pytest.approx([math.log(2)])
    entropy.sum().backward()
    assert logits.grad.tolist() == [pytest.approx([0.0, 0.0, 0.0])]
    assert log_probs_from_logits(logits, torch.tensor([0])).tolist() == pytest.approx([-math.log(2)])


@pytest.mark.parametrize("function", [log_probs_from_logits, entropy_from_logits])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused(function, bad):
    logits = torch.tensor([[0.0, 1.0], [bad, 0.0]])
    arguments = [logits, torch.tensor([0, 0])] if function is log_probs_from_logits else [logits]
    with pytest.raises(ValueError, match=r"1 of 2 are NaN or infinite, the first at index \[1\]"):
        function(*arguments)


def test_choosing_a_banned_token_is_refused():
    with pytest.raises(ValueError, match="log-probabilities from logits: 1 of 1"):
        log_probs_from_logits(torch.tensor([[0.0, -math.inf]]), torch.tensor([1]))


@pytest.mark.parametrize(
    ("logits", "targets", "options", "message"),
    [
        (torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), {}, "logits: expected shape"),
        (torch.zeros(2, 4), torch.zeros(3, dtype=torch.long), {}, "targets: expected shape"),
        (torch.zeros(1, 4), torch.zeros(1, dtype=torch.long), {"temperature": 0.0}, "temperature"),
        (torch.zeros(1, 4), torch.zeros(1, dtype=torch.long), {"temperature": math.nan}, "temperature"),
        (torch.zeros(1, 4), torch.zeros(1, dtype=torch.long), {"chunk_size": 0}, "chunk_size"),
    ],
)
def test_logits_that_do_not_fit_are_refused(logits, targets, options, message):
    with pytest.raises(ValueError, match=message):
        log_probs_from_logits(logits, targets, **options)


# ---- clipped policy loss


def policy_loss_by_oracle(log_prob, old, advantage, low, high):
    ratio = math.exp(min(20.0, max(-20.0, log_prob - old)))
    return -min(ratio * advantage, min(1 + high, max(1 - low, ratio)) * advantage)


def test_the_policy_loss_gives_the_hand_worked_values():
    # Ratios 1.5, 1.5, 0.5, 0.5, 1.2 with clip range [0.8, 1.28]:
    #   advantage  2: min(3, 2.56) clipped;  -2: min(-3, -2.56) not;  2: min(1, 1.6) not;
    #   advantage -2: min(-1, -1.6) clipped;  1: 1.2 is within clip-higher.
    ratios = double([1.5, 1.5, 0.5, 0.5, 1.2])
    advantages = double([2.0, -2.0, 2.0, -2.0, 1.0])
    arguments = (ratios.log(), torch.zeros_like(ratios), advantages)
    loss = clipped_policy_loss(*arguments, clip_low=0.2, clip_high=0.28)
    assert loss.tolist() == pytest.approx([-2.56, 3.0, -1.0, 1.6, -1.2])
    statistics = ratio_statistics(*arguments, clip_low=0.2, clip_high=0.28)
    assert statistics.tokens == 5
    assert statistics.clip_fraction == pytest.approx(2 / 5)
    assert statistics.ratio_mean == pytest.approx(5.2 / 5)
    assert (statistics.ratio_min, statistics.ratio_max) == pytest.approx((0.5, 1.5))
    # -(2 ln 1.5 + 2 ln 0.5 + ln 1.2) / 5 = -ln(0.5625 × 1.2) / 5
    assert statistics.approximate_kl == pytest.approx(-math.log(0.675) / 5)


def test_where_the_ratio_is_clipped_the_gradient_is_zero_and_else_it_is_the_policy_gradient():
    log_probs = double([math.log(1.5), 0.0], requires_grad=True)
    clipped_policy_loss(log_probs, double([0.0, 0.0]), double([2.0, 2.0])).sum().backward()
    assert log_probs.grad.tolist() == pytest.approx([0.0, -2.0])


@given(
    rows=columns(3, st.floats(-30, 0)),
    low=st.floats(0, 0.99),
    high=st.floats(0, 5),
)
@settings(max_examples=200)
def test_the_policy_loss_equals_the_plain_oracle(rows, low, high):
    log_probs, old, advantages = rows
    advantages = [value + 15 for value in advantages]
    actual = clipped_policy_loss(double(log_probs), double(old), double(advantages), clip_low=low, clip_high=high)
    expected = [policy_loss_by_oracle(*row, low, high) for row in zip(log_probs, old, advantages, strict=True)]
    assert actual.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_huge_log_ratio_is_bounded():
    loss = clipped_policy_loss(double([0.0]), double([-1000.0]), double([-1.0]))
    assert loss.tolist() == pytest.approx([math.exp(20)])


def test_a_masked_token_changes_nothing_whatever_it_holds():
    log_probs = double([[-1.0, math.nan], [-2.0, -0.5]], requires_grad=True)
    old = double([[-1.2, math.inf], [-2.0, -1.0]])
    advantages = double([[1.0], [-1.0]])  # one per rollout
    mask = torch.tensor([[True, False], [True, True]])
    loss = clipped_policy_loss(log_probs, old, advantages, mask=mask)
    kl = kl_divergence(log_probs, old, "k3", mask=mask)
    assert loss[0, 1] == 0 and kl[0, 1] == 0
    weights = rollout_weights(mask.sum(-1), "token")
    (aggregate(loss, weights[:, None], mask) + aggregate(kl, weights[:, None], mask)).backward()
    assert torch.isfinite(log_probs.grad).all() and log_probs.grad[0, 1] == 0
    flat = clipped_policy_loss(log_probs[mask], old[mask], double([1.0, -1.0, -1.0]))
    assert loss[mask].tolist() == pytest.approx(flat.tolist())
    assert ratio_statistics(log_probs, old, advantages, mask=mask) == ratio_statistics(
        log_probs[mask], old[mask], double([1.0, -1.0, -1.0])
    )


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_policy_loss_input_that_is_not_finite_is_refused_by_name(place, bad):
    inputs = [double([-1.0, -1.0]) for _ in range(3)]
    inputs[place][1] = bad
    name = ["log_probs", "old_log_probs", "advantages"][place]
    for function in (clipped_policy_loss, ratio_statistics):
        with pytest.raises(ValueError, match=rf"^{name}: 1 of 2 are NaN or infinite, the first at index \[1\]"):
            function(*inputs)


@pytest.mark.parametrize(
    ("log_probs", "old", "advantages", "options", "message"),
    [
        ([], [], [], {}, "log_probs: there is no token"),
        ([0.0, 0.0], [0.0], [1.0, 1.0], {}, "old_log_probs: expected shape"),
        ([0.0, 0.0], [0.0, 0.0], [1.0, 1.0, 1.0], {}, "advantages: cannot expand"),
        ([0.0], [0.0], [1.0], {"clip_low": 1.0}, "clip range"),
        ([0.0], [0.0], [1.0], {"clip_low": -0.1}, "clip range"),
        ([0.0], [0.0], [1.0], {"clip_high": -0.1}, "clip range"),
        ([0.0], [0.0], [1.0], {"clip_high": math.nan}, "clip range"),
        ([0.0], [0.0], [1.0], {"mask": torch.tensor([1])}, "mask: expected booleans"),
        ([0.0], [0.0], [1.0], {"mask": torch.tensor([True, True])}, "mask: expected booleans"),
    ],
)
def test_policy_loss_input_that_does_not_fit_is_refused(log_probs, old, advantages, options, message):
    with pytest.raises(ValueError, match=message):
        clipped_policy_loss(double(log_probs), double(old), double(advantages), **options)


@given(rows=columns(3, LOG_PROBS, min_size=2), cut=st.integers(1, 19))
@settings(max_examples=50)
def test_ratio_statistics_of_parts_add_up_to_those_of_the_whole(rows, cut):
    tensors = [double(column) for column in rows]
    parts = [ratio_statistics(*(t[:cut] for t in tensors))]
    if cut < len(tensors[0]):
        parts.append(ratio_statistics(*(t[cut:] for t in tensors)))
    total, whole = RatioStatistics.total(parts), ratio_statistics(*tensors)
    assert total.tokens == whole.tokens and total.clipped == whole.clipped
    assert total.approximate_kl == pytest.approx(whole.approximate_kl, rel=1e-9, abs=1e-12)
    assert total.ratio_mean == pytest.approx(whole.ratio_mean)
    assert (total.ratio_min, total.ratio_max) == (whole.ratio_min, whole.ratio_max)


def test_statistics_without_tokens_are_nan_and_add_nothing():
    empty = ratio_statistics(double([0.0]), double([0.0]), double([1.0]), mask=torch.tensor([False]))
    assert empty == RatioStatistics()
    assert math.isnan(empty.clip_fraction) and math.isnan(empty.approximate_kl) and math.isnan(empty.ratio_mean)
    some = ratio_statistics(double([0.0]), double([0.0]), double([1.0]))
    assert some.plus(empty) == some


# ---- KL


def kl_by_oracle(log_prob, reference, estimator):
    difference = log_prob - reference
    if estimator == "k1":
        value = difference
    elif estimator == "k2":
        value = difference**2 / 2
    else:
        value = math.exp(-difference) - 1 + difference
    return min(10.0, max(-10.0, value))


def test_kl_estimators_give_the_hand_worked_values():
    # Probability 1/2 against 1/4: d = ln 2; k3 = 1/2 - 1 + ln 2. Reversed: d = -ln 2; k3 = 2 - 1 - ln 2.
    policy, reference = double([math.log(0.5), math.log(0.25)]), double([math.log(0.25), math.log(0.5)])
    two = math.log(2)
    assert kl_divergence(policy, reference, "k1").tolist() == pytest.approx([two, -two])
    assert kl_divergence(policy, reference, "k2").tolist() == pytest.approx([two**2 / 2, two**2 / 2])
    assert kl_divergence(policy, reference, "k3").tolist() == pytest.approx([two - 0.5, 1 - two])


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
@given(rows=columns(2, LOG_PROBS))
@settings(max_examples=100)
def test_kl_estimators_equal_the_plain_oracle(estimator, rows):
    actual = kl_divergence(double(rows[0]), double(rows[1]), estimator)
    expected = [kl_by_oracle(*row, estimator) for row in zip(*rows, strict=True)]
    assert actual.tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_average_to_the_divergence(estimator):
    policy, reference = double([0.5, 0.3, 0.2]), double([0.2, 0.2, 0.6])
    exact = (policy * (policy / reference).log()).sum()
    assert (policy * kl_divergence(policy.log(), reference.log(), estimator)).sum() == pytest.approx(exact)


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
def test_the_unbiased_gradient_is_that_of_the_divergence_with_the_value_of_the_estimator(estimator):
    logits = double([0.3, -0.2, 0.5], requires_grad=True)
    reference = double([0.2, 0.2, 0.6]).log()
    sampled = double([0.4, 0.4, 0.2])
    policy = torch.log_softmax(logits, -1)
    (policy.exp() * (policy - reference)).sum().backward()
    exact, logits.grad = logits.grad.clone(), None

    policy = torch.log_softmax(logits, -1)
    estimates = kl_divergence(policy, reference, estimator, unbiased_gradient=True, sampled_log_probs=sampled.log())
    assert torch.allclose(estimates, kl_divergence(policy, reference, estimator))
    (sampled * estimates).sum().backward()  # the expectation over what was sampled
    assert torch.allclose(logits.grad, exact)


def test_the_unbiased_gradient_bounds_its_importance_weight():
    policy = double([0.0], requires_grad=True)
    kl_divergence(
        policy, double([-2.0]), "k1", unbiased_gradient=True, sampled_log_probs=double([-900.0])
    ).sum().backward()
    assert policy.grad.tolist() == pytest.approx([10 * 2.0])


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
@pytest.mark.parametrize("difference", [-2000.0, -95.0, 2000.0])
def test_a_huge_difference_has_a_bounded_estimate_and_a_finite_gradient(estimator, difference):
    policy = torch.tensor([difference], requires_grad=True)
    estimate = kl_divergence(policy, torch.tensor([0.0]), estimator)
    estimate.sum().backward()
    assert abs(estimate.item()) == 10
    assert policy.grad.tolist() == [0.0]


def test_kl_input_that_does_not_fit_is_refused():
    one = double([0.0])
    with pytest.raises(ValueError, match="estimator: unknown name 'k4'"):
        kl_divergence(one, one, "k4")
    with pytest.raises(ValueError, match="reference_log_probs: expected shape"):
        kl_divergence(one, double([0.0, 0.0]), "k1")
    with pytest.raises(ValueError, match="reference_log_probs: 1 of 1"):
        kl_divergence(one, double([math.nan]), "k1")
    with pytest.raises(ValueError, match="sampled_log_probs: 1 of 1"):
        kl_divergence(one, one, "k1", unbiased_gradient=True, sampled_log_probs=double([math.inf]))
    with pytest.raises(ValueError, match="there is no token"):
        kl_divergence(double([]), double([]), "k1")


# ---- aggregation

AGGREGATIONS = ["token", "sequence", "constant"]


def weights_of(counts, aggregation, valid=None):
    length = 10 if aggregation == "constant" else None
    valid = None if valid is None else torch.tensor(valid)
    return rollout_weights(torch.tensor(counts), aggregation, valid=valid, length=length)


def test_weights_give_the_hand_worked_losses():
    # Rollouts of 1, 0 and 3 tokens with values [4] and [1, 2, 3].
    #   token: (4 + 1 + 2 + 3) / 4 = 2.5; sequence: (4 + 2) / 2 = 3; constant, length 10: (4 + 6) / (2 × 10).
    values, row = torch.tensor([4.0, 1.0, 2.0, 3.0]), torch.tensor([0, 2, 2, 2])
    losses = {name: float(aggregate(values, weights_of([1, 0, 3], name)[row])) for name in AGGREGATIONS}
    assert losses == pytest.approx({"token": 2.5, "sequence": 3.0, "constant": 0.5})


@st.composite
def rollout_values(draw):
    counts = draw(st.lists(st.integers(0, 6), min_size=1, max_size=10).filter(any))
    values = [draw(st.lists(st.floats(-5, 5), min_size=n, max_size=n)) for n in counts]
    return counts, values


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@given(batch=rollout_values())
@settings(max_examples=100)
def test_aggregation_equals_the_plain_oracle_flat_and_padded(aggregation, batch):
    counts, values = batch
    present = [row for row in values if row]
    expected = {
        "token": math.fsum(v for row in present for v in row) / sum(counts),
        "sequence": math.fsum(math.fsum(row) / len(row) for row in present) / len(present),
        "constant": math.fsum(math.fsum(row) / 10 for row in present) / len(present),
    }[aggregation]
    weights = weights_of(counts, aggregation)
    row = torch.tensor([place for place, n in enumerate(counts) for _ in range(n)])
    flat = aggregate(double([v for part in values for v in part]), weights[row])
    assert float(flat) == pytest.approx(expected, abs=1e-5)
    padded = double([part + [math.nan] * (6 - len(part)) for part in values])
    mask = torch.arange(6) < torch.tensor(counts)[:, None]
    assert float(aggregate(padded, weights[:, None], mask)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@given(batch=rollout_values(), data=st.data())
@settings(max_examples=50)
def test_accumulated_over_passes_loss_and_gradient_are_those_of_the_whole_batch(aggregation, batch, data):
    counts, _ = batch
    seed = data.draw(st.integers(0, 2**32))
    generator = torch.Generator().manual_seed(seed)
    total = sum(counts)
    row = torch.tensor([place for place, n in enumerate(counts) for _ in range(n)])
    hidden = torch.randn(total, 3, generator=generator, dtype=torch.float64)
    old = torch.randn(total, generator=generator, dtype=torch.float64)
    advantages = torch.randn(len(counts), generator=generator, dtype=torch.float64)
    weights = weights_of(counts, aggregation)
    parameter = double([0.1, -0.2, 0.3], requires_grad=True)

    def share(chosen):
        log_probs = hidden[chosen] @ parameter
        per_token = clipped_policy_loss(log_probs, old[chosen], advantages[row[chosen]])
        per_token = per_token + 0.1 * kl_divergence(log_probs, old[chosen], "k3")
        return aggregate(per_token, weights[row[chosen]])

    whole = share(torch.arange(total))
    (gradient,) = torch.autograd.grad(whole, parameter)
    passes = data.draw(st.lists(st.integers(0, 3), min_size=total, max_size=total))
    accumulated = 0.0
    for number in sorted(set(passes)):  # any division of the tokens, even of one rollout's
        loss = share(torch.tensor([place for place, owner in enumerate(passes) if owner == number]))
        loss.backward()
        accumulated += loss.item()
    assert accumulated == pytest.approx(whole.item(), rel=1e-9, abs=1e-12)
    assert torch.allclose(parameter.grad, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_an_invalid_rollout_has_no_weight_and_changes_no_sibling(aggregation):
    weights = weights_of([2, 50, 3], aggregation, valid=[True, False, True])
    assert weights[1] == 0
    assert weights[[0, 2]].tolist() == weights_of([2, 3], aggregation).tolist()


@pytest.mark.parametrize(
    ("counts", "aggregation", "options", "message"),
    [
        ([], "token", {}, "no valid rollout has a token"),
        ([0, 0], "token", {}, "no valid rollout has a token"),
        ([3, 0], "sequence", {"valid": torch.tensor([False, True])}, "no valid rollout has a token"),
        ([1, -1], "token", {}, "negative"),
        ([1.0, math.nan], "token", {}, "not finite"),
        ([[1]], "token", {}, "token_counts: expected shape"),
        ([1], "token", {"valid": torch.tensor([1])}, "valid: expected booleans"),
        ([1], "tokens", {}, "unknown name 'tokens'; expected token"),
        ([1], "constant", {}, "length: for the aggregation constant"),
        ([1], "token", {"length": 5}, "length: for the aggregation constant"),
        ([1], "constant", {"length": 0}, "length: expected a positive"),
    ],
)
def test_counts_that_do_not_fit_are_refused(counts, aggregation, options, message):
    with pytest.raises(ValueError, match=message):
        rollout_weights(torch.tensor(counts), aggregation, **options)


@pytest.mark.parametrize(
    ("values", "weights", "message"),
    [
        ([], [], "values: there is no token"),
        ([math.nan], [1.0], "values: 1 of 1"),
        ([1.0], [math.inf], "weights: 1 of 1"),
        ([1.0, 2.0], [1.0, 1.0, 1.0], "weights: cannot expand"),
    ],
)
def test_values_that_do_not_fit_are_refused(values, weights, message):
    with pytest.raises(ValueError, match=message):
        aggregate(torch.tensor(values), torch.tensor(weights))
