"""`use = "file:rewards.py:my_reward"`: code beside the config, only where the user allows it."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path

from ptrl.core.contracts import KINDS
from ptrl.core.contracts.hooks import describe
from ptrl.core.errors import PluginLoadError, UnknownNameError, did_you_mean
from ptrl.core.registry.loading import Loaded, check_class, from_function


class LocalCode:
    """Imports components from files, and remembers what it imported.

    Args:
        folder: Folder of the config, to which paths are relative.
        allowed: Whether the user passed `--allow-local-code`.
    """

    def __init__(self, folder: Path, allowed: bool) -> None:
        self.folder = folder
        self.allowed = allowed
        self.hashes: dict[str, str] = {}

    def load(self, kind: str, name: str) -> Loaded:
        """Imports `file:PATH:ATTRIBUTE`.

        Raises:
            RegistryError: When it is not allowed, not there, fails, or is no component of the kind.
        """
        if not self.allowed:
            raise PluginLoadError(f"{name} runs code beside the config — pass --allow-local-code to allow it")
        location, colon, attribute = name.removeprefix("file:").rpartition(":")
        if not colon or not attribute or not location:
            raise UnknownNameError(f"{name!r} is not of the form file:PATH:NAME")
        path = (self.folder / location).resolve()
        if not path.is_file():
            raise UnknownNameError(f"{name}: there is no file {path}")
        found = self._attribute(path, attribute, name)
        if kind == "rewards" and callable(found) and not isinstance(found, type):
            found = from_function(found)
        if kind not in KINDS:
            raise UnknownNameError(f"{kind} is not a kind of component")
        return Loaded(name=name, kind=kind, factory=check_class(kind, name, found), entry=None)

    def _attribute(self, path: Path, attribute: str, name: str) -> object:
        source = path.read_bytes()
        digest = hashlib.sha256(source).hexdigest()
        module_name = f"ptrl_local_{path.stem}_{digest[:12]}"
        module = sys.modules.get(module_name)
        if module is None:
            spec = importlib.util.spec_from_file_location(module_name, path)
            if spec is None:
                raise PluginLoadError(f"{name}: {path} is not a Python file")
            module = importlib.util.module_from_spec(spec)
            sys.modules[module_name] = module
            try:
                exec(compile(source, path, "exec"), vars(module))  # the loader may take older bytecode than was hashed
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                del sys.modules[module_name]
                raise PluginLoadError(f"{name}: {path} cannot be imported: {describe(error)}") from error
        self.hashes[str(path)] = digest
        if not hasattr(module, attribute):
            known = [key for key in vars(module) if not key.startswith("_")]
            raise UnknownNameError(f"{path} has no {attribute!r}; {did_you_mean(attribute, known)}")
        found: object = getattr(module, attribute)
        return found
