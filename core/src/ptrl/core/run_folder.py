"""The run folder: what a run leaves behind, written so that nothing is lost to a kill at any moment.

```
config.json            the resolved config
lock.json              what was installed
metrics.jsonl          one line per step
evaluations.jsonl      one line per evaluation
rollouts/              step-000001.jsonl.gz ...: the versioned rollout schema
checkpoints/           step-000050/: model, optimizer and coordinator; the newest few
model/                 the trained policy, as `from_pretrained` loads it
tasks/                 spooled task sources
summary.json           before and after by domain, seconds, versions
report.html            the page to open
```
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ptrl.core.errors import RunFolderError
from ptrl.core.files import repair, write_bytes, write_folder, write_json

CHECKPOINT_FORMAT = 1


class RunFolder:
    """Paths of a run folder, and its checkpoints.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.lock = path / "lock.json"
        self.metrics = path / "metrics.jsonl"
        self.evaluations = path / "evaluations.jsonl"
        self.rollouts = path / "rollouts"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self.summary = path / "summary.json"
        self.report = path / "report.html"

    @classmethod
    def create(cls, base: Path, name: str) -> RunFolder:
        """Makes a new folder `base/name`, or `base/name-2` and so on where that is taken.

        Raises:
            RunFolderError: When it cannot be made.
        """
        number = 1 + max((number for number, _ in _numbered(base, name)), default=0)
        while True:
            path = base / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir(parents=True)
                return cls(path)
            except FileExistsError:
                number += 1
            except OSError as error:
                raise RunFolderError(f"{path} cannot be made: {error.strerror}") from None

    @classmethod
    def latest(cls, base: Path, name: str) -> RunFolder | None:
        """Returns the newest folder that holds a run of a name, or None."""
        folders = [cls(path) for _, path in sorted(_numbered(base, name), reverse=True)]
        return next((folder for folder in folders if folder._run_name() == name), None)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Opens an existing folder.

        Raises:
            RunFolderError: When it is no run folder.
        """
        if not (path / "config.json").is_file():
            raise RunFolderError(f"{path} is not a run folder: it has no config.json")
        return cls(path)

    def _run_name(self) -> str | None:
        """Returns the name of the run in it; None when it was killed before its config was written."""
        try:
            name: str = json.loads(self.config.read_text(encoding="utf-8"))["run"]["name"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return name

    def repair(self) -> None:
        """Takes up what a kill interrupted, before a run goes on: nothing else may write here meanwhile."""
        repair(self.model)
        for path in self.checkpoints.glob(".step-*"):
            if path.suffix == ".old":
                repair(path.with_name(path.name[1:].removesuffix(".old")))
            else:
                shutil.rmtree(path, ignore_errors=True)

    def read_json(self, path: Path) -> Any:
        """Reads one of the folder's JSON files.

        Raises:
            RunFolderError: When it is missing or not JSON.
        """
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunFolderError(f"{path} is missing; is the run finished?") from None
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{path} cannot be read: {error}") from None

    def save_checkpoint(self, step: int, state: Mapping[str, Any], save: Callable[[Path], None], keep: int) -> None:
        """Saves a checkpoint atomically, then removes all but the newest `keep`.

        Args:
            step: Number of steps done.
            state: The session's state as plain data; bytes are allowed.
            save: Writes the optimizer's part into a folder.
            keep: How many checkpoints stay.
        """

        def fill(folder: Path) -> None:
            save(folder)
            data = {"format": CHECKPOINT_FORMAT, "step": step, "state": _encode(state)}
            write_bytes(folder / "session.json", json.dumps(data).encode())

        self.checkpoints.mkdir(exist_ok=True)
        write_folder(self.checkpoints / f"step-{step:06d}", fill)
        for old in self._checkpoint_folders()[:-keep]:
            shutil.rmtree(old, ignore_errors=True)

    def _checkpoint_folders(self) -> list[Path]:
        found = [path for path in self.checkpoints.glob("step-*") if (path / "session.json").is_file()]
        return sorted(found, key=lambda path: (len(path.name), path.name))  # a millionth step has 7 digits

    def latest_checkpoint(self) -> Path | None:
        """Returns the newest checkpoint's folder, or None."""
        folders = self._checkpoint_folders()
        return folders[-1] if folders else None

    def publish_model(self) -> None:
        """Copies the newest checkpoint's policy to `model/`, atomically; does nothing where there is none."""
        checkpoint = self.latest_checkpoint()
        if checkpoint is not None and (checkpoint / "model").is_dir():
            source = checkpoint / "model"
            write_folder(self.model, lambda folder: _copy_tree(source, folder))

    def trained_model(self) -> Path:
        """Returns the folder of the trained policy: of a finished run, or of its newest checkpoint.

        Raises:
            RunFolderError: When nothing has been saved yet.
        """
        checkpoint = self.latest_checkpoint()
        for path in (self.model, checkpoint / "model" if checkpoint else None):
            if path is not None and path.is_dir():
                return path
        raise RunFolderError(f"{self.path} has no model yet; it is saved with the first checkpoint")

    def load_session_state(self, checkpoint: Path) -> tuple[int, dict[str, Any]]:
        """Returns a checkpoint's step and session state.

        Raises:
            RunFolderError: When it cannot be read, or has another format.
        """
        try:
            data = json.loads((checkpoint / "session.json").read_text(), object_hook=_decode)
            found = data["format"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunFolderError(f"{checkpoint} cannot be read: {type(error).__name__}: {error}") from None
        if found != CHECKPOINT_FORMAT:
            raise RunFolderError(f"{checkpoint} has checkpoint format {found}; this ptrl reads {CHECKPOINT_FORMAT}")
        return data["step"], data["state"]

    def write_config(self, config: Mapping[str, Any], lock: Mapping[str, Any]) -> None:
        """Writes the resolved config and the lock."""
        write_json(self.lock, lock)
        write_json(self.config, config)


def _copy_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


def _numbered(base: Path, name: str) -> list[tuple[int, Path]]:
    """Returns the folders that `create` may have made for a name, by their number."""
    found = [(1, base / name)] if (base / name).exists() else []
    for path in base.glob(f"{name}-*"):
        number = path.name.removeprefix(f"{name}-")
        if number.isdecimal():
            found.append((int(number), path))
    return found


def _encode(value: Any) -> Any:
    """Returns plain data as JSON has it. Mappings whose keys are not text and bytes are marked by a `$` key."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _encode(item) for key, item in value.items()}
        return {"$pairs": [[_encode(key), _encode(item)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_encode(item) for item in value]
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    raise TypeError(
        f"{type(value).__name__} is not plain data; state_dict returns numbers, text, lists, mappings and bytes"
    )


def _decode(data: dict[str, Any]) -> Any:
    match data:
        case {"$bytes": text}:
            return base64.b64decode(text)
        case {"$pairs": pairs}:
            return {tuple(key) if isinstance(key, list) else key: item for key, item in pairs}
    return data
