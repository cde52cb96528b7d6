"""The worker half: environments and rewards. Stateless; any number, in any process."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from ptrl.core.contracts import Environment, Reward
from ptrl.core.contracts.environment import Columns, State, Step, TaskSource
from ptrl.core.contracts.hooks import Contract, HookResult, describe
from ptrl.core.errors import EpisodeError
from ptrl.core.plan import DomainPlan, RunPlan
from ptrl.core.records import Message, Rollout, Split, Task
from ptrl.core.scoring import DomainScorer, Verdicts
from ptrl.core.session.threads import Threads
from ptrl.core.sources import as_source


@dataclass(frozen=True, slots=True)
class Answer:
    """An environment's answer to one call: a value, or the reason why there is none."""

    value: Any = None
    failure: str = ""


class Worker:
    """Environments and rewards of a plan, set up and ready.

    Args:
        plan: What to build.
        spool: Folder for task sources that are plain iterables; a temporary one by default.
    """

    def __init__(self, plan: RunPlan, spool: Path | None = None) -> None:
        self.plan = plan
        self._temporary = tempfile.TemporaryDirectory(prefix="ptrl-") if spool is None else None
        self._spool = Path(self._temporary.name) if self._temporary else cast(Path, spool)
        self._environments = Contract(Environment)
        self._rewards = Contract(Reward)
        self._scorers: dict[str, DomainScorer] = {}
        self._domains: dict[str, DomainPlan] = {domain.name: domain for domain in plan.domains}
        self._sources: dict[tuple[str, Split], TaskSource] = {}
        self._broken: dict[tuple[str, str], str] = {}
        self._threads = Threads()
        for domain in plan.domains:
            self._environments.add(domain.environment.label, domain.environment.build())
            self._scorers[domain.name] = DomainScorer(domain, self._rewards)

    def setup(self) -> None:
        """Sets up every component.

        Raises:
            ContractError: When one fails; it is named.
        """
        for contract in (self._environments, self._rewards):
            for result in contract.call_each("setup"):
                result.unwrap()

    def close(self) -> None:
        """Closes every component; failures are ignored, since nothing depends on them any more."""
        for contract in (self._rewards, self._environments):
            contract.call_each("close")
        self._threads.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def rewards(self, domain: str) -> dict[str, Reward]:
        """Returns a domain's rewards by label."""
        plan = self._domains[domain]
        return {reward.name: cast(Reward, self._rewards.get_plugin(reward.label)) for reward in plan.rewards}

    def source(self, domain: str, split: Split) -> TaskSource:
        """Returns a domain's tasks of a split; plain iterables are spooled once.

        Raises:
            EpisodeError: When the environment cannot give them, or has none.
        """
        key = (domain, split)
        if key not in self._sources:
            label = self._domains[domain].environment.label
            result = self._environments.call(label, "tasks", split=split)
            if result.error is not None:
                raise EpisodeError(f"{label}: tasks({split!r}) raised {describe(result.error)}") from result.error
            path = self._spool / "tasks" / f"{domain}-{split}.jsonl"
            with _naming(f"{label}: tasks({split!r})"):
                source = as_source(result.value, path, label)
                if len(source) == 0:
                    raise EpisodeError(f"{label}: there is no task in the split {split!r}")
            self._sources[key] = source
        return self._sources[key]

    def columns(self, domain: str, split: Split) -> Columns:
        """Returns what a sampler may know of a domain's tasks.

        Raises:
            EpisodeError: When the environment cannot give it.
        """
        source, label = self.source(domain, split), self._domains[domain].environment.label
        with _naming(f"{label}: columns() of the split {split!r}"):
            columns = source.columns()
            if len(columns.keys) != len(source):
                raise EpisodeError(f"{label}: columns() has {len(columns.keys)} keys for {len(source)} tasks")
        return columns

    def task(self, domain: str, split: Split, index: int) -> Task:
        """Returns a task with its domain filled in.

        Where the source fails on it, the task is empty, and it cannot be started: its rollouts are masked.
        """
        source, label = self.source(domain, split), self._domains[domain].environment.label
        try:
            with _naming(f"{label}: task {index} of the split {split!r}"):
                return replace(source.task(index), domain=domain)
        except EpisodeError as error:
            key = f"broken:{split}:{index}"
            self._broken[domain, key] = str(error)
            return Task(key=key, domain=domain, messages=())

    def start(self, tasks: Sequence[Task]) -> list[Answer]:
        """Starts episodes; an environment that fails is an answer without a state."""
        good = [task for task in tasks if (task.domain, task.key) not in self._broken]
        answers = iter(self._each([(task.domain, "start", {"task": task}) for task in good]))
        return [
            Answer(failure=self._broken[task.domain, task.key])
            if (task.domain, task.key) in self._broken
            else _checked_state(next(answers))
            for task in tasks
        ]

    def step(self, turns: Sequence[tuple[str, State, Message]]) -> list[Answer]:
        """Asks the environments of `(domain, state, message)` turns for their steps."""
        answers = self._each(
            [(domain, "step", {"state": state, "message": message}) for domain, state, message in turns]
        )
        return [_checked_step(answer) for answer in answers]

    def end(self, episodes: Sequence[tuple[str, State]]) -> None:
        """Ends episodes of `(domain, state)`; a failure to end costs nothing but what it holds."""
        self._each([(domain, "end", {"state": state}) for domain, state in episodes])

    def _each(self, calls: Sequence[tuple[str, str, dict[str, Any]]]) -> list[Answer]:
        """Makes calls, concurrently where they await or block, each under its environment's deadline."""
        pending = [self._begin(*call) for call in calls]
        return [finish() for finish in pending]

    def _begin(self, domain: str, hook: str, arguments: dict[str, Any]) -> Callable[[], Answer]:
        label = self._domains[domain].environment.label
        environment = cast(Environment, self._environments.get_plugin(label))
        own = getattr(type(environment), hook)

        def begin() -> Callable[[], Answer]:
            finish = self._environments.begin(label, hook, timeout=environment.timeout, **arguments)
            return lambda: _answer(finish())

        quick = own is getattr(Environment, hook) or environment.run_in == "inline"
        if quick or inspect.iscoroutinefunction(own):
            return begin()
        late = partial(self._end_late, domain) if hook == "start" else lambda answer: None
        call = self._threads.submit(lambda: begin()(), late)

        def finish() -> Answer:
            try:
                return cast(Answer, self._threads.result(call, environment.timeout))
            except TimeoutError:
                return Answer(failure=f"{label}: {hook} took longer than {environment.timeout} s")

        return finish

    def _end_late(self, domain: str, answer: Answer) -> None:
        """Frees what a start holds that came after its deadline."""
        if isinstance(answer.value, State):
            self._environments.call(self._domains[domain].environment.label, "end", state=answer.value)

    def score(self, domain: str, groups: Sequence[Sequence[Rollout]]) -> list[list[Verdicts]]:
        """Scores whole groups of one domain with its composed rewards."""
        return self._scorers[domain].score(groups)


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Lets what a plugin's own object raises leave as an EpisodeError that names it."""
    try:
        yield
    except (EpisodeError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise EpisodeError(f"{what} raised {describe(error)}") from error


def _answer(result: HookResult) -> Answer:
    if result.error is None:
        return Answer(value=result.value)
    return Answer(failure=f"{result.label}: {result.hook} raised {describe(result.error)}")


def _checked_state(answer: Answer) -> Answer:
    state = answer.value
    if answer.failure:
        return answer
    if not isinstance(state, State):
        return Answer(failure=f"start returned {type(state).__name__}; expected a State")
    if not isinstance(state.stop, (tuple, list)) or not all(isinstance(text, str) and text for text in state.stop):
        return Answer(failure=f"start returned a State with the stop {state.stop!r}; expected a tuple of strings")
    limit = state.tokens_per_turn
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        return Answer(failure=f"start returned a State with tokens_per_turn {limit!r}; expected 1 or more, or None")
    return answer


def _checked_step(answer: Answer) -> Answer:
    if answer.failure or isinstance(answer.value, Step):
        return answer
    return Answer(failure=f"step returned {type(answer.value).__name__}; expected a ptrl.core.Step")
