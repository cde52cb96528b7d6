"""`samplers.shuffle`: every task once per epoch, in random order, at declared shares of the domains."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from ptrl.core import Catalog, Proposal, Sampler, SamplerContext, Ticket, did_you_mean
from ptrl_plugin_samplers.permutation import Permutation, permutation
from ptrl_plugin_samplers.quotas import Quotas


class Shuffle(Sampler):
    """Uniform practice without replacement, with exact shares by domain.

    Each domain is gone through in epochs of its own: a fresh random permutation of its tasks each, computed
    rather than stored, so that state is a count per domain whatever the number of tasks. A batch is shared by
    largest remainders that are carried from batch to batch (`Quotas`), and the domains' tickets are
    interleaved evenly. Every ticket is a uniform draw from its domain, hence a probe. Outcomes change
    nothing.

    A ticket's id is `domain/number`, the number counting the domain's draws from 0.
    """

    class Config(Sampler.Config):
        """Options of `samplers.shuffle`."""

        by: Literal["domain", "size"] = Field(
            default="domain",
            description="Shares without quotas: the same for each domain, or by its number of tasks.",
        )
        quotas: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
            default={},
            description="Weight of each domain; every domain must be named, and one of weight 0 is left out.",
        )

    config: Config

    def __init__(self, config: Config | None = None) -> None:
        """Leaves everything to `prepare`."""
        super().__init__(config)
        self._fingerprint = ""
        self._epochs: dict[str, Epochs] = {}
        self._quotas: Quotas | None = None

    def prepare(self, catalog: Catalog, rng: random.Random) -> None:
        """Takes up the catalog; one draw from `rng` seeds all permutations.

        Raises:
            ValueError: When quotas do not fit the catalog's domains, or a domain to practise has no task.
        """
        self._take_up(catalog, rng.randbytes(16))

    def propose(self, n: int, context: SamplerContext) -> Proposal:
        """Returns exactly `n` tickets of the config's group size.

        Raises:
            RuntimeError: When called before `prepare`.
            ValueError: When `n` is negative.
        """
        if self._quotas is None:
            raise RuntimeError("samplers.shuffle: propose was called before prepare")
        if n < 0:
            raise ValueError(f"samplers.shuffle: cannot propose {n} tickets")
        epochs = list(self._epochs.values())
        size = context.group_size
        turns = interleave(self._quotas.allot(n))
        return Proposal(tickets=tuple(epochs[place].draw(size) for place in turns))

    def metrics(self) -> Mapping[str, float]:
        """Returns each domain's share of the tickets so far and the epochs it has been through."""
        total = sum(epochs.drawn for epochs in self._epochs.values()) or 1
        return {
            **{f"share/{name}": epochs.drawn / total for name, epochs in self._epochs.items()},
            **{f"epochs/{name}": epochs.drawn / max(epochs.size, 1) for name, epochs in self._epochs.items()},
        }

    def state_dict(self) -> Mapping[str, Any]:
        """Returns all state as plain data: two integers and a count per domain, and one seed.

        Raises:
            RuntimeError: When called before `prepare`.
        """
        if self._quotas is None:
            raise RuntimeError("samplers.shuffle: state_dict was called before prepare")
        return {
            "fingerprint": self._fingerprint,
            "seed": self._seed.hex(),
            "drawn": {name: epochs.drawn for name, epochs in self._epochs.items()},
            "quotas": self._quotas.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any], catalog: Catalog) -> None:
        """Takes up `state`; the saved seed replaces the one of `prepare`, which need not have been called.

        Raises:
            ValueError: When the state was saved over another catalog or with other quotas.
        """
        if state["fingerprint"] != catalog.fingerprint:
            raise ValueError(
                "samplers.shuffle: the state was saved over other tasks "
                f"(fingerprint {state['fingerprint'][:12]}, now {catalog.fingerprint[:12]}); "
                "resume with the data of the saved run, or start a new one"
            )
        quotas = Quotas(self._weights(catalog))
        quotas.load(state["quotas"])
        self._take_up(catalog, bytes.fromhex(state["seed"]))
        self._quotas = quotas
        for name, drawn in state["drawn"].items():
            self._epochs[name].drawn = int(drawn)

    def _take_up(self, catalog: Catalog, seed: bytes) -> None:
        """Begins at the first ticket over `catalog`."""
        self._quotas = Quotas(self._weights(catalog))
        self._fingerprint = catalog.fingerprint
        self._seed = seed
        self._epochs = {name: Epochs(name, catalog.starts[name], catalog.sizes[name], seed) for name in catalog.names}

    def _weights(self, catalog: Catalog) -> dict[str, float]:
        """Returns each domain's weight, in the catalog's order."""
        if self.config.quotas:
            weights = _declared(self.config.quotas, catalog.names)
        elif self.config.by == "size":
            weights = dict(catalog.sizes)
        else:
            weights = dict.fromkeys(catalog.names, 1)
        if empty := [name for name in catalog.names if weights[name] and not catalog.sizes[name]]:
            raise ValueError(f"samplers.shuffle: domain {empty[0]!r} has no tasks to practise")
        return weights


class Epochs:
    """One domain's tickets, epoch after epoch.

    Args:
        domain: The domain's name.
        start: Its first index in the catalog.
        size: Its number of tasks.
        seed: The run's seed of all permutations.
    """

    __slots__ = ("_domain", "_epoch", "_order", "_seed", "_start", "drawn", "size")

    def __init__(self, domain: str, start: int, size: int, seed: bytes) -> None:
        self.drawn = 0
        self.size = size
        self._domain = domain
        self._start = start
        self._seed = seed
        self._epoch = -1
        self._order: Permutation = ()

    def draw(self, group_size: int) -> Ticket:
        """Returns the next ticket."""
        number = self.drawn
        epoch, position = divmod(number, self.size)
        if epoch != self._epoch:
            key = b"%b/%d/%b" % (self._seed, epoch, self._domain.encode("utf-8", "surrogatepass"))
            self._epoch, self._order = epoch, permutation(self.size, key)
        self.drawn = number + 1
        return Ticket(
            id=f"{self._domain}/{number}",
            index=self._start + self._order[position],
            domain=self._domain,
            group_size=group_size,
            probe=True,
        )


def interleave(counts: list[int]) -> Iterator[int]:
    """Yields place i `counts[i]` times, each place's turns spread evenly over the whole."""
    turns = [((2 * turn + 1) / count, place) for place, count in enumerate(counts) for turn in range(count)]
    turns.sort()
    return (place for _, place in turns)


def _declared(quotas: Mapping[str, float], names: tuple[str, ...]) -> dict[str, float]:
    """Returns the declared weights in the catalog's order, when they name its domains exactly."""
    for name in quotas:
        if name not in names:
            raise ValueError(f"samplers.shuffle: quotas.{name} names no domain; {did_you_mean(name, names)}")
    if missing := [name for name in names if name not in quotas]:
        raise ValueError(
            f"samplers.shuffle: quotas gives no weight for {', '.join(missing)}; give 0 to leave a domain out"
        )
    return {name: quotas[name] for name in names}
