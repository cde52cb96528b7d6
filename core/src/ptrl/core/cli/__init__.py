"""The command line `ptrl`. Each command imports what it needs when it is called, and nothing before."""

from __future__ import annotations


def main() -> None:
    """Runs the command line of this process."""
    import sys

    from ptrl.core.cli.application import app
    from ptrl.core.text import encodable

    encodable(sys.stdout, sys.stderr)
    app(prog_name="ptrl")
