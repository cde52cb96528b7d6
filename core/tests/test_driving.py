"""Driving episodes: what an environment or a policy does wrong masks its own rollout and no other."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ptrl.core import Columns, Environment, EpisodeError, Message, Reward, Rollout, State, Step, Task, TaskSource
from ptrl.core.episode import Transcript
from ptrl.core.plan import ComponentPlan, DomainPlan, RewardPlan, RunPlan
from ptrl.core.policy import Reply, Sampling, Turn, TurnDriver
from ptrl.core.registry.loading import Loaded
from ptrl.core.session.driver import drive
from ptrl.core.session.threads import Threads
from ptrl.core.session.worker import Worker
from ptrl.core.settings import RewardTable, RunSettings
from ptrl.core.sources import SpooledTasks

RELEASE = threading.Event()


class Odd(Environment):
    """Does what the task's key says."""

    timeout = 0.2

    def tasks(self, split: str) -> list[Task]:
        keys = ["fine", "raise in start", "bad state", "raise", "garbage", "hang", "error", "exit", "text", "wait"]
        keys += ["stop", "limit", "messages", "info", "async"]
        return [Task(key=key, messages=({"role": "user", "content": key},)) for key in keys]

    def start(self, task: Task) -> State:
        if task.key == "raise in start":
            raise RuntimeError("cannot start")
        if task.key == "stop":
            return State(task=task, stop="ab", data=[])  # type: ignore[arg-type]
        if task.key == "limit":
            return State(task=task, tokens_per_turn=0, data=[])
        return State(task=task, data=[]) if task.key != "bad state" else "state"  # type: ignore[return-value]

    def step(self, state: State, message: Message) -> Any:
        state.data.append(message["content"])
        match state.task.key:
            case "raise":
                raise RuntimeError("broken")
            case "exit":
                raise SystemExit(1)
            case "garbage":
                return "next"
            case "hang":
                RELEASE.wait(20)
            case "error":
                return Step(status="error", info={"reason": "down"})
            case "text":
                return Step(append="more")
            case "wait":
                return self.wait()
            case "messages":
                return Step(append=[{"text": 5}])  # type: ignore[list-item]
            case "info":
                return Step(append=[{"role": "tool", "content": "7"}], info=5)  # type: ignore[arg-type]
            case "async":
                return self.soon()
        return Step(done=True, info={"said": list(state.data)})

    async def wait(self) -> Step:
        await asyncio.sleep(30)
        return Step(done=True)

    async def soon(self) -> Step:
        return Step(done=True)

    def end(self, state: State) -> None:
        if state.task.key == "raise":
            raise RuntimeError("and cannot end")


class Pay(Reward):
    def score(self, rollouts: Sequence[Rollout]) -> list[float]:
        return [1.0 for _ in rollouts]


class Letters:
    """One token per character."""

    end_of_turn_ids = frozenset({1})

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = False,
    ) -> str:
        text = "".join(f"{message['role'][0]}:{message['content']}$" for message in messages)
        return text + ("a:" if add_generation_prompt else "")

    def encode(self, text: str) -> list[int]:
        return [1 if letter == "$" else ord(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join("$" if token == 1 else chr(token) for token in ids)


class Says:
    """A token policy that says `yes` in every turn."""

    tokenizer = Letters()
    version = 4
    context_length = 200

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling, driver: TurnDriver) -> None:
        rows = list(range(len(prompts)))
        while rows:
            ids = self.tokenizer.encode("yes$")
            turns = [Turn(row, ids, [-0.1] * len(ids), "stop") for row in rows]
            answers = driver.turns_finished(turns)
            rows = [row for row, forced in zip(rows, answers, strict=True) if forced is not None]


class Stops(Says):
    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling, driver: TurnDriver) -> None:
        """Forgets its rows."""


class Chat:
    """A chat policy that fails where the prompt says `raise`."""

    concurrency = 3

    def __init__(self) -> None:
        self.running = self.most = 0

    async def reply(
        self, messages: Sequence[Message], sampling: Sampling, stop: Sequence[str], tools: Any, limit: int
    ) -> Reply:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if messages[0]["content"] == "raise":
            raise OSError("connection lost")
        if messages[0]["content"] == "garbage":
            return "yes"  # type: ignore[return-value]
        return Reply(text="yes", tokens=2)


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    def plan(label: str, kind: str, factory: type) -> ComponentPlan:
        loaded = Loaded(name=f"made.{kind}", kind=kind, factory=factory, entry=None)
        return ComponentPlan(label=label, loaded=loaded, config=factory.Config())

    environment = plan("domains.d.environment", "environments", Odd)
    reward = plan("domains.d.rewards.pay", "rewards", Pay)
    pay = RewardPlan(
        label=reward.label,
        loaded=reward.loaded,
        config=reward.config,
        key="pay",
        name="pay",
        table=RewardTable(use="a.b"),
    )
    domain = DomainPlan(name="d", environment=environment, rewards=(pay,))
    section = {"environment": {"use": "a.b"}, "rewards": {"pay": {"use": "a.b"}}}
    settings = RunSettings.model_validate({"run": {"name": "x", "steps": 1}, "domains": {"d": section}})
    run_plan = RunPlan(settings=settings, domains=(domain,), sampler=reward, filters=(), optimizer=reward, observers=())
    return Worker(run_plan, tmp_path)


def rollouts(worker: Worker, policy: Any, transcript: Transcript | None) -> dict[str, Rollout]:
    source = worker.source("d", "train")
    orders = [(worker.task("d", "train", index), 0, "t") for index in range(len(source))]
    found = drive(worker, policy, orders, Sampling(max_new_tokens=50), transcript)
    RELEASE.set()
    return {rollout.task.key: rollout for rollout in found}


FAILURES = {
    "raise in start": "start raised RuntimeError: cannot start",
    "bad state": "start returned str; expected a State",
    "raise": "step raised RuntimeError: broken",
    "exit": "step raised SystemExit",
    "garbage": "step returned str; expected a ptrl.core.Step",
    "hang": "step took longer than 0.2 s",
    "error": "down",
    "text": "append messages",
    "wait": "",
    "stop": "a State with the stop 'ab'; expected a tuple of strings",
    "limit": "tokens_per_turn 0; expected 1 or more",
    "messages": "the environment's step cannot be taken: KeyError",
    "info": "the environment's step cannot be taken: TypeError",
}


@pytest.fixture(autouse=True)
def rearm() -> None:
    RELEASE.clear()


def test_an_environment_that_fails_masks_its_own_rollout_only(worker: Worker) -> None:
    found = rollouts(worker, Says(), Transcript(Says.tokenizer))
    assert (found["fine"].status, found["async"].status) == ("ok", "ok")
    assert found["fine"].info == {"said": ["yes"]}
    assert found["fine"].policy_version == 4
    for key, reason in FAILURES.items():
        assert found[key].status == "error", key
        assert reason in found[key].info["reason"], key


def test_a_chat_policy_that_fails_masks_its_own_rollout_only(worker: Worker) -> None:
    policy = Chat()
    found = rollouts(worker, policy, None)
    assert found["fine"].text == "yes"
    assert found["fine"].token_ids == ()
    assert found["raise"].status == "error"
    assert "OSError: connection lost" in found["raise"].info["reason"]
    assert "'str' object has no attribute 'text'" in found["garbage"].info["reason"]
    assert "chat endpoint cannot" in found["text"].info["reason"]
    assert policy.most <= policy.concurrency


def test_a_policy_that_forgets_rows_masks_them(worker: Worker) -> None:
    found = rollouts(worker, Stops(), Transcript(Says.tokenizer))
    assert found["fine"].status == "error"
    assert "generation ended" in found["fine"].info["reason"]


def test_iterables_are_spooled_and_read_back_the_same(worker: Worker) -> None:
    source = worker.source("d", "test")
    assert isinstance(source, SpooledTasks)
    assert [source.task(index).key for index in range(3)] == ["fine", "raise in start", "bad state"]
    assert list(source.columns().keys)[:3] == ["fine", "raise in start", "bad state"]
    assert source.path.is_file()


# ---------------------------------------------------------------- concurrency


def worker_of(environment: type[Environment], folder: Path) -> Worker:
    made = Loaded(name="made.x", kind="environments", factory=environment, entry=None)
    plan = ComponentPlan(label="domains.d.environment", loaded=made, config=environment.Config())
    section = {"environment": {"use": "a.b"}, "rewards": {"pay": {"use": "a.b"}}}
    settings = RunSettings.model_validate({"run": {"name": "x", "steps": 1}, "domains": {"d": section}})
    domain = DomainPlan(name="d", environment=plan, rewards=())
    return Worker(
        RunPlan(settings=settings, domains=(domain,), sampler=plan, filters=(), optimizer=plan, observers=()), folder
    )


def tasks(count: int) -> list[Task]:
    return [Task(key=str(number), domain="d", messages=()) for number in range(count)]


class Meeting(Environment):
    """Every start waits until all of them have begun."""

    timeout = 20.0
    expected = 50

    def tasks(self, split: str) -> list[Task]:
        return tasks(1)

    def setup(self) -> None:
        self.begun, self.all = 0, asyncio.Event()

    async def start(self, task: Task) -> State:  # type: ignore[override]
        self.begun += 1
        if self.begun == self.expected:
            self.all.set()
        await self.all.wait()
        return State(task=task)


class InlineMeeting(Meeting):
    run_in = "inline"


@pytest.mark.parametrize("environment", [Meeting, InlineMeeting])
def test_async_environments_run_beside_one_another(environment: type[Environment], tmp_path: Path) -> None:
    worker = worker_of(environment, tmp_path)
    worker.setup()
    answers = worker.start(tasks(Meeting.expected))
    assert [answer.failure for answer in answers] == [""] * Meeting.expected


class Hangs(Environment):
    """Hangs on every task but those whose key is odd, and remembers what was ended."""

    timeout = 0.1

    def tasks(self, split: str) -> list[Task]:
        return tasks(1)

    def setup(self) -> None:
        self.ended: set[str] = set()
        self.woken = threading.Event()

    def start(self, task: Task) -> State:
        if int(task.key) % 2 == 0:
            RELEASE.wait(20)
        return State(task=task)

    def end(self, state: State) -> None:
        self.ended.add(state.task.key)
        self.woken.set()


def test_environments_that_hang_starve_no_other_and_what_they_hold_is_freed_later(tmp_path: Path) -> None:
    worker = worker_of(Hangs, tmp_path)
    worker.setup()
    answers = worker.start(tasks(40))  # more than there are threads
    assert [bool(answer.failure) for answer in answers] == [number % 2 == 0 for number in range(40)]
    assert "start took longer than 0.1 s" in answers[0].failure
    environment: Any = next(worker._environments.components())[1]
    RELEASE.set()
    while len(environment.ended) < 20:
        assert environment.woken.wait(10)
        environment.woken.clear()
    assert environment.ended == {str(number) for number in range(0, 40, 2)}
    worker.close()


def test_a_process_ends_although_an_environment_hangs() -> None:
    code = """
import threading
from ptrl.core.session.threads import Threads
threads = Threads()
call = threads.submit(threading.Event().wait, lambda value: None)
try:
    threads.result(call, 0.01)
except TimeoutError:
    print("left behind")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "left behind\n")


def test_threads_are_used_again() -> None:
    threads, seen = Threads(2), set()
    for _ in range(20):
        call = threads.submit(threading.get_ident, lambda value: None)
        seen.add(threads.result(call, 10))
    threads.close()
    assert len(seen) <= 2


def test_inline_hooks_that_await_have_a_deadline(tmp_path: Path) -> None:
    class Slow(Environment):
        run_in = "inline"
        timeout = 0.05

        def tasks(self, split: str) -> list[Task]:
            return tasks(1)

        async def start(self, task: Task) -> State:  # type: ignore[override]
            await asyncio.sleep(30)
            return State(task=task)

    (answer,) = worker_of(Slow, tmp_path).start(tasks(1))
    assert "start raised TimeoutError" in answer.failure


class Uncounted(Chat):
    """An endpoint that does not say how many tokens it chose."""

    async def reply(self, *_: Any) -> Reply:
        return Reply(text="again")


def test_a_chat_that_counts_no_tokens_still_comes_to_an_end(tmp_path: Path) -> None:
    class Endless(Environment):
        run_in = "inline"

        def tasks(self, split: str) -> list[Task]:
            return tasks(1)

        def step(self, state: State, message: Message) -> Step:
            return Step(append=[{"role": "user", "content": "go on"}])

    worker = worker_of(Endless, tmp_path)
    (rollout,) = drive(worker, Uncounted(), [(tasks(1)[0], 0, "")], Sampling(max_new_tokens=9), None)
    assert (rollout.status, rollout.turns) == ("truncated", 5)


# ---------------------------------------------------------------- sources


def source_of(given: Any, folder: Path) -> Any:
    class Gives(Environment):
        def tasks(self, split: str) -> Any:
            return given() if callable(given) else given

    worker = worker_of(Gives, folder)
    return worker.columns("d", "train") and worker.source("d", "train")


def fails() -> Any:
    yield from tasks(2)
    raise SystemExit("disk gone")


class Odds(TaskSource):
    def __init__(self, count: int = 2, keys: Any = ("a", "b")) -> None:
        self.count, self.keys = count, keys

    def __len__(self) -> int:
        return self.count

    def task(self, index: int) -> Task:
        return None  # type: ignore[return-value]

    def columns(self) -> Columns:
        return Columns(keys=self.keys)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "'NoneType' object is not iterable"),
        (fails, "raised SystemExit: disk gone"),
        ([1], "'int' object has no attribute 'key'"),
        ([], "there is no task in the split 'train'"),
        (tasks(1) * 2, "the key '0' is used by more than one task"),
        ([Task(key="a", messages=(), reference={1})], "task 0 cannot be written as JSON"),
        (Odds(0), "there is no task"),
        (Odds(3), "has 2 keys for 3 tasks"),
        (Odds(keys=None), "columns() of the split 'train' raised TypeError"),
        (lambda: (task for task in iter(lambda: Task(key="x", messages=()), None)), "more than 100 tasks"),
    ],
)
def test_tasks_that_cannot_be_used_are_an_error_that_names_the_environment(
    given: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptrl.core.sources.MAXIMUM_TASKS", 100)
    with pytest.raises(EpisodeError, match=r"domains\.d\.environment") as raised:
        source_of(given, tmp_path)
    assert said in str(raised.value)
    assert not list((tmp_path / "tasks").glob(".*"))


def test_a_spool_file_is_replaced_and_not_changed_under_its_readers(tmp_path: Path) -> None:
    first = source_of(tasks(2), tmp_path)
    second = source_of(tasks(3), tmp_path)
    assert [source.task(1).key for source in (first, second)] == ["1", "1"]
    assert (len(first), len(second)) == (2, 3)


def test_a_task_that_cannot_be_read_masks_its_own_rollouts(tmp_path: Path) -> None:
    class Gives(Environment):
        def tasks(self, split: str) -> Any:
            return Odds()

    worker = worker_of(Gives, tmp_path)
    broken = worker.task("d", "train", 1)
    answers = worker.start([*tasks(1), broken])
    assert answers[0].failure == ""
    assert "domains.d.environment: task 1 of the split 'train' raised TypeError" in answers[1].failure
