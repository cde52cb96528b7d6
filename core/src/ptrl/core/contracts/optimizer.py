"""Optimizers update the policy from what a session gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from ptrl.core.contracts.component import Component, hook
from ptrl.core.errors import OptimizerError, Problem

if TYPE_CHECKING:  # these stand above the contracts; only the types are named here
    from ptrl.core.policy import Policy
    from ptrl.core.session import Session

Capability = Literal["variable_group", "continue", "drop", "policy_version", "per_domain_gradient", "masking"]


class Optimizer(Component):
    """Trains the policy. The session gives tickets, episodes and scores; the optimizer gives it weights."""

    kind: ClassVar[str] = "optimizers"

    capabilities: ClassVar[frozenset[str]] = frozenset()
    """What samplers and filters may ask of it; see `Capability`."""

    @hook()
    def check(self, session: Session) -> Sequence[Problem]:
        """Returns what it cannot honour, by key, before anything is loaded. Trains nothing."""
        return ()

    @hook()
    def policy(self, session: Session, path: str) -> Policy:
        """Loads a policy from a folder, hub id or `package:` path, to evaluate it.

        Raises:
            OptimizerError: When this optimizer cannot, or the model cannot be loaded.
        """
        raise OptimizerError(f"{type(self).__name__} cannot load a policy to evaluate")

    @hook(required=True)
    def run(self, session: Session) -> None:
        """Trains until `session.finished`, reporting every step; takes up a checkpoint when there is one.

        What it saves in a checkpoint's folder is its own, but for `model/`: the policy as
        `from_pretrained` loads it.
        """
        raise NotImplementedError
