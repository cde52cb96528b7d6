import io
import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console as Terminal

from ptrl.core import DomainResult, Evaluation, Group, Rollout, RunInfo, Score, ScoredRollout, Task, Ticket
from ptrl.core.observers.console import Console
from ptrl.core.observers.console_state import RunState, reason_of
from ptrl.core.observers.console_view import curve, duration

settings.register_profile("shared cores")
settings.load_profile("shared cores")

STEP = {
    "reward": 0.5,
    "metric": 0.4,
    "tokens": 12.0,
    "kl": 0.01,
    "entropy": 1.5,
    "zero_advantage": 0.25,
    "tokens_per_second": 1234.0,
    "seconds": 2.0,
    "metric/words": 0.4,
    "tokens/words": 12.0,
    "zero_advantage/words": 0.25,
    "masked/words": 0.0,
}


def run_info(*domains, steps=40, first_step=0, every=0, name="quickstart"):
    evaluation = {"every": every, "decoding": ["greedy", "sampled"]}
    settings = {"evaluation": evaluation}
    folder = Path("runs")
    return RunInfo(name=name, folder=folder, steps=steps, domains=domains, first_step=first_step, settings=settings)


def evaluation(step=0, decoding="greedy", metric=0.2, masked=0, seconds=3.0, domain="words"):
    result = DomainResult(metric=metric, total=metric, tasks=100, masked=masked, truncated=0.0, tokens=5.0)
    return Evaluation(
        step=step, split="test", decoding=decoding, domains={domain: result}, mean=metric, seconds=seconds
    )


class Screen:
    """A console observer that writes to memory."""

    def __init__(self, width=120, height=40, **options):
        self.file = io.StringIO()
        terminal = Terminal(
            file=self.file,
            force_terminal=options.get("display") == "live",
            width=width,
            height=height,
            color_system=None,
        )
        self.console = Console(Console.Config(**options), terminal)

    @property
    def lines(self):
        return self.file.getvalue().splitlines()

    def shown(self):
        """What the live display shows now."""
        terminal = self.console.terminal
        with terminal.capture() as capture:
            terminal.print(self.console._render())
        return capture.get()


@pytest.fixture
def plain():
    return Screen(display="auto", every=10)


def test_without_a_terminal_it_prints_plain_lines_every_few_steps(plain):
    plain.console.run_started(run_info("words", steps=25))
    for step in range(1, 26):
        plain.console.step_finished(step, STEP)
    assert [line.split("  ")[0] for line in plain.lines] == [
        "step 1/25",
        "step 10/25",
        "step 20/25",
        "step 25/25",
    ]
    assert plain.lines[1] == (
        "step 10/25  metric 40.0%  reward 0.500  length 12.0  KL 0.01  entropy 1.500"
        "  zero advantage 25%  tokens/s 1,234  0:30 left"
    )


def test_a_line_is_never_wrapped(plain):
    names = [f"a_rather_long_name_{number}" for number in range(20)]
    plain.console.run_started(run_info(*names))
    plain.console.step_finished(1, {"metric": 0.5, **{f"metric/{name}": 0.5 for name in names}})
    [line] = plain.lines
    assert line.endswith("a_rather_long_name_7 50%, and 12 more)")


def test_an_evaluation_is_a_line_with_each_domain(plain):
    plain.console.run_started(run_info("words"))
    plain.console.evaluation_finished(evaluation(metric=0.25, masked=4))
    plain.console.evaluation_finished(evaluation(metric=None, masked=100))
    assert plain.lines == [
        "evaluation at step 0  greedy  test metric 25.0% (words 25% [4 of 104 masked])  3.0 s",
        "evaluation at step 0  greedy  test metric no verdict (words no verdict [100 of 200 masked])  3.0 s",
    ]


def test_an_alarm_is_shown_once_until_the_domain_has_recovered(plain):
    plain.console.run_started(run_info("words", steps=1000))
    for step, masked in enumerate([0.05, 0.2, 0.3, 0.0, 0.5], start=1):
        plain.console.step_finished(step, {**STEP, "masked/words": masked})
    alarms = [line for line in plain.lines if line.startswith("ALARM")]
    assert [line.split(":")[1].split()[0] for line in alarms] == ["20%", "50%"]


def test_the_alarms_threshold_can_be_set():
    screen = Screen(alarm=0.5)
    screen.console.run_started(run_info("words"))
    screen.console.step_finished(1, {**STEP, "masked/words": 0.5})
    assert not any(line.startswith("ALARM") for line in screen.lines)


def test_a_supervised_stage_shows_what_it_has(plain):
    plain.console.run_started(run_info("words"))
    plain.console.step_finished(1, {"loss": 0.123, "learning_rate": 1e-3, "seconds": 0.5})
    assert plain.lines == ["step 1/40  loss 0.123  0:20 left"]


def test_none_prints_nothing():
    screen = Screen(display="none")
    screen.console.run_started(run_info("words"))
    screen.console.step_finished(1, STEP)
    screen.console.evaluation_finished(evaluation())
    screen.console.run_finished({})
    assert screen.file.getvalue() == ""


def test_a_terminal_gets_a_live_display():
    screen = Screen(display="live")
    screen.console.run_started(run_info("words", "sums", steps=4))
    screen.console.evaluation_finished(evaluation(metric=0.2))
    screen.console.step_finished(1, {**STEP, "metric/sums": 1.0, "masked/words": 0.4})
    screen.console.evaluation_finished(evaluation(step=1, metric=0.7))
    shown = screen.shown()
    for text in ("quickstart rl", "step 1/4", "0:09 left", "20% → 70%", "KL 0.01", "ALARM words: 40%"):
        assert text in shown
    screen.console.run_finished({"status": "interrupted"})
    assert "interrupted" in screen.shown()
    assert screen.console._live is None
    assert screen.lines[0].removeprefix("\x1b[?25l") == "evaluation at step 0  greedy  test metric 20.0%  3.0 s"


def test_a_failed_run_ends_the_live_display():
    screen = Screen(display="live")
    screen.console.run_started(run_info("words"))
    screen.console.close()
    assert screen.console._live is None


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 60)])
def test_the_live_display_fits_the_terminal(width, height):
    screen = Screen(display="live", width=width, height=height)
    names = [f"domain_number_{number}_of_many" for number in range(60)]
    screen.console.run_started(run_info(*names))
    screen.console.evaluation_finished(evaluation(domain=names[0], metric=1.0))
    masked = {f"masked/{name}": 1.0 for name in names[50:]}
    metrics = {f"metric/{name}": 1.0 for name in names}
    more = {"truncated": 0.1, "loss": -0.01, "grad_norm": 0.5, "clip_fraction": 0.03, "learning_rate": 3e-4}
    screen.console.step_finished(7, {**STEP, **more, **metrics, **masked})
    screen.console.close()
    lines = screen.shown().splitlines()
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    assert sum(line.startswith("ALARM") for line in lines) == 3
    assert "masked" in next(line for line in lines if "held out" in line)


HOSTILE = st.text(st.one_of(st.characters(), st.sampled_from("\x1b\x9b\x07[]0;mHJ\\/\r\n\u202e")), min_size=1)


@settings(max_examples=50)
@given(HOSTILE, HOSTILE, st.sampled_from(["plain", "live"]))
def test_names_and_reasons_cannot_drive_the_terminal(name, reason, display):
    screen = Screen(display="plain")
    console = screen.console
    console.run_started(run_info(name, "other", name=name))
    console._state.domains[name].reasons = Counter([reason])
    console.step_finished(1, {**STEP, f"metric/{name}": 0.5, f"masked/{name}": 1.0})
    console.evaluation_finished(evaluation(domain=name, masked=1))
    shown = screen.shown() if display == "live" else screen.file.getvalue()
    assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in shown.replace("\n", ""))
    shown.encode("utf-8")


@given(st.dictionaries(st.sampled_from(sorted(STEP)), st.floats(), min_size=1))
def test_any_numbers_can_be_shown(metrics):
    screen = Screen(every=1)
    screen.console.run_started(run_info("words", "sums"))
    screen.console.step_finished(1, metrics)
    screen.shown()
    assert screen.lines[0].startswith("step 1/40")


def test_time_left_counts_steps_and_evaluations_to_come():
    state = RunState(run_info("words", steps=30, every=10), alarm=0.1)
    assert state.seconds_left is None
    state.take_evaluation(evaluation(decoding="greedy", seconds=3.0))
    state.take_evaluation(evaluation(decoding="sampled", seconds=5.0))
    state.take_step(5, {"seconds": 2.0})
    assert state.seconds_left == 25 * 2 + 2 * 3 + (3 + 5)


def test_a_resumed_run_goes_on_from_its_step(plain):
    plain.console.run_started(run_info("words", steps=40, first_step=33))
    plain.console.step_finished(34, STEP)
    assert plain.lines[0] == "going on after step 33/40"
    assert plain.lines[1].startswith("step 34/40")


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        ({}, ""),
        ({"valid": False, "status": "error", "info": {"reason": "lost"}}, "lost"),
        ({"valid": False, "score": Score.failure("slow", "timeout")}, "judge: timeout: slow"),
        ({"valid": False, "score": Score.abstain("no idea")}, "judge: abstain: no idea"),
        ({"valid": False}, "a reward gave no verdict"),
    ],
)
def test_a_masked_rollout_has_a_reason(member, reason):
    task = Task(key="t", messages=(), domain="words")
    rollout = Rollout(task=task, status=member.get("status", "ok"), info=member.get("info", {}))
    scores = {"judge": member.get("score", Score(value=1.0))}
    scored = ScoredRollout(rollout=rollout, scores=scores, metric=None, total=None, valid=member.get("valid", True))
    assert reason_of(scored) == reason
    state = RunState(run_info("words"), alarm=0.1)
    ticket = Ticket(id="1", index=0, domain="words", group_size=1)
    state.take_groups([Group(ticket=ticket, task=task, members=(scored,))])
    assert list(state.domains["words"].reasons) == ([reason] if reason else [])


@given(st.lists(st.floats()), st.integers(1, 30))
def test_a_curve_is_as_long_as_its_values_or_its_width(values, width):
    finite = [value for value in values if math.isfinite(value)]
    assert len(curve(values, width)) == min(width, len(finite))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00"), (math.inf, "?"), (-1, "0:00")],
)
def test_durations_read_as_a_clock(seconds, text):
    assert duration(seconds) == text
