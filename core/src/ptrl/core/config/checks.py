"""What must hold between the parts of a config."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import cast, get_args

from ptrl.core.contracts import Filter, Optimizer, Reward, Sampler
from ptrl.core.errors import ContractError, Problem, did_you_mean
from ptrl.core.plan import DomainPlan, RewardPlan, RunPlan
from ptrl.core.records import RewardRole
from ptrl.core.settings import RunSettings


def check_domain(domain: DomainPlan) -> list[Problem]:
    """Returns what is wrong with a domain's rewards as a whole."""
    key = f"domains.{domain.name}.rewards"
    return [*_check_roles(key, domain.rewards), *_check_labels(key, domain), *_check_each(domain)]


def _check_roles(key: str, rewards: Sequence[RewardPlan]) -> Iterator[Problem]:
    outcomes = [reward.name for reward in rewards if reward.table.role == "outcome"]
    if len(outcomes) != 1:
        found = "none" if not outcomes else " and ".join(outcomes)
        message = f"exactly one reward has the role outcome and carries the metric; found {found}"
        others = ", ".join(role for role in get_args(RewardRole) if role != "outcome")
        yield Problem(key=key, message=message, fix=f"give the others a role: {others}")
    added = [reward for reward in rewards if reward.table.role != "gate"]
    if added and not any(_can_weigh(reward) for reward in added):
        yield Problem(key=key, message="all weights are zero, so nothing would be learnt")


def _can_weigh(reward: RewardPlan) -> bool:
    points = reward.table.schedule
    return any(weight > 0 for _, weight in points) if points else reward.table.weight > 0


def _check_labels(key: str, domain: DomainPlan) -> Iterator[Problem]:
    names = [reward.name for reward in domain.rewards]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem(key=key, message=f"two rewards have the label {name!r}")


def _check_each(domain: DomainPlan) -> Iterator[Problem]:
    graph: dict[str, list[str]] = {}
    for plan in domain.rewards:
        try:
            reward = cast(Reward, plan.build())
        except ContractError as error:
            yield Problem(key=plan.label, message=str(error).removeprefix(f"{plan.label}: "))
            continue
        wrong = list(_wrong_declarations(reward))
        if wrong:
            yield from (Problem(key=plan.label, message=f"{plan.loaded.name} declares {text}") for text in wrong)
            continue
        low, high = reward.range
        if plan.table.role == "gate" and not (low >= 0 and high <= 1):
            message = f"a gate's range lies within 0 to 1; that of {plan.loaded.name} is {low} to {high}"
            yield Problem(key=f"{plan.label}.role", message=message)
        labels = [other.name for other in domain.rewards]
        roles = [other.table.role for other in domain.rewards]
        for need in reward.needs:
            if need not in labels and need not in roles:
                message = f"{plan.loaded.name} needs {need!r}; {did_you_mean(need, [*labels, *roles])}"
                yield Problem(key=plan.label, message=message)
        graph[plan.name] = domain.labels_needed(plan.name, reward.needs)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        path = " needs ".join(str(label) for label in error.args[1])
        yield Problem(key=f"domains.{domain.name}.rewards", message=f"a cycle of needs: {path}")


def _wrong_declarations(reward: Reward) -> Iterator[str]:
    """Yields what a reward says of itself that core cannot rely on."""
    try:
        low, high = map(float, reward.range)
        ordered = low <= high
    except (TypeError, ValueError):
        ordered = False
    if not ordered:
        yield f"the range {reward.range!r}; expected (lowest, highest)"
    if not isinstance(reward.timeout, (int, float)) or not reward.timeout > 0:
        yield f"the timeout {reward.timeout!r}; expected seconds"
    if reward.scope not in ("rollout", "group"):
        yield f"the scope {reward.scope!r}; expected 'rollout' or 'group'"
    if isinstance(reward.needs, str):
        yield f"the needs {reward.needs!r}; expected a tuple, ({reward.needs!r},)"


def check_whole(plan: RunPlan) -> list[Problem]:
    """Returns what a sampler or filter needs that the optimizer cannot do."""
    problems = []
    optimizer = cast(type[Optimizer], plan.optimizer.loaded.factory)
    for component in (plan.sampler, *plan.filters):
        needing = cast(type[Sampler] | type[Filter], component.loaded.factory)
        missing = sorted(set(needing.capabilities) - set(optimizer.capabilities))
        if missing:
            message = f"{component.loaded.name} needs {', '.join(missing)}, which"
            message += f" {plan.optimizer.loaded.name} cannot do"
            problems.append(Problem(key=f"{component.label}.use", message=message))
    training = plan.settings.training
    if training.max_length is not None and training.max_length <= training.max_new_tokens:
        message = f"{training.max_length} leaves no room for a prompt beside {training.max_new_tokens} new tokens"
        problems.append(Problem(key="training.max_length", message=message))
    return problems


def warnings_of(settings: RunSettings) -> Iterator[str]:
    """Yields what is allowed but probably not meant."""
    training = settings.training
    if training.estimator == "group_norm" and training.composition == "scaled":
        yield (
            "training.estimator: group_norm divides by the group's deviation again, so a weight no longer"
            " bounds a component's influence; rloo, dr_grpo and reinforce_baseline keep the bound"
        )
    if training.kl.coefficient and training.kl.apply == "loss" and training.kl.estimator == "k1":
        yield "training.kl.estimator: k1 in the loss has a gradient of zero expectation; use k2 or k3"
    if training.group_size == 1 and training.estimator in ("rloo", "group_norm", "dr_grpo"):
        yield f"training.group_size: {training.estimator} learns nothing from groups of one"
