"""CPU seconds until something is on the screen."""

import sys

from tests.benchmarks.measuring import PTRL, cpu_seconds

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import ptrl.core": [sys.executable, "-c", "import ptrl.core"],
    "ptrl --help": [*PTRL, "--help"],
    "ptrl plugins": [*PTRL, "plugins"],
    "import torch": [sys.executable, "-c", "import torch"],
}


def main() -> None:
    """Prints the median of five runs of each command, and its multiple of an empty interpreter."""
    base = cpu_seconds(COMMANDS["python -c pass"])
    for name, command in COMMANDS.items():
        spent = cpu_seconds(command)
        print(f"{name:20} {spent:6.3f} CPU s   {spent / base:6.1f} × python -c pass")
