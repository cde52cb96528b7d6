"""What benchmarks share: CPU time of child processes, and where the project is."""

import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PTRL = [sys.executable, "-m", "ptrl.core.cli"]


def cpu_seconds(command: Sequence[str], repeat: int = 5) -> float:
    """Returns the median user and system CPU seconds of a command and its children."""
    spent = []
    for _ in range(repeat):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=os.environ)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return sorted(spent)[len(spent) // 2]
