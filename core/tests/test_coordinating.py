"""The coordinator holds samplers and filters to their contracts, and its state goes on exactly."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from ptrl.core import (
    Catalog,
    Columns,
    Continue,
    ContractError,
    Drop,
    Filter,
    Group,
    Keep,
    KeepIfShort,
    Outcome,
    Proposal,
    Rollout,
    RunFolderError,
    Sampler,
    SamplerContext,
    ScoredRollout,
    Task,
    Ticket,
)
from ptrl.core.plan import ComponentPlan, RunPlan
from ptrl.core.registry.loading import Loaded
from ptrl.core.session.coordinator import Coordinator
from ptrl.core.settings import RunSettings
from ptrl.core.statistics import Moments

CONTEXT = SamplerContext(step=0, progress=0.0, group_size=2)
COLUMNS = {"a": Columns(keys=["a0", "a1", "a2"]), "b": Columns(keys=["b0"])}


class Order(Sampler):
    """One after the other; remembers what it was told."""

    def prepare(self, catalog: Catalog, rng: random.Random) -> None:
        self.catalog, self.count, self.seen = catalog, 0, []

    def propose(self, n: int, context: SamplerContext) -> Any:
        start, self.count = self.count, self.count + n
        return Proposal(tickets=tuple(self.ticket(number, context) for number in range(start, self.count)))

    def ticket(self, number: int, context: SamplerContext) -> Ticket:
        index = number % len(self.catalog)
        domain = self.catalog.locate(index)[0]
        return Ticket(id=str(number), index=index, domain=domain, group_size=context.group_size)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        self.seen.extend(outcome.ticket for outcome in outcomes)

    def state_dict(self) -> Mapping[str, Any]:
        return {"count": self.count, "noise": b"\x00\xff"}

    def load_state_dict(self, state: Mapping[str, Any], catalog: Catalog) -> None:
        self.catalog, self.count = catalog, state["count"]


class Short(Order):
    def propose(self, n: int, context: SamplerContext) -> Any:
        return super().propose(n - 1, context)


class Twice(Order):
    def propose(self, n: int, context: SamplerContext) -> Any:
        self.count = 0
        return super().propose(n, context)


class Elsewhere(Order):
    def ticket(self, number: int, context: SamplerContext) -> Ticket:
        return Ticket(id=str(number), index=99, domain="a", group_size=context.group_size)


class Wrong(Order):
    def ticket(self, number: int, context: SamplerContext) -> Ticket:
        return Ticket(id=str(number), index=3, domain="a", group_size=context.group_size)


class Sized(Order):
    def ticket(self, number: int, context: SamplerContext) -> Ticket:
        return Ticket(id=str(number), index=0, domain="a", group_size=5)


class Nothing(Order):
    def propose(self, n: int, context: SamplerContext) -> Any:
        return [1] * n


class Stateless(Order):
    def state_dict(self) -> Any:
        return None


def test_state_that_is_no_mapping_is_an_error_that_names_the_sampler() -> None:
    with pytest.raises(ContractError, match="sampler: state_dict returned NoneType; expected a mapping"):
        coordinator(Stateless).state_dict()


def decide(choose: Callable[[Group], Any], **declared: Any) -> type[Filter]:
    return type("Chosen", (Filter,), {"decide": lambda self, group: choose(group), **declared})


def coordinator(sampler: type[Sampler] = Order, *filters: type[Filter]) -> Coordinator:
    def plan(label: str, kind: str, factory: type) -> ComponentPlan:
        loaded = Loaded(name=f"made.{kind}", kind=kind, factory=factory, entry=None)
        return ComponentPlan(label=label, loaded=loaded, config=factory.Config())

    section = {"environment": {"use": "a.b"}, "rewards": {"pay": {"use": "a.b"}}}
    settings = RunSettings.model_validate({"run": {"name": "x", "steps": 9}, "domains": {"a": section, "b": section}})
    plans = tuple(plan(f"filters.{number}", "filters", factory) for number, factory in enumerate(filters))
    made = plan("sampler", "samplers", sampler)
    run_plan = RunPlan(settings=settings, domains=(), sampler=made, filters=plans, optimizer=made, observers=())
    found = Coordinator(run_plan, COLUMNS)
    found.setup()
    return found


def group(ticket: Ticket, *metrics: float | None) -> Group:
    task = Task(key="k", domain=ticket.domain, messages=())
    members = tuple(
        ScoredRollout(rollout=Rollout(task=task), scores={}, metric=metric, total=metric, valid=metric is not None)
        for metric in metrics
    )
    return Group(ticket=ticket, task=task, members=members)


def told(one: Coordinator) -> list[str]:
    sampler = one._samplers.get_plugin("sampler")
    assert isinstance(sampler, Order)
    return sampler.seen


def test_the_catalog_lays_domains_end_to_end() -> None:
    catalog = Catalog(COLUMNS)
    assert [catalog.locate(index) for index in range(4)] == [("a", 0), ("a", 1), ("a", 2), ("b", 0)]
    assert catalog.key(3) == "b0"
    for outside in (-1, 4):
        with pytest.raises(IndexError, match=r"outside 0\.\.3"):
            catalog.locate(outside)
    assert catalog.fingerprint != Catalog({"a": COLUMNS["a"]}).fingerprint


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (Short, "gave 2 tickets; 3 were asked for"),
        (Nothing, "returned list; expected a Proposal"),
        (Elsewhere, r"catalog index 99 is outside 0\.\.3"),
        (Wrong, "the index 3 of domain 'b' as one of 'a'"),
        (Sized, "declares variable_group"),
    ],
)
def test_a_sampler_is_held_to_its_contract(sampler: type[Sampler], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        coordinator(sampler).draw(3, CONTEXT)


def test_a_ticket_that_is_still_open_cannot_be_given_again() -> None:
    one = coordinator(Twice)
    one.draw(2, CONTEXT)
    with pytest.raises(ContractError, match="the ticket '0' twice"):
        one.draw(2, CONTEXT)


def test_a_report_counts_once_and_only_for_tickets_that_were_drawn() -> None:
    one = coordinator()
    tickets = one.draw(2, CONTEXT)
    outcomes = [Outcome.of(group(ticket, 1.0, 0.0)) for ticket in tickets]
    stranger = Outcome.of(group(Ticket(id="never", index=0, domain="a", group_size=2), 1.0))
    moments = {"0": {"pay": Moments.of([1.0, 0.0])}}
    one.report([outcomes[0], stranger], moments)
    one.report(outcomes, moments)
    one.finish_step()
    assert told(one) == ["0", "1"]
    assert one.scaling().moments("a", "pay").count == 2


def test_the_first_filter_that_does_not_keep_a_group_decides() -> None:
    first = decide(lambda group: Drop("all solved") if min(group.metrics) == 1 else Keep())
    second = decide(lambda group: KeepIfShort() if max(group.metrics) == 0 else Keep())
    one = coordinator(Order, first, second)
    tickets = one.draw(4, CONTEXT)
    groups = [group(t, *m) for t, m in zip(tickets, [(1, 1), (0, 1), (0, 0), (0, 0)], strict=True)]
    selection = one.select(groups, batch=2)
    assert [kept.ticket.id for kept in selection.kept] == ["1", "2"]
    assert [(item.ticket.id, why) for item, why in selection.dropped] == [
        ("0", "all solved"),
        ("3", "the batch is full without it"),
    ]


@pytest.mark.parametrize(
    ("answer", "message"), [(True, "decide returned bool"), (Continue(2), "declares the capability continue")]
)
def test_a_filter_is_held_to_its_contract(answer: object, message: str) -> None:
    one = coordinator(Order, decide(lambda group: answer))
    with pytest.raises(ContractError, match=message):
        one.select([group(one.draw(1, CONTEXT)[0], 1.0)], batch=1)


def test_a_filter_that_may_continue_is_listened_to() -> None:
    one = coordinator(Order, decide(lambda group: Continue(3), capabilities=frozenset({"continue"})))
    found = group(one.draw(1, CONTEXT)[0], 1.0)
    assert one.select([found], batch=1).extend == ((found, 3),)


def test_a_failed_verifier_is_not_a_failed_rollout_in_an_outcome() -> None:
    ticket = Ticket(id="1", index=0, domain="a", group_size=3)
    outcome = Outcome.of(group(ticket, 1.0, None, 0.25))
    assert (outcome.valid, outcome.successes, outcome.masked, outcome.mean) == (2, 1, 1, 0.625)
    assert Outcome.of(group(ticket, None)).status == "error"


def test_state_goes_on_where_it_was_with_tickets_open() -> None:
    one = coordinator()
    open_ticket, _ = one.draw(2, CONTEXT)
    state = one.state_dict()
    other = coordinator()
    other.load_state_dict(state)
    assert other.draw(3, CONTEXT) == one.draw(3, CONTEXT)
    other.report([Outcome.of(group(open_ticket, 1.0))], {})
    assert told(other) == [open_ticket.id]


def test_state_over_other_tasks_is_refused() -> None:
    state = coordinator().state_dict()
    with pytest.raises(RunFolderError, match="other tasks"):
        coordinator().load_state_dict({**state, "fingerprint": "x"})
