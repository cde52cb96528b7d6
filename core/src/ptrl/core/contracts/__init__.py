"""The kinds of component, each a base class whose methods are hook specifications."""

from ptrl.core.contracts.component import Component
from ptrl.core.contracts.environment import Environment
from ptrl.core.contracts.observer import Observer
from ptrl.core.contracts.optimizer import Optimizer
from ptrl.core.contracts.reward import Reward
from ptrl.core.contracts.sampler import Filter, Sampler
from ptrl.core.contracts.sandbox import Sandbox

KINDS: dict[str, type[Component]] = {
    kind.kind: kind for kind in (Environment, Reward, Sampler, Filter, Optimizer, Observer, Sandbox)
}
"""Every kind of core, by its entry-point group without `ptrl.`."""

__all__ = [
    "KINDS",
    "Component",
    "Environment",
    "Filter",
    "Observer",
    "Optimizer",
    "Reward",
    "Sampler",
    "Sandbox",
]
