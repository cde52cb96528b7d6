"""A config whose names are found and whose options are valid: what a session is built from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from ptrl.core.contracts import Component
from ptrl.core.contracts.hooks import describe
from ptrl.core.errors import ContractError
from ptrl.core.registry.loading import Loaded
from ptrl.core.settings import RewardTable, RunSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentPlan:
    """One component of a config, not built yet.

    Args:
        label: Its config path, such as `domains.words.rewards.answer`; the label in every error and record.
        loaded: Its class and where it came from.
        config: Its validated options.
    """

    label: str
    loaded: Loaded
    config: BaseModel

    def build(self) -> Component:
        """Builds the component; `setup` is not called.

        Raises:
            ContractError: When its `__init__` fails; the component is named.
        """
        try:
            component = self.loaded.factory(self.config)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise ContractError(f"{self.label}: {self.loaded.name} cannot be built: {describe(error)}") from error
        if getattr(component, "config", None) is None:
            component.config = self.config
        return component


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardPlan(ComponentPlan):
    """One reward of a domain, with what core does with its verdicts.

    Args:
        key: Its key in the config.
        name: The label under which it is reported: the config's `label`, or the key.
        table: What the config says beside its options.
    """

    key: str
    name: str
    table: RewardTable


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainPlan:
    """One domain: its environment, and its rewards in the config's order."""

    name: str
    environment: ComponentPlan
    rewards: tuple[RewardPlan, ...]

    @property
    def outcome(self) -> RewardPlan:
        """The reward that carries the metric."""
        return next(reward for reward in self.rewards if reward.table.role == "outcome")

    def labels_needed(self, name: str, needs: Sequence[str]) -> list[str]:
        """Returns the labels that a reward's `needs` (labels or roles) stand for."""
        return [
            other.name
            for other in self.rewards
            if other.name in needs or (other.table.role in needs and other.name != name)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Everything that a run is built from.

    Args:
        settings: The validated sections.
        domains: The domains in the config's order.
        sampler: What decides what is practised.
        filters: What decides which groups are learnt from, in order.
        optimizer: What updates the policy.
        observers: What watches.
        warnings: What is allowed but probably not meant.
        local_code: SHA-256 of each local file that the config names, by path.
        folder: What the paths of local files are relative to.
        file: The config's file, for messages.
    """

    settings: RunSettings
    domains: tuple[DomainPlan, ...]
    sampler: ComponentPlan
    filters: tuple[ComponentPlan, ...]
    optimizer: ComponentPlan
    observers: tuple[ComponentPlan, ...]
    warnings: tuple[str, ...] = ()
    local_code: Mapping[str, str] = field(default_factory=dict)
    folder: str = "."
    file: str | None = None

    def components(self) -> list[ComponentPlan]:
        """Returns every component of the config."""
        rewards = [reward for domain in self.domains for reward in domain.rewards]
        environments = [domain.environment for domain in self.domains]
        return [*environments, *rewards, self.sampler, *self.filters, self.optimizer, *self.observers]

    def dump(self) -> dict[str, Any]:
        """Returns the resolved config as plain data: all defaults filled in, no secret revealed."""
        data = self.settings.model_dump(mode="json", exclude_none=True)
        for domain in self.domains:
            section = data["domains"][domain.name]
            section["environment"] = _dump(section["environment"], domain.environment)
            for reward in domain.rewards:
                section["rewards"][reward.key] = _dump(section["rewards"][reward.key], reward)
        data["sampler"] = _dump(data["sampler"], self.sampler)
        data["filters"] = [_dump(*pair) for pair in zip(data["filters"], self.filters, strict=True)]
        data["observers"] = [_dump(*pair) for pair in zip(data["observers"], self.observers, strict=True)]
        family = self.settings.optimizer.use.partition(".")[0]
        data["optimizer"][family] = self.optimizer.config.model_dump(mode="json")
        return data


def _dump(table: dict[str, Any], plan: ComponentPlan) -> dict[str, Any]:
    return {**table, **plan.config.model_dump(mode="json")}  # None may stand where the default is another
