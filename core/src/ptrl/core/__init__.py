"""ptrl.core: contracts, registry, config, scoring and run loop of post-training reinforcement learning.

Everything in `__all__` is public and stays compatible; other modules may change.
"""

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
from ptrl.core.contracts.sampler import (
    Catalog,
    Continue,
    Decision,
    Drop,
    Keep,
    KeepIfShort,
    Proposal,
    SamplerContext,
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
    "Split",
    "State",
    "Step",
    "Task",
    "TaskSource",
    "Ticket",
    "UnknownNameError",
    "Value",
]
