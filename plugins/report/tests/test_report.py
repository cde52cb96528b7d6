import gzip
import json
import tomllib
from collections.abc import Callable
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ptrl.core import (
    DomainResult,
    Evaluation,
    Group,
    Observer,
    Rollout,
    RunFolderError,
    RunInfo,
    Score,
    ScoredRollout,
    Task,
    Ticket,
)
from ptrl.core.files import write_json
from ptrl.core.observers.jsonl import JsonLines
from ptrl.core.run_folder import RunFolder
from ptrl.core.session.metrics import group_metrics
from ptrl_plugin_report.command import app
from ptrl_plugin_report.observer import HtmlReport
from ptrl_plugin_report.page import render, write_report
from ptrl_plugin_report.reading import read_run
from ptrl_plugin_report.text import visible

HOSTILE = (
    "\n</div></style></title>--><script>alert(1)</script><img src=x onerror=alert(1)>"
    "&amp;\"'{{ 7 * 7 }}\u202e\x00\ud800"
)
STEPS = 4
CONFIG = {
    "run": {"name": "toy", "seed": 3, "steps": STEPS, "rollouts": {"every": 1, "tokens": False}},
    "model": {"path": "package:m/tiny"},
    "training": {"estimator": "rloo", "prompts": 2, "group_size": 2},
    "sampler": {"use": "samplers.shuffle"},
    "domains": {
        "words": {
            "environment": {"use": "toy.task"},
            "rewards": {
                "answer": {"use": "toy.equal", "role": "outcome", "weight": 1.0},
                "short": {"use": "toy.short", "role": "efficiency", "weight": 0.1},
            },
        },
        "sums": {"environment": {"use": "toy.task"}, "rewards": {"answer": {"use": "toy.equal", "role": "outcome"}}},
    },
    "optimizer": {"use": "grpo.local"},
}
LOCK = {
    "format": 1,
    "components": {
        "domains.words.rewards.answer": {
            "name": "toy.equal",
            "version": 1,
            "distribution": "ptrl-plugin-toy",
            "distribution_version": "1.2.3",
            "sha256": "ab" * 32,
        },
        "domains.words.rewards.short": {"name": "file:r.py:short", "version": 1, "distribution": None},
    },
    "dependencies": {"jinja2": "3.1.6"},
    "local_code": {"r.py": "cd" * 32},
    "folder": ".",
}


class Page(HTMLParser):
    """What a browser would see: elements, attributes and text, and the texts of messages."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.messages: list[str] = []
        self._depth = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend(attrs)
        if ("class", "text") in attrs:
            self.messages.append("")
            self._depth = 1

    def handle_endtag(self, tag: str) -> None:
        self._depth = 0

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._depth:
            self.messages[-1] += data


def task(domain: str, key: str, text: str) -> Task:
    return Task(key=key, domain=domain, messages=({"role": "user", "content": f"say {text}"},), reference=text)


def scored(one: Task, text: str, metric: float | None, *, ticket: str = "", index: int = 0) -> ScoredRollout:
    answer = (
        Score.failure(f"the verifier died of {text}")
        if metric is None
        else Score(value=metric, metric=metric, info={"reason": f"because {text}"})
    )
    return ScoredRollout(
        rollout=Rollout(
            task=one,
            ticket=ticket,
            index=index,
            text=text,
            turns=2,
            messages=(
                {"role": "assistant", "content": text},
                {"role": "tool", "content": f"tool says {text}"},
                {"role": "assistant", "content": text},
            ),
            token_ids=(5, 6, 7),
            loss_mask=(1, 0, 1),
        ),
        scores={"answer": answer, "short": Score(value=0.5, parts={"tokens": 0.5})},
        metric=metric,
        total=metric,
        training_reward=0.25,
        valid=metric is not None,
    )


def group(domain: str, step: int, text: str, metrics: tuple[float | None, ...] = (0.0, 1.0)) -> Group:
    one = task(domain, f"{domain}-{step}", text)
    ticket = Ticket(id=f"{domain}/{step}", index=step, domain=domain, group_size=len(metrics))
    members = [scored(one, text, value, ticket=ticket.id, index=place) for place, value in enumerate(metrics)]
    return Group(ticket=ticket, task=one, members=tuple(members))


def evaluation(step: int, metric: float, text: str, decoding: Any = "greedy", masked: int = 0) -> Evaluation:
    result = DomainResult(metric=metric, total=metric, tasks=10 - masked, masked=masked, truncated=0.0, tokens=2.0)
    names = ("words", "sums")
    members = [scored(task(name, f"test-{n}", text), text, float(n % 2)) for name in names for n in range(4)]
    return Evaluation(
        step=step,
        split="test",
        decoding=decoding,
        domains=dict.fromkeys(names, result),
        mean=metric,
        seconds=1.0,
        rollouts=members,
    )


def make_run(folder: Path, text: str = "hello", *, masked: bool = False) -> Path:
    """Writes a finished run as `ptrl train` does: core's own observer writes the files."""
    folder.mkdir(parents=True)
    RunFolder(folder).write_config(CONFIG, LOCK)
    writer = JsonLines()
    writer.run_started(RunInfo(name="toy", folder=folder, steps=STEPS, domains=("words", "sums"), settings=CONFIG))
    for decoding, metric in (("greedy", 0.25), ("sampled", 0.5)):
        writer.evaluation_finished(evaluation(0, metric, text, decoding))
    for step in range(1, STEPS + 1):
        metrics = (0.0, None) if masked and step == 2 else (0.0, 1.0)
        groups = [group("words", step, text, metrics), group("sums", step, text)]
        writer.rollouts_scored(step, groups)
        numbers = {"kl": 0.1 * step, "entropy": 0.5, "tokens_per_second": 1000.0, "elapsed": 100.0 * step}
        writer.step_finished(step, {**group_metrics(groups), **numbers})
    for decoding, metric in (("greedy", 0.75), ("sampled", 0.4)):
        writer.evaluation_finished(evaluation(STEPS, metric, text, decoding, masked=int(masked)))
    writer.close()
    write_json(folder / "summary.json", {"format": 1, "status": "finished", "steps": STEPS, "seconds_of_run": 401.0})
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


def page_of(run: Path) -> Page:
    return Page(write_report(run).read_text(encoding="utf-8"))


def test_the_page_says_what_the_run_was_and_reached(run: Path) -> None:
    text = page_of(run).text
    for words in ("toy", "finished", "4 of 4", "6 min 41 s", "package:m/tiny", "rloo", "grpo.local", "4 (2 × 2)"):
        assert words in text
    for words in ("25.0%", "75.0%", "+50.0", "−10.0", "before training and after 4 steps, 10 tasks per domain"):
        assert words in text


def test_the_page_has_a_chart_of_each_number_that_the_run_has(run: Path) -> None:
    page = page_of(run)
    titles = [value for name, value in page.attributes if name == "aria-label"]
    assert titles == [
        "Held-out metric, greedy",
        "Training metric",
        "Reward (total)",
        "Tokens per rollout",
        "Rollouts without a verdict (masked)",
        "Rollouts cut by a limit",
        "Groups with zero advantage",
        "KL to the initial policy, nats per token",
        "Entropy, nats per token",
        "Tokens per second",
        "words",
        "sums",
    ]


def test_rollouts_show_every_turn_and_verdict(run: Path) -> None:
    page = page_of(run)
    for words in ("Last evaluation: step 4, greedy", "First training step: 1", "Last training step: 4"):
        assert words in page.text
    assert "tool says hello" in page.messages
    for words in ("out of the loss", "efficiency × 0.1", "because hello", "tokens 0.5", "training reward 0.25"):
        assert words in page.text


def test_rollouts_of_each_domain_are_solved_and_failed(run: Path) -> None:
    for excerpt in read_run(run, 2).excerpts:
        found = [(one.domain, one.verdict) for one in excerpt.rollouts]
        assert found == [("words", "failed"), ("words", "solved"), ("sums", "failed"), ("sums", "solved")]


def test_the_plugins_are_shown_with_their_lock(run: Path) -> None:
    text = page_of(run).text
    for words in ("ptrl-plugin-toy", "1.2.3", "abababababab", "local code", "cd" * 32, "jinja2"):
        assert words in text


def test_a_supervised_stage_is_told_without_what_it_has_not(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 1.5}\n')
    text = page_of(run).text
    assert "examples per step" in text
    assert "estimator" not in text.split("As it was resolved")[0]


def test_masked_rollouts_are_a_warning_that_says_where(tmp_path: Path) -> None:
    text = page_of(make_run(tmp_path / "run", masked=True)).text
    assert "words: 12.5% of rollouts had no verdict (at most 50.0%, at step 2); they were masked, not scored 0" in text
    assert "sums: held-out tasks without a verdict in 2 of 4 evaluations (at most 1, at step 4)" in text


def test_a_run_without_masked_rollouts_has_no_warning(run: Path) -> None:
    assert ("role", "alert") not in page_of(run).attributes


def test_hostile_text_shows_as_text(tmp_path: Path) -> None:
    html = write_report(make_run(tmp_path / "run", HOSTILE)).read_text(encoding="utf-8")
    page = Page(html)
    assert not {"script", "img", "link", "iframe", "object", "form"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "src"]
    assert visible(HOSTILE) in page.messages
    assert not {"\u202e", "\x00", "\ufffd"} & set(html)


def test_the_page_lets_nothing_be_fetched_or_run(run: Path) -> None:
    page = page_of(run)
    policy = next(value for name, value in page.attributes if name == "content" and "default-src" in str(value))
    assert str(policy).startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert "script" not in page.tags
    assert all(str(value).startswith("#") for name, value in page.attributes if name in ("href", "src"))


@settings(max_examples=25, deadline=None)
@given(text=st.text(max_size=200))
def test_any_text_round_trips_and_adds_no_element(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    plain = Page(render(read_run(make_run(tmp_path_factory.mktemp("plain") / "run", "x"), 4)))
    other = Page(render(read_run(make_run(tmp_path_factory.mktemp("other") / "run", text), 4)))
    assert other.tags == plain.tags
    assert visible(text) in other.messages
    assert visible(f"tool says {text}") in other.messages


def test_a_huge_text_is_shown_by_its_ends_and_says_so(tmp_path: Path) -> None:
    text = "begin " + "a" * 10_000_000 + " end"
    run = make_run(tmp_path / "run")
    line = json.dumps({"domain": "words", "metric": 1.0, "messages": [{"role": "assistant", "content": text}]})
    (run / "rollouts/step-000004.jsonl.gz").write_bytes(gzip.compress(line.encode(), 1))
    path = write_report(run)
    assert path.stat().st_size < 200_000
    page = Page(path.read_text(encoding="utf-8"))
    assert "9,996,010 more characters" in page.text
    assert "begin aaa" in page.text
    assert "aaa end" in page.text


def test_only_the_files_that_are_shown_are_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    original: Callable[..., Any] = gzip.open

    def watch(path: Path, mode: str) -> Any:
        opened.append(path.name)
        return original(path, mode)

    monkeypatch.setattr(gzip, "open", watch)
    write_report(run)
    assert opened == ["evaluation-000004-greedy.jsonl.gz", "step-000001.jsonl.gz", "step-000004.jsonl.gz"]
    opened.clear()
    write_report(run, rollouts=0)
    assert opened == []


def test_a_run_that_has_only_begun_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert "going on, or killed" in page_of(tmp_path).text


def test_a_last_line_that_was_cut_short_is_left_out(run: Path) -> None:
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        with (run / name).open("a") as file:
            file.write('{"step": 5, "metr')
    assert "4 of 4" in page_of(run).text


def test_an_unfinished_run_is_compared_with_its_newest_evaluation(run: Path) -> None:
    (run / "summary.json").unlink()
    write_json(run / "config.json", {**CONFIG, "run": {**CONFIG["run"], "steps": 9}})  # type: ignore[dict-item]
    assert "at step 4, not the end" in page_of(run).text


def test_the_summary_of_a_part_that_was_interrupted_is_not_that_of_the_run(run: Path) -> None:
    write_json(run / "summary.json", {"format": 1, "status": "interrupted", "steps": 2, "seconds_of_run": 1.0})
    text = page_of(run).text
    assert "going on, or killed" in text
    assert "6 min 40 s" in text


@pytest.mark.parametrize("name", ["lock.json", "metrics.jsonl", "evaluations.jsonl", "summary.json", "rollouts"])
@pytest.mark.parametrize("content", [None, "", "[1, 2]", '{"step": 1, "domains": [3], "components": {"a": 1}}', "\x00"])
def test_a_file_that_is_missing_or_of_another_form_leaves_a_page(run: Path, name: str, content: str | None) -> None:
    path = run / name
    if path.is_dir():
        for file in path.iterdir():
            file.unlink()
            if content is not None:
                file.write_bytes(gzip.compress(content.encode()))
    else:
        path.unlink()
        if content is not None:
            path.write_text(content)
    assert "toy" in page_of(run).text


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
MESSAGES = st.lists(
    st.fixed_dictionaries({}, optional={"role": PLAIN, "content": PLAIN, "tool_calls": PLAIN}), max_size=2
)
KEYS = ("key", "prompt", "reference", "finish", "status", "tokens", "metric", "total", "training_reward", "ticket")


@settings(max_examples=50, deadline=None)
@given(
    row=st.fixed_dictionaries(
        {"domain": st.just("words")},
        optional={
            **dict.fromkeys(KEYS, PLAIN),
            "messages": MESSAGES | PLAIN,
            "scores": st.dictionaries(
                st.text(max_size=3), PLAIN | st.fixed_dictionaries({"info": PLAIN, "parts": PLAIN})
            ),
        },
    )
)
def test_a_saved_rollout_of_any_form_is_shown(tmp_path_factory: pytest.TempPathFactory, row: dict[str, Any]) -> None:
    folder = tmp_path_factory.mktemp("run")
    (folder / "rollouts").mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "rollouts/step-000001.jsonl.gz").write_bytes(gzip.compress(json.dumps(row).encode()))
    assert "First training step: 1" in page_of(folder).text


def test_a_compressed_file_that_was_cut_short_gives_what_it_has(run: Path) -> None:
    path = run / "rollouts/step-000004.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-12])
    assert "Last evaluation" in page_of(run).text


@pytest.mark.parametrize("content", ["[]", "{}", '{"run": 5}', "nonsense"])
def test_what_is_no_run_is_an_error_that_names_the_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(RunFolderError, match=r"config\.json"):
        write_report(tmp_path)


def test_a_folder_that_is_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="not a run folder"):
        write_report(tmp_path)


def test_a_page_that_cannot_be_written_is_an_error_that_says_what_to_do(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"cannot be written: .* --output"):
        write_report(run, tmp_path / "missing" / "page.html")


def test_the_command_writes_where_it_is_told(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    done = CliRunner().invoke(app, [str(run), "--output", str(output), "--rollouts", "0"])
    assert done.exit_code == 0
    assert done.stdout.split() == [str(output)]
    html = output.read_text()
    assert "<!doctype html>" in html
    assert "First training step" not in html


def test_the_observer_leaves_the_page_in_the_run_folder(run: Path) -> None:
    observer = HtmlReport(HtmlReport.Config(rollouts=1))
    observer.run_started(RunInfo(name="toy", folder=run, steps=STEPS, domains=("words", "sums")))
    observer.run_finished({})
    assert (run / "report.html").read_text(encoding="utf-8").count('<details class="rollout">') == 6


def test_entry_points_name_the_observer_and_the_command() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    entries = project["entry-points"]
    for group_name, name, expected in (("ptrl.commands", "report", app), ("ptrl.observers", "report.html", HtmlReport)):
        module, _, attribute = entries[group_name][name].partition(":")
        assert getattr(import_module(module), attribute) is expected
    assert issubclass(HtmlReport, Observer)
