"""Atomic writing: a reader sees the old file or the new one, never half of one."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file atomically and durably."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
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
    """Makes a folder atomically: `fill` writes into a temporary one, which then takes its name."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    temporary.mkdir(parents=True)
    try:
        fill(temporary)
        _sync(temporary)
        if path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sync(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
