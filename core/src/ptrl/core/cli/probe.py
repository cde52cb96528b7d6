"""Importing a component in a process of its own, so that one that hangs or crashes takes nothing down.

`python -P -m ptrl.core.cli.probe KIND NAME` prints the failure as a JSON string, empty when there is none.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

TIMEOUT = 120.0
"""Seconds that one import may take."""

PROCESSES = 2
"""Imports at a time: torch alone takes half a gigabyte."""


def probe_all(entries: Sequence[tuple[str, str]]) -> list[str]:
    """Returns, for each kind and name, why it cannot be imported; empty where it can."""
    with ThreadPoolExecutor(PROCESSES) as threads:
        return list(threads.map(lambda entry: probe(*entry), entries))


def probe(kind: str, name: str, timeout: float = TIMEOUT) -> str:
    """Imports one component in a process of its own and returns why it cannot be; empty when it can."""
    command = [sys.executable, "-P", "-m", "ptrl.core.cli.probe", kind, name]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return f"its import took longer than {timeout:g} s — report it to the plugin's author"
    try:
        return str(json.loads(done.stdout))
    except ValueError:
        return f"its import ended the process ({_ending(done.returncode)}) — report it to the plugin's author"


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def _failure_of(kind: str, name: str) -> str:
    from ptrl.core.cli.group import load_plugin_command
    from ptrl.core.errors import PtrlError
    from ptrl.core.registry import scan
    from ptrl.core.registry.entries import COMMANDS
    from ptrl.core.registry.loading import load

    try:
        if kind == COMMANDS:
            load_plugin_command(next(one for one in scan()[1] if (one.kind, one.name) == (kind, name)))
        else:
            load(kind, name)
    except PtrlError as error:
        return str(error)
    return ""


def main(kind: str, name: str) -> None:
    """Imports one component, with everything that it prints thrown away, and prints the failure."""
    answer = os.fdopen(os.dup(1), "w")
    with open(os.devnull, "w") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 1)
    json.dump(_failure_of(kind, name), answer)
    answer.close()
    os._exit(0)  # threads that the plugin began must not keep the process


if __name__ == "__main__":
    main(*sys.argv[1:3])
