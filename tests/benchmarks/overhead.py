"""Share of a step that scoring and bookkeeping take, from the metrics of a run of the demo."""

import json
from pathlib import Path
from statistics import median

from tests.benchmarks.demo import train

PHASES = ("generation", "update", "scoring", "bookkeeping")


def shares(run: Path) -> dict[str, float]:
    """Returns the median share of a step of each phase."""
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [(step["seconds"], {phase: step.get(f"seconds/{phase}", 0.0) for phase in PHASES}) for step in steps]
    return {phase: median(spent[phase] / whole for whole, spent in rows) for phase in PHASES}


def main() -> None:
    """Trains forty steps of the demo and prints each phase's share."""
    run = train(seed=1, overrides=["run.steps=40", "evaluation.tasks=10", "evaluation.every=0"])
    found = shares(run)
    print("  ".join(f"{phase} {share:.1%}" for phase, share in found.items()))
    print(f"scoring and bookkeeping together: {found['scoring'] + found['bookkeeping']:.1%} of a step")
