import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptrl_plugin_samplers.quotas import Quotas

weights = st.lists(st.integers(0, 1000) | st.floats(0, 1e6), min_size=1, max_size=300).filter(any)
batches = st.lists(st.integers(0, 200), max_size=20)


def named(values):
    return {f"d{place}": value for place, value in enumerate(values)}


@given(weights, batches)
def test_counts_add_up_and_are_within_one_of_the_exact_share(values, sizes):
    quotas = Quotas(named(values))
    total = sum(Fraction(str(value)) for value in values)
    for n in sizes:
        counts = quotas.allot(n)
        assert sum(counts) == n
        for count, value in zip(counts, values, strict=True):
            share = n * Fraction(str(value)) / total
            assert math.floor(share) <= count <= math.ceil(share)


@given(weights, st.integers(1, 100))
def test_over_time_shares_are_exact(values, n):
    quotas = Quotas(named(values))
    total = sum(Fraction(str(value)) for value in values)
    sums = [0] * len(values)
    for batch in range(1, 60):
        sums = [before + count for before, count in zip(sums, quotas.allot(n), strict=True)]
        for got, value in zip(sums, values, strict=True):
            assert abs(got - batch * n * Fraction(str(value)) / total) < 2


@given(st.integers(1, 300), batches)
def test_equal_domains_are_never_more_than_one_apart(domains, sizes):
    quotas = Quotas(named([1] * domains))
    sums = [0] * domains
    for n in sizes:
        counts = quotas.allot(n)
        assert max(counts) - min(counts) <= 1
        sums = [before + count for before, count in zip(sums, counts, strict=True)]
        assert max(sums) - min(sums) <= 1


def test_the_shares_of_whole_periods_are_met_to_the_ticket():
    quotas = Quotas({"a": 0.5, "b": 0.3, "c": 0.2, "d": 0})
    sums = [sum(column) for column in zip(*(quotas.allot(7) for _ in range(10)), strict=True)]
    assert sums == [35, 21, 14, 0]


@given(weights, batches, batches)
def test_state_continues_where_it_was_saved(values, before, after):
    quotas, resumed = Quotas(named(values)), Quotas(named(values))
    for n in before:
        quotas.allot(n)
    resumed.load(quotas.state())
    assert [quotas.allot(n) for n in after] == [resumed.allot(n) for n in after]


@pytest.mark.parametrize("values", [[], [0, 0], [-1, 2], [math.nan], [math.inf]])
def test_weights_that_make_no_shares_are_refused(values):
    with pytest.raises(ValueError, match=r"weight|quotas"):
        Quotas(named(values))
