"""JSON lines by byte offset: a file is read through once, and its texts are not kept."""

import glob
import gzip
import json
import os
import re
import shutil
import tempfile
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ptrl_plugin_datasets.errors import DataSetError

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

MAXIMUM_LINE_BYTES = 64 * 1024 * 1024
"""A longer line is an error: nothing that long is one task."""


def expand(pattern: str) -> list[Path]:
    """Returns the files that a path or glob names, sorted.

    Raises:
        DataSetError: When there is none.
    """
    found = sorted(Path(path) for path in glob.glob(pattern, recursive=True))  # noqa: PTH207 - may be absolute
    files = [path for path in found if path.is_file()]
    if files:
        return files
    folder = Path(pattern).parent
    near = sorted(path.name for path in folder.glob("*.jsonl*"))[:5] if folder.is_dir() else []
    hint = f"; {folder} has {', '.join(near)}" if near else f"; paths are relative to {Path.cwd()}"
    raise DataSetError(f"path: there is no file {pattern}{hint}")


class LineFile:
    """One `.jsonl` or `.jsonl.gz` file, read line by line and then by offset.

    A compressed file is unpacked once into an unnamed temporary file, since it cannot be read by offset.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    def lines(self) -> Iterator[tuple[int, int, bytes]]:
        """Yields the number (from 1), byte offset and content of each line that is not blank.

        Raises:
            DataSetError: When the file cannot be read, or a line is too long.
        """
        offset, number = 0, 0
        try:
            with self._open() as file:
                while line := file.readline(MAXIMUM_LINE_BYTES + 1):
                    number += 1
                    if len(line) > MAXIMUM_LINE_BYTES:
                        raise DataSetError(f"{self.path}, line {number}: longer than {MAXIMUM_LINE_BYTES} bytes")
                    if line.strip():
                        yield number, offset, line
                    offset += len(line)
        except (OSError, EOFError, zlib.error) as error:
            raise DataSetError(f"{self.path}: cannot be read: {error}") from None

    def _open(self) -> BinaryIO:
        if self.path.suffix != ".gz":
            return self.path.open("rb")
        return self._unpacked()

    def _unpacked(self) -> BinaryIO:
        unpacked = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
        with gzip.open(self.path, "rb") as packed:
            shutil.copyfileobj(packed, unpacked)
        unpacked.seek(0)
        self._descriptor = os.dup(unpacked.fileno())
        return unpacked

    def read(self, offset: int, size: int) -> bytes:
        """Returns bytes at an offset. Safe from several threads."""
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, os.O_RDONLY)
        return os.pread(self._descriptor, size, offset)

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def parse(line: bytes, where: str) -> dict[str, Any]:
    """Returns a line's object.

    Raises:
        DataSetError: When it is not UTF-8, not JSON, or no object.
    """
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataSetError(f"{where}: not UTF-8 (byte {error.start} of the line)") from None
    except (ValueError, RecursionError) as error:
        raise DataSetError(f"{where}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise DataSetError(f"{where}: a {type(row).__name__}; expected an object such as {{...}}")
    if _SURROGATE.search(line) and not _encodable(row):
        raise DataSetError(f"{where}: half of a surrogate pair (\\ud800 to \\udfff), which no tokenizer takes")
    return row


def _encodable(row: dict[str, Any]) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def unique_names(paths: Sequence[Path]) -> list[str]:
    """Returns a short name for each file: its own, or its path where two files have the same."""
    repeated = {name for name, count in Counter(path.name for path in paths).items() if count > 1}
    return [path.as_posix() if path.name in repeated else path.name for path in paths]


class Rows:
    """Chosen lines of some files, read back by number.

    Args:
        files: The files.
    """

    def __init__(self, files: list[LineFile]) -> None:
        self._files = files
        self._names = unique_names([file.path for file in files])
        self._file = array("i")
        self._line = array("q")
        self._offset = array("q")
        self._size = array("q")

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._offset)

    def add(self, file: int, line: int, offset: int, size: int) -> None:
        """Adds a line of a file."""
        self._file.append(file)
        self._line.append(line)
        self._offset.append(offset)
        self._size.append(size)

    def keep(self, numbers: list[int]) -> "Rows":
        """Returns some of the rows."""
        kept = Rows(self._files)
        for number in numbers:
            kept.add(self._file[number], self._line[number], self._offset[number], self._size[number])
        return kept

    def where(self, number: int) -> str:
        """Returns a row's file and line, for messages and keys."""
        return f"{self._files[self._file[number]].path}, line {self._line[number]}"

    def name(self, number: int) -> str:
        """Returns a short unique name of a row: its file's name and line."""
        return self.name_of(self._file[number], self._line[number])

    def name_of(self, file: int, line: int) -> str:
        """Returns the name that a line of a file has."""
        return f"{self._names[file]}:{line}"

    def read(self, number: int) -> dict[str, Any]:
        """Returns a row's object."""
        file = self._files[self._file[number]]
        return parse(file.read(self._offset[number], self._size[number]), self.where(number))
