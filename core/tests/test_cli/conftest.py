import importlib
import textwrap

import pytest
from typer.testing import CliRunner

from ptrl.core.cli.application import app
from ptrl.core.cli.group import plugin_commands
from ptrl.core.registry import forget

TOY = '''
"""A policy that answers right with a skill that grows at each update: all of ptrl but a model."""

import os
import signal
from pathlib import Path

from ptrl.core import Environment, Optimizer, OptimizerError, Problem, Proposal, Reward, Sampler, Task, Ticket
from ptrl.core.policy import Reply


class Digits(Environment):
    """Asks for a digit."""

    run_in = "inline"

    def tasks(self, split):
        start = 0 if split == "train" else 1000
        return [
            Task(key=str(n), messages=({"role": "user", "content": f"say {n % 10}"},), reference=str(n % 10))
            for n in range(start, start + 20)
        ]


class Exact(Reward):
    """Pays 1 for the digit."""

    class Config(Reward.Config):
        broken: str = ""

    run_in = "inline"

    def score(self, rollouts):
        if self.config.broken:
            raise RuntimeError(self.config.broken)
        return [float(rollout.text == rollout.task.reference) for rollout in rollouts]


class Order(Sampler):
    """One task after the other."""

    count = 0

    def prepare(self, catalog, rng):
        self.catalog = catalog

    def propose(self, n, context):
        tickets = []
        for _ in range(n):
            index = self.count % len(self.catalog)
            domain = self.catalog.locate(index)[0]
            ticket = Ticket(id=str(self.count), index=index, domain=domain, group_size=context.group_size)
            tickets.append(ticket)
            self.count += 1
        return Proposal(tickets=tuple(tickets))

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state, catalog):
        self.catalog, self.count = catalog, state["count"]


class Policy:
    concurrency = 4

    def __init__(self, skill):
        self.skill = skill

    async def reply(self, messages, sampling, stop, tools, limit):
        digit = messages[0]["content"].removeprefix("say ")
        return Reply(text=digit if int(digit) < self.skill else "?", tokens=1)


class Copy(Optimizer):
    """Learns one digit a step."""

    class Config(Optimizer.Config):
        interrupt_at: int | None = None
        refuse: str = ""

    def check(self, session):
        return [Problem(key="training.clip", message=self.config.refuse)] if self.config.refuse else ()

    def policy(self, session, path):
        try:
            return Policy(int((Path(path) / "skill").read_text()))
        except OSError as error:
            raise OptimizerError(f"no policy can be loaded from {path!r}: {error.strerror}") from None

    def run(self, session):
        policy = Policy(0)

        def save(folder):
            (folder / "model").mkdir()
            (folder / "model" / "skill").write_text(str(policy.skill))

        def load(folder):
            policy.skill = int((folder / "model" / "skill").read_text())

        session.begin(policy, load=load)
        while not session.finished:
            if session.step + 1 == self.config.interrupt_at:
                os.kill(os.getpid(), signal.SIGINT)
            session.select(session.collect(policy, session.draw()))
            policy.skill += 1
            session.finish_step(policy, {"loss": 0.5}, save)
        session.end(policy, save)
'''

TOY_ENTRIES = """
[ptrl.environments]
toy.digits = ptrl_plugin_toy:Digits
[ptrl.rewards]
toy.exact = ptrl_plugin_toy:Exact
[ptrl.samplers]
toy.order = ptrl_plugin_toy:Order
[ptrl.optimizers]
toy.copy = ptrl_plugin_toy:Copy
"""

CONFIG = """
[run]
name = "toy"
steps = 4
folder = "{folder}"
[training]
prompts = 2
group_size = 2
[sampler]
use = "toy.order"
[domains.digits]
environment = {{ use = "toy.digits" }}
rewards = {{ answer = {{ use = "toy.exact" }} }}
[evaluation]
tasks = 10
[optimizer]
use = "toy.copy"
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed packages, in front of all others."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("COLUMNS", "200")
    forget()
    plugin_commands.cache_clear()
    yield folder
    forget()
    plugin_commands.cache_clear()


@pytest.fixture
def install(site):
    """Installs a distribution, as its wheel would: metadata, entry points and modules."""

    def run(name, entry_points, modules, *, version="1.0", summary="", requires=()):
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", f"Summary: {summary}"]
        lines += [f"Requires-Dist: {line}" for line in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(textwrap.dedent(entry_points), encoding="utf-8")
        for module, source in modules.items():
            (site / f"{module}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        importlib.invalidate_caches()
        forget()
        plugin_commands.cache_clear()

    return run


@pytest.fixture
def toy(install):
    """A plugin with one component of every kind that a run needs."""
    install("ptrl-plugin-toy", TOY_ENTRIES, {"ptrl_plugin_toy": TOY}, summary="A toy.")


@pytest.fixture
def config(toy, tmp_path):
    """A config file of a run with the toy plugin."""
    path = tmp_path / "toy.toml"
    path.write_text(CONFIG.format(folder=tmp_path / "runs"), encoding="utf-8")
    return path


@pytest.fixture
def ptrl():
    """Runs the command line in this process."""

    def run(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="ptrl")

    return run
