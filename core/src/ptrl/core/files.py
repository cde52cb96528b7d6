"""Atomic writing: a reader sees the old file or the new one, never half of one."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_bytes(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Writes a file atomically; `durable` waits until it would survive a power failure too."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    """Writes plain data as JSON, atomically. Numbers that JSON has not (NaN) become null."""
    write_bytes(path, (json.dumps(finite(data), indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace"))


def finite(data: Any) -> Any:
    """Returns plain data with NaN and infinities as None, since JSON has neither."""
    if isinstance(data, float):
        return data if data - data == 0 else None
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(value) for value in data]
    return data


def write_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Makes a folder atomically: `fill` writes into a temporary one, which then takes its name.

    One that has the name already steps aside first; `repair` brings it back after a kill between the two.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    temporary.mkdir(parents=True)
    try:
        fill(temporary)
        _sync(temporary)
        if path.exists():
            shutil.rmtree(_aside(path), ignore_errors=True)
            path.rename(_aside(path))
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        repair(path)


def repair(path: Path) -> None:
    """Brings back a folder that stepped aside for another which never came, or removes it if that did."""
    if path.exists():
        shutil.rmtree(_aside(path), ignore_errors=True)
    elif _aside(path).exists():
        _aside(path).rename(path)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _sync(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
