import json
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ptrl.core import Catalog, Columns, SamplerContext
from ptrl_plugin_samplers.shuffle import Shuffle

CONTEXT = SamplerContext(step=0, progress=0.0, group_size=8)
sizes = st.lists(st.integers(1, 700), min_size=1, max_size=12)
batches = st.lists(st.integers(0, 70), min_size=1, max_size=12)


def catalog_of(counts, mark="v1"):
    return Catalog({f"d{i}": Columns(keys=range(n), fingerprint=f"{mark}-{i}-{n}") for i, n in enumerate(counts)})


def prepared(catalog, seed=7, **options):
    sampler = Shuffle(Shuffle.Config(**options))
    sampler.prepare(catalog, random.Random(seed))
    return sampler


def indices(sampler, n):
    return [ticket.index for ticket in sampler.propose(n, CONTEXT).tickets]


@given(sizes, batches)
def test_proposals_have_exactly_n_tickets_that_fit_the_catalog(counts, rounds):
    catalog = catalog_of(counts)
    sampler = prepared(catalog)
    seen = set()
    for n in rounds:
        tickets = sampler.propose(n, CONTEXT).tickets
        assert len(tickets) == n
        for ticket in tickets:
            assert catalog.locate(ticket.index)[0] == ticket.domain
            assert ticket.group_size == 8
            assert ticket.probe
            assert ticket.id not in seen
            seen.add(ticket.id)


@given(st.integers(1, 700), st.integers(1, 3), st.integers(1, 50))
def test_an_epoch_has_every_task_once(size, epochs, batch):
    sampler = prepared(catalog_of([size]))
    drawn = []
    while len(drawn) < epochs * size:
        drawn += indices(sampler, batch)
    for epoch in range(epochs):
        assert sorted(drawn[epoch * size : (epoch + 1) * size]) == list(range(size))


@pytest.mark.parametrize("size", [20, 500])
def test_each_epoch_and_each_domain_has_an_order_of_its_own(size):
    sampler = prepared(catalog_of([size, size]))
    tickets = sampler.propose(4 * size, CONTEXT).tickets
    orders = {
        (name, epoch): tuple([t.index % size for t in tickets if t.domain == name][epoch * size :][:size])
        for name in ("d0", "d1")
        for epoch in (0, 1)
    }
    assert len(set(orders.values())) == 4


def test_the_seed_decides_the_order():
    catalog = catalog_of([500])
    assert indices(prepared(catalog, seed=1), 20) == indices(prepared(catalog, seed=1), 20)
    assert indices(prepared(catalog, seed=1), 20) != indices(prepared(catalog, seed=2), 20)


@given(sizes, batches, batches)
def test_a_resumed_sampler_proposes_what_would_have_followed(counts, before, after):
    catalog = catalog_of(counts)
    sampler = prepared(catalog, by="size")
    for n in before:
        sampler.propose(n, CONTEXT)
    state = json.loads(json.dumps(sampler.state_dict()))
    fresh = Shuffle(Shuffle.Config(by="size"))
    fresh.load_state_dict(state, catalog)
    again = prepared(catalog, seed=99, by="size")
    again.load_state_dict(state, catalog)
    for n in after:
        expected = sampler.propose(n, CONTEXT)
        assert fresh.propose(n, CONTEXT) == expected
        assert again.propose(n, CONTEXT) == expected


def test_a_thousand_proposals_after_a_resume_are_identical():
    catalog = catalog_of([3, 1000, 100_000])
    sampler = prepared(catalog, quotas={"d0": 0.1, "d1": 0.6, "d2": 0.3})
    sampler.propose(777, CONTEXT)
    resumed = Shuffle(sampler.config)
    resumed.load_state_dict(sampler.state_dict(), catalog)
    assert [sampler.propose(5, CONTEXT) for _ in range(1000)] == [resumed.propose(5, CONTEXT) for _ in range(1000)]


def test_a_saved_state_does_not_change_afterwards():
    catalog = catalog_of([50, 50, 50])
    sampler = prepared(catalog)
    sampler.propose(4, CONTEXT)
    state = sampler.state_dict()
    before = json.dumps(state)
    sampler.propose(5, CONTEXT)
    assert json.dumps(state) == before


def test_state_does_not_grow_with_the_tasks():
    small, large = (len(json.dumps(prepared(catalog_of([n, n])).state_dict())) for n in (10, 10**9))
    assert small == large


def test_a_state_of_other_tasks_is_refused():
    state = prepared(catalog_of([10, 20])).state_dict()
    other = catalog_of([10, 20], mark="v2")
    sampler = prepared(other)
    expected = indices(prepared(other), 5)
    with pytest.raises(ValueError, match="other tasks"):
        sampler.load_state_dict(state, other)
    assert indices(sampler, 5) == expected


def test_a_state_of_other_quotas_is_refused():
    catalog = catalog_of([10, 20])
    state = prepared(catalog, by="size").state_dict()
    sampler = prepared(catalog)
    expected = indices(prepared(catalog), 5)
    with pytest.raises(ValueError, match="other quotas"):
        sampler.load_state_dict(state, catalog)
    assert indices(sampler, 5) == expected


def test_domains_share_equally_by_default_and_by_size_on_request():
    catalog = catalog_of([100, 300])
    assert Counter(t.domain for t in prepared(catalog).propose(40, CONTEXT).tickets) == {"d0": 20, "d1": 20}
    by_size = prepared(catalog, by="size").propose(40, CONTEXT).tickets
    assert Counter(t.domain for t in by_size) == {"d0": 10, "d1": 30}


def test_declared_quotas_are_met_exactly_over_time():
    sampler = prepared(catalog_of([10, 10, 10]), quotas={"d0": 0.7, "d1": 0.3, "d2": 0})
    total = Counter(t.domain for _ in range(100) for t in sampler.propose(3, CONTEXT).tickets)
    assert total == {"d0": 210, "d1": 90}


def test_domains_are_interleaved():
    names = [t.domain for t in prepared(catalog_of([9, 9])).propose(8, CONTEXT).tickets]
    assert names == ["d0", "d1"] * 4


def test_an_empty_domain_is_refused_unless_it_is_left_out():
    catalog = catalog_of([5, 0])
    with pytest.raises(ValueError, match="'d1' has no tasks"):
        prepared(catalog)
    assert len(indices(prepared(catalog, quotas={"d0": 1, "d1": 0}), 12)) == 12
    assert len(indices(prepared(catalog, by="size"), 12)) == 12


def test_quotas_must_name_the_domains():
    catalog = catalog_of([5, 5])
    with pytest.raises(ValueError, match="did you mean 'd0'"):
        prepared(catalog, quotas={"d00": 1, "d1": 1})
    with pytest.raises(ValueError, match="no weight for d1"):
        prepared(catalog, quotas={"d0": 1})


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), "much"])
def test_a_weight_that_is_none_is_refused_by_the_config(weight):
    with pytest.raises(ValidationError):
        Shuffle.Config(quotas={"d0": weight})


def test_a_sampler_that_was_not_prepared_says_so():
    with pytest.raises(RuntimeError, match="before prepare"):
        Shuffle().propose(1, CONTEXT)
    with pytest.raises(RuntimeError, match="before prepare"):
        Shuffle().state_dict()
    with pytest.raises(ValueError, match="-1"):
        prepared(catalog_of([5])).propose(-1, CONTEXT)


def test_metrics_name_share_and_epochs_of_each_domain():
    sampler = prepared(catalog_of([2, 4]))
    assert sampler.metrics()["share/d0"] == 0
    sampler.propose(8, CONTEXT)
    assert sampler.metrics() == {"share/d0": 0.5, "share/d1": 0.5, "epochs/d0": 2.0, "epochs/d1": 1.0}
