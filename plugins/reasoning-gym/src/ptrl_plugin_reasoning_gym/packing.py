"""Items as plain JSON data, and back.

Scorers compare tuples with tuples and look up integer keys, so JSON alone would change their verdicts.
"""

from __future__ import annotations

from typing import Any

_MARK = "~"
"""The only key of a mapping that stands for something JSON lacks."""


def pack(value: Any) -> Any:
    """Returns JSON data that `unpack` restores; what is neither plain nor a container becomes text."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is dict:
        if all(type(key) is str for key in value) and _MARK not in value:
            return {key: pack(item) for key, item in value.items()}
        return {_MARK: "dict", "items": [[pack(key), pack(item)] for key, item in value.items()]}
    if type(value) is list:
        return [pack(item) for item in value]
    if isinstance(value, tuple):
        return {_MARK: "tuple", "items": [pack(item) for item in value]}
    if isinstance(value, set | frozenset):
        return {_MARK: "set", "items": sorted((pack(item) for item in value), key=repr)}
    return _pack_rare(value)


def _pack_rare(value: Any) -> Any:
    if isinstance(value, dict):
        return pack(dict(value))
    if isinstance(value, list):
        return pack(list(value))
    for plain in (str, bool, int, float):
        if isinstance(value, plain):  # an enumeration's member, numpy's str_ and float64
            return plain.__str__(value) if plain is str else plain(value)
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return pack(value.tolist())
    return str(value)


def unpack(value: Any) -> Any:
    """Returns what was packed, as a fresh copy."""
    if type(value) is dict:
        kind = value.get(_MARK)
        if kind is None:
            return {key: unpack(item) for key, item in value.items()}
        items = [unpack(item) for item in value["items"]]
        if kind == "dict":
            return {_hashable(key): item for key, item in items}
        return tuple(items) if kind == "tuple" else set(map(_hashable, items))
    if type(value) is list:
        return [unpack(item) for item in value]
    return value


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
