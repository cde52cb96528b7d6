"""Isolated scoring and composition: what one reward does wrong costs its own verdicts only."""

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptrl.core import Reward, Rollout, Score, Task
from ptrl.core.composition import Component, compose, compose_group
from ptrl.core.contracts.hooks import Contract
from ptrl.core.plan import ComponentPlan, DomainPlan, RewardPlan
from ptrl.core.registry.loading import Loaded
from ptrl.core.scoring import DomainScorer
from ptrl.core.settings import RewardTable
from ptrl.core.statistics import Moments, RewardStatistics, Scaling

TASK = Task(key="k", domain="d", messages=({"role": "user", "content": "q"},))


def rollouts(count: int, status: str = "ok") -> list[Rollout]:
    return [Rollout(task=TASK, index=index, text=str(index), status=status) for index in range(count)]  # type: ignore[arg-type]


def reward(score: Callable[[Sequence[Rollout]], Any], **declared: Any) -> type[Reward]:
    def method(self: Reward, rollouts: Sequence[Rollout]) -> Any:
        return score(rollouts)

    return type("Made", (Reward,), {"score": method, **declared})


def scorer(**rewards: tuple[type[Reward], dict[str, Any]] | type[Reward]) -> DomainScorer:
    plans = []
    for name, given_ in rewards.items():
        factory, table = given_ if isinstance(given_, tuple) else (given_, {})
        loaded = Loaded(name=f"made.{name}", kind="rewards", factory=factory, entry=None)
        plans.append(
            RewardPlan(
                label=f"domains.d.rewards.{name}",
                loaded=loaded,
                config=factory.Config(),
                key=name,
                name=name,
                table=RewardTable(use="made.x", **{"role": "process", **table}),
            )
        )
    environment = ComponentPlan(label="domains.d.environment", loaded=plans[0].loaded, config=plans[0].config)
    return DomainScorer(DomainPlan(name="d", environment=environment, rewards=tuple(plans)), Contract(Reward))


def ones(batch: Sequence[Rollout]) -> list[float]:
    return [1.0 for _ in batch]


def boom(error: BaseException) -> Callable[[Sequence[Rollout]], Any]:
    def score(batch: Sequence[Rollout]) -> Any:
        raise error

    return score


def recurse(batch: Sequence[Rollout]) -> Any:
    return recurse(batch)


def forever() -> Any:
    while True:
        yield 1.0


def exits() -> Any:
    raise SystemExit("in a generator")
    yield 1.0


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (boom(ValueError("broken")), "ValueError: broken"),
        (boom(SystemExit(1)), "SystemExit"),
        (boom(Unspeakable()), "its __str__ raised"),
        (recurse, "RecursionError"),
        (lambda batch: [1.0] * (len(batch) + 1), "2 verdicts for 1 rollouts"),
        (lambda batch: 5, "returned int; expected a sequence"),
        (lambda batch: "1" * len(batch), "returned str"),
        (lambda batch: [math.nan] * len(batch), "not a finite number"),
        (lambda batch: [math.inf] * len(batch), "not a finite number"),
        (lambda batch: [1.5] * len(batch), "outside the declared range 0.0 to 1.0"),
        (lambda batch: ["1"] * len(batch), "str is not a verdict"),
        (lambda batch: [object()] * len(batch), "object is not a verdict"),
        (lambda batch: [Score(value=None)] * len(batch), "None is not a finite number"),
        (lambda batch: [Score(value="1")] * len(batch), "Score is not a verdict"),
        (lambda batch: [Score(value=1.0, status="done")] * len(batch), "'done' is not a status"),
        (lambda batch: [1j] * len(batch), "complex is not a verdict"),
        (lambda batch: set(map(float, range(len(batch)))), "returned set"),
        (lambda batch: forever(), "2 verdicts for 1 rollouts"),
        (lambda batch: exits(), "SystemExit: in a generator"),
        (lambda batch: batch.clear(), "has no attribute 'clear'"),
        (lambda batch: [10**400] * len(batch), "OverflowError"),
    ],
)
def test_a_bad_reward_loses_its_own_verdicts_only(bad: Callable[..., Any], reason: str) -> None:
    verdicts = scorer(good=reward(ones), bad=reward(bad)).score([rollouts(2), rollouts(1)])
    for scores in (score for group in verdicts for score in group):
        assert scores["good"].value == 1.0
        assert (scores["bad"].status, scores["bad"].value) == ("error", None)
        assert reason in scores["bad"].info["reason"]


def test_one_poisonous_rollout_does_not_cost_the_batch() -> None:
    def score(batch: Sequence[Rollout]) -> list[float]:
        if any(rollout.text == "2" for rollout in batch):
            raise ValueError("poison")
        return ones(batch)

    (verdicts,) = scorer(one=reward(score)).score([rollouts(5)])
    assert [scores["one"].status for scores in verdicts] == ["ok", "ok", "error", "ok", "ok"]


def test_none_abstains_and_a_score_stands_as_it_is() -> None:
    given_ = [None, Score(value=0.5, parts={"a": 0.5}), Score.abstain("too long"), 1]
    (verdicts,) = scorer(one=reward(lambda batch: given_)).score([rollouts(4)])
    assert [scores["one"].status for scores in verdicts] == ["abstain", "ok", "abstain", "ok"]
    assert verdicts[1]["one"].parts == {"a": 0.5}
    assert verdicts[2]["one"].info == {"reason": "too long"}


class Half:
    """A number of another library."""

    def __float__(self) -> float:
        return 0.5


def test_numbers_of_any_class_become_floats() -> None:
    given_ = [Half(), Score(value=Half(), metric=True), True]  # type: ignore[arg-type]
    (verdicts,) = scorer(one=(reward(lambda batch: given_), {"role": "outcome"})).score([rollouts(3)])
    assert [(scores["one"].value, scores["one"].metric) for scores in verdicts] == [(0.5, 0.5), (0.5, 1.0), (1.0, 1.0)]
    assert all(type(scores["one"].value) is float for scores in verdicts)


def test_the_largest_values_compose_without_overflow() -> None:
    unbounded = {"range": (-math.inf, math.inf)}
    judges = scorer(
        answer=(reward(ones), {"role": "outcome"}),
        huge=reward(lambda batch: [1e100 if rollout.index else -1e100 for rollout in batch], **unbounded),
        beyond=reward(lambda batch: [1e308] * len(batch), **unbounded),
    )
    (verdicts,) = judges.score([rollouts(4)])
    assert {scores["beyond"].status for scores in verdicts} == {"error"}
    parts = [component("answer", "outcome"), component("huge", "process", 1e6)]
    assert all(math.isfinite(value) for value in composed(verdicts, Scaling(), parts=parts))


def test_an_async_reward_keeps_its_deadline_and_loses_the_hanging_rollout_only() -> None:
    async def score(self: Reward, rollouts: Sequence[Rollout]) -> list[float]:
        await asyncio.sleep(30 if any(rollout.text == "1" for rollout in rollouts) else 0)
        return ones(rollouts)

    factory = type("Made", (Reward,), {"score": score, "timeout": 30.0})
    (verdicts,) = scorer(one=(factory, {"timeout": 0.05})).score([rollouts(3)])
    assert [scores["one"].status for scores in verdicts] == ["ok", "timeout", "ok"]


def test_an_awaitable_reward_is_awaited() -> None:
    async def score(self: Reward, rollouts: Sequence[Rollout]) -> list[float]:
        return ones(rollouts)

    (verdicts,) = scorer(one=type("Made", (Reward,), {"score": score})).score([rollouts(2)])
    assert [scores["one"].value for scores in verdicts] == [1.0, 1.0]


def test_a_group_reward_gets_exactly_whole_groups() -> None:
    seen = []

    def score(batch: Sequence[Rollout]) -> list[float]:
        seen.append(len(batch))
        return ones(batch)

    scorer(one=reward(score, scope="group")).score([rollouts(3), rollouts(2)])
    assert seen == [3, 2]


def test_dependants_come_after_what_they_need_and_see_its_verdict() -> None:
    def score(batch: Sequence[Rollout]) -> list[float]:
        return [rollout.scores["first"].value / 2 for rollout in batch]  # type: ignore[operator]

    second = reward(score, needs=("first",))
    (verdicts,) = scorer(second=second, first=reward(ones)).score([rollouts(2)])
    assert [scores["second"].value for scores in verdicts] == [0.5, 0.5]


def test_a_rollout_that_failed_is_not_judged() -> None:
    (verdicts,) = scorer(one=reward(ones)).score([rollouts(1, status="error")])
    assert verdicts == [{}]


@pytest.mark.parametrize(("metric", "status"), [(None, "ok"), (0.5, "ok"), (2.0, "error")])
def test_the_metric_is_the_value_unless_the_outcome_says_otherwise(metric: float | None, status: str) -> None:
    factory = reward(lambda batch: [Score(value=0.75, metric=metric)] * len(batch))
    (verdicts,) = scorer(one=(factory, {"role": "outcome"})).score([rollouts(1)])
    assert verdicts[0]["one"].status == status
    if status == "ok":
        assert verdicts[0]["one"].metric == (0.75 if metric is None else metric)


# ---------------------------------------------------------------- composition


def component(label: str, role: str, weight: float = 1.0, only_if_solved: bool = False) -> Component:
    return Component(label=label, role=role, weight=weight, only_if_solved=only_if_solved, range=(0.0, 1.0))  # type: ignore[arg-type]


def ok(value: float, metric: float | None = None) -> Score:
    return Score(value=value, metric=metric)


PARTS = [
    component("answer", "outcome"),
    component("steps", "process", 0.5),
    component("length", "efficiency", 0.1, only_if_solved=True),
    component("tags", "gate"),
]


@pytest.mark.parametrize(
    ("answer", "steps", "length", "tags", "total"),
    [
        (1.0, 1.0, 1.0, 1.0, 1.6),
        (0.0, 1.0, 1.0, 1.0, 0.5),  # length pays only where the task is solved
        (1.0, 1.0, 1.0, 0.0, 0.0),  # a closed gate
        (1.0, 0.0, 0.5, 0.5, 0.525),
    ],
)
def test_the_total_is_gates_times_weighted_values(
    answer: float, steps: float, length: float, tags: float, total: float
) -> None:
    scores = {"answer": ok(answer, answer), "steps": ok(steps), "length": ok(length), "tags": ok(tags)}
    composed = compose(scores, PARTS)
    assert composed.total == pytest.approx(total)
    assert composed.metric == answer


@pytest.mark.parametrize("missing", ["answer", "tags"])
def test_without_outcome_or_gate_there_is_no_reward(missing: str) -> None:
    scores = {label: ok(1.0, 1.0) for label in ("answer", "steps", "length", "tags")}
    scores[missing] = Score.failure("down")
    assert not compose(scores, PARTS).valid
    assert compose(scores, PARTS).total is None


def test_a_missing_shaping_reward_contributes_nothing() -> None:
    scores = {"answer": ok(1.0, 1.0), "steps": Score.abstain("?"), "length": ok(1.0), "tags": ok(1.0)}
    assert compose(scores, PARTS).total == pytest.approx(1.1)


VALUES = st.floats(0, 1)
VERDICT = st.one_of(VALUES.map(lambda value: ok(value, value)), st.just(Score.failure("down")))
GROUP = st.lists(st.fixed_dictionaries({part.label: VERDICT for part in PARTS}), min_size=1, max_size=8)
RUNNING = st.builds(
    lambda rows: Scaling(1, {("d", part.label): Moments.of(row) for part, row in zip(PARTS, rows, strict=True)}),
    st.lists(st.lists(VALUES, max_size=6), min_size=4, max_size=4),
)


def composed(group: list[dict[str, Score]], scaling: Scaling, clip: float = 5.0, parts: Any = PARTS) -> list[float]:
    members, _ = compose_group(rollouts(len(group)), group, parts, domain="d", scaling=scaling, clip=clip)
    return [member.training_reward for member in members]


@given(group=GROUP, scaling=RUNNING, clip=st.floats(0.1, 6))
def test_a_components_share_is_at_most_its_weight_times_the_clip(
    group: list[dict[str, Score]], scaling: Scaling, clip: float
) -> None:
    for part in PARTS:
        if part.role != "gate":
            alone = [one if one.label == part.label or one.role in ("gate", "outcome") else None for one in PARTS]
            kept = [one for one in alone if one is not None]
            bound = sum(one.weight for one in kept if one.role != "gate") * clip
            assert all(abs(value) <= bound + 1e-9 for value in composed(group, scaling, clip, kept))


@given(group=GROUP, scaling=RUNNING, seed=st.integers(0, 99))
def test_the_order_of_rollouts_does_not_matter(group: list[dict[str, Score]], scaling: Scaling, seed: int) -> None:
    order = list(range(len(group)))
    random.Random(seed).shuffle(order)
    values = composed(group, scaling)
    shuffled = composed([group[place] for place in order], scaling)
    assert shuffled == pytest.approx([values[place] for place in order])


@given(group=GROUP, scaling=RUNNING)
def test_a_rollout_without_a_verdict_changes_no_sibling(group: list[dict[str, Score]], scaling: Scaling) -> None:
    failed = {part.label: Score.failure("down") for part in PARTS}
    assert composed([*group, failed], scaling)[:-1] == composed(group, scaling)
    assert composed([*group, failed], scaling)[-1] == 0


@given(group=GROUP)
def test_a_failing_shaping_reward_changes_no_other_component(group: list[dict[str, Score]]) -> None:
    without = [{**scores, "steps": Score.failure("down")} for scores in group]
    others = [part for part in PARTS if part.label != "steps"]
    assert composed(without, Scaling()) == composed(group, Scaling(), parts=others)


def test_scaling_makes_components_of_different_size_equal() -> None:
    small, large = component("small", "outcome"), component("large", "process")
    group = [{"small": ok(0.0, 0.0), "large": ok(0.2)}, {"small": ok(0.01, 0.01), "large": ok(0.2)}]
    running = {("d", "small"): Moments.of([0.0, 0.01]), ("d", "large"): Moments.of([0.0, 1.0])}
    values = composed(group, Scaling(1, running), parts=[small, large])
    floor = 0.1  # a share of the declared range under which no deviation is divided by
    assert values == pytest.approx([-0.005 / floor, 0.005 / floor])


# ---------------------------------------------------------------- statistics


@given(st.lists(st.lists(st.floats(-1e3, 1e3), max_size=5), max_size=6), st.integers(0, 9))
def test_moments_merge_in_any_order(rows: list[list[float]], seed: int) -> None:
    moments = [Moments.of(row) for row in rows]
    shuffled = list(moments)
    random.Random(seed).shuffle(shuffled)
    assert Moments().plus(moments) == Moments().plus(shuffled)
    values = [value for row in rows for value in row]
    if values:
        assert Moments().plus(moments).mean == pytest.approx(sum(values) / len(values), abs=1e-6)


def test_a_ticket_counts_once_and_the_past_decays() -> None:
    statistics = RewardStatistics()
    for _ in range(3):
        statistics.add("t1", "d", {"a": Moments.of([1.0, 0.0])})
    statistics.advance()
    assert statistics.scaling().moments("d", "a").count == 2
    statistics.add("t2", "d", {"a": Moments.of([1.0])})
    statistics.advance()
    assert statistics.scaling().moments("d", "a").count == pytest.approx(2 * 0.98 + 1)
    assert statistics.scaling().version == 2


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=10))
def test_statistics_survive_saving_exactly(values: list[float]) -> None:
    statistics, loaded = RewardStatistics(), RewardStatistics()
    statistics.add("t", "d", {"a": Moments.of(values)})
    statistics.advance()
    statistics.add("u", "d", {"a": Moments.of(values)})  # reported, and its step not ended yet
    loaded.load_state_dict(statistics.state_dict())
    loaded.add("u", "d", {"a": Moments.of(values)})
    assert loaded.scaling() == statistics.scaling()
    for one in (statistics, loaded):
        one.advance()
    assert loaded.scaling() == statistics.scaling()
