"""One pluggy manager per kind, and the one labelled, isolated loop through which every hook is called."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pluggy

from ptrl.core.contracts.component import Component, HookOptions
from ptrl.core.errors import ContractError, did_you_mean, nearest

if TYPE_CHECKING:
    import asyncio

LOOP_THREAD = "ptrl-event-loop"
GRACE = 1.0
"""Seconds that a deadline waits for the loop itself, which a component that blocks may hold up."""

THREADS = 64
"""Calls that block, such as environments' steps, that async code may wait for at a time."""


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
        parameters = list(inspect.signature(method).parameters.values())[1:]
        variadic = [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if given and variadic and not {parameter.name for parameter in parameters} & set(given):
            raise ContractError(
                f"{where} names none of its arguments ({', '.join(given)}), and only those that are named are given;"
                " name them, or keep them with functools.wraps where it is decorated"
            )
        for parameter in parameters:
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
        return self.begin(label, hook, timeout=timeout, **arguments)()

    def begin(
        self, label: str, hook: str, *, timeout: float | None = None, **arguments: Any
    ) -> Callable[[], HookResult]:
        """As `call`, but returns what waits for the result, so that async hooks run beside one another."""
        component = self.get_plugin(label)
        if component is None:
            raise ContractError(f"no component is registered as {label!r}")
        for implementation in getattr(self.hook, hook).get_hookimpls():
            if implementation.plugin_name == label:
                return _begin_call(label, hook, implementation, arguments, timeout)
        return _begin_guarded(label, hook, lambda: getattr(component, hook)(**arguments), timeout)

    def call_each(self, hook: str, **arguments: Any) -> list[HookResult]:
        """Calls a hook of every component that implements it, in order of registration."""
        implementations = getattr(self.hook, hook).get_hookimpls()
        return [
            _begin_call(implementation.plugin_name, hook, implementation, arguments)()
            for implementation in implementations
        ]

    def components(self) -> Iterator[tuple[str, Component]]:
        """Yields each label with its component, in order of registration."""
        for label, component in self.list_name_plugin():
            yield label, cast(Component, component)


def _begin_call(
    label: str,
    hook: str,
    implementation: pluggy.HookImpl,
    arguments: dict[str, Any],
    timeout: float | None = None,
) -> Callable[[], HookResult]:
    """Calls an implementation with the arguments that it names, those with a default included."""
    positional = [arguments[name] for name in implementation.argnames if name in arguments]
    named = {name: arguments[name] for name in implementation.kwargnames if name in arguments}
    return _begin_guarded(label, hook, lambda: implementation.function(*positional, **named), timeout)


def _begin_guarded(
    label: str, hook: str, function: Callable[[], Any], timeout: float | None
) -> Callable[[], HookResult]:
    began = _guarded(label, hook, lambda: _begin(function(), timeout))
    return lambda: began if began.error is not None else _guarded(label, hook, began.value)


def _guarded(label: str, hook: str, function: Callable[[], Any]) -> HookResult:
    try:
        return HookResult(label, hook, function())
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
        RuntimeError: When called by what runs on that loop, which would wait for itself.
    """
    return _begin(value, timeout)()


def _begin(value: Any, timeout: float | None) -> Callable[[], Any]:
    """Begins to await a value, and returns what waits for it."""
    if not inspect.isawaitable(value):
        return lambda: value
    if threading.current_thread().name == LOOP_THREAD:
        getattr(value, "close", lambda: None)()
        raise RuntimeError("what is async cannot wait for another component's async hook from inside; await it")

    import asyncio  # slow to import, and most runs await nothing

    async def outcome() -> tuple[Any, BaseException | None]:
        try:
            return await value, None
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # as data: a SystemExit that leaves a task ends the loop
            return None, error

    async def wait() -> tuple[Any, BaseException | None]:
        task = asyncio.ensure_future(outcome())
        done, _ = await asyncio.wait({task}, timeout=timeout)
        if not done:  # not waited for any longer, since it may refuse to be cancelled
            task.cancel()
            raise TimeoutError(f"not done after {timeout} s")
        return task.result()

    future = asyncio.run_coroutine_threadsafe(wait(), _background_loop())

    def finish() -> Any:
        try:
            found, error = future.result(None if timeout is None else timeout + GRACE)
        except TimeoutError:
            future.cancel()
            raise
        if error is not None:
            raise error
        return found

    return finish


@functools.cache
def _background_loop() -> asyncio.AbstractEventLoop:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    loop = asyncio.new_event_loop()
    loop.set_default_executor(ThreadPoolExecutor(THREADS))
    threading.Thread(target=_run_always, args=(loop,), name=LOOP_THREAD, daemon=True).start()
    return loop


def _run_always(loop: asyncio.AbstractEventLoop) -> None:
    """Runs a loop on, also when a task that a component began raises SystemExit through it."""
    while not loop.is_closed():
        with contextlib.suppress(BaseException):
            loop.run_forever()
