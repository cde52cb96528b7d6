"""A stranger's package, written with public names only, installs, is listed, and trains."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "ptrl-plugin-parrot"
version = "0.3"
description = "Repeats what it is told."
dependencies = ["ptrl-core>=0.1"]
[project.entry-points."ptrl.environments"]
"parrot.say" = "ptrl_plugin_parrot:Say"
[project.entry-points."ptrl.rewards"]
"parrot.echo" = "ptrl_plugin_parrot:Echo"
[project.entry-points."ptrl.samplers"]
"parrot.in_order" = "ptrl_plugin_parrot:InOrder"
[tool.hatch.build.targets.wheel]
packages = ["src/ptrl_plugin_parrot"]
"""

MODULE = '''
"""Repeats what it is told."""
from ptrl.core import Environment, Proposal, Reward, Sampler, Score, Task, Ticket


class Say(Environment):
    """Asks for a word to be repeated."""

    class Config(Environment.Config):
        words: tuple[str, ...] = ("tea", "nut")

    config: Config

    def tasks(self, split):
        for number in range(6):
            word = self.config.words[number % len(self.config.words)]
            yield Task(key=f"{split}-{number}", messages=({"role": "user", "content": word},), reference=word)


class Echo(Reward):
    """Pays the share of the word's letters that were repeated."""

    def score(self, rollouts):
        return [Score(value=self.share(r.text, r.task.reference), metric=float(r.text == r.task.reference))
                for r in rollouts]

    def share(self, text, word):
        return sum(letter in text for letter in word) / len(word)


class InOrder(Sampler):
    """Goes round and round."""

    def prepare(self, catalog, rng):
        self.catalog, self.drawn = catalog, 0

    def propose(self, n, context):
        tickets = []
        for _ in range(n):
            index = self.drawn % len(self.catalog)
            domain = self.catalog.locate(index)[0]
            ticket = Ticket(id=str(self.drawn), index=index, domain=domain, group_size=context.group_size)
            tickets.append(ticket)
            self.drawn += 1
        return Proposal(tickets=tuple(tickets))

    def state_dict(self):
        return {"drawn": self.drawn}

    def load_state_dict(self, state, catalog):
        self.catalog, self.drawn = catalog, state["drawn"]
'''

CONFIG = """
[run]
name = "parrot"
steps = 2
[model]
path = "package:ptrl_plugin_grpo/tiny"
[training]
prompts = 3
group_size = 4
max_new_tokens = 8
threads = 1
[sampler]
use = "parrot.in_order"
[domains.parrot]
environment = { use = "parrot.say", words = ["tea", "nut", "oak"] }
rewards = { echo = { use = "parrot.echo" } }
[evaluation]
tasks = 4
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = tmp_path_factory.mktemp("parrot")
    (package / "src/ptrl_plugin_parrot").mkdir(parents=True)
    (package / "pyproject.toml").write_text(PYPROJECT)
    (package / "src/ptrl_plugin_parrot/__init__.py").write_text(MODULE)
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(target), str(package)], check=True)
    return target


def ptrl(site: Path, folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "ptrl.core.cli", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_a_strangers_package_is_listed(site: Path, tmp_path: Path) -> None:
    rows = json.loads(ptrl(site, tmp_path, "plugins", "--json"))
    found = {row["name"]: row["status"] for row in rows if row["distribution"] == "ptrl-plugin-parrot"}
    assert found == {"parrot.say": "ok", "parrot.echo": "ok", "parrot.in_order": "ok"}


def test_a_strangers_package_trains(site: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(CONFIG)
    ptrl(site, tmp_path, "train", "run.toml")
    run = tmp_path / "runs/parrot"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["steps"] == 2
    assert set(summary["after"]["greedy"]) == {"parrot", "mean"}
    lock = json.loads((run / "lock.json").read_text())
    assert lock["components"]["sampler"]["distribution_version"] == "0.3"
    assert (run / "model/model.safetensors").is_file()
