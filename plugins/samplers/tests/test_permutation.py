from collections import Counter
from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptrl_plugin_samplers.permutation import SMALL, FeistelPermutation, permutation


def chi_square(counts, expected):
    return sum((count - expected) ** 2 / expected for count in counts)


@pytest.mark.parametrize("size", [*range(1, 300), 1000, 1023, 1024, 1025, 4099, 65_537])
@pytest.mark.parametrize("make", [permutation, FeistelPermutation])
def test_every_element_comes_exactly_once(make, size):
    order = make(size, b"key")
    assert sorted(order[position] for position in range(size)) == list(range(size))


@given(st.integers(1, 3000), st.binary(max_size=40))
def test_every_element_comes_exactly_once_for_any_size_and_key(size, key):
    order = FeistelPermutation(size, key)
    assert sorted(order[position] for position in range(size)) == list(range(size))


@given(st.integers(SMALL + 1, 10**18), st.binary(max_size=40), st.data())
def test_elements_of_huge_permutations_differ_and_are_in_range(size, key, data):
    order = FeistelPermutation(size, key)
    positions = data.draw(st.sets(st.integers(0, size - 1), min_size=2, max_size=20))
    elements = {order[position] for position in positions}
    assert len(elements) == len(positions)
    assert all(0 <= element < size for element in elements)


def test_a_permutation_is_the_same_wherever_it_is_made():
    order = permutation(1000, b"key")
    assert [order[position] for position in range(5)] == [permutation(1000, b"key")[p] for p in range(5)]
    assert [order[position] for position in range(9)] != [permutation(1000, b"other")[p] for p in range(9)]


@pytest.mark.parametrize("size", [0, -1])
def test_a_permutation_of_nothing_is_refused(size):
    with pytest.raises(ValueError, match="at least 1"):
        permutation(size, b"")


@pytest.mark.parametrize("position", [-1, 1000])
def test_a_position_outside_is_refused(position):
    with pytest.raises(IndexError):
        permutation(1000, b"")[position]


def test_every_order_of_a_small_set_is_equally_likely():
    draws = 24 * 500
    orders = Counter(tuple(permutation(4, b"%d" % key)) for key in range(draws))
    assert set(orders) == set(permutations(range(4)))
    assert chi_square(orders.values(), 500) < 55  # 23 degrees of freedom: p = 0.0002


@pytest.mark.parametrize("size", [257, 300, 1000, 5003])
@pytest.mark.parametrize("position", [0, 1, 128, 256])
def test_every_element_is_equally_likely_at_a_position(size, position):
    bins, draws = 16, 3200
    counts = Counter(FeistelPermutation(size, b"%d" % key)[position] * bins // size for key in range(draws))
    expected = [sum(element * bins // size == b for element in range(size)) * draws / size for b in range(bins)]
    statistic = sum((counts[b] - expected[b]) ** 2 / expected[b] for b in range(bins))
    assert statistic < 46  # 15 degrees of freedom: p = 0.00005


@pytest.mark.parametrize("size", [257, 1000, 5003])
@pytest.mark.parametrize("step", [1, 16, 17])
def test_neighbours_are_independent(size, step):
    bins, draws = 4, 8000
    counts = Counter()
    for key in range(draws):
        order = FeistelPermutation(size, b"%d" % key)
        counts[order[3] * bins // size, order[3 + step] * bins // size] += 1
    assert chi_square((counts[i, j] for i in range(bins) for j in range(bins)), draws / bins**2) < 46


def test_positions_within_one_permutation_look_shuffled():
    size = 100_003
    order = FeistelPermutation(size, b"key")
    head = [order[position] for position in range(6400)]
    assert chi_square(Counter(element * 64 // size for element in head).values(), 100) < 125  # 63 degrees
    ascents = sum(one < other for one, other in pairwise(head))
    assert abs(ascents - 3200) < 5 * (6400 / 12) ** 0.5
