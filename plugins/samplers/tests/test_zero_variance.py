import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptrl.core import Drop, Group, Keep, Rollout, ScoredRollout, Task, Ticket
from ptrl_plugin_samplers.zero_variance import ZeroVariance

TASK = Task(key="t", messages=())
metrics = st.lists(st.none() | st.floats(0, 1), max_size=16)


def group_of(values, shaped=None):
    members = tuple(
        ScoredRollout(
            rollout=Rollout(task=TASK),
            scores={},
            metric=value,
            total=value,
            training_reward=shaped[i] if shaped else 0.0,
            valid=value is not None,
        )
        for i, value in enumerate(values)
    )
    return Group(ticket=Ticket(id="1", index=0, domain="d", group_size=len(values)), task=TASK, members=members)


@pytest.mark.parametrize(
    ("values", "decision"),
    [
        ([1, 1, 1], Drop("all solved")),
        ([0, 0, 0], Drop("none solved")),
        ([0.3, 0.3], Drop("none solved")),
        ([1, None, 1], Drop("all solved")),
        ([0, None], Drop("none solved")),
        ([1], Drop("all solved")),
        ([None, None], Drop("no verdict")),
        ([], Drop("no verdict")),
        ([math.nan, math.nan], Drop("no verdict")),
        ([1, math.nan, 1], Drop("all solved")),
        ([0, 1], Keep()),
        ([0, 0, 0, 0.1], Keep()),
        ([0, 1, None], Keep()),
        ([math.nan, 0, 1], Keep()),
        ([1 / 3, 1 - 2 / 3], Drop("none solved")),
    ],
)
def test_a_group_is_kept_when_its_raw_metric_varies(values, decision):
    assert ZeroVariance().decide(group_of(values)) == decision


def test_a_shaped_reward_that_varies_does_not_save_an_unsolved_group():
    assert ZeroVariance().decide(group_of([0, 0, 0], shaped=[-1.0, 0.0, 1.0])) == Drop("none solved")


@given(metrics)
def test_it_decides_as_core_defines_zero_variance(values):
    group = group_of(values)
    assert (ZeroVariance().decide(group) == Keep()) is (not group.zero_variance)


@given(metrics, st.randoms(use_true_random=False))
def test_the_order_of_rollouts_does_not_matter(values, rng):
    shuffled = list(values)
    rng.shuffle(shuffled)
    assert ZeroVariance().decide(group_of(values)) == ZeroVariance().decide(group_of(shuffled))


def test_it_asks_the_optimizer_to_drop():
    assert ZeroVariance.capabilities == {"drop"}
