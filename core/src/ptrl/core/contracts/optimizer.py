"""Optimizers update the policy from what a session gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from ptrl.core.contracts.component import Component, hook
from ptrl.core.contracts.observer import Decoding, Evaluation
from ptrl.core.contracts.sampler import Selection
from ptrl.core.errors import OptimizerError, Problem
from ptrl.core.policy import Policy, Sampling
from ptrl.core.records import Group, Rollout, Split, Task, Ticket
from ptrl.core.settings import RunSettings

Capability = Literal["variable_group", "continue", "drop", "policy_version", "per_domain_gradient", "masking"]

SaveModel = Callable[[Path], None]
"""Writes the optimizer's part of a checkpoint into a folder."""


class TrainingSession(Protocol):
    """What an optimizer trains with.

    ```python
    session.begin(policy, load=load)          # takes up a checkpoint, evaluates `before`
    while not session.finished:
        groups = session.collect(policy, session.draw())
        selection = session.select(groups)
        numbers = update(selection.kept)
        session.finish_step(policy, numbers, save)
    session.end(policy, save)                 # evaluates `after`, saves the policy
    ```
    """

    @property
    def settings(self) -> RunSettings:
        """The config's sections."""
        ...

    @property
    def step(self) -> int:
        """Number of steps done."""
        ...

    @property
    def steps(self) -> int:
        """Number of steps the run will take."""
        ...

    @property
    def finished(self) -> bool:
        """Whether the optimizer must stop: all steps are done, or the run was interrupted."""
        ...

    def seed(self, *parts: object) -> int:
        """Returns a seed that depends on the run's seed and the parts, the same in any process."""
        ...

    def sampling(self, *, greedy: bool = False, purpose: str = "train") -> Sampling:
        """Returns how tokens are chosen at this step, by the config's training keys."""
        ...

    def begin(self, policy: Policy, *, stage: str = "rl", load: SaveModel | None = None) -> None:
        """Begins or resumes the run; `load` takes up the optimizer's part of a checkpoint from its folder."""
        ...

    def draw(self, n: int | None = None) -> tuple[Ticket, ...]:
        """Returns what to practise next: `training.prompts` tickets by default."""
        ...

    def task(self, ticket: Ticket) -> Task:
        """Returns a ticket's task."""
        ...

    def release(self, tickets: Sequence[Ticket]) -> None:
        """Closes tickets that no rollout was made for, as in a supervised stage."""
        ...

    def collect(self, policy: Policy, tickets: Sequence[Ticket]) -> tuple[Group, ...]:
        """Makes each ticket's rollouts and scores them as groups."""
        ...

    def score(self, tickets: Sequence[Ticket], tasks: Sequence[Task], rollouts: Sequence[Rollout]) -> tuple[Group, ...]:
        """Scores rollouts that were made elsewhere, in the order of the tickets, and composes them as groups."""
        ...

    def select(self, groups: Sequence[Group]) -> Selection:
        """Asks the filters what to learn from, and reports every group's outcome to the sampler."""
        ...

    def finish_step(self, policy: Policy, numbers: Mapping[str, float], save: SaveModel) -> None:
        """Ends a step with the optimizer's numbers: observers, evaluation and checkpoint where they are due."""
        ...

    def evaluate(
        self, policy: Policy, split: Split = "test", *, decoding: Decoding = "greedy", tasks: int | None = None
    ) -> Evaluation:
        """Measures a policy; changes nothing of the session's state."""
        ...

    def end(self, policy: Policy, save: SaveModel) -> None:
        """Ends the run: evaluates `after` unless it was interrupted, and saves the last checkpoint."""
        ...


class Optimizer(Component):
    """Trains the policy. The session gives tickets, rollouts and scores; the optimizer gives it weights."""

    kind: ClassVar[str] = "optimizers"

    capabilities: ClassVar[frozenset[str]] = frozenset()
    """What samplers and filters may ask of it; see `Capability`."""

    @hook()
    def check(self, session: TrainingSession) -> Sequence[Problem]:
        """Returns what it cannot honour, by key, before anything is loaded. Trains nothing."""
        return ()

    @hook()
    def policy(self, session: TrainingSession, path: str) -> Policy:
        """Loads a policy from a folder, hub id or `package:` path, to evaluate it.

        Raises:
            OptimizerError: When this optimizer cannot, or the model cannot be loaded.
        """
        raise OptimizerError(f"{type(self).__name__} cannot load a policy to evaluate")

    @hook(required=True)
    def run(self, session: TrainingSession) -> None:
        """Trains until `session.finished`, reporting every step; takes up a checkpoint when there is one.

        What it saves in a checkpoint's folder is its own, but for `model/`: the policy as
        `from_pretrained` loads it.
        """
        raise NotImplementedError
