"""`make bench`: measures what the README and the issues state, each figure with the command that gives it.

Usage: python -m tests.benchmarks [NAME ...]; without a name, all of them.
"""

import importlib
import sys

NAMES = ("startup", "footprint", "overhead", "demo")


def main(names: list[str]) -> int:
    """Runs the named benchmarks, one after another."""
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        print(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    for name in names or NAMES:
        print(f"== {name}", flush=True)
        importlib.import_module(f"tests.benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
