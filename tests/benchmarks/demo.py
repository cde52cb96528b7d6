"""The demo over three seeds: what it reaches, with the spread, and how long it takes; then from scratch."""

import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from tests.benchmarks.measuring import PTRL, ROOT

SEEDS = (1, 2, 3)


def train(seed: int, overrides: Sequence[str] = (), config: str = "examples/quickstart.toml") -> Path:
    """Runs a config quietly in a temporary folder and returns the run folder, which stays."""
    folder = Path(tempfile.mkdtemp(prefix="ptrl-bench-")) / "run"
    settings = [f"run.seed={seed}", *overrides]
    command = [*PTRL, "train", config, "--folder", str(folder)]
    command += [part for setting in settings for part in ("--set", setting)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    return folder


def show(name: str, run: Path, seconds: float) -> dict[str, float]:
    """Prints what a run reached, and returns its means."""
    summary = json.loads((run / "summary.json").read_text())
    before, after = summary["before"]["greedy"], summary["after"]["greedy"]
    changes = "  ".join(f"{key} {before[key]:.0%} -> {after[key]:.0%}" for key in after)
    print(f"{name}: {changes}  in {seconds:.0f} s", flush=True)
    worse = [key for key in after if after[key] <= before[key]]
    if worse:
        print(f"{name}: NOT BETTER: {', '.join(worse)}", flush=True)
    return {"before": before["mean"], "after": after["mean"], "seconds": seconds}


def main() -> None:
    """Prints each seed's held-out accuracy before and after (greedy), and the spread."""
    rows = []
    for seed in SEEDS:
        begin = time.perf_counter()
        run = train(seed)
        rows.append(show(f"seed {seed}", run, time.perf_counter() - begin))
    for key in ("before", "after", "seconds"):
        values = [row[key] for row in rows]
        print(f"{key}: mean {fmean(values):.3g}, from {min(values):.3g} to {max(values):.3g}")
    begin = time.perf_counter()
    warm = train(0, config="examples/warmup.toml")
    run = train(1, overrides=[f"model.path={warm / 'model'}"])
    show("from scratch (warm-up included)", run, time.perf_counter() - begin)
