"""What a run leaves behind survives a kill at any moment and says clearly what is wrong with it."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ptrl.core import Evaluation, Group, Rollout, RunFolderError, RunInfo, Score, ScoredRollout, Task, Ticket
from ptrl.core.files import finite, write_bytes, write_folder, write_json
from ptrl.core.observers.jsonl import JsonLines
from ptrl.core.rollout_schema import rollout_from_plain, rollout_line
from ptrl.core.run.lock import compare_locks, package_hash
from ptrl.core.run_folder import RunFolder


def save_step(text: str) -> Any:
    def save(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "model/weights").write_text(text)

    return save


def test_folders_of_one_name_are_numbered(tmp_path: Path) -> None:
    first, second = RunFolder.create(tmp_path, "x"), RunFolder.create(tmp_path, "x")
    assert (first.path.name, second.path.name) == ("x", "x-2")
    for folder in (first, second):
        folder.write_config({"run": {"name": "x"}}, {})
    killed, other = RunFolder.create(tmp_path, "x"), RunFolder.create(tmp_path, "x-9")
    other.write_config({"run": {"name": "x-9"}}, {})
    latest = RunFolder.latest(tmp_path, "x")
    assert latest is not None
    assert latest.path == second.path != killed.path
    assert RunFolder.latest(tmp_path, "y") is None


def test_a_number_is_not_used_again(tmp_path: Path) -> None:
    first, _ = RunFolder.create(tmp_path, "x"), RunFolder.create(tmp_path, "x")
    first.path.rmdir()
    assert RunFolder.create(tmp_path, "x").path.name == "x-3"


def test_a_kill_while_a_folder_is_replaced_loses_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    folder.save_checkpoint(3, {}, save_step("old"), keep=1)
    rename, calls = Path.rename, []

    def die_at_second(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", die_at_second)
    monkeypatch.setattr("ptrl.core.files.repair", lambda path: None)  # a killed process cleans nothing up
    monkeypatch.setattr("shutil.rmtree", lambda path, **_: None)
    with pytest.raises(KeyboardInterrupt):
        folder.save_checkpoint(3, {}, save_step("new"), keep=1)
    monkeypatch.undo()
    assert folder.latest_checkpoint() is None
    folder.repair()
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-000003"]
    assert (folder.trained_model() / "weights").read_text() == "old"


def test_checkpoints_are_in_the_order_of_their_steps(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (999_999, 1_000_000):
        folder.save_checkpoint(step, {}, save_step(str(step)), keep=2)
    newest = folder.latest_checkpoint()
    assert newest is not None
    assert newest.name == "step-1000000"


KEYS = st.text(max_size=3) | st.integers() | st.tuples(st.integers(), st.text(max_size=2)) | st.just("$bytes")
STATE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STATE)
def test_plain_state_is_read_back_as_it_was(tmp_path: Path, state: object) -> None:
    folder = RunFolder(tmp_path)
    folder.save_checkpoint(1, {"state": state}, lambda path: None, keep=1)
    assert folder.load_session_state(folder.checkpoints / "step-000001") == (1, {"state": state})


def test_only_the_newest_checkpoints_stay(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (2, 4, 10):
        folder.save_checkpoint(step, {"noise": b"\x00\xff", "x": 0.1 + 0.2}, save_step(str(step)), keep=2)
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["step-000004", "step-000010"]
    newest = folder.latest_checkpoint()
    assert newest is not None
    assert folder.load_session_state(newest) == (10, {"noise": b"\x00\xff", "x": 0.1 + 0.2})
    folder.publish_model()
    assert (folder.trained_model() / "weights").read_text() == "10"


def test_a_checkpoint_that_was_cut_short_is_not_seen(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.save_checkpoint(1, {}, save_step("1"), keep=2)

    def fail(path: Path) -> None:
        (path / "half").write_text("x")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        folder.save_checkpoint(2, {}, fail, keep=2)
    newest = folder.latest_checkpoint()
    assert newest is not None
    assert newest.name == "step-000001"
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-000001"]


@pytest.mark.parametrize("content", ["", "nonsense", "[]", "{}", '{"format": 99, "step": 1, "state": {}}'])
def test_a_checkpoint_of_another_kind_is_an_error_that_names_it(tmp_path: Path, content: str) -> None:
    (tmp_path / "session.json").write_text(content)
    with pytest.raises(RunFolderError, match=str(tmp_path.name)):
        RunFolder(tmp_path).load_session_state(tmp_path)


def test_state_that_is_no_plain_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="set is not plain data"):
        RunFolder(tmp_path).save_checkpoint(1, {"bad": {1, 2}}, save_step("1"), keep=1)


def test_what_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"has no config\.json"):
        RunFolder.open(tmp_path)
    with pytest.raises(RunFolderError, match="no model yet"):
        RunFolder(tmp_path).trained_model()


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"x": 1})

    def fail(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_bytes(path, b"half")
    assert json.loads(path.read_text()) == {"x": 1}
    with pytest.raises(OSError, match="disk full"):
        write_folder(tmp_path / "new", lambda folder: write_bytes(folder / "f", b"x"))
    assert [found.name for found in tmp_path.iterdir()] == ["a.json"]


PLAIN = st.recursive(st.none() | st.floats() | st.text(max_size=4), lambda inner: st.lists(inner, max_size=3))


@given(PLAIN)
def test_numbers_that_json_has_not_become_null(data: object) -> None:
    json.dumps(finite(data), allow_nan=False)


# ---------------------------------------------------------------- core.jsonl


TASK = Task(key="k", domain="d", messages=({"role": "user", "content": "q"},), reference="r")
TICKET = Ticket(id="t", index=0, domain="d", group_size=1)


def scored(text: str = "hi", **info: Any) -> ScoredRollout:
    rollout = Rollout(task=TASK, text=text, token_ids=(1, 2), loss_mask=(1, 0), logprobs=(-0.5, 0.0))
    return ScoredRollout(rollout=rollout, scores={"a": Score(value=1.0, info=info)}, metric=1.0, total=1.0)


def start(folder: Path, done: int = 0, **rollouts: Any) -> JsonLines:
    observer = JsonLines(JsonLines.Config())
    sections = {"run": {"rollouts": {"every": 1, **rollouts}}}
    observer.run_started(RunInfo(name="x", folder=folder, steps=9, domains=("d",), first_step=done, settings=sections))
    return observer


def step(observer: JsonLines, number: int) -> None:
    observer.rollouts_scored(number, [Group(ticket=TICKET, task=TASK, members=(scored(),))])
    observer.step_finished(number, {"reward": float("nan") if number == 2 else 0.5})
    evaluation = Evaluation(step=number, split="test", decoding="greedy", domains={}, mean=None, seconds=0.1)
    observer.evaluation_finished(evaluation)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_resume_removes_what_the_lost_steps_had_written(tmp_path: Path) -> None:
    first = start(tmp_path)
    for number in (1, 2, 3):
        step(first, number)
    first.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "rew')  # a kill in the middle of a line
    second = start(tmp_path, done=2)
    step(second, 3)
    second.close()
    assert [row["step"] for row in lines(tmp_path / "metrics.jsonl")] == [1, 2, 3]
    assert [row["step"] for row in lines(tmp_path / "evaluations.jsonl")] == [1, 2, 3]
    assert lines(tmp_path / "metrics.jsonl")[1]["reward"] is None
    names = sorted(path.name for path in (tmp_path / "rollouts").glob("step-*"))
    assert names == [f"step-00000{number}.jsonl.gz" for number in (1, 2, 3)]


def test_an_evaluation_that_a_killed_run_repeats_is_written_once(tmp_path: Path) -> None:
    first = start(tmp_path)
    before = Evaluation(step=0, split="test", decoding="greedy", domains={}, mean=0.5, seconds=0.1)
    first.evaluation_finished(before)
    first.close()
    (tmp_path / "rollouts/notes.jsonl.gz").write_bytes(b"somebody's own")
    second = start(tmp_path, done=0)  # killed before its first checkpoint
    second.evaluation_finished(before)
    second.close()
    assert len(lines(tmp_path / "evaluations.jsonl")) == 1
    assert (tmp_path / "rollouts/notes.jsonl.gz").exists()


def test_a_second_batch_of_a_step_is_added_to_its_rollouts(tmp_path: Path) -> None:
    observer = start(tmp_path)
    for text in ("one", "two"):
        observer.rollouts_scored(1, [Group(ticket=TICKET, task=TASK, members=(scored(text),))])
    observer.rollouts_scored(2, [])
    observer.close()
    packed = (tmp_path / "rollouts/step-000001.jsonl.gz").read_bytes()
    assert [json.loads(line)["text"] for line in gzip.decompress(packed).splitlines()] == ["one", "two"]
    assert gzip.decompress((tmp_path / "rollouts/step-000002.jsonl.gz").read_bytes()) == b""


def test_rollouts_are_compressed_lines_that_are_read_back(tmp_path: Path) -> None:
    observer = start(tmp_path, tokens=True)
    step(observer, 1)
    observer.close()
    packed = (tmp_path / "rollouts/step-000001.jsonl.gz").read_bytes()
    (row,) = [json.loads(line) for line in gzip.decompress(packed).splitlines()]
    rollout = rollout_from_plain(row)
    assert (rollout.text, rollout.task.reference, rollout.token_ids) == ("hi", "r", (1, 2))
    assert row["scores"]["a"] == {"value": 1.0, "status": "ok"}


@pytest.mark.parametrize(("every", "written"), [(0, []), (2, ["step-000002.jsonl.gz"])])
def test_rollouts_are_written_as_often_as_asked(tmp_path: Path, every: int, written: list[str]) -> None:
    observer = start(tmp_path, every=every)
    for number in (1, 2, 3):
        step(observer, number)
    observer.close()
    assert [path.name for path in (tmp_path / "rollouts").glob("step-*")] == written


@given(st.text(), st.floats(), st.binary(max_size=4))
def test_no_text_number_or_object_breaks_a_line(text: str, number: float, raw: bytes) -> None:
    line = rollout_line(scored(text, number=number, raw=raw, bag={1}), 1)
    assert "\n" not in line
    assert json.loads(line)["text"] == text


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


def test_data_without_an_end_or_a_text_costs_no_line() -> None:
    around: dict[str, Any] = {}
    around["self"] = around
    deep: Any = 0
    for _ in range(5000):
        deep = [deep]
    info = json.loads(rollout_line(scored(around=around, deep=deep, odd=Unprintable()), 1))["scores"]["a"]["info"]
    assert "whose __repr__ raised RuntimeError" in info["odd"]


@pytest.mark.parametrize("data", [{}, {"schema": 99}, {"schema": 1, "domain": "d"}])
def test_lines_of_another_schema_are_refused(data: dict[str, Any]) -> None:
    with pytest.raises(RunFolderError, match="a saved rollout"):
        rollout_from_plain(data)


# ---------------------------------------------------------------- the lock


def lock(**changes: Any) -> dict[str, Any]:
    components = {"sampler": {"name": "a.b", "sha256": "1"}}
    return {"components": components, "dependencies": {"torch": "2"}, "local_code": {}, **changes}


@pytest.mark.parametrize(
    ("changed", "refusal", "warning"),
    [
        (lock(), None, None),
        (lock(components={"sampler": {"name": "a.b", "sha256": "2"}}), "sampler changed: sha256 1 -> 2", None),
        (lock(components={}), "component sampler is gone", None),
        (lock(local_code={"x.py": "1"}), "local file x.py is new", None),
        (lock(dependencies={"torch": "3"}), None, "dependency torch changed: 2 -> 3"),
    ],
)
def test_changed_components_refuse_and_changed_dependencies_warn(
    changed: dict[str, Any], refusal: str | None, warning: str | None
) -> None:
    refusals, warnings = compare_locks(lock(), changed)
    assert [refusal] if refusal else refusals == []
    assert [one for one in refusals if refusal and refusal in one] == refusals
    assert [one for one in warnings if warning and warning in one] == warnings
    assert bool(warnings) == bool(warning)


def test_a_packages_hash_is_that_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "hashed_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit  # hashing imports nothing but parents of submodules\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = package_hash("hashed_package")
    (package / "__pycache__").mkdir()
    (package / "__pycache__/x.pyc").write_bytes(b"1")
    assert package_hash("hashed_package") == before
    (package / "data.json").write_text("{}")
    assert package_hash("hashed_package") != before
