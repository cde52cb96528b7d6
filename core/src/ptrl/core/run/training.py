"""`ptrl train`: a run from its config to its summary, and its resume."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, cast

from ptrl.core.config import load_plan
from ptrl.core.contracts import Optimizer
from ptrl.core.contracts.hooks import Contract
from ptrl.core.contracts.optimizer import TrainingSession
from ptrl.core.errors import ConfigError, LockMismatchError, Problem, RunFolderError
from ptrl.core.files import write_json
from ptrl.core.plan import RunPlan
from ptrl.core.run.lock import build_lock, compare_locks
from ptrl.core.run_folder import RunFolder
from ptrl.core.session import Session

Notify = Callable[[str], None]


def start(plan: RunPlan, folder: Path | None = None) -> RunFolder:
    """Makes the run folder of a new run, with its resolved config and lock.

    Raises:
        RunFolderError: When the folder cannot be made, or `folder` is taken.
    """
    settings = plan.settings.run
    run_folder = _take(folder) if folder else RunFolder.create(Path(settings.folder), settings.name)
    run_folder.write_config(plan.dump(), build_lock(plan))
    return run_folder


def _take(folder: Path) -> RunFolder:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = any(folder.iterdir())
    except OSError as error:
        raise RunFolderError(f"{folder} cannot be made: {error.strerror}") from None
    if taken:
        raise RunFolderError(f"{folder} is not empty — pass --resume to go on with the run in it")
    return RunFolder(folder)


def reopen(
    target: Path,
    *,
    overrides: Sequence[str] = (),
    allow_local_code: bool = False,
    force: bool = False,
    notify: Notify = lambda text: None,
) -> tuple[RunPlan, RunFolder]:
    """Opens a run to go on with it.

    Args:
        target: The run folder, or the config file whose newest run is meant.
        overrides: `key=value` pairs, such as more steps.
        allow_local_code: Whether `file:` components may be imported.
        force: Go on although the lock changed.
        notify: Is told of changes that only warn.

    Raises:
        LockMismatchError: When components changed and `force` is not set.
        RunFolderError: When there is no run.
    """
    folder = RunFolder.open(target) if target.is_dir() else _latest_of(target, overrides, allow_local_code)
    plan = load_plan(folder.config, overrides=overrides, allow_local_code=allow_local_code)
    refusals, warnings = compare_locks(folder.read_json(folder.lock), build_lock(plan))
    if refusals and not force:
        listed = "\n".join(f"  {change}" for change in refusals)
        raise LockMismatchError(
            f"{folder.path} was started with other components:\n{listed}\n"
            "restore them, or pass --force to go on with those installed now"
        )
    for change in [*(refusals if force else []), *warnings]:
        notify(f"since the run began, {change}")
    folder.repair()
    folder.write_config(plan.dump(), build_lock(plan))
    return plan, folder


def _latest_of(config: Path, overrides: Sequence[str], allow_local_code: bool) -> RunFolder:
    plan = load_plan(config, overrides=overrides, allow_local_code=allow_local_code)
    run = plan.settings.run
    folder = RunFolder.latest(Path(run.folder), run.name)
    if folder is None:
        raise RunFolderError(f"there is no run of {config} in {run.folder} to resume")
    return folder


def check(plan: RunPlan) -> None:
    """Asks the optimizer what it cannot honour.

    Raises:
        ConfigError: With every problem.
    """
    session = Session(plan)
    try:
        _raise_problems(plan, _optimizer(plan), session)
    finally:
        session.close()


def _optimizer(plan: RunPlan) -> Contract:
    contract = Contract(Optimizer)
    contract.add(plan.optimizer.label, plan.optimizer.build())
    return contract


def _raise_problems(plan: RunPlan, optimizer: Contract, session: TrainingSession) -> None:
    problems = cast(Sequence[Problem], optimizer.call(plan.optimizer.label, "check", session=session).unwrap())
    if problems:
        raise ConfigError(problems, plan.file)


def train(plan: RunPlan, folder: RunFolder, notify: Notify = lambda text: None) -> dict[str, Any]:
    """Trains to the end or until interrupted, and returns the summary, which is also written.

    Raises:
        PtrlError: When the run cannot go on; what was written stays.
    """
    begin = time.perf_counter()
    optimizer = _optimizer(plan)
    label = plan.optimizer.label
    session = Session(plan, folder, notify)
    try:
        _raise_problems(plan, optimizer, session)
        session.setup()
        optimizer.call(label, "setup").unwrap()
        with _interruptible(session, notify):
            result = optimizer.call(label, "run", session=session)
        if isinstance(result.error, Exception):
            raise result.error
        result.unwrap()  # a SystemExit of the optimizer is an error, not the end of a good run
        summary = summarize(session, time.perf_counter() - begin)
        write_json(folder.summary, summary)
        session.finish(summary)
        return summary
    finally:
        optimizer.call(label, "close")
        session.close()


@contextmanager
def _interruptible(session: Session, notify: Notify) -> Iterator[None]:
    """Lets the first Ctrl-C end the run after its present step; the second ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if session.interrupted:
            raise KeyboardInterrupt
        session.interrupted = True
        notify("ending after this step; press Ctrl-C again to end at once")

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def summarize(session: Session, seconds: float) -> dict[str, Any]:
    """Returns `summary.json`'s content: raw metrics before and after by domain, and how long it took."""
    steps = sorted({evaluation["step"] for evaluation in session.evaluations})
    before = _means(session, steps[0]) if steps else {}
    after = _means(session, steps[-1]) if len(steps) > 1 else {}
    return {
        "format": 1,
        "name": session.settings.run.name,
        "status": "finished" if session.step >= session.steps else "interrupted",
        "steps": session.step,
        "before": before,
        "after": after,
        "seconds": seconds,
        "seconds_of_run": session.elapsed,
        "versions": build_lock(session.plan)["dependencies"],
    }


def _means(session: Session, step: int) -> dict[str, Any]:
    """Returns, by decoding, the metric of each domain and their mean."""
    return {
        evaluation["decoding"]: {
            **{name: result["metric"] for name, result in evaluation["domains"].items()},
            "mean": evaluation["mean"],
        }
        for evaluation in session.evaluations
        if evaluation["step"] == step
    }
