"""What every kind has in common: options, life cycle, and methods that are hook specifications."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class HookOptions:
    """How a method of a kind is specified."""

    required: bool = False


def hook(*, required: bool = False) -> Callable[[Function], Function]:
    """Marks a method of a kind as a hook specification; authors override it and write no marker."""

    def mark(function: Function) -> Function:
        function.__ptrl_hook__ = HookOptions(required)  # type: ignore[attr-defined]
        return function

    return mark


class Component:
    """Base of every kind. Authors subclass a kind (`Reward`, `Environment`, ...), not this class.

    A component is built by core as `cls(config)`. `__init__` does no heavy work; `setup` loads models
    and opens connections, once per process, and `close` ends them.
    """

    kind: ClassVar[str]
    """The entry-point group without `ptrl.`, such as `rewards`."""

    version: ClassVar[int] = 1
    """Bump it when learning results may change; a config may assert it."""

    class Config(BaseModel):
        """Options, declared as pydantic fields; `Field(description=...)` is their documentation."""

        # a config.json holds no infinity
        model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    config: Any

    def __init__(self, config: BaseModel | None = None) -> None:
        self.config = self.Config() if config is None else config

    @hook()
    def setup(self) -> None:
        """Loads models and opens connections. Called once per process, before any other hook."""

    @hook()
    def close(self) -> None:
        """Ends what `setup` began. Called once, also after a failure."""
