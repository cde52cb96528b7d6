"""A session as an optimizer sees it: tickets, rollouts, scores, evaluation and checkpoints."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ptrl.core.composition import Component, compose_group
from ptrl.core.contracts import Observer
from ptrl.core.contracts.hooks import Contract, HookResult, describe
from ptrl.core.contracts.observer import Decoding, Evaluation, RunInfo
from ptrl.core.contracts.optimizer import SaveModel
from ptrl.core.contracts.sampler import SamplerContext, Selection
from ptrl.core.episode import Transcript
from ptrl.core.errors import OptimizerError
from ptrl.core.plan import RunPlan
from ptrl.core.policy import Policy, Sampling, TokenPolicy
from ptrl.core.records import Group, Outcome, Rollout, Split, Task, Ticket
from ptrl.core.run_folder import RunFolder
from ptrl.core.session.coordinator import Coordinator
from ptrl.core.session.driver import drive
from ptrl.core.session.evaluating import evaluate
from ptrl.core.session.metrics import group_metrics
from ptrl.core.session.worker import Worker
from ptrl.core.statistics import Moments


class Session:
    """What an optimizer trains with: a `TrainingSession`. On a laptop both halves live here and are called directly.

    Args:
        plan: The resolved config.
        folder: Where the run is written; None keeps nothing.
        notify: Is told in words of what failed without ending the run.
    """

    def __init__(
        self, plan: RunPlan, folder: RunFolder | None = None, notify: Callable[[str], None] | None = None
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.settings = plan.settings
        self.step = 0
        self.interrupted = False
        self.evaluations: list[dict[str, Any]] = []
        self._notify = notify or (lambda text: None)
        self._worker = Worker(plan, folder.path if folder else None)
        self._coordinator: Coordinator | None = None
        self._observers = Contract(Observer)
        self._failed_observers: set[str] = set()
        self._transcripts: dict[int, Transcript] = {}
        self._pending: list[Group] = []
        self._batches = 0
        self._moments: dict[str, dict[str, Moments]] = {}
        self._seconds: dict[str, float] = {}
        self._elapsed = 0.0
        self._step_began = time.perf_counter()
        for component in plan.observers:
            self._observers.add(component.label, component.build())

    def setup(self) -> None:
        """Sets up every component.

        Raises:
            ContractError: When one fails; it is named.
        """
        self._worker.setup()
        for result in self._observers.call_each("setup"):
            result.unwrap()

    def close(self) -> None:
        """Closes every component."""
        if self._coordinator is not None:
            self._coordinator.close()
        self._observers.call_each("close")
        self._worker.close()

    @property
    def steps(self) -> int:
        """Number of steps the run will take."""
        return self.settings.run.steps

    @property
    def progress(self) -> float:
        """Share of the run that is done, 0 to 1."""
        return self.step / self.steps

    @property
    def finished(self) -> bool:
        """Whether the optimizer must stop: all steps are done, or the run was interrupted."""
        return self.interrupted or self.step >= self.steps

    @property
    def elapsed(self) -> float:
        """Wall seconds of steps and evaluations, over all resumes."""
        return self._elapsed

    @property
    def worker(self) -> Worker:
        """The half that holds environments and rewards."""
        return self._worker

    @property
    def coordinator(self) -> Coordinator:
        """The half that holds sampler, filters and statistics; made when it is first needed."""
        if self._coordinator is None:
            columns = {domain.name: self._worker.columns(domain.name, "train") for domain in self.plan.domains}
            self._coordinator = Coordinator(self.plan, columns)
            self._coordinator.setup()
        return self._coordinator

    def components(self, domain: str, progress: float | None = None) -> tuple[Component, ...]:
        """Returns how a domain's rewards take part in the composition now."""
        now = self.progress if progress is None else progress
        rewards = self._worker.rewards(domain)
        plan = next(item for item in self.plan.domains if item.name == domain)
        return tuple(
            Component(
                label=reward.name,
                role=reward.table.role,
                weight=reward.table.weight_at(now),
                only_if_solved=reward.table.only_if_solved,
                range=rewards[reward.name].range,
            )
            for reward in plan.rewards
        )

    def seed(self, *parts: object) -> int:
        """Returns a seed that depends on the run's seed and the parts, the same in any process."""
        text = ":".join(str(part) for part in (self.settings.run.seed, *parts))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1

    def sampling(self, *, greedy: bool = False, purpose: str = "train") -> Sampling:
        """Returns how tokens are chosen at this step, by the config's training keys."""
        training = self.settings.training
        return Sampling(
            temperature=0.0 if greedy else training.temperature,
            top_p=training.top_p,
            max_new_tokens=training.max_new_tokens,
            max_length=training.max_length,
            seed=self.seed(purpose, self.step),
        )

    def begin(self, policy: Policy, *, stage: str = "rl", load: Callable[[Path], None] | None = None) -> None:
        """Begins or resumes a run: takes up the newest checkpoint, tells the observers, evaluates `before`.

        Args:
            policy: The policy.
            stage: What the optimizer does, for reports.
            load: Takes up the optimizer's part of a checkpoint.
        """
        saved = self.folder.latest_checkpoint() if self.folder else None
        if saved is not None and self.folder is not None:
            self.step, state = self.folder.load_session_state(saved)
            self._load_state(state)
            if load is not None:
                load(saved)
        run = RunInfo(
            name=self.settings.run.name,
            folder=self.folder.path if self.folder else Path(),
            steps=self.steps,
            domains=tuple(domain.name for domain in self.plan.domains),
            first_step=self.step,
            stage=stage,
            settings=self.plan.dump(),
        )
        self._observe("run_started", run=run)
        if not any(evaluation["step"] == 0 for evaluation in self.evaluations):
            self._evaluate_all(policy)
        self._step_began = time.perf_counter()

    def task(self, ticket: Ticket) -> Task:
        """Returns a ticket's task."""
        name, index = self.coordinator.catalog.locate(ticket.index)
        return self._worker.task(name, "train", index)

    def draw(self, n: int | None = None) -> tuple[Ticket, ...]:
        """Returns what to practise next: `training.prompts` tickets by default."""
        training = self.settings.training
        context = SamplerContext(step=self.step, progress=self.progress, group_size=training.group_size)
        with self._timed("bookkeeping"):
            return self.coordinator.draw(training.prompts if n is None else n, context)

    def release(self, tickets: Sequence[Ticket]) -> None:
        """Closes tickets that no rollout was made for, as in a supervised stage."""
        outcomes = [
            Outcome(
                ticket=ticket.id,
                key=self.coordinator.catalog.key(ticket.index),
                domain=ticket.domain,
                index=ticket.index,
                successes=0,
                valid=0,
                metric_sum=0.0,
                metric_square_sum=0.0,
                status="dropped",
            )
            for ticket in tickets
        ]
        self.coordinator.report(outcomes, {})

    def collect(self, policy: Policy, tickets: Sequence[Ticket]) -> tuple[Group, ...]:
        """Makes each ticket's rollouts and scores them as groups."""
        with self._timed("bookkeeping"):
            tasks = [self.task(ticket) for ticket in tickets]
        with self._timed("generation"):
            orders = [
                (task, index, ticket.id)
                for task, ticket in zip(tasks, tickets, strict=True)
                for index in range(ticket.group_size)
            ]
            # another batch of a step is other noise; the first one's depends on the step alone
            purpose = f"train:{self._batches}" if self._batches else "train"
            self._batches += 1
            rollouts = drive(self._worker, policy, orders, self.sampling(purpose=purpose), self.transcript(policy))
        return self.score(tickets, tasks, rollouts)

    def transcript(self, policy: Policy) -> Transcript | None:
        """Returns what renders for a policy's tokenizer; None for a policy reached through text."""
        if not isinstance(policy, TokenPolicy):
            return None
        return self._transcripts.setdefault(id(policy.tokenizer), Transcript(policy.tokenizer))

    def score(self, tickets: Sequence[Ticket], tasks: Sequence[Task], rollouts: Sequence[Rollout]) -> tuple[Group, ...]:
        """Scores finished rollouts, which stand in the order of the tickets, and composes them as groups.

        Raises:
            OptimizerError: When they are not as many as the tickets asked for.
        """
        wanted = sum(ticket.group_size for ticket in tickets)
        if len(rollouts) != wanted:
            raise OptimizerError(f"{len(rollouts)} rollouts were given for tickets that ask for {wanted}")
        with self._timed("scoring"):
            groups: list[list[Rollout]] = []
            start = 0
            for ticket in tickets:
                groups.append(list(rollouts[start : start + ticket.group_size]))
                start += ticket.group_size
            scored = self._score_groups(tickets, tasks, groups)
        self._pending.extend(scored)
        with self._timed("bookkeeping"):
            self._observe("rollouts_scored", step=self.step + 1, groups=scored)
        return scored

    def _score_groups(
        self, tickets: Sequence[Ticket], tasks: Sequence[Task], groups: Sequence[Sequence[Rollout]]
    ) -> tuple[Group, ...]:
        found: list[Group | None] = [None] * len(tickets)
        scaling = self.coordinator.scaling()
        training = self.settings.training
        for name in {ticket.domain: None for ticket in tickets}:
            own = [number for number, ticket in enumerate(tickets) if ticket.domain == name]
            verdicts = self._worker.score(name, [groups[number] for number in own])
            components = self.components(name)
            for number, rows in zip(own, verdicts, strict=True):
                members, moments = compose_group(
                    groups[number],
                    rows,
                    components,
                    domain=name,
                    scaling=scaling,
                    clip=training.reward_clip,
                    method=training.composition,
                )
                self._moments[tickets[number].id] = moments
                found[number] = Group(ticket=tickets[number], task=tasks[number], members=members)
        return tuple(group for group in found if group is not None)

    def select(self, groups: Sequence[Group]) -> Selection:
        """Asks the filters what to learn from, and reports every group's outcome to the sampler."""
        with self._timed("bookkeeping"):
            selection = self.coordinator.select(groups, self.settings.training.prompts)
            dropped = {group.ticket.id for group, _ in selection.dropped}
            outcomes = [Outcome.of(group, status="dropped" if group.ticket.id in dropped else "ok") for group in groups]
            moments = {outcome.ticket: self._moments.pop(outcome.ticket, {}) for outcome in outcomes}
            self.coordinator.report(outcomes, moments)
            return selection

    def finish_step(self, policy: Policy, numbers: Mapping[str, float], save: SaveModel) -> None:
        """Ends a step: tells the observers, evaluates and saves a checkpoint where they are due.

        Args:
            policy: The policy after the update.
            numbers: The optimizer's own metrics, such as `kl` and `entropy`.
            save: Writes the optimizer's part of a checkpoint into a folder.
        """
        self.step += 1
        self._batches = 0
        self.coordinator.finish_step()
        self._observe("step_finished", step=self.step, metrics=self._step_metrics(numbers))
        every = self.settings.evaluation.every
        if every and self.step % every == 0 and self.step < self.steps:
            evaluation = self.settings.evaluation
            self._evaluate(policy, evaluation.decoding[0], evaluation.during_tasks or evaluation.tasks)
        every = self.settings.run.checkpoint_every
        if every and self.step % every == 0 and self.step < self.steps:
            self.checkpoint(save)
        self._step_began = time.perf_counter()

    def _step_metrics(self, numbers: Mapping[str, float]) -> dict[str, float]:
        with self._timed("bookkeeping"):
            metrics = {**group_metrics(self._pending), **self.coordinator.metrics()}
            chosen = sum(sum(member.rollout.loss_mask) for group in self._pending for member in group.members)
            self._pending.clear()
        seconds = time.perf_counter() - self._step_began
        self._elapsed += seconds
        known = {f"seconds/{phase}": spent for phase, spent in self._seconds.items()}
        known["seconds/update"] = max(0.0, seconds - sum(self._seconds.values()))
        self._seconds.clear()
        if chosen:
            metrics["tokens_per_second"] = chosen / seconds
        return {
            **metrics,
            **{key: float(value) for key, value in numbers.items()},
            **known,
            "seconds": seconds,
            "elapsed": self._elapsed,
        }

    def checkpoint(self, save: SaveModel) -> None:
        """Saves a checkpoint of this step, if the run has a folder."""
        if self.folder is not None:
            keep = self.settings.run.keep_checkpoints
            self.folder.save_checkpoint(self.step, self._state(), save, keep)

    def _state(self) -> dict[str, Any]:
        return {
            "coordinator": self.coordinator.state_dict(),
            "evaluations": self.evaluations,
            "elapsed": self._elapsed,
        }

    def _load_state(self, state: Mapping[str, Any]) -> None:
        self.coordinator.load_state_dict(state["coordinator"])
        self.evaluations = list(state["evaluations"])
        self._elapsed = state["elapsed"]

    def end(self, policy: Policy, save: SaveModel) -> None:
        """Ends a run: evaluates `after` unless it was interrupted, and saves the last checkpoint."""
        done = any(evaluation["step"] == self.step for evaluation in self.evaluations) and self.step > 0
        if self.step >= self.steps and not done:
            self._evaluate_all(policy)
        self.checkpoint(save)
        if self.folder is not None:
            self.folder.publish_model()

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Tells the observers that the run is over."""
        self._observe("run_finished", summary=summary)

    def _evaluate_all(self, policy: Policy) -> None:
        for decoding in self.settings.evaluation.decoding:
            self._evaluate(policy, decoding, self.settings.evaluation.tasks)

    def _evaluate(self, policy: Policy, decoding: Decoding, tasks: int) -> None:
        evaluation = self.evaluate(policy, "test", decoding=decoding, tasks=tasks)
        self._elapsed += evaluation.seconds
        self.evaluations.append(plain_evaluation(evaluation))
        self._observe("evaluation_finished", evaluation=evaluation)

    def evaluate(
        self, policy: Policy, split: Split = "test", *, decoding: Decoding = "greedy", tasks: int | None = None
    ) -> Evaluation:
        """Measures a policy; changes nothing of the session's state. The one evaluation path."""
        return evaluate(
            self._worker,
            policy,
            self.transcript(policy),
            lambda domain: self.components(domain, progress=1.0),
            split=split,
            decoding=decoding,
            sampling=self.sampling(greedy=decoding == "greedy", purpose=f"evaluate:{split}"),
            tasks=tasks or self.settings.evaluation.tasks,
            batch=self.settings.evaluation.batch,
            step=self.step,
        )

    def _observe(self, hook: str, **arguments: Any) -> None:
        """Calls every observer; one that fails is reported once and the run goes on."""
        for result in self._observers.call_each(hook, **arguments):
            self._note_failure(result)

    def _note_failure(self, result: HookResult) -> None:
        if result.error is not None and result.label not in self._failed_observers:
            self._failed_observers.add(result.label)
            self._notify(f"{result.label}: {result.hook} raised {describe(result.error)}; the run goes on")

    def _timed(self, phase: str) -> _Timer:
        return _Timer(self._seconds, phase)


class _Timer:
    """Adds the time of a block to a phase."""

    def __init__(self, seconds: dict[str, float], phase: str) -> None:
        self._seconds, self._phase = seconds, phase

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        spent = time.perf_counter() - self._begin
        self._seconds[self._phase] = self._seconds.get(self._phase, 0.0) + spent


def plain_evaluation(evaluation: Evaluation) -> dict[str, Any]:
    """Returns an evaluation as plain data, without its rollouts."""
    return {
        "step": evaluation.step,
        "split": evaluation.split,
        "decoding": evaluation.decoding,
        "mean": evaluation.mean,
        "domains": {name: asdict(result) for name, result in evaluation.domains.items()},
        "seconds": evaluation.seconds,
    }
