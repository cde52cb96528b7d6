import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptrl.core import State, Step
from ptrl_plugin_quickstart.shop import Baskets, Shop

SHOP = Shop(Shop.Config(size=300))


def begin(index: int = 0) -> State:
    return SHOP.start(SHOP.tasks("train").task(index))


def say(state: State, text: str) -> Step:
    return SHOP.step(state, {"role": "assistant", "content": text})


def test_a_call_is_answered_by_the_price() -> None:
    state = begin()
    for number, (name, price) in enumerate(state.task.info["prices"].items(), start=1):
        step = say(state, f"<call>{name}</call>")
        assert step.append == [{"role": "tool", "content": str(price)}]
        assert not step.done
        assert step.info == {"calls": number}


def test_what_is_not_in_the_shop_has_no_price() -> None:
    step = say(begin(), "<call>caviar</call>")
    assert step.append == [{"role": "tool", "content": "?"}]


def test_any_other_turn_is_the_answer() -> None:
    assert say(begin(), "<answer>7</answer>").done


def test_calls_are_answered_only_so_often() -> None:
    state = begin()
    allowed = len(state.task.info["prices"]) + 1
    steps = [say(state, "<call>a</call>") for _ in range(allowed + 1)]
    assert [step.done for step in steps] == [False] * allowed + [True]


def test_the_reference_is_the_total() -> None:
    for index in range(50):
        task = SHOP.tasks("train").task(index)
        assert task.reference == str(sum(task.info["prices"].values()))


def test_no_basket_is_in_both_splits() -> None:
    def baskets(split: str) -> set[tuple[tuple[str, int], ...]]:
        source = Baskets(split, size=400, seed=3, max_goods=3, max_price=5)  # type: ignore[arg-type]
        return {tuple(sorted(source.task(i).info["prices"].items())) for i in range(400)}

    assert not baskets("train") & baskets("test")


def test_the_columns_name_the_tasks() -> None:
    source = SHOP.tasks("test")
    assert [source.task(index).key for index in range(len(source))] == list(source.columns().keys)


@given(st.text(max_size=200))
def test_whatever_the_policy_writes_is_answered_or_ends_the_episode(text: str) -> None:
    step = say(begin(), text)
    assert step.done or step.append


@pytest.mark.parametrize("text", ["<call>" + "a" * 10**7 + "</call>", "<call>" * 10**6])
def test_a_huge_turn_is_no_call(text: str) -> None:
    assert say(begin(), text).done
