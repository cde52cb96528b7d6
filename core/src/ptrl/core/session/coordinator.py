"""The coordinator half: sampler, filters and reward statistics. Exactly one a run; its state is checkpointed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, cast

from ptrl.core.contracts import Filter, Sampler
from ptrl.core.contracts.environment import Columns
from ptrl.core.contracts.hooks import Contract
from ptrl.core.contracts.sampler import (
    Catalog,
    Continue,
    Drop,
    Keep,
    KeepIfShort,
    Proposal,
    SamplerContext,
    Selection,
)
from ptrl.core.errors import ContractError, RunFolderError
from ptrl.core.plan import RunPlan
from ptrl.core.records import Group, Outcome, Ticket
from ptrl.core.statistics import Moments, RewardStatistics, Scaling


class Coordinator:
    """Sampler, filters and reward statistics of a plan.

    Args:
        plan: What to build.
        columns: Each domain's training tasks, as a sampler may know them.
    """

    def __init__(self, plan: RunPlan, columns: Mapping[str, Columns]) -> None:
        self.plan = plan
        self.catalog = Catalog(columns)
        self._samplers = Contract(Sampler)
        self._filters = Contract(Filter)
        self._statistics = RewardStatistics()
        self._open: dict[str, Ticket] = {}
        self._samplers.add(plan.sampler.label, plan.sampler.build())
        for component in plan.filters:
            self._filters.add(component.label, component.build())

    def setup(self) -> None:
        """Sets up sampler and filters, and shows the sampler its catalog.

        Raises:
            ContractError: When one fails; it is named.
        """
        for contract in (self._samplers, self._filters):
            for result in contract.call_each("setup"):
                result.unwrap()
        rng = random.Random(self.plan.settings.run.seed)
        self._sampler("prepare", catalog=self.catalog, rng=rng)

    def close(self) -> None:
        """Closes sampler and filters."""
        for contract in (self._samplers, self._filters):
            contract.call_each("close")

    def _sampler(self, hook: str, **arguments: Any) -> Any:
        return self._samplers.call(self.plan.sampler.label, hook, **arguments).unwrap()

    def draw(self, n: int, context: SamplerContext) -> tuple[Ticket, ...]:
        """Returns exactly `n` tickets.

        Raises:
            ContractError: When the sampler breaks its contract.
        """
        proposal = self._sampler("propose", n=n, context=context)
        label = self.plan.sampler.label
        if not isinstance(proposal, Proposal):
            raise ContractError(f"{label}: propose returned {type(proposal).__name__}; expected a Proposal")
        if len(proposal.tickets) != n:
            raise ContractError(f"{label}: propose gave {len(proposal.tickets)} tickets; {n} were asked for")
        for ticket in proposal.tickets:
            self._check_ticket(label, ticket)
            if ticket.group_size != context.group_size and not self._variable_groups():
                raise ContractError(
                    f"{label}: propose gave a group of {ticket.group_size}; the group size is"
                    f" {context.group_size}, and a sampler that varies it declares variable_group"
                )
            self._open[ticket.id] = ticket
        return proposal.tickets

    def _check_ticket(self, label: str, ticket: Ticket) -> None:
        if ticket.id in self._open:
            raise ContractError(f"{label}: propose gave the ticket {ticket.id!r} twice")
        try:
            domain, _ = self.catalog.locate(ticket.index)
        except IndexError as error:
            raise ContractError(f"{label}: propose gave the ticket {ticket.id!r}: {error}") from None
        if domain != ticket.domain:
            raise ContractError(
                f"{label}: propose gave the index {ticket.index} of domain {domain!r} as one of {ticket.domain!r}"
            )

    def _variable_groups(self) -> bool:
        sampler = cast(Sampler, self._samplers.get_plugin(self.plan.sampler.label))
        return "variable_group" in sampler.capabilities

    def select(self, groups: Sequence[Group], batch: int) -> Selection:
        """Asks the filters what to do with each group; the first that does not keep one decides.

        Args:
            groups: Scored groups.
            batch: How many groups a full batch has; short ones take up the groups kept for that.
        """
        kept: list[Group] = []
        spare: list[Group] = []
        dropped: list[tuple[Group, str]] = []
        extend: list[tuple[Group, int]] = []
        for group in groups:
            decision = self._decide(group)
            if isinstance(decision, Keep):
                kept.append(group)
            elif isinstance(decision, KeepIfShort):
                spare.append(group)
            elif isinstance(decision, Continue):
                extend.append((group, decision.rollouts))
            else:
                dropped.append((group, decision.reason))
        wanted = max(0, batch - len(kept))
        kept.extend(spare[:wanted])
        dropped.extend((group, "the batch is full without it") for group in spare[wanted:])
        return Selection(kept=tuple(kept), dropped=tuple(dropped), extend=tuple(extend))

    def _decide(self, group: Group) -> Keep | KeepIfShort | Drop | Continue:
        for component in self.plan.filters:
            decision = self._filters.call(component.label, "decide", group=group).unwrap()
            if not isinstance(decision, (Keep, KeepIfShort, Drop, Continue)):
                raise ContractError(
                    f"{component.label}: decide returned {type(decision).__name__};"
                    " expected Keep, KeepIfShort, Drop or Continue"
                )
            if isinstance(decision, Continue) and "continue" not in component.loaded.factory.capabilities:  # type: ignore[attr-defined]
                raise ContractError(
                    f"{component.label}: decide returned Continue; a filter that does declares the capability continue"
                )
            if not isinstance(decision, Keep):
                return decision
        return Keep()

    def report(self, outcomes: Sequence[Outcome], moments: Mapping[str, Mapping[str, Moments]]) -> None:
        """Tells the sampler how tickets ended, and notes their rewards' moments. Idempotent by ticket.

        Args:
            outcomes: One per ticket.
            moments: Moments of each reward component, by ticket id.
        """
        new = [outcome for outcome in outcomes if self._open.pop(outcome.ticket, None) is not None]
        for outcome in new:
            self._statistics.add(outcome.ticket, outcome.domain, moments.get(outcome.ticket, {}))
        self._sampler("observe", outcomes=new)

    def finish_step(self) -> None:
        """Ends a step: running statistics take up what was reported."""
        self._statistics.advance()

    def scaling(self) -> Scaling:
        """Returns the frozen statistics that rewards are scaled by."""
        return self._statistics.scaling()

    def metrics(self) -> dict[str, float]:
        """Returns the sampler's own numbers."""
        result = self._samplers.call(self.plan.sampler.label, "metrics")
        found = result.value if isinstance(result.value, Mapping) else {}
        return {f"sampler/{name}": float(value) for name, value in found.items() if isinstance(value, Real)}

    def state_dict(self) -> dict[str, Any]:
        """Returns all state as plain data."""
        state = self._sampler("state_dict")
        if not isinstance(state, Mapping):
            label = self.plan.sampler.label
            raise ContractError(f"{label}: state_dict returned {type(state).__name__}; expected a mapping")
        return {
            "fingerprint": self.catalog.fingerprint,
            "sampler": dict(state),
            "statistics": self._statistics.state_dict(),
            "open": [
                [ticket.id, ticket.index, ticket.domain, ticket.group_size, ticket.probe]
                for ticket in self._open.values()
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up what `state_dict` returned.

        Raises:
            RunFolderError: When the tasks are not those that it was saved over.
        """
        if state["fingerprint"] != self.catalog.fingerprint:
            raise RunFolderError(
                "the checkpoint was saved over other tasks than the config gives now;"
                " restore the data, or start a new run"
            )
        self._sampler("load_state_dict", state=state["sampler"], catalog=self.catalog)
        self._statistics.load_state_dict(state["statistics"])
        self._open = {
            row[0]: Ticket(id=row[0], index=row[1], domain=row[2], group_size=row[3], probe=row[4])
            for row in state["open"]
        }
