"""What an installation brings: distributions and megabytes, each in a fresh folder, ours beside peers'."""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.measuring import ROOT

PEERS = ("skyrl-gym", "verifiers")


def measure(requirement: str, *options: str) -> str:
    """Installs a distribution with all it needs, and returns what came."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run(
            [*command, "--target", folder, *options, requirement], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return f"could not be installed: {done.stderr.strip().splitlines()[-1][:120]}"
        count = len(list(Path(folder).glob("*.dist-info")))
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    return f"{count:3} distributions, {size / 1e6:6.1f} MB"


def main() -> None:
    """Prints core's footprint and the peers'."""
    print(f"{'ptrl-core':12} {measure(str(ROOT / 'core'), '-c', str(ROOT / 'constraints.txt'))}", flush=True)
    for peer in PEERS:
        print(f"{peer:12} {measure(peer)}", flush=True)
