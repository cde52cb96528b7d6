import gzip
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ptrl.core import Rollout, RunFolderError, Score, ScoredRollout, Task
from ptrl.core.rollout_schema import rollout_line
from ptrl_plugin_report.charts import Series, make_chart, smooth, ticks
from ptrl_plugin_report.command import app
from ptrl_plugin_report.page import render, shown, write_report
from ptrl_plugin_report.reading import read_run

HOSTILE = "</pre></style><script>alert(1)</script><img src=x onerror=alert(1)>&amp;\"'\u202e\x00\ud800"
CONFIG = {
    "run": {"name": "toy", "seed": 3, "steps": 4},
    "model": {"path": "package:m/tiny"},
    "training": {"estimator": "rloo", "prompts": 2, "group_size": 2},
    "domains": {"words": {}, "sums": {}},
    "optimizer": {"use": "grpo.local"},
}


class Page(HTMLParser):
    """What a browser would see: elements, attributes and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend(attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def rollout(text: str, metric: float | None, domain: str = "words") -> ScoredRollout:
    task = Task(key="k", domain=domain, messages=({"role": "user", "content": f"say {text}"},))
    status = "ok" if metric is not None else "error"
    score = Score(value=metric, metric=metric, status=status, info={"reason": f"because {text}"})  # type: ignore[arg-type]
    return ScoredRollout(
        rollout=Rollout(task=task, text=text, messages=({"role": "assistant", "content": text},)),
        scores={"answer": score},
        metric=metric,
        total=metric,
        valid=metric is not None,
    )


def evaluation(step: int, metric: float) -> dict[str, Any]:
    domains = {"words": {"metric": metric}, "sums": {"metric": None}}
    return {"step": step, "split": "test", "decoding": "greedy", "mean": metric, "domains": domains, "seconds": 1.0}


def make_run(folder: Path, text: str = "hello") -> Path:
    (folder / "rollouts").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    steps = [{"step": n, "metric/words": n / 4, "masked/words": 0.5 * (n == 2), "kl": None} for n in range(1, 5)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in steps))
    evaluations = [evaluation(0, 0.25), evaluation(4, 0.75)]
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evaluations))
    lines = [rollout_line(rollout(text, metric), 1) for metric in (0.0, 1.0, None)]
    for name in ("step-000001", "step-000004", "evaluation-000004-greedy"):
        (folder / f"rollouts/{name}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return folder


def test_the_page_says_what_the_run_reached(tmp_path: Path) -> None:
    page = Page(write_report(make_run(tmp_path / "run")).read_text())
    for words in ("toy", "25.0%", "75.0%", "+50.0", "grpo.local", "2 × 2 rollouts"):
        assert words in page.text
    assert page.tags.count("svg") == 3
    assert "Rollouts of the last evaluation" in page.text


def test_masked_rollouts_are_a_warning_that_says_where(tmp_path: Path) -> None:
    page = Page(write_report(make_run(tmp_path / "run")).read_text())
    assert "words: 12.5% of rollouts had no verdict (at most 50.0%, at step 2)" in page.text


def test_hostile_text_shows_as_text(tmp_path: Path) -> None:
    html = write_report(make_run(tmp_path / "run", HOSTILE)).read_text()
    page = Page(html)
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "<script>alert(1)</script>" in page.text
    assert "\\u202e" in page.text
    assert "\u202e" not in html
    policy = dict(page.attributes)["content"]
    assert policy is not None


@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=200))
def test_no_text_adds_an_element_to_the_page(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    plain = Page(render(read_run(make_run(tmp_path_factory.mktemp("plain") / "run", "x"), 4)))
    other = Page(render(read_run(make_run(tmp_path_factory.mktemp("other") / "run", text), 4)))
    assert other.tags == plain.tags


def test_a_huge_text_is_shortened_and_says_so(tmp_path: Path) -> None:
    html = write_report(make_run(tmp_path / "run", "a" * 10**6)).read_text()
    assert len(html) < 200_000
    assert "996,000 more characters" in html


def test_a_run_that_has_only_begun_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "metric/words": 0.5}\n{"step": 2, "metr')
    assert "going on, or killed" in Page(write_report(tmp_path).read_text()).text


def test_a_compressed_file_that_was_cut_short_gives_what_it_has(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    path = run / "rollouts/step-000004.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-12])
    assert "Rollouts of the last evaluation" in write_report(run).read_text()


@pytest.mark.parametrize("content", ["[]", "{}", '{"run": 5}', "nonsense"])
def test_what_is_no_run_is_an_error_that_names_the_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(RunFolderError, match=r"config\.json"):
        write_report(tmp_path)


def test_a_folder_that_is_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="not a run folder"):
        write_report(tmp_path)


def test_the_command_writes_where_it_is_told(tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    done = CliRunner().invoke(app, [str(make_run(tmp_path / "run")), "--output", str(output)])
    assert done.exit_code == 0
    assert "<!doctype html>" in output.read_text()


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 10))
def test_ticks_lie_within_their_bounds(low: float, width: float, count: int) -> None:
    found = ticks(low, low + width, count)
    assert all(low - width * 1e-6 <= tick <= low + width * (1 + 1e-6) for tick in found)
    assert len(found) <= count + 2


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_smoothing_stays_within_the_values(values: list[float]) -> None:
    assert all(min(values) - 1e-3 <= value <= max(values) + 1e-3 for value in smooth(values))


def test_a_chart_leaves_out_what_is_no_number() -> None:
    chart = make_chart("t", [Series("a", [(1, float("nan")), (2, 0.5)]), Series("b", [(1, float("inf"))])])
    assert chart is not None
    assert [line.name for line in chart.lines] == ["a"]
    assert make_chart("t", [Series("b", [])]) is None


def test_characters_that_turn_text_around_are_named() -> None:
    assert shown("a\u202eb\x00") == "a\\u202eb\\u0000"
