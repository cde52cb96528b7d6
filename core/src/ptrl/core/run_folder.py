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
from ptrl.core.files import write_bytes, write_folder, write_json

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
        number = 1
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
        """Returns the newest folder that `create` made for a name, or None."""
        found, number = None, 1
        while (path := base / (name if number == 1 else f"{name}-{number}")).is_dir():
            found, number = cls(path), number + 1
        return found

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Opens an existing folder.

        Raises:
            RunFolderError: When it is no run folder.
        """
        if not (path / "config.json").is_file():
            raise RunFolderError(f"{path} is not a run folder: it has no config.json")
        return cls(path)

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
            data = {"format": CHECKPOINT_FORMAT, "step": step, "state": state}
            write_bytes(folder / "session.json", json.dumps(data, default=_encode).encode())

        self.checkpoints.mkdir(exist_ok=True)
        write_folder(self.checkpoints / f"step-{step:06d}", fill)
        for old in self._checkpoint_folders()[:-keep]:
            shutil.rmtree(old, ignore_errors=True)

    def _checkpoint_folders(self) -> list[Path]:
        found = self.checkpoints.glob("step-*")
        return sorted(path for path in found if (path / "session.json").is_file())

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
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{checkpoint} cannot be read: {error}") from None
        if data.get("format") != CHECKPOINT_FORMAT:
            raise RunFolderError(
                f"{checkpoint} has checkpoint format {data.get('format')}; this ptrl reads {CHECKPOINT_FORMAT}"
            )
        return data["step"], data["state"]

    def write_config(self, config: Mapping[str, Any], lock: Mapping[str, Any]) -> None:
        """Writes the resolved config and the lock."""
        write_json(self.lock, lock)
        write_json(self.config, config)


def _copy_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


def _encode(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    raise TypeError(f"{type(value).__name__} is not plain data; state_dict returns numbers, text, lists and bytes")


def _decode(data: dict[str, Any]) -> Any:
    if set(data) == {"$bytes"}:
        return base64.b64decode(data["$bytes"])
    return data
