"""One pluggy manager per kind, and the one labelled, isolated loop through which every hook is called."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pluggy

from ptrl.core.contracts.component import Component, HookOptions
from ptrl.core.errors import ContractError, did_you_mean, nearest

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True, slots=True)
class HookResult:
    """What one implementation gave back: a value, or the exception it raised."""

    label: str
    hook: str
    value: Any = None
    error: BaseException | None = None

    def unwrap(self) -> Any:
        """Returns the value, or raises a ContractError that names the component and the hook."""
        if self.error is None:
            return self.value
        raise ContractError(f"{self.label}: {self.hook} raised {describe(self.error)}") from self.error


def describe(error: BaseException) -> str:
    """Returns `Type: text` of an exception, also of one whose `__str__` fails."""
    try:
        text = str(error)
    except Exception as failure:
        text = f"<no text: its __str__ raised {type(failure).__name__}>"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class Contract(pluggy.PluginManager):
    """The components of one kind in one session, registered under their config paths.

    The kind's methods are the hook specifications. A component implements a hook by overriding the
    method; there is no marker to forget. `self.hook` is never called directly, since its first exception
    would abort the rest and its results carry no label: use `call` and `call_each`.

    Args:
        kind: A base class such as `Reward`.
    """

    def __init__(self, kind: type[Component]) -> None:
        super().__init__("ptrl")
        self.kind = kind
        self.add_hookspecs(kind)

    def parse_hookspec_opts(self, module_or_class: Any, name: str) -> Any:
        """Answers pluggy: a marked method of the kind is a specification."""
        method = inspect.getattr_static(module_or_class, name, None)
        return {} if isinstance(getattr(method, "__ptrl_hook__", None), HookOptions) else None

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        """Answers pluggy: a method that overrides a specification is an implementation."""
        specification = inspect.getattr_static(self.kind, name, None)
        if not hasattr(specification, "__ptrl_hook__"):
            return None
        return None if inspect.getattr_static(type(plugin), name) is specification else {}

    def add(self, label: str, component: Component) -> None:
        """Registers a component under its config path.

        Raises:
            ContractError: When a hook is missing, misspelt, or has arguments its kind does not give.
        """
        if not isinstance(component, self.kind):
            raise ContractError(
                f"{label}: {type(component).__name__} is not a {self.kind.__name__};"
                f" subclass ptrl.core.{self.kind.__name__}"
            )
        self.check_class(label, type(component))
        try:
            self.register(component, name=label)
        except pluggy.PluginValidationError as error:
            raise ContractError(f"{label}: {error}") from error

    def hook_names(self) -> list[str]:
        """Returns the names of the kind's hooks."""
        names = [name for name in dir(self.kind) if not name.startswith("_")]
        return [name for name in names if hasattr(getattr(self.kind, name), "__ptrl_hook__")]

    def check_class(self, label: str, component: type[Component]) -> None:
        """Refuses a class whose hooks pluggy would let pass and never call, or call wrongly.

        Raises:
            ContractError: When a required hook is missing or misspelt, or its arguments do not fit.
        """
        for name in self.hook_names():
            specification = getattr(self.kind, name)
            options: HookOptions = specification.__ptrl_hook__
            if getattr(component, name) is not specification:
                self._check_arguments(label, component, name)
            elif options.required:
                raise ContractError(self._missing(label, component, name))

    def _check_arguments(self, label: str, component: type[Component], name: str) -> None:
        where = f"{label}: {component.__name__}.{name}"
        method = inspect.getattr_static(component, name)
        if not inspect.isfunction(method):
            raise ContractError(f"{where} is not a method")
        given = list(inspect.signature(getattr(self.kind, name)).parameters)[1:]
        for parameter in list(inspect.signature(method).parameters.values())[1:]:
            if parameter.kind is parameter.KEYWORD_ONLY:
                raise ContractError(
                    f"{where} has the keyword-only argument {parameter.name!r};"
                    " hooks are called by position, so remove the `*`"
                )
            positional = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            if positional and parameter.default is parameter.empty and parameter.name not in given:
                raise ContractError(
                    f"{where} asks for {parameter.name!r}, which {self.kind.__name__}.{name}"
                    f" does not give; {did_you_mean(parameter.name, given)}"
                )

    def _missing(self, label: str, component: type[Component], name: str) -> str:
        own = [key for key, value in vars(component).items() if inspect.isfunction(value)]
        near = nearest(name, own, count=1)
        hint = f"; is its {near[0]!r} a misspelling?" if near else ""
        signature = inspect.signature(getattr(self.kind, name))
        return f"{label}: {component.__name__} has no {name}{signature}{hint}"

    def call(self, label: str, hook: str, *, timeout: float | None = None, **arguments: Any) -> HookResult:
        """Calls one component's hook; the kind's own default where it does not override it.

        What it awaits is cancelled after `timeout` seconds.
        """
        component = self.get_plugin(label)
        if component is None:
            raise ContractError(f"no component is registered as {label!r}")
        for implementation in getattr(self.hook, hook).get_hookimpls():
            if implementation.plugin_name == label:
                return _call(label, hook, implementation.function, implementation.argnames, arguments, timeout)
        return _call(label, hook, getattr(component, hook), tuple(arguments), arguments, timeout)

    def call_each(self, hook: str, **arguments: Any) -> list[HookResult]:
        """Calls a hook of every component that implements it, in order of registration."""
        implementations = getattr(self.hook, hook).get_hookimpls()
        return [
            _call(implementation.plugin_name, hook, implementation.function, implementation.argnames, arguments)
            for implementation in implementations
        ]

    def components(self) -> Iterator[tuple[str, Component]]:
        """Yields each label with its component, in order of registration."""
        for label, component in self.list_name_plugin():
            yield label, cast(Component, component)


def _call(
    label: str,
    hook: str,
    function: Any,
    names: tuple[str, ...],
    arguments: dict[str, Any],
    timeout: float | None = None,
) -> HookResult:
    try:
        value = function(*[arguments[name] for name in names if name in arguments])
        return HookResult(label, hook, resolve(value, timeout))
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        return HookResult(label, hook, error=error)


def resolve(value: Any, timeout: float | None = None) -> Any:
    """Returns a value, awaiting it first if it is awaitable; from any thread.

    Everything awaited in a process runs on one background event loop, so that a component can keep its
    connections between calls.

    Raises:
        TimeoutError: When it is awaitable and not done after `timeout` seconds; it is then cancelled.
    """
    if not inspect.isawaitable(value):
        return value

    import asyncio  # slow to import, and most runs await nothing

    async def wait() -> Any:
        return await asyncio.wait_for(value, timeout)

    return asyncio.run_coroutine_threadsafe(wait(), _background_loop()).result()


@functools.cache
def _background_loop() -> asyncio.AbstractEventLoop:
    import asyncio

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="ptrl-event-loop", daemon=True).start()
    return loop
