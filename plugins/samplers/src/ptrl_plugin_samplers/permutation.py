"""Random permutations that are computed, not stored: any element in constant time and memory.

Up to `SMALL` elements a permutation is shuffled outright (Fisher and Yates), so that every order is equally
likely. Beyond that it is a generalized Feistel network over a grid of `rows × columns` cells that just covers
the size, with cycle walking back into range (Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
CT-RSA 2002). The grid has less than one row and one column too many, so that a walk seldom takes a second
step.
"""

from __future__ import annotations

import hashlib
import math
import random
import struct
from typing import Final, Protocol

SMALL: Final = 256
_ROUNDS: Final = 8
_MASK: Final = (1 << 64) - 1


class Permutation(Protocol):
    """A one-to-one map of 0 … size − 1 onto itself."""

    def __getitem__(self, position: int) -> int:
        """Returns the element at `position`."""


def permutation(size: int, key: bytes) -> Permutation:
    """Returns the permutation of `size` elements that `key` names, the same in every process.

    Raises:
        ValueError: When `size` is below 1.
    """
    if size < 1:
        raise ValueError(f"a permutation needs at least 1 element, got {size}")
    if size <= SMALL:
        order = list(range(size))
        random.Random(key).shuffle(order)
        return order
    return FeistelPermutation(size, key)


class FeistelPermutation:
    """A permutation of any size in constant memory: about 2 µs an element.

    Each round adds a keyed hash of one coordinate to the other, modulo its extent, and is undone by
    subtracting it: so each round, and the network, is one-to-one on the grid. Walking on until a cell is in
    range keeps it one-to-one on the range.

    Args:
        size: Number of elements, at least 1.
        key: Names the permutation.
    """

    __slots__ = ("_columns", "_keys", "_rows", "_size")

    def __init__(self, size: int, key: bytes) -> None:
        self._size = size
        self._columns = math.isqrt(size - 1) + 1
        self._rows = -(-size // self._columns)
        digest = hashlib.blake2b(key, digest_size=8 * _ROUNDS, person=b"ptrl.shuffle").digest()
        keys = struct.unpack(f"<{_ROUNDS}Q", digest)
        self._keys = tuple(zip(keys[::2], keys[1::2], strict=True))

    def __len__(self) -> int:
        """Number of elements."""
        return self._size

    def __getitem__(self, position: int) -> int:
        """Returns the element at `position`.

        Raises:
            IndexError: When `position` is not in 0 … size − 1.
        """
        if not 0 <= position < self._size:
            raise IndexError(f"position {position} is outside 0..{self._size - 1}")
        element = self._encipher(position)
        while element >= self._size:
            element = self._encipher(element)
        return element

    def _encipher(self, cell: int) -> int:
        """Returns the cell that the network sends `cell` to."""
        columns, rows = self._columns, self._rows
        row, column = divmod(cell, columns)
        for row_key, column_key in self._keys:
            row = (row + _hash(column ^ row_key)) % rows
            column = (column + _hash(row ^ column_key)) % columns
        return row * columns + column


def _hash(word: int) -> int:
    """Returns the finalizer of MurmurHash3 (64 bits), without its last step: enough to decide a remainder."""
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return word >> 16
