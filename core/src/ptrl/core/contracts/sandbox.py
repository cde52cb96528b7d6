"""Sandboxes run untrusted programs. Nothing a program says is more than its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from ptrl.core.contracts.component import Component, hook

ResultStatus = Literal[
    "ok",
    "error",
    "cpu_limit",
    "timeout",
    "memory",
    "output_limit",
    "file_limit",
    "signal",
    "compile_error",
    "sandbox_error",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one program may use. CPU time is the primary limit, wall time a lax backstop.

    Args:
        cpu_seconds: CPU time of all its processes.
        wall_seconds: Time until it is killed.
        memory_bytes: Memory over the interpreter's own.
        output_bytes: Standard output and standard error, each.
        file_bytes: All files it writes.
        processes: Processes and threads at a time.
    """

    cpu_seconds: float = 5.0
    wall_seconds: float = 20.0
    memory_bytes: int = 512 * 1024 * 1024
    output_bytes: int = 64 * 1024
    file_bytes: int = 16 * 1024 * 1024
    processes: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a program ended.

    Args:
        status: `sandbox_error` is the sandbox's own failure and never the candidate's.
        exit_code: The program's exit code; None when it was killed.
        signal: The signal that ended it, or None.
        stdout: Standard output, up to the limit.
        stderr: Standard error, up to the limit.
        stdout_bytes: Size of standard output before truncation, as far as it was read.
        stderr_bytes: Size of standard error before truncation, as far as it was read.
        cpu_user_seconds: User CPU time.
        cpu_system_seconds: System CPU time.
        wall_seconds: Wall time.
        peak_memory_bytes: Peak memory over the baseline.
        processes_killed: Processes left over and killed.
        limits: The limits that applied.
        layers: Isolation layers that held.
        retries: Attempts that an infrastructure failure cost before this one.
        detail: The reason in words, for people.
    """

    status: ResultStatus
    exit_code: int | None = None
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    cpu_user_seconds: float = 0.0
    cpu_system_seconds: float = 0.0
    wall_seconds: float = 0.0
    peak_memory_bytes: int = 0
    processes_killed: int = 0
    limits: Limits = field(default_factory=Limits)
    layers: tuple[str, ...] = ()
    retries: int = 0
    detail: str = ""

    @property
    def out(self) -> str:
        """Standard output as text; undecodable bytes are replaced."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def err(self) -> str:
        """Standard error as text; undecodable bytes are replaced."""
        return self.stderr.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """What one call gave back: plain data, or the reason there is none."""

    status: ResultStatus
    value: Any = None
    detail: str = ""


class Sandbox(Component):
    """Runs untrusted programs in isolation. Methods may be called from many threads and may be async."""

    kind: ClassVar[str] = "sandboxes"

    @hook(required=True)
    def run(
        self,
        program: str,
        language: str,
        stdin: bytes,
        files: Mapping[str, bytes],
        limits: Limits,
    ) -> Result:
        """Runs a program once and returns how it ended; never raises for what the program did."""
        raise NotImplementedError

    @hook(required=True)
    def call(self, program: str, function: str, calls: Sequence[Sequence[Any]], limits: Limits) -> Sequence[Value]:
        """Calls a function of the program with each list of arguments, in one child; one value per call."""
        raise NotImplementedError
