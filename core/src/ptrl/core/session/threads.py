"""Threads for calls that block: one that hangs is left behind at its deadline, and its thread is replaced."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class Call:
    """One call, from when it is submitted.

    Args:
        function: What is called; it must not raise.
        late: Is given the value if it comes after the deadline, in the call's own thread.
    """

    function: Callable[[], Any]
    late: Callable[[Any], object]
    value: Any = None
    start: float = 0.0
    begun: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    abandoned: bool = False


class Threads:
    """Daemon threads, made as they are needed: none that hangs keeps others waiting, or the process from ending.

    Args:
        limit: Most threads at work at a time, those left behind not counted; 4 more than CPUs by default.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit or (os.cpu_count() or 1) + 4
        self._waiting: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._count = 0
        self._idle = 0

    def submit(self, function: Callable[[], Any], late: Callable[[Any], object]) -> Call:
        """Queues a call; the queue is first in, first out."""
        call = Call(function, late)
        with self._lock:
            self._waiting.put(call)
            if self._idle:
                self._idle -= 1
            else:
                self._add_thread()
        return call

    def result(self, call: Call, timeout: float) -> Any:
        """Returns a call's value.

        Raises:
            TimeoutError: When it is not done `timeout` seconds after it was begun; it is then left behind.
        """
        call.begun.wait()
        if not call.ended.wait(max(0.0, call.start + timeout - time.monotonic())):
            with self._lock:
                if not call.ended.is_set():
                    call.abandoned = True
                    self._count -= 1
                    self._add_thread()
                    raise TimeoutError
        return call.value

    def close(self) -> None:
        """Ends the threads that have nothing to do."""
        with self._lock:
            for _ in range(self._count):
                self._waiting.put(None)

    def _add_thread(self) -> None:
        if self._count < self._limit:
            self._count += 1
            threading.Thread(target=self._work, name="ptrl-environment", daemon=True).start()

    def _work(self) -> None:
        while (call := self._waiting.get()) is not None:
            call.start = time.monotonic()
            call.begun.set()
            call.value = call.function()
            with self._lock:
                call.ended.set()
                if not call.abandoned:
                    self._idle += self._waiting.empty()
                    continue
            call.late(call.value)
            return
