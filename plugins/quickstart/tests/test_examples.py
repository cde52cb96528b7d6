import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptrl.core import Reward, Rollout, Task
from ptrl.core.config import load_plan
from ptrl.core.contracts.hooks import Contract
from ptrl.core.scoring import DomainScorer
from ptrl_plugin_quickstart.examples import (
    EXAMPLES,
    column_steps,
    look_up,
    read_columns,
    running_totals,
)
from ptrl_plugin_quickstart.worked import Worked

WARMUP = Path(__file__).parents[3] / "examples/warmup.toml"


@pytest.mark.parametrize(
    ("first", "operator", "second", "steps"),
    [
        (57, "+", 86, ["7+6+0=13", "5+8+1=14"]),
        (52, "-", 87, ["52<87", "7-2-0=05", "8-5-0=03"]),
        (91, "-", 75, ["1-5-0=16", "9-7-1=01"]),
        (40, "-", 40, ["0-0-0=00", "4-4-0=00"]),
    ],
)
def test_columns_are_worked_as_at_school(first: int, operator: str, second: int, steps: list[str]) -> None:
    assert column_steps(first, operator, second) == steps


@given(st.integers(0, 9999), st.sampled_from("+-"), st.integers(0, 9999))
def test_columns_spell_the_result(first: int, operator: str, second: int) -> None:
    expected = first + second if operator == "+" else first - second
    assert int(read_columns(column_steps(first, operator, second))) == expected


def test_running_totals_go_from_left_to_right() -> None:
    assert running_totals("3 + 8 - 5") == (["3+8=11", "11-5=6"], "6")


def test_looking_up_asks_for_every_price_and_adds_them() -> None:
    turns = [message["content"] for message in look_up({"a": 3, "b": 4})]
    assert turns == ["<call>a</call>", "3", "<call>b</call>", "4", "<think>3+4=7</think><answer>7</answer>"]


@pytest.fixture(scope="module")
def domains() -> dict[str, tuple[Worked, DomainScorer]]:
    plan = load_plan(WARMUP)
    contract = Contract(Reward)
    found = {}
    for domain in plan.domains:
        environment = domain.environment.build()
        assert isinstance(environment, Worked)
        found[domain.name] = (environment, DomainScorer(domain, contract))
    return found


def judge(scorer: DomainScorer, task: Task, text: str) -> tuple[float | None, float]:
    """Returns the metric and the gate."""
    scores = scorer.score([[Rollout(task=task, text=text)]])[0][0]
    gate = next(score.value for label, score in scores.items() if label != "answer")
    assert gate is not None
    return scores["answer"].metric, gate


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_demos_own_scorers_accept_every_careful_example(
    name: str, domains: dict[str, tuple[Worked, DomainScorer]]
) -> None:
    environment, scorer = domains[name]
    careful = Worked(environment.config.model_copy(update={"careful": 1.0})).tasks("train")
    for index in range(40):
        task = careful.task(index)
        assert judge(scorer, task, task.demonstration[-1]["content"]) == (1.0, 1.0), task


@pytest.mark.parametrize("name", EXAMPLES)
def test_most_sloppy_examples_do_not_pay(name: str, domains: dict[str, tuple[Worked, DomainScorer]]) -> None:
    environment, scorer = domains[name]
    sloppy = Worked(environment.config.model_copy(update={"careful": 0.0})).tasks("train")
    paid = 0
    for index in range(40):
        task = sloppy.task(index)
        metric, gate = judge(scorer, task, task.demonstration[-1]["content"])
        paid += metric == 1.0 and gate == 1.0
    assert paid < 32


def test_a_tasks_demonstration_is_the_same_in_any_order(
    domains: dict[str, tuple[Worked, DomainScorer]],
) -> None:
    source = domains["sum"][0].tasks("train")
    order = list(range(20))
    first = [source.task(index).demonstration for index in order]
    random.Random(1).shuffle(order)
    again = {index: source.task(index).demonstration for index in order}
    assert [again[index] for index in range(20)] == first
