"""Driving episodes: what an environment or a policy does wrong masks its own rollout and no other."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ptrl.core import Environment, Message, Reward, Rollout, State, Step, Task
from ptrl.core.episode import Transcript
from ptrl.core.plan import ComponentPlan, DomainPlan, RewardPlan, RunPlan
from ptrl.core.policy import Reply, Sampling, Turn, TurnDriver
from ptrl.core.registry.loading import Loaded
from ptrl.core.session.driver import drive
from ptrl.core.session.worker import Worker
from ptrl.core.settings import RewardTable, RunSettings
from ptrl.core.sources import SpooledTasks

RELEASE = threading.Event()


class Odd(Environment):
    """Does what the task's key says."""

    timeout = 0.2

    def tasks(self, split: str) -> list[Task]:
        keys = ["fine", "raise in start", "bad state", "raise", "garbage", "hang", "error", "exit", "text", "wait"]
        return [Task(key=key, messages=({"role": "user", "content": key},)) for key in keys]

    def start(self, task: Task) -> State:
        if task.key == "raise in start":
            raise RuntimeError("cannot start")
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
        return Step(done=True, info={"said": list(state.data)})

    async def wait(self) -> Step:
        await asyncio.sleep(30)
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
}


@pytest.fixture(autouse=True)
def rearm() -> None:
    RELEASE.clear()


def test_an_environment_that_fails_masks_its_own_rollout_only(worker: Worker) -> None:
    found = rollouts(worker, Says(), Transcript(Says.tokenizer))
    assert found["fine"].status == "ok"
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
