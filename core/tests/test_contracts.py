"""Hooks: what pluggy would let pass is refused, and every call is labelled and isolated."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ptrl.core import ContractError, Environment, Observer, Reward, Rollout, Task
from ptrl.core.contracts import KINDS
from ptrl.core.contracts.hooks import Contract, describe, resolve


def observers(*made: Observer) -> Contract:
    contract = Contract(Observer)
    for number, observer in enumerate(made):
        contract.add(f"observers.{number}", observer)
    return contract


class Steps(Observer):
    """Names only one of the two arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def step_finished(self, step: int) -> int:  # type: ignore[override]
        self.seen.append(step)
        return step


class Raises(Observer):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        raise self.error


class Waits(Observer):
    async def step_finished(self, step: int, metrics: Mapping[str, float]) -> str:  # type: ignore[override]
        await asyncio.sleep(metrics.get("wait", 0))
        return threading.current_thread().name


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_has_documented_hooks(kind: type) -> None:
    names = Contract(kind).hook_names()
    assert {"setup", "close"} < set(names)
    assert all(getattr(kind, name).__doc__ for name in names)


def test_a_missing_hook_is_an_error_that_names_it() -> None:
    class Empty(Reward):
        pass

    with pytest.raises(ContractError, match=r"rewards\.x: Empty has no score\(self, rollouts"):
        Contract(Reward).add("rewards.x", Empty())


def test_a_misspelt_hook_is_an_error_that_names_the_spelling() -> None:
    class Typo(Environment):
        def task(self, split: str) -> list[Task]:
            return []

    with pytest.raises(ContractError, match="is its 'task' a misspelling"):
        Contract(Environment).add("e", Typo())


def test_keyword_only_arguments_are_refused() -> None:
    class Keyword(Reward):
        def score(self, *, rollouts: Sequence[Rollout]) -> list[float]:  # type: ignore[override]
            return []

    with pytest.raises(ContractError, match="keyword-only argument 'rollouts'"):
        Contract(Reward).add("r", Keyword())


def test_arguments_that_are_not_given_are_refused_with_the_nearest() -> None:
    class More(Reward):
        def score(self, rolouts: Sequence[Rollout]) -> list[float]:
            return []

    with pytest.raises(ContractError, match="did you mean 'rollouts'"):
        Contract(Reward).add("r", More())


def test_arguments_that_are_not_named_at_all_are_refused() -> None:
    class Decorated(Reward):
        def score(self, *args: Any, **kwargs: Any) -> Any:  # a decorator without functools.wraps
            return []

    with pytest.raises(ContractError, match=r"names none of its arguments \(rollouts\).*functools\.wraps"):
        Contract(Reward).add("r", Decorated())


def test_an_argument_that_has_a_default_is_given_all_the_same() -> None:
    class Defaults(Observer):
        def step_finished(self, more: int = 5, metrics: Any = None, step: int = 0) -> Any:  # type: ignore[override]
            return more, metrics, step

    (result,) = observers(Defaults()).call_each("step_finished", step=3, metrics={"a": 1.0})
    assert result.unwrap() == (5, {"a": 1.0}, 3)


def test_an_argument_with_a_default_may_be_added() -> None:
    class Extra(Reward):
        def score(self, rollouts: Sequence[Rollout], weight: float = 2.0) -> list[float]:
            return [weight for _ in rollouts]

    contract = Contract(Reward)
    contract.add("r", Extra())
    assert contract.call("r", "score", rollouts=[1, 2]).value == [2.0, 2.0]


def test_what_is_not_of_the_kind_is_refused() -> None:
    with pytest.raises(ContractError, match=r"Steps is not a Reward; subclass ptrl\.core\.Reward"):
        Contract(Reward).add("r", Steps())


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(2), RecursionError(), AssertionError("no")])
def test_one_that_raises_stops_no_other(error: BaseException) -> None:
    first, last = Steps(), Steps()
    results = observers(first, Raises(error), last).call_each("step_finished", step=3, metrics={})
    assert [result.label for result in results] == ["observers.0", "observers.1", "observers.2"]
    assert [type(result.error) for result in results] == [type(None), type(error), type(None)]
    assert (first.seen, last.seen) == ([3], [3])
    with pytest.raises(ContractError, match=r"observers\.1: step_finished raised"):
        results[1].unwrap()


def test_ctrl_c_is_not_a_result() -> None:
    with pytest.raises(KeyboardInterrupt):
        observers(Raises(KeyboardInterrupt())).call_each("step_finished", step=1, metrics={})


def test_a_hook_that_is_not_overridden_is_the_kinds_own() -> None:
    contract = observers(Steps())
    assert contract.call("observers.0", "run_finished", summary={}).value is None
    assert contract.call_each("run_finished", summary={}) == []
    with pytest.raises(ContractError, match="no component is registered as 'nobody'"):
        contract.call("nobody", "setup")


def test_an_awaitable_is_awaited_from_plain_code_threads_and_event_loops() -> None:
    contract = observers(Waits())

    def call() -> Any:
        return contract.call("observers.0", "step_finished", step=1, metrics={}).unwrap()

    async def inside() -> Any:
        return call()

    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    assert {call(), asyncio.run(inside()), *found} == {"ptrl-event-loop"}


def test_what_awaits_too_long_is_cancelled() -> None:
    result = observers(Waits()).call("observers.0", "step_finished", timeout=0.05, step=1, metrics={"wait": 30})
    assert isinstance(result.error, TimeoutError)


class Refuses(Observer):
    """Cannot be cancelled."""

    async def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:  # type: ignore[override]
        while not RELEASE.is_set():
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                continue


class Blocks(Observer):
    """Holds the event loop up."""

    async def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:  # type: ignore[override]
        RELEASE.wait(20)


class Exits(Observer):
    """Ends the event loop: by itself, or from a task that it began."""

    async def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:  # type: ignore[override]
        if step == 1:
            raise SystemExit(3)
        await asyncio.gather(self.later())

    async def later(self) -> None:
        raise SystemExit(4)


class Inside(Observer):
    """Waits for the loop that it runs on."""

    async def step_finished(self, step: int, metrics: Mapping[str, float]) -> Any:  # type: ignore[override]
        return resolve(asyncio.sleep(0))


RELEASE = threading.Event()


@pytest.mark.parametrize("observer", [Refuses, Blocks])
def test_a_deadline_holds_for_what_cannot_be_cancelled(
    observer: type[Observer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ptrl.core.contracts.hooks.GRACE", 0.05)
    RELEASE.clear()
    result = observers(observer()).call("observers.0", "step_finished", timeout=0.05, step=1, metrics={})
    RELEASE.set()
    assert isinstance(result.error, TimeoutError)
    assert observers(Waits()).call("observers.0", "step_finished", step=1, metrics={}).error is None


@pytest.mark.parametrize("step", [1, 2])
def test_an_async_hook_that_exits_ends_nothing(step: int) -> None:
    result = observers(Exits()).call("observers.0", "step_finished", timeout=5, step=step, metrics={})
    assert isinstance(result.error, SystemExit)
    assert observers(Waits()).call("observers.0", "step_finished", step=1, metrics={}).error is None


def test_waiting_for_oneself_is_an_error_and_no_deadlock() -> None:
    result = observers(Inside()).call("observers.0", "step_finished", timeout=5, step=1, metrics={})
    assert "await it" in str(result.error)


def test_a_value_that_is_not_awaitable_is_returned_as_it_is() -> None:
    assert resolve(5) == 5


def test_an_exception_without_words_is_described() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert describe(Mute()) == "Mute: <no text: its __str__ raised RuntimeError>"
    assert describe(KeyError()) == "KeyError"


def test_two_components_cannot_have_one_label() -> None:
    contract = observers(Steps())
    with pytest.raises(ValueError, match="already registered"):
        contract.add("observers.0", Steps())
