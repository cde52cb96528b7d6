import math
from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ptrl_plugin_grpo.advantages import ESTIMATORS, token_advantages

NAMES = sorted(ESTIMATORS)
WITH_GROUPS = sorted(set(NAMES) - {"reinforce"})

# Hand-worked: two groups, of three and of two. Means: (1 + 0 + 2) / 3 = 1 and (4 + 2) / 2 = 3.
REWARDS = [1.0, 0.0, 2.0, 4.0, 2.0]
GROUPS = [7, 7, 7, 3, 3]
# All five: mean 9/5; squares of differences 0.64 + 3.24 + 0.04 + 4.84 + 0.04 = 8.8; variance 8.8 / 5 = 1.76.
# Centred: 0, -1, 1, 1, -1; variance 4 / 5.
# Leave one out: 1 - (0 + 2)/2 = 0; 0 - (1 + 2)/2 = -1.5; 2 - (1 + 0)/2 = 1.5; 4 - 2 = 2; 2 - 4 = -2.
# Group deviations, unbiased: sqrt((0 + 1 + 1) / 2) = 1; sqrt((1 + 1) / 1) = sqrt(2).
WORKED = {
    "reinforce": [(reward - 1.8) / math.sqrt(1.76) for reward in REWARDS],
    "reinforce_baseline": [
        0.0,
        -1 / math.sqrt(0.8),
        1 / math.sqrt(0.8),
        1 / math.sqrt(0.8),
        -1 / math.sqrt(0.8),
    ],
    "rloo": [0.0, -1.5, 1.5, 2.0, -2.0],
    "group_norm": [0.0, -1.0, 1.0, 1 / math.sqrt(2), -1 / math.sqrt(2)],
    "dr_grpo": [0.0, -1.0, 1.0, 1.0, -1.0],
}


def estimate(name, rewards, groups, valid=None, lengths=None, dtype=torch.float64):
    valid = [True] * len(rewards) if valid is None else valid
    lengths = None if lengths is None else torch.tensor(lengths)
    rewards = torch.tensor(rewards, dtype=dtype)
    result = ESTIMATORS[name](rewards, torch.tensor(groups), torch.tensor(valid), lengths)
    return result.tolist()


def mean(values, weights=None):
    weights = weights or [1.0] * len(values)
    return math.fsum(v * w for v, w in zip(values, weights, strict=True)) / math.fsum(weights)


def shaped_by_oracle(name, rewards, groups, valid):
    """The reward after its baseline; None where it does not count. Plain Python, one rollout at a time."""
    members = defaultdict(list)
    for reward, group, is_valid in zip(rewards, groups, valid, strict=True):
        if is_valid:
            members[group].append(reward)
    shaped = []
    for reward, group, is_valid in zip(rewards, groups, valid, strict=True):
        group_rewards = members[group]
        if not is_valid or (name != "reinforce" and len(group_rewards) == 1):
            shaped.append(None)
        elif name == "reinforce":
            shaped.append(reward)
        elif name == "rloo":
            others = list(group_rewards)
            others.remove(reward)
            shaped.append(reward - mean(others))
        elif name == "group_norm":
            average = mean(group_rewards)
            squares = math.fsum((other - average) ** 2 for other in group_rewards)
            shaped.append((reward - average) / (math.sqrt(squares / (len(group_rewards) - 1)) + 1e-9))
        else:
            shaped.append(reward - mean(group_rewards))
    return shaped


def whitened_by_oracle(values, weights):
    pairs = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None]
    if not pairs:
        return [0.0] * len(values)
    counted, their_weights = [v for v, _ in pairs], [w for _, w in pairs]
    average = mean(counted, their_weights)
    variance = mean([(v - average) ** 2 for v in counted], their_weights)
    return [0.0 if v is None else (v - average) / math.sqrt(max(variance, 1e-8)) for v in values]


def oracle(name, rewards, groups, valid, lengths=None):
    shaped = shaped_by_oracle(name, rewards, groups, valid)
    if name in ("reinforce", "reinforce_baseline"):
        return whitened_by_oracle(shaped, lengths or [1.0] * len(rewards))
    return [0.0 if value is None else value for value in shaped]


@st.composite
def batches(draw):
    count = draw(st.integers(1, 24))
    # Hundredths: distinct rewards differ by enough for a deviation not to be rounding.
    rewards = draw(st.lists(st.integers(-500, 500).map(lambda n: n / 100), min_size=count, max_size=count))
    groups = draw(st.lists(st.integers(-3, 5), min_size=count, max_size=count))
    valid = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    lengths = draw(st.lists(st.integers(1, 50), min_size=count, max_size=count))
    return rewards, groups, valid, lengths


@pytest.mark.parametrize("name", NAMES)
def test_each_estimator_gives_the_hand_worked_advantages(name):
    assert estimate(name, REWARDS, GROUPS) == pytest.approx(WORKED[name], abs=1e-8)


def test_reinforce_weighs_each_rollout_by_its_tokens():
    # Rewards 0 and 3 with 1 and 2 tokens: mean 6 / 3 = 2; variance (4 + 1 + 1) / 3 = 2.
    expected = [-2 / math.sqrt(2), 1 / math.sqrt(2)]
    assert estimate("reinforce", [0.0, 3.0], [0, 1], lengths=[1, 2]) == pytest.approx(expected)


def test_reinforce_baseline_weighs_each_rollout_by_its_tokens():
    # Centred -1 and 1 with 1 and 3 tokens: mean 2 / 4 = 0.5; variance (2.25 + 3 × 0.25) / 4 = 0.75. An equal
    # group of 4 tokens more: mean 2 / 8 = 0.25; variance (1.5625 + 3 × 0.5625 + 4 × 0.0625) / 8 = 0.4375.
    scale = math.sqrt(0.4375)
    expected = [-1.25 / scale, 0.75 / scale, -0.25 / scale, -0.25 / scale]
    actual = estimate("reinforce_baseline", [0.0, 2.0, 5.0, 5.0], [0, 0, 1, 1], lengths=[1, 3, 2, 2])
    assert actual == pytest.approx(expected)


@pytest.mark.parametrize("name", NAMES)
@given(batch=batches())
@settings(max_examples=100)
def test_each_estimator_equals_the_plain_oracle(name, batch):
    rewards, groups, valid, lengths = batch
    assert estimate(name, rewards, groups, valid) == pytest.approx(oracle(name, rewards, groups, valid), abs=1e-6)
    assert estimate(name, rewards, groups, valid, lengths) == pytest.approx(
        oracle(name, rewards, groups, valid, lengths), abs=1e-6
    )


@pytest.mark.parametrize("name", NAMES)
@given(batch=batches(), data=st.data())
@settings(max_examples=50)
def test_permuting_rollouts_permutes_their_advantages(name, batch, data):
    rewards, groups, valid, lengths = batch
    order = data.draw(st.permutations(range(len(rewards))))
    before = estimate(name, rewards, groups, valid, lengths)
    moved = [[column[place] for place in order] for column in (rewards, groups, valid, lengths)]
    assert estimate(name, *moved) == pytest.approx([before[place] for place in order], abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
@given(batch=batches(), garbage=st.sampled_from([math.nan, math.inf, -math.inf, 1e30]))
@settings(max_examples=50)
def test_an_invalid_rollout_has_advantage_zero_and_might_as_well_not_be_there(name, batch, garbage):
    rewards, groups, valid, lengths = batch
    spoilt = [reward if is_valid else garbage for reward, is_valid in zip(rewards, valid, strict=True)]
    actual = estimate(name, spoilt, groups, valid, lengths)
    assert all(value == 0 for value, is_valid in zip(actual, valid, strict=True) if not is_valid)
    kept = [place for place, is_valid in enumerate(valid) if is_valid]
    if kept:
        alone = [[column[place] for place in kept] for column in (rewards, groups)]
        without = estimate(name, *alone, lengths=[lengths[place] for place in kept])
        assert [actual[place] for place in kept] == pytest.approx(without, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_without_a_valid_rollout_has_advantages_zero(name):
    assert estimate(name, [math.nan, 1.0], [0, 0], [False, False], lengths=[0, 0]) == [0.0, 0.0]


@pytest.mark.parametrize("name", WITH_GROUPS)
def test_a_group_with_one_valid_rollout_has_advantage_zero_and_influences_no_other_group(name):
    alone = estimate(name, [100.0, 5.0, 0.0, 2.0], [0, 0, 1, 1], [True, False, True, True], [9, 9, 1, 3])
    assert alone[:2] == [0.0, 0.0]
    assert alone[2:] == pytest.approx(estimate(name, [0.0, 2.0], [1, 1], lengths=[1, 3]))


@pytest.mark.parametrize("name", WITH_GROUPS)
@given(
    reward=st.one_of(st.sampled_from([0.1, 1 / 3, -0.7]), st.floats(-1e6, 1e6)),
    size=st.integers(1, 9),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=50)
def test_a_group_of_equal_rewards_has_advantages_of_exactly_zero(name, reward, size, dtype):
    rewards = [reward] * size + [0.0, 1.0]
    groups = [0] * size + [1, 1]
    assert estimate(name, rewards, groups, dtype=dtype)[:size] == [0.0] * size


@pytest.mark.parametrize("name", NAMES)
def test_all_rewards_equal_teach_nothing(name):
    assert estimate(name, [0.1] * 7, [0] * 7, dtype=torch.float32) == pytest.approx([0.0] * 7, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("given_type", "expected"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.int64, torch.float32),
    ],
)
def test_advantages_have_the_type_of_the_rewards_but_at_least_float32(name, given_type, expected):
    rewards = torch.tensor([0, 1], dtype=given_type)
    result = ESTIMATORS[name](rewards, torch.tensor([0, 0]), torch.tensor([True, True]))
    assert result.dtype == expected


@pytest.mark.parametrize("name", NAMES)
def test_advantages_carry_no_gradient(name):
    rewards = torch.tensor([0.0, 1.0], requires_grad=True)
    assert not ESTIMATORS[name](rewards, torch.tensor([0, 0]), torch.tensor([True, True])).requires_grad


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_valid_reward_that_is_not_finite_is_refused_with_its_place(name, bad):
    with pytest.raises(ValueError, match=r"rewards: 1 of 3 .* index 2 .*invalid"):
        estimate(name, [1.0, 0.0, bad], [0, 0, 0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("rewards", "groups", "valid", "message"),
    [
        ([], [], [], "rewards: expected shape"),
        ([[1.0]], [[0]], [[True]], "rewards: expected shape"),
        ([1.0, 2.0], [0], [True, True], "groups: expected shape"),
        ([1.0, 2.0], [0, 0], [True], "valid: expected shape"),
        ([1.0, 2.0], [0.0, 0.0], [True, True], "groups: expected integers"),
        ([1.0, 2.0], [0, 0], [1, 1], "valid: expected booleans"),
    ],
)
def test_input_that_does_not_fit_is_refused(name, rewards, groups, valid, message):
    with pytest.raises(ValueError, match=message):
        ESTIMATORS[name](torch.tensor(rewards), torch.tensor(groups), torch.tensor(valid))


@pytest.mark.parametrize("name", ["reinforce", "reinforce_baseline"])
@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([1], "lengths: expected shape"),
        ([1, -1], "lengths: .*negative"),
        ([0, 0], "lengths: no rollout"),
        ([1.0, math.nan], "lengths: 1 of 2"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(name, lengths, message):
    with pytest.raises(ValueError, match=message):
        estimate(name, [0.0, 1.0], [0, 0], lengths=lengths)


def by_token(name, rewards, groups, rollout, penalties=None, valid=None):
    return token_advantages(
        name,
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(groups),
        torch.tensor([True] * len(rewards) if valid is None else valid),
        torch.tensor(rollout),
        None if penalties is None else torch.tensor(penalties, dtype=torch.float64),
    ).tolist()


def test_a_token_bears_its_own_and_all_later_penalties_of_its_rollout():
    # Leave one out of [3, 1]: 2 and -2. Penalties to go: 0.1 + 0.2 = 0.3, 0.2; and 0.5.
    actual = by_token("rloo", [3.0, 1.0], [0, 0], [0, 1, 0], [0.1, 0.5, 0.2])
    assert actual == pytest.approx([1.7, -2.5, 1.8])


def test_penalties_come_before_the_normalisation_over_tokens():
    # Centred 1 and -1, less the penalties to go [1, 0] and [0]: tokens 0, 1, -1; mean 0, variance 2 / 3.
    actual = by_token("reinforce_baseline", [3.0, 1.0], [0, 0], [0, 0, 1], [1.0, 0.0, 0.0])
    assert actual == pytest.approx([0.0, math.sqrt(1.5), -math.sqrt(1.5)])


@pytest.mark.parametrize("name", NAMES)
@given(batch=batches(), data=st.data())
@settings(max_examples=50)
def test_token_advantages_equal_the_plain_oracle(name, batch, data):
    rewards, groups, valid, _ = batch
    rollout = data.draw(st.lists(st.integers(0, len(rewards) - 1), min_size=1, max_size=40))
    penalties = data.draw(
        st.lists(st.integers(-100, 100).map(lambda n: n / 50), min_size=len(rollout), max_size=len(rollout))
    )
    shaped = shaped_by_oracle(name, rewards, groups, valid)
    values = [
        None
        if shaped[owner] is None
        else shaped[owner]
        - math.fsum(penalties[later] for later in range(token, len(rollout)) if rollout[later] == owner)
        for token, owner in enumerate(rollout)
    ]
    if name in ("reinforce", "reinforce_baseline"):
        expected = whitened_by_oracle(values, [1.0] * len(values))
    else:
        expected = [0.0 if value is None else value for value in values]
    assert by_token(name, rewards, groups, rollout, penalties, valid) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
@given(batch=batches())
@settings(max_examples=25)
def test_without_penalties_token_advantages_are_those_of_the_rollouts(name, batch):
    rewards, groups, valid, lengths = batch
    rollout = [place for place, length in enumerate(lengths) for _ in range(length)]
    of_rollouts = estimate(name, rewards, groups, valid, lengths)
    expected = [of_rollouts[owner] for owner in rollout]
    assert by_token(name, rewards, groups, rollout, valid=valid) == pytest.approx(expected, abs=1e-6)


def test_a_penalty_of_an_invalid_rollout_is_not_read():
    actual = by_token("rloo", [3.0, 1.0, 0.0], [0, 0, 0], [0, 1, 2], [0.0, 0.0, math.nan], [True, True, False])
    assert actual == [2.0, -2.0, 0.0]


@pytest.mark.parametrize(
    ("name", "rollout", "penalties", "message"),
    [
        ("rlo", [0, 1], None, "unknown name 'rlo'; expected one of reinforce"),
        ("rloo", [], None, "rollout: expected integers"),
        ("rloo", [0.0, 1.0], None, "rollout: expected integers"),
        ("rloo", [0, 2], None, "rollout: an index lies outside 0 to 1"),
        ("rloo", [-1, 0], None, "rollout: an index lies outside 0 to 1"),
        ("rloo", [0, 1], [0.0], "penalties: expected shape"),
        ("rloo", [0, 1], [0.0, math.inf], "penalties: 1 of 2"),
    ],
)
def test_token_input_that_does_not_fit_is_refused(name, rollout, penalties, message):
    with pytest.raises(ValueError, match=message):
        by_token(name, [0.0, 1.0], [0, 0], rollout, penalties)
