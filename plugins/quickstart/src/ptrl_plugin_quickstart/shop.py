"""`quickstart.shop`: prices are hidden, and a tool tells them one at a time."""

import random
import re
from collections.abc import Sequence

from pydantic import Field

from ptrl.core import Columns, Environment, Message, Split, State, Step, Task, TaskSource

GOODS = "abcdefghij"
CALL = re.compile(r"<call>([^<]{0,20})</call>\s*$")


class Baskets(TaskSource):
    """Baskets of goods with prices, each made from its index.

    A basket's goods and prices decide its split, so that no basket is in both.

    Args:
        split: The split.
        size: Number of tasks.
        seed: Seed of the tasks.
        max_goods: Most goods in a basket.
        max_price: Highest price.
    """

    def __init__(self, split: Split, *, size: int, seed: int, max_goods: int, max_price: int) -> None:
        self._split = split
        self._size = size
        self._seed = seed
        self._max_goods = max_goods
        self._max_price = max_price

    def __len__(self) -> int:
        """Number of tasks."""
        return self._size

    def task(self, index: int) -> Task:
        """Returns the basket of an index."""
        for attempt in range(1000):
            rng = random.Random(f"{self._seed}/{self._split}/{index}/{attempt}")
            goods = rng.sample(GOODS, rng.randint(1, self._max_goods))
            prices = {name: rng.randint(1, self._max_price) for name in goods}
            if _split_of(prices, self._seed) == self._split:
                break
        return Task(
            key=f"shop/{self._seed}/{self._split}/{index}",
            messages=({"role": "user", "content": f"shop {' '.join(goods)}"},),
            reference=str(sum(prices.values())),
            difficulty=float(len(goods)),
            info={"prices": prices},
        )

    def columns(self) -> Columns:
        """Returns the keys, without making the tasks."""
        keys = [f"shop/{self._seed}/{self._split}/{index}" for index in range(self._size)]
        return Columns(keys=keys, fingerprint=f"{self._max_goods}/{self._max_price}/{keys[0]}/{self._size}")


def _split_of(prices: dict[str, int], seed: int) -> Split:
    """Returns the split of a basket: one in five is held out."""
    text = " ".join(f"{name}{price}" for name, price in sorted(prices.items()))
    return "test" if random.Random(f"{seed}:{text}").random() < 0.2 else "train"


class Shop(Environment):
    """Adds up the prices of a basket, which only a tool knows: `<call>a</call>` is answered by a's price.

    Several turns: a turn that ends with a call is answered by a `tool` message, which is out of the loss; any
    other turn is the answer. At most one call more than there are goods is answered.
    """

    class Config(Environment.Config):
        """Options of quickstart.shop."""

        size: int = Field(default=10_000, ge=1)
        """Number of training tasks."""

        test_size: int = Field(default=200, ge=1)
        """Number of test tasks."""

        seed: int = Field(default=0, ge=0)
        """Seed of the tasks."""

        max_goods: int = Field(default=3, ge=1, le=len(GOODS))
        """Most goods in a basket."""

        max_price: int = Field(default=5, ge=1, le=99)
        """Highest price."""

    config: Config
    run_in = "inline"  # a lookup in a dictionary

    def tasks(self, split: Split) -> TaskSource:
        """Returns the baskets of a split."""
        return Baskets(
            split,
            size=self.config.size if split == "train" else self.config.test_size,
            seed=self.config.seed,
            max_goods=self.config.max_goods,
            max_price=self.config.max_price,
        )

    def start(self, task: Task) -> State:
        """Counts the calls."""
        return State(task=task, data=0)

    def step(self, state: State, message: Message) -> Step:
        """Answers a call with the price, `?` for what is not in the shop; any other turn ends the episode."""
        called = CALL.search(message["content"][-40:])
        prices = state.task.info["prices"]
        if called is None or state.data > len(prices):
            return Step(done=True, info={"calls": state.data})
        state.data += 1
        answer: Sequence[Message] = [{"role": "tool", "content": str(prices.get(called[1].strip(), "?"))}]
        return Step(append=answer, info={"calls": state.data})
