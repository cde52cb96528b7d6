"""A run that is killed or interrupted goes on as if nothing had happened."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

CONFIG = """
[run]
name = "small"
seed = 5
steps = 9
checkpoint_every = 2
[model]
path = "package:ptrl_plugin_grpo/tiny"
[training]
prompts = 4
group_size = 4
learning_rate = 3e-3
max_new_tokens = 24
threads = 1
[[filters]]
use = "samplers.zero_variance"
[domains.words]
environment = { use = "reasoning_gym.task", dataset = "spell_backward", prompt = "reverse {word}" }
[domains.words.rewards]
answer = { use = "reasoning_gym.score", solved_at = 1.0 }
tags = { use = "format.tags", optional = ["think"], role = "gate" }
[domains.shop]
environment = { use = "quickstart.shop", size = 500 }
rewards = { answer = { use = "math.answer", extract = "tag" } }
[evaluation]
every = 4
tasks = 5
"""
COMMAND = [sys.executable, "-m", "ptrl.core.cli", "train"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def train(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, "run.toml", *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[bytes], status: int = 0) -> None:
    _, errors = process.communicate(timeout=300)
    assert process.returncode == status, errors.decode()


def steps_logged(run: Path) -> int:
    path = run / "metrics.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def wait_for_steps(process: subprocess.Popen[bytes], run: Path, steps: int) -> None:
    """Waits until the run has logged that many steps, or has ended."""
    while process.poll() is None and steps_logged(run) < steps:
        time.sleep(0.002)


def result_of(run: Path) -> dict[str, object]:
    """What must not differ: weights, numbers and rollouts, without the times they took."""
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evaluations = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    timed = ("seconds", "elapsed", "tokens_per_second")
    rollouts = {path.name: path.read_bytes() for path in sorted((run / "rollouts").iterdir())}
    return {
        "weights": hashlib.sha256((run / "model/model.safetensors").read_bytes()).hexdigest(),
        "metrics": [{k: v for k, v in row.items() if not k.startswith(timed)} for row in metrics],
        "evaluations": [{k: v for k, v in row.items() if k != "seconds"} for row in evaluations],
        "rollouts": rollouts,
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    folder = tmp_path_factory.mktemp("whole")
    (folder / "run.toml").write_text(CONFIG)
    finish(train(folder))
    yield result_of(folder / "runs/small")


@pytest.mark.parametrize("steps", [0, 3, 5, 8])
def test_a_killed_run_resumes_bit_for_bit(steps: int, tmp_path: Path, uninterrupted: dict[str, object]) -> None:
    (tmp_path / "run.toml").write_text(CONFIG)
    run = tmp_path / "runs/small"
    process = train(tmp_path)
    while process.poll() is None and not (run / "metrics.jsonl").exists():
        time.sleep(0.002)
    wait_for_steps(process, run, steps)
    process.kill()
    process.communicate()
    finish(train(tmp_path, "--resume"))
    assert result_of(run) == uninterrupted


def test_ctrl_c_ends_a_run_cleanly_and_resume_completes_it(tmp_path: Path, uninterrupted: dict[str, object]) -> None:
    (tmp_path / "run.toml").write_text(CONFIG)
    run = tmp_path / "runs/small"
    process = train(tmp_path)
    wait_for_steps(process, run, 2)
    process.send_signal(signal.SIGINT)
    finish(process, status=130)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert (run / f"checkpoints/step-{summary['steps']:06d}/session.json").is_file()
    finish(train(tmp_path, "--resume"))
    assert result_of(run) == uninterrupted


def test_resume_refuses_a_changed_lock_unless_told_to(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(CONFIG.replace("steps = 9", "steps = 1"))
    run = tmp_path / "runs/small"
    finish(train(tmp_path))
    lock = json.loads((run / "lock.json").read_text())
    lock["components"]["sampler"]["sha256"] = "0" * 64
    (run / "lock.json").write_text(json.dumps(lock))
    refused = train(tmp_path, "--resume", "--set", "run.steps=2")
    _, errors = refused.communicate(timeout=300)
    assert refused.returncode != 0
    assert b"sampler" in errors
    assert b"--force" in errors
    finish(train(tmp_path, "--resume", "--force", "--set", "run.steps=2"))
    assert json.loads((run / "summary.json").read_text())["steps"] == 2
