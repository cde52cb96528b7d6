"""ptrl.core: contracts, registry, config, scoring and run loop of post-training reinforcement learning.

Everything in `__all__` is public and stays compatible; other modules may change. Names are imported when they
are first used, so that the command line answers at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptrl.core.contracts import (
        Component,
        Environment,
        Filter,
        Observer,
        Optimizer,
        Reward,
        Sampler,
        Sandbox,
    )
    from ptrl.core.contracts.environment import Columns, State, Step, TaskSource
    from ptrl.core.contracts.observer import DomainResult, Evaluation, RunInfo
    from ptrl.core.contracts.optimizer import TrainingSession
    from ptrl.core.contracts.sampler import (
        Catalog,
        Continue,
        Decision,
        Drop,
        Keep,
        KeepIfShort,
        Proposal,
        SamplerContext,
        Selection,
    )
    from ptrl.core.contracts.sandbox import Limits, Result, Value
    from ptrl.core.errors import (
        ConfigError,
        ContractError,
        EpisodeError,
        LockMismatchError,
        NameConflictError,
        OptimizerError,
        PluginLoadError,
        Problem,
        PtrlError,
        RegistryError,
        RunFolderError,
        UnknownNameError,
        did_you_mean,
    )
    from ptrl.core.records import (
        Group,
        Message,
        Outcome,
        Rollout,
        Score,
        ScoredRollout,
        Split,
        Task,
        Ticket,
    )

__version__ = "0.1.0"

_HOMES = {
    ".contracts": (
        "Component",
        "Environment",
        "Filter",
        "Observer",
        "Optimizer",
        "Reward",
        "Sampler",
        "Sandbox",
    ),
    ".contracts.environment": (
        "Columns",
        "State",
        "Step",
        "TaskSource",
    ),
    ".contracts.observer": (
        "DomainResult",
        "Evaluation",
        "RunInfo",
    ),
    ".contracts.optimizer": ("TrainingSession",),
    ".contracts.sampler": (
        "Catalog",
        "Continue",
        "Decision",
        "Drop",
        "Keep",
        "KeepIfShort",
        "Proposal",
        "SamplerContext",
        "Selection",
    ),
    ".contracts.sandbox": (
        "Limits",
        "Result",
        "Value",
    ),
    ".errors": (
        "ConfigError",
        "ContractError",
        "EpisodeError",
        "LockMismatchError",
        "NameConflictError",
        "OptimizerError",
        "PluginLoadError",
        "Problem",
        "PtrlError",
        "RegistryError",
        "RunFolderError",
        "UnknownNameError",
        "did_you_mean",
    ),
    ".records": (
        "Group",
        "Message",
        "Outcome",
        "Rollout",
        "Score",
        "ScoredRollout",
        "Split",
        "Task",
        "Ticket",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ptrl.core' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME_OF[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "Catalog",
    "Columns",
    "Component",
    "ConfigError",
    "Continue",
    "ContractError",
    "Decision",
    "DomainResult",
    "Drop",
    "Environment",
    "EpisodeError",
    "Evaluation",
    "Filter",
    "Group",
    "Keep",
    "KeepIfShort",
    "Limits",
    "LockMismatchError",
    "Message",
    "NameConflictError",
    "Observer",
    "Optimizer",
    "OptimizerError",
    "Outcome",
    "PluginLoadError",
    "Problem",
    "Proposal",
    "PtrlError",
    "RegistryError",
    "Result",
    "Reward",
    "Rollout",
    "RunFolderError",
    "RunInfo",
    "Sampler",
    "SamplerContext",
    "Sandbox",
    "Score",
    "ScoredRollout",
    "Selection",
    "Split",
    "State",
    "Step",
    "Task",
    "TaskSource",
    "Ticket",
    "TrainingSession",
    "UnknownNameError",
    "Value",
    "did_you_mean",
]
