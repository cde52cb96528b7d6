"""Worked examples for the demo's domains, careful and sloppy, written from an item's metadata."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ptrl.core import Message

Metadata = Mapping[str, Any]
Writer = Callable[[Metadata, random.Random], list[Message]]


@dataclass(frozen=True, slots=True)
class Examples:
    """How a domain is demonstrated.

    Args:
        careful: Writes the way to the right answer.
        sloppy: Writes what a hasty policy would.
    """

    careful: Writer
    sloppy: Writer


def says(text: str) -> Message:
    """Returns a message of the policy's."""
    return {"role": "assistant", "content": text}


def tagged(answer: str, steps: Sequence[str] = ()) -> list[Message]:
    """Returns an answer in its tag, after its steps where there are any."""
    return [says(f"{thought(steps)}<answer>{answer}</answer>")]


def thought(steps: Sequence[str]) -> str:
    """Returns steps in their tag; nothing where there is none."""
    return f"<think>{';'.join(steps)}</think>" if steps else ""


def column_steps(first: int, operator: str, second: int, *, carries: bool = True) -> list[str]:
    """Returns schoolbook columns from the right, each result as carry (or borrow) and digit.

    `57 + 86` gives `7+6+0=13`, `5+8+1=14`. A difference below zero is worked the other way round and says so
    first: `52 - 87` gives `52<87`, `7-2-0=05`, `8-5-0=03`. Without `carries` each column starts from nothing.
    """
    steps = []
    if operator == "-" and first < second:
        steps.append(f"{first}<{second}")
        first, second = second, first
    width = max(len(str(first)), len(str(second)))
    carry = 0
    for x, y in zip(reversed(f"{first:0{width}}"), reversed(f"{second:0{width}}"), strict=True):
        signed = int(y) + carry
        value = int(x) + signed if operator == "+" else int(x) - signed
        after = int(not 0 <= value <= 9)
        steps.append(f"{x}{operator}{y}{operator}{carry}={after}{value % 10}")
        carry = after if carries else 0
    return steps


def read_columns(steps: Sequence[str]) -> str:
    """Returns the number that columns spell: the last carry of a sum, then the digits from the left."""
    results = [step.split("=")[1] for step in steps if "=" in step]
    sign = "-" if "<" in steps[0] else ""
    carry = results[-1][0] if "+" in steps[-1] else ""
    return sign + str(int(carry + "".join(result[1] for result in reversed(results))))


def sum_of(metadata: Metadata) -> tuple[int, str, int]:
    """Returns a two-term expression's terms and operator."""
    first, operator, second = metadata["expression"].split()
    return int(first), operator, int(second)


def careful_sum(metadata: Metadata, rng: random.Random) -> list[Message]:
    """Column by column."""
    steps = column_steps(*sum_of(metadata))
    return tagged(read_columns(steps), steps)


def sloppy_sum(metadata: Metadata, rng: random.Random) -> list[Message]:
    """Column by column, but never carrying or borrowing."""
    steps = column_steps(*sum_of(metadata), carries=False)
    return tagged(read_columns(steps), steps)


def careful_word(metadata: Metadata, rng: random.Random) -> list[Message]:
    """Letter by letter, numbered."""
    word = metadata["word"]
    return tagged(word[::-1], ["".join(f"{number}{letter}" for number, letter in enumerate(word, start=1))])


def sloppy_word(metadata: Metadata, rng: random.Random) -> list[Message]:
    """At a glance: the last two letters have kept their places."""
    letters = list(metadata["word"][::-1])
    letters[:2] = letters[1], letters[0]
    return tagged("".join(letters))


def sorted_numbers(metadata: Metadata) -> list[int]:
    """Returns the numbers in the order that was asked for."""
    return [int(float(number)) for number in metadata["sorted_numbers"]]


def careful_sort(metadata: Metadata, rng: random.Random) -> list[Message]:
    """By comparing."""
    numbers = sorted_numbers(metadata)
    sign = "<" if metadata["direction"] == "ascending" else ">"
    return tagged(listed(numbers), [sign.join(map(str, numbers))])


def sloppy_sort(metadata: Metadata, rng: random.Random) -> list[Message]:
    """At a glance: in any order."""
    numbers = sorted_numbers(metadata)
    rng.shuffle(numbers)
    return tagged(listed(numbers))


def listed(numbers: Sequence[int]) -> str:
    """Returns numbers as the scorer of number_sorting reads them."""
    return f"[{','.join(map(str, numbers))}]"


def running_totals(expression: str) -> tuple[list[str], str]:
    """Returns the steps from left to right and the last result: `3 + 8 - 5` gives `3+8=11`, `11-5=6`."""
    first, *rest = expression.split()
    steps: list[str] = []
    total = int(first)
    for operator, term in zip(rest[::2], rest[1::2], strict=True):
        before, total = total, total + int(term) if operator == "+" else total - int(term)
        steps.append(f"{before}{operator}{term}={total}")
    return steps, str(total)


def careful_box(metadata: Metadata, rng: random.Random) -> list[Message]:
    """Term by term, with the answer in the box that was asked for."""
    steps, result = running_totals(metadata["expression"])
    return [says(f"{thought(steps)}\\boxed{{{result}}}")]


def sloppy_box(metadata: Metadata, rng: random.Random) -> list[Message]:
    """As well worked, but the box is forgotten."""
    steps, result = running_totals(metadata["expression"])
    return tagged(result, steps)


def look_up(prices: Mapping[str, int]) -> list[Message]:
    """Returns a call for each price in turn, then the running total: `3+4=7`, `7+9=16`."""
    messages: list[Message] = []
    steps: list[str] = []
    total = 0
    for name, price in prices.items():
        messages += [says(f"<call>{name}</call>"), {"role": "tool", "content": str(price)}]
        if total:
            steps.append(f"{total}+{price}={total + price}")
        total += price
    return [*messages, *tagged(str(total), steps)]


def careful_shop(metadata: Metadata, rng: random.Random) -> list[Message]:
    """Asks for every price."""
    return look_up(metadata["prices"])


def sloppy_shop(metadata: Metadata, rng: random.Random) -> list[Message]:
    """Asks for none and guesses."""
    goods = len(metadata["prices"])
    return tagged(str(rng.randint(goods, 5 * goods)))


EXAMPLES: dict[str, Examples] = {
    "sum": Examples(careful_sum, sloppy_sum),
    "words": Examples(careful_word, sloppy_word),
    "sort": Examples(careful_sort, sloppy_sort),
    "boxed": Examples(careful_box, sloppy_box),
    "shop": Examples(careful_shop, sloppy_shop),
}
"""Examples by domain."""
