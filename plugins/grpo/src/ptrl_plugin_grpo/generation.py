"""Batched generation: a group's prompt is prefilled once, rows leave as they end, forced tokens are fed in.

Every row takes one token per pass: one it chose, or one that the environment forces (a tool's answer),
while the other rows go on. Rows that are over are compacted away.
"""

import math
from collections.abc import Sequence

import torch

from ptrl.core import OptimizerError
from ptrl.core.policy import Sampling, Tokenizer, Turn, TurnDriver
from ptrl_plugin_grpo.decoding import Decoder

COMPACT_BELOW = 0.8
"""Rows are compacted when less than this share of them is alive."""

STOP_WINDOW = 16
"""How many of a turn's last tokens are decoded to look for a stop string, beside its own length."""


class Generator:
    """Generates one batch.

    Args:
        decoder: The model's forward passes over a key-value cache.
        tokenizer: Names end-of-turn tokens, and decodes where stop strings are to be found.
        prompts: Token ids of each row's prompt; equal ones side by side are prefilled once.
        sampling: How tokens are chosen.
        driver: Takes turns and says how each row goes on.
    """

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        driver: TurnDriver,
    ) -> None:
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._sampling = sampling
        self._driver = driver
        device = decoder.device
        self._random = torch.Generator(device=device).manual_seed(sampling.seed)
        self._ends = torch.tensor(sorted(tokenizer.end_of_turn_ids), dtype=torch.long, device=device)
        count = len(prompts)
        steps = sampling.max_new_tokens
        self._tokens = torch.zeros(count, steps, dtype=torch.long, device=device)
        self._logprobs = torch.zeros(count, steps, device=device)
        self._rows = torch.arange(count, device=device)
        self._alive = torch.ones(count, dtype=torch.bool, device=device)
        self._turn_start = torch.zeros(count, dtype=torch.long, device=device)
        limits = [driver.turn_limit(row) for row in range(count)]
        self._turn_end = torch.tensor(limits, dtype=torch.long, device=device)
        self._forced: dict[int, list[int]] = {}
        self._stops = {row: stop for row in range(count) if (stop := driver.stop_strings(row))}

    @torch.inference_mode()
    def run(self) -> None:
        """Generates until every row is over."""
        logits = self._decoder.prefill(self._prompts, self._sampling.max_new_tokens)
        for position in range(self._sampling.max_new_tokens):
            tokens = self._choose(logits, position)
            self._finish_turns(tokens, position)
            alive = int(self._alive.sum())
            if not alive or position + 1 == self._sampling.max_new_tokens:
                return
            if alive < COMPACT_BELOW * len(self._rows):
                tokens = self._compact(tokens)
            logits = self._decoder.step(tokens)

    def _choose(self, logits: torch.Tensor, position: int) -> torch.Tensor:
        """Returns each row's next token, (rows,): chosen from the logits, or forced."""
        temperature = self._sampling.temperature
        logprobs = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1)
        if temperature == 0:
            tokens = logprobs.argmax(dim=-1)
        else:
            tokens = sample(nucleus(logprobs.exp(), self._sampling.top_p), self._random)
        chosen = logprobs.gather(-1, tokens[:, None]).squeeze(-1)
        if self._forced:
            tokens = self._force(tokens)
        self._tokens[self._rows, position] = tokens
        self._logprobs[self._rows, position] = chosen
        return tokens

    def _force(self, tokens: torch.Tensor) -> torch.Tensor:
        for place, row in enumerate(self._rows.tolist()):
            queue = self._forced.get(row)
            if queue:
                tokens[place] = queue.pop(0)
                if not queue:
                    del self._forced[row]
        return tokens

    def _finish_turns(self, tokens: torch.Tensor, position: int) -> None:
        """Hands finished turns to the driver, and sets up how their rows go on."""
        chosen = self._alive & (self._turn_start[self._rows] <= position)
        ended = torch.isin(tokens, self._ends)
        cut = position + 1 >= self._turn_end[self._rows]
        places = (chosen & (ended | cut)).nonzero().flatten().tolist()
        if self._stops:
            places = sorted({*places, *self._places_at_stop(chosen, position)})
        if not places:
            return
        rows = self._rows.tolist()
        by_length = (cut & ~ended).tolist()
        turns = [self._turn(rows[place], position, by_length[place]) for place in places]
        for place, turn, forced in zip(places, turns, self._driver.turns_finished(turns), strict=True):
            if forced is None:
                self._alive[place] = False
            else:
                self._go_on(turn.row, position, list(forced))

    def _turn(self, row: int, position: int, by_length: bool) -> Turn:
        start = int(self._turn_start[row])
        ids = self._tokens[row, start : position + 1].tolist()
        logprobs = self._logprobs[row, start : position + 1].tolist()
        if not math.isfinite(sum(logprobs)):
            raise OptimizerError(
                "the model's outputs are NaN or infinite; go on from an earlier checkpoint with a lower"
                " training.learning_rate, or load the model as float32 (model.dtype)"
            )
        at_stop = by_length and self._ends_with_stop(row, ids)
        return Turn(row, ids, logprobs, "length" if by_length and not at_stop else "stop")

    def _go_on(self, row: int, position: int, forced: list[int]) -> None:
        start = position + 1 + len(forced)
        self._turn_start[row] = start
        self._turn_end[row] = start + self._driver.turn_limit(row)
        if forced:
            self._forced[row] = forced

    def _places_at_stop(self, chosen: torch.Tensor, position: int) -> list[int]:
        rows, candidates = self._rows.tolist(), chosen.tolist()
        found = []
        for place, row in enumerate(rows):
            if candidates[place] and row in self._stops:
                start = int(self._turn_start[row])
                if self._ends_with_stop(row, self._tokens[row, start : position + 1].tolist()):
                    found.append(place)
        return found

    def _ends_with_stop(self, row: int, ids: list[int]) -> bool:
        stops = self._stops.get(row, ())
        if not stops:
            return False
        window = STOP_WINDOW + max(len(stop.encode()) for stop in stops)  # a token may be a single byte
        text = self._tokenizer.decode(ids[-window:])
        last = self._tokenizer.decode(ids[-1:])
        return any(stop in text[-(len(stop) + len(last)) :] for stop in stops)

    def _compact(self, tokens: torch.Tensor) -> torch.Tensor:
        keep = self._alive.nonzero().flatten()
        self._rows = self._rows[keep]
        self._alive = torch.ones(len(keep), dtype=torch.bool, device=keep.device)
        self._decoder.keep(keep)
        return tokens[keep]


def sample(probabilities: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Draws one token per row, (rows,), by inverting the cumulative distribution.

    Many times quicker than `torch.multinomial`, which draws a random number per token of the vocabulary.

    Args:
        probabilities: (rows, vocabulary), not necessarily normalized; a token of 0 is never drawn.
        random: Source of randomness.
    """
    cumulative = probabilities.cumsum(dim=-1)
    share = 1 - torch.rand(len(probabilities), 1, generator=random, device=probabilities.device)  # in (0, 1]
    tokens = torch.searchsorted(cumulative, share.to(cumulative.dtype) * cumulative[:, -1:]).squeeze(-1)
    return tokens.clamp(max=probabilities.shape[-1] - 1)  # where a probability is NaN none is found


def nucleus(probabilities: torch.Tensor, share: float) -> torch.Tensor:
    """Returns probabilities with all but the nucleus set to 0 (Holtzman et al., arXiv 1904.09751).

    Args:
        probabilities: (rows, vocabulary).
        share: Smallest mass that the nucleus must hold; 1 keeps all.
    """
    if share >= 1:
        return probabilities
    ordered, order = probabilities.sort(dim=-1, descending=True)
    outside = ordered.cumsum(dim=-1) - ordered >= share
    return probabilities.masked_fill(outside.scatter(-1, order, outside), 0.0)
