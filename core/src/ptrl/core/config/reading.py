"""Reading a config file: TOML or JSON to validated sections, with every problem named by its key."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from ptrl.core.errors import ConfigError, Problem, did_you_mean
from ptrl.core.settings import RunSettings

MAXIMUM_BYTES = 4 * 1024 * 1024
MAXIMUM_DEPTH = 50
"""Tables and arrays within one another; deeper ones exhaust the stack of whoever walks them."""


def read_settings(path: Path, overrides: Sequence[str] = ()) -> RunSettings:
    """Reads and validates a config file.

    Args:
        path: A `.toml` file, or the `config.json` of a run.
        overrides: `key=value` pairs as `--set` takes them; values are TOML, bare words are strings.

    Raises:
        ConfigError: With every problem found.
    """
    data = read_table(path)
    for override in overrides:
        _apply_override(data, override)
    if _deeper_than(data, MAXIMUM_DEPTH):
        raise ConfigError([Problem(key="", message=f"nested deeper than {MAXIMUM_DEPTH} levels")], str(path))
    try:
        return RunSettings.model_validate(data)
    except ValidationError as error:
        raise ConfigError(problems_of(error, RunSettings), str(path)) from None


def read_table(path: Path) -> dict[str, Any]:
    """Reads a TOML or JSON file to plain data.

    Raises:
        ConfigError: When it is missing, too large, no text, or not well-formed.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAXIMUM_BYTES + 1)
        if len(raw) > MAXIMUM_BYTES:
            raise ConfigError([Problem(key="", message=f"larger than {MAXIMUM_BYTES} bytes")], str(path))
        text = raw.decode("utf-8")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except FileNotFoundError:
        near = did_you_mean(path.name, [file.name for file in _neighbours(path)])
        raise ConfigError([Problem(key="", message="no such file", fix=near)], str(path)) from None
    except OSError as error:
        raise ConfigError([Problem(key="", message=str(error.strerror))], str(path)) from None
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text (byte {error.start})"
        raise ConfigError([Problem(key="", message=message, fix="save it as UTF-8")], str(path)) from None
    except (ValueError, RecursionError) as error:
        message = f"not well-formed: {error}"
        raise ConfigError([Problem(key="", message=message)], str(path)) from None
    if not isinstance(data, dict):
        raise ConfigError([Problem(key="", message="expected a table of sections")], str(path))
    return data


def _deeper_than(data: Any, limit: int) -> bool:
    level = [data]
    for _ in range(limit):
        inner = [item.values() if isinstance(item, dict) else item for item in level]
        level = [item for items in inner for item in items if isinstance(item, (dict, list))]
    return bool(level)


def _neighbours(path: Path) -> list[Path]:
    try:
        return [file for file in path.parent.iterdir() if file.suffix in (".toml", ".json")]
    except OSError:
        return []


def _apply_override(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    path = _split_key(key)
    if not equals or not path:
        problem = Problem(key="--set", message=f"{override!r} is not key=value", fix="--set run.steps=50")
        raise ConfigError([problem])
    table = data
    for part in path[:-1]:
        below = table.setdefault(part, {})
        if not isinstance(below, dict):
            raise ConfigError([Problem(key=f"--set {key}", message=f"{part!r} is a value, not a table")])
        table = below
    table[path[-1]] = _parse_value(text)


def _split_key(key: str) -> list[str]:
    """Returns the parts of a dotted key, quotes allowed as in TOML."""
    try:
        node: Any = tomllib.loads(f"{key.strip()} = 0")
    except tomllib.TOMLDecodeError:
        return []
    parts = []
    while isinstance(node, dict):
        if len(node) != 1:  # a comment, or a line break in the key
            return []
        ((part, node),) = node.items()
        parts.append(part)
    return parts


def _parse_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text.strip()}")
    except (ValueError, RecursionError):
        return text.strip()
    return parsed["value"] if len(parsed) == 1 else text.strip()  # a line break would begin another key


def problems_of(error: ValidationError, model: type[BaseModel], prefix: str = "") -> list[Problem]:
    """Returns pydantic's errors as problems that name key, value, what was expected and what is near."""
    problems = []
    for detail in error.errors(include_url=False):
        key = ".".join(str(part) for part in (*([prefix] if prefix else []), *_visible(detail["loc"])))
        problems.append(_problem(key, detail, model))
    return problems


def _visible(location: Sequence[int | str]) -> list[int | str]:
    """Returns a location without the names that pydantic gives to union members and validators."""
    return [part for part in location if not (isinstance(part, str) and ("[" in part or "(" in part))]


def _problem(key: str, detail: Any, model: type[BaseModel]) -> Problem:
    location = detail["loc"]
    if detail["type"] == "extra_forbidden":
        known = _fields_at(model, location[:-1])
        return Problem(key=key, message="unknown key", fix=did_you_mean(str(location[-1]), known))
    if detail["type"] == "missing":
        return Problem(key=key, message="missing", fix=_description(model, location))
    message = detail["msg"].removeprefix("Value error, ")
    return Problem(key=key, message=f"{_short(detail.get('input'))} is not valid: {_lower(message)}")


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _short(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _model_at(model: type[BaseModel], location: Sequence[int | str]) -> type[BaseModel] | None:
    """Returns the model that stands at a location of another model."""
    found: type[BaseModel] | None = model
    annotation: Any = model
    for part in location:
        if found is not None and part in found.model_fields:
            annotation = found.model_fields[str(part)].annotation
        elif get_origin(annotation) in (dict, tuple, list, Mapping):
            annotation = get_args(annotation)[1 if get_origin(annotation) is dict else 0]
        found = _model_in(annotation)
    return found


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if get_origin(annotation) in (Union, UnionType):
        return next((found for arg in get_args(annotation) if (found := _model_in(arg))), None)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None


def _fields_at(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    found = _model_at(model, location)
    return list(found.model_fields) if found else []


def _description(model: type[BaseModel], location: Sequence[int | str]) -> str:
    found = _model_at(model, location[:-1])
    field = found.model_fields.get(str(location[-1])) if found else None
    return (field.description or "").split("\n")[0] if field else ""
