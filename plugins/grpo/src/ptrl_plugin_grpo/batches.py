"""Laying rollouts out for a training pass: padded rows, or rollouts of one group in a row under a block mask.

Both layouts give the same log-probabilities. Packing does not repeat a group's prompt: responses stand behind
it, each seeing the prompt and itself, with positions that restart after the prompt.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One rollout as the update sees it.

    Args:
        prompt: Token ids of the prompt.
        tokens: Token ids after it.
        mask: 1 where the policy chose the token.
        logprobs: Log-probabilities when they were sampled.
        group: Rows of one group have the same prompt.
    """

    prompt: Sequence[int]
    tokens: Sequence[int]
    mask: Sequence[int]
    logprobs: Sequence[float]
    group: int

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.prompt) + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Layout:
    """Inputs of one forward pass, and where in its output the chosen tokens are predicted.

    Args:
        input_ids: (rows, length).
        position_ids: (rows, length).
        attention_mask: (rows, length), or (rows, 1, length, length) where packed.
        source: (tokens,) flat positions in (rows × length) whose output predicts a chosen token.
        target: (tokens,) the chosen tokens' ids.
        row: (tokens,) which training row each belongs to.
        token: (tokens,) its place among the chosen tokens of all rows, row after row.
        logprobs: (tokens,) log-probabilities when they were sampled.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    attention_mask: torch.Tensor
    source: torch.Tensor
    target: torch.Tensor
    row: torch.Tensor
    token: torch.Tensor
    logprobs: torch.Tensor


def chosen_counts(rows: Sequence[TrainingRow]) -> torch.Tensor:
    """Returns how many tokens of each row the policy chose, (rows,)."""
    return torch.tensor([sum(row.mask) for row in rows], dtype=torch.long)


def padded_layouts(rows: Sequence[TrainingRow], token_budget: int, device: torch.device) -> Iterator[Layout]:
    """Yields layouts of padded rows, of like length side by side, each of at most `token_budget` tokens."""
    starts = _starts(rows)
    order = sorted(range(len(rows)), key=lambda number: rows[number].length)
    for batch in _within_budget(order, [row.length for row in rows], token_budget):
        sequences = [[*rows[number].prompt, *rows[number].tokens] for number in batch]
        longest = max(len(sequence) for sequence in sequences)
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        seen = torch.zeros(len(batch), longest, dtype=torch.long)
        chosen = _Chosen(starts)
        for place, (number, sequence) in enumerate(zip(batch, sequences, strict=True)):
            ids[place, : len(sequence)] = torch.tensor(sequence)
            seen[place, : len(sequence)] = 1
            start = place * longest + len(rows[number].prompt)
            chosen.add(rows[number], number, first=start - 1, start=start)
        positions = torch.arange(longest).expand(len(batch), longest)
        yield chosen.layout(ids, positions, seen, device)


def packed_layouts(rows: Sequence[TrainingRow], token_budget: int, device: torch.device) -> Iterator[Layout]:
    """Yields layouts of packed rows, each of at most `token_budget` tokens.

    A group takes as many rows as keep to the budget and to `longest_pack`.
    """
    starts = _starts(rows)
    members: list[list[int]] = []
    lengths: list[int] = []
    last: dict[tuple[int, tuple[int, ...]], int] = {}  # the pack that a group's next rollout may join
    for number, row in enumerate(rows):
        key = (row.group, tuple(row.prompt))
        place = last.get(key)
        if place is None or lengths[place] + len(row.tokens) > min(token_budget, longest_pack(len(row.prompt))):
            place = last[key] = len(members)
            members.append([])
            lengths.append(len(row.prompt))
        members[place].append(number)
        lengths[place] += len(row.tokens)
    order = sorted(range(len(members)), key=lambda place: lengths[place])
    for batch in _within_budget(order, lengths, token_budget):
        longest = max(lengths[place] for place in batch)
        yield _pack([members[place] for place in batch], rows, starts, longest, device)


def longest_pack(prompt: int) -> int:
    """Returns how many tokens a packed row may have, by those of its prompt.

    Attention is computed over the whole row, also where a response must not see its siblings: past a few
    times the prompt's length that costs more than not repeating the prompt saves (on a CPU, responses of 200
    tokens in one row per group took 3.6 times as long as padded rows).
    """
    return 128 + 4 * prompt


def _starts(rows: Sequence[TrainingRow]) -> list[int]:
    """Returns the place of each row's first chosen token among those of all rows."""
    return [0, *accumulate(sum(row.mask) for row in rows)]


def _pack(
    groups: Sequence[Sequence[int]],
    rows: Sequence[TrainingRow],
    starts: Sequence[int],
    longest: int,
    device: torch.device,
) -> Layout:
    ids = torch.zeros(len(groups), longest, dtype=torch.long)
    positions = torch.zeros(len(groups), longest, dtype=torch.long)
    segment = torch.full((len(groups), longest), -1, dtype=torch.long)  # 0 the prompt, 1.. its responses
    chosen = _Chosen(starts)
    for place, group in enumerate(groups):
        prompt = rows[group[0]].prompt
        end = len(prompt)
        ids[place, :end] = torch.tensor(list(prompt))
        positions[place, :end] = torch.arange(end)
        segment[place, :end] = 0
        for number, member in enumerate(group, start=1):
            row = rows[member]
            start, end = end, end + len(row.tokens)
            ids[place, start:end] = torch.tensor(list(row.tokens))
            positions[place, start:end] = torch.arange(len(prompt), len(prompt) + len(row.tokens))
            segment[place, start:end] = number
            base = place * longest
            chosen.add(row, member, first=base + len(prompt) - 1, start=base + start)
    causal = torch.ones(longest, longest, dtype=torch.bool).tril()
    same = segment[:, :, None] == segment[:, None, :]
    visible = causal & (same | (segment[:, None, :] == 0))
    return chosen.layout(ids, positions, visible[:, None], device)


class _Chosen:
    """Collects where the chosen tokens of a layout are predicted."""

    def __init__(self, starts: Sequence[int]) -> None:
        self.starts = starts
        self.token: list[int] = []
        self.source: list[int] = []
        self.target: list[int] = []
        self.row: list[int] = []
        self.logprobs: list[float] = []

    def add(self, row: TrainingRow, number: int, *, first: int, start: int) -> None:
        """Adds a row's chosen tokens.

        Args:
            row: The row.
            number: Its number.
            first: Flat position whose output predicts its first token: the prompt's end.
            start: Flat position of its first token.
        """
        self.token.extend(range(self.starts[number], self.starts[number + 1]))
        for offset, chosen in enumerate(row.mask):
            if chosen:
                self.source.append(start + offset - 1 if offset else first)
                self.target.append(row.tokens[offset])
                self.row.append(number)
                self.logprobs.append(row.logprobs[offset])

    def layout(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, device: torch.device) -> Layout:
        """Returns the layout on a device."""
        return Layout(
            input_ids=ids.to(device),
            position_ids=positions.to(device),
            attention_mask=mask.to(device),
            source=torch.tensor(self.source, dtype=torch.long, device=device),
            target=torch.tensor(self.target, dtype=torch.long, device=device),
            row=torch.tensor(self.row, dtype=torch.long, device=device),
            token=torch.tensor(self.token, dtype=torch.long, device=device),
            logprobs=torch.tensor(self.logprobs, device=device),
        )


def _within_budget(order: Sequence[int], lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yields runs of ascending length whose padded size stays within the budget; one alone may exceed it."""
    batch: list[int] = []
    for number in order:
        if batch and (len(batch) + 1) * lengths[number] > budget:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch
