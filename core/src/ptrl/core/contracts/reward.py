"""Rewards judge rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from ptrl.core.contracts.component import Component, hook
from ptrl.core.records import Rollout, Score

RESERVED_REWARD_KEYS = frozenset(
    {"use", "label", "weight", "role", "schedule", "only_if_solved", "timeout", "run_in", "version"}
)


class Reward(Component):
    """Judges rollouts. Declare what is true of it; core relies on the declarations."""

    kind: ClassVar[str] = "rewards"

    range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest value; a value outside is the reward's own error."""

    scope: Literal["rollout", "group"] = "rollout"
    """`rollout`: core may split, merge and retry batches; `group`: each call is exactly one whole group."""

    run_in: Literal["process", "inline"] = "process"
    """`inline` is the author's word that a call is bounded; `process` can be killed at its deadline."""

    timeout: float = 10.0
    """Seconds per rollout; a batch has this times its length."""

    deterministic: bool = True
    """Whether the same rollout always gets the same verdict."""

    needs: tuple[str, ...] = ()
    """Labels or roles scored first; their verdicts stand in `Rollout.scores`."""

    @hook(required=True)
    def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score | float | None]:
        """Returns one verdict per rollout, in order. A float is a verdict, None abstains. May be async.

        Safe to repeat: core may call again with the same rollouts. What the candidate did wrong is a low
        value; only what the verifier itself could not do is raised or returned as `Score.failure`.
        """
        raise NotImplementedError
