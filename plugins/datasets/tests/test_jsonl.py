import gzip
import json
import os
import subprocess
import sys
import tracemalloc
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ptrl.core import Task, TaskSource
from ptrl_plugin_datasets.errors import DataSetError
from ptrl_plugin_datasets.jsonl import JsonLines

GSM8K = Path(__file__).parents[4] / "shared/data/gsm8k/test.jsonl"


def write(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def source(split: str = "train", **options: Any) -> TaskSource:
    return JsonLines(JsonLines.Config.model_validate(options)).tasks(split)  # type: ignore[arg-type]


def tasks(split: str = "train", **options: Any) -> list[Task]:
    found = source(split, **options)
    return [found.task(index) for index in range(len(found))]


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"question {number}", "answer": number} for number in range(count)]


def test_a_row_becomes_a_task_by_its_columns(tmp_path: Path) -> None:
    row = {"q": "2+2?", "a": 4, "id": "x1", "level": 3, "topic": ["sums"], "how": "2+2=4"}
    columns = {
        "prompt": "q",
        "answer": "a",
        "key": "id",
        "difficulty": "level",
        "tags": "topic",
        "demonstration": "how",
    }
    path = write(tmp_path / "a.jsonl", [row])
    (task,) = tasks("test", path=path, test_path=path, columns=columns, system="Be brief.")
    assert task.key == "x1"
    assert task.messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"})
    assert (task.reference, task.difficulty, task.tags) == (4, 3.0, ("sums",))
    assert task.demonstration == ({"role": "assistant", "content": "2+2=4"},)


def test_a_prompt_may_be_chat_messages(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    path = write(tmp_path / "a.jsonl", [{"prompt": chat, "answer": ""}])
    (task,) = tasks(path=path, test_path=write(tmp_path / "t.jsonl", numbered(1)), system="ignored")
    assert list(task.messages) == chat


def test_a_template_is_filled_with_columns_and_nothing_else(tmp_path: Path) -> None:
    rows = [{"question": "{answer} {0.__class__}", "answer": "secret"}]
    options = {"columns": {"prompt": "question"}, "template": "Q: {question}"}
    path = write(tmp_path / "a.jsonl", rows)
    (task,) = tasks(path=path, test_path=write(tmp_path / "t.jsonl", [{"question": "t", "answer": ""}]), **options)
    assert task.messages[0]["content"] == "Q: {answer} {0.__class__}"


def test_repeated_prompts_are_taken_once_whatever_their_case_and_space(tmp_path: Path) -> None:
    rows = [{"prompt": text, "answer": 1} for text in ("A  b", "a b ", "a\nB", "c")]
    path = write(tmp_path / "a.jsonl", rows)
    found = tasks(path=path, test_path=write(tmp_path / "t.jsonl", numbered(1)))
    assert [task.messages[0]["content"] for task in found] == ["A  b", "c"]


@pytest.mark.parametrize("seed", [0, 1])
def test_splits_share_no_prompt_and_hold_every_row(tmp_path: Path, seed: int) -> None:
    path = write(tmp_path / "a.jsonl", numbered(500))
    train = {task.key for task in tasks("train", path=path, test_share=0.3, seed=seed)}
    test = {task.key for task in tasks("test", path=path, test_share=0.3, seed=seed)}
    assert not train & test
    assert len(train) + len(test) == 500
    assert 100 < len(test) < 200


def test_training_prompts_that_are_in_the_test_file_are_left_out(tmp_path: Path) -> None:
    path, test_path = write(tmp_path / "a.jsonl", numbered(10)), write(tmp_path / "t.jsonl", numbered(4))
    assert len(tasks("train", path=path, test_path=test_path)) == 6
    assert len(tasks("test", path=path, test_path=test_path)) == 4


def test_filters_and_limit_choose_rows(tmp_path: Path) -> None:
    rows = [{"prompt": "x" * n, "answer": n, "kind": "even" if n % 2 == 0 else "odd"} for n in range(1, 30)]
    options = {"path": write(tmp_path / "a.jsonl", rows), "test_path": write(tmp_path / "t.jsonl", rows[:1])}
    options["test_path"] = write(tmp_path / "t.jsonl", [{"prompt": "zz", "answer": 0, "kind": "even"}])
    found = tasks(**options, where={"kind": ["even"]}, min_chars=2, max_chars=9, limit=3)
    assert [task.reference for task in found] == [2, 4, 6]


def test_an_answer_pattern_finds_the_answer(tmp_path: Path) -> None:
    rows = [{"prompt": "p", "answer": "3 and 4\n#### 7 "}]
    options = {"path": write(tmp_path / "a.jsonl", rows), "test_path": write(tmp_path / "t.jsonl", rows)}
    (task,) = tasks("test", **options, answer_pattern="#### (.+)")
    assert task.reference == "7"


def test_compressed_files_and_globs_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(json.dumps(numbered(1)[0]).encode()))
    write(tmp_path / "b.jsonl", [{"prompt": "other", "answer": 2}])
    test_path = write(tmp_path / "test.json", [{"prompt": "t", "answer": 0}])
    found = tasks(path=str(tmp_path / "*.jsonl*"), test_path=test_path)
    assert [task.reference for task in found] == [0, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "there is no task"),
        (b"\n\n", "there is no task"),
        (b"{", "line 1: not JSON"),
        (b"[1]\n", "a list; expected an object"),
        (b'{"prompt": "\xff"}\n', "not UTF-8"),
        (b'{"promt": "x", "answer": 1}\n', "no column 'prompt'; did you mean 'promt'"),
        (b'{"prompt": "", "answer": 1}\n', "is empty"),
        (b'{"prompt": 5, "answer": 1}\n', "holds a int"),
        (b'{"prompt": [{"role": "root", "content": "x"}], "answer": 1}\n', "is no message"),
        (b"[" * 100_000 + b"\n", "line 1: not JSON"),
        (b'{"prompt": "a", "answer": ' + b"9" * 5000 + b"}\n", "line 1: not JSON"),
        (b'{"prompt": "\\ud83d", "answer": 1}\n', "half of a surrogate pair"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_place(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataSetError, match=r"bad\.jsonl") as raised:
        source(path=str(path))
    assert message in str(raised.value)


def test_bad_lines_are_skipped_where_asked_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a", "answer": 1}\nnonsense\n{"prompt": "b", "answer": 2}\n')
    test_path = write(tmp_path / "t.jsonl", numbered(1))
    assert len(tasks(path=str(path), test_path=test_path, on_bad_line="skip")) == 2
    assert "1 bad lines skipped" in caplog.text


def test_repeated_keys_are_an_error_with_both_places(tmp_path: Path) -> None:
    rows = [{"prompt": text, "answer": 1, "id": "same"} for text in "ab"]
    with pytest.raises(DataSetError, match=r"line 1 and .*line 2"):
        source(path=write(tmp_path / "a.jsonl", rows), columns={"key": "id"})


def test_a_missing_file_names_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", numbered(1))
    with pytest.raises(DataSetError, match=r"trian.jsonl.*train.jsonl"):
        source(path=str(tmp_path / "trian.jsonl"))


@pytest.mark.parametrize(
    "options",
    [{"answer_pattern": "("}, {"answer_pattern": "x"}, {"min_chars": 5, "max_chars": 2}, {"test_share": 0}],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        JsonLines.Config.model_validate({"path": "x", **options})


def test_nan_is_no_difficulty(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a", "answer": NaN, "level": NaN}\n')
    options = {"columns": {"difficulty": "level"}, "test_path": str(path)}
    (task,) = tasks("test", path=str(path), **options)
    assert task.difficulty is None


@pytest.mark.parametrize("level", ["hard", "1e999", "9" * 400, [1]])
def test_a_difficulty_that_is_no_finite_number_is_an_error(tmp_path: Path, level: Any) -> None:
    level = int(level) if isinstance(level, str) and len(level) == 400 else level
    path = write(tmp_path / "a.jsonl", [{"prompt": "a", "answer": 1, "level": level}])
    with pytest.raises(DataSetError, match="difficulty is a finite number"):
        source(path=path, columns={"difficulty": "level"})


def test_a_surrogate_pair_is_a_character_as_any_other(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"prompt": "\U0001f600 \u00e9", "answer": 1}])
    (task,) = tasks("test", path=path, test_path=path)
    assert task.messages[0]["content"] == "\U0001f600 \u00e9"


def test_files_of_one_name_in_two_folders_have_keys_of_their_own(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "part.jsonl", [{"prompt": folder, "answer": 1}])
    test_path = write(tmp_path / "test.jsonl", numbered(1))
    keys = [task.key for task in tasks(path=str(tmp_path / "*" / "part.jsonl"), test_path=test_path)]
    assert len(set(keys)) == 2 and all(key.endswith("part.jsonl:1") for key in keys)


def test_a_changed_answer_changes_the_fingerprint_and_another_place_does_not(tmp_path: Path) -> None:
    first, second, moved = (
        write(tmp_path / name, [{"prompt": "a", "answer": answer, "id": "a"}])
        for name, answer in (("1.jsonl", 1), ("2.jsonl", 2), ("3.jsonl", 1))
    )
    options = {"columns": {"key": "id"}, "test_path": write(tmp_path / "t.jsonl", [{**numbered(1)[0], "id": "t"}])}
    prints = [source(path=path, **options).columns().fingerprint for path in (first, second, moved)]
    assert prints[0] == prints[2] != prints[1]


def test_a_group_that_takes_no_part_and_an_empty_tag_are_not_texts(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"prompt": "a", "answer": "none", "topic": None}])
    (task,) = tasks("test", path=path, test_path=path, columns={"tags": "topic"})
    assert task.tags == ()
    with pytest.raises(DataSetError, match="answer_pattern matches nothing"):
        source(path=path, answer_pattern="none|#### (.+)")


def test_a_flood_of_bad_lines_is_counted_but_not_logged_line_by_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("nonsense\n" * 5000 + '{"prompt": "a", "answer": 1}\n')
    source(path=str(path), on_bad_line="skip")
    assert "5000 bad lines skipped" in caplog.text
    assert len(caplog.records) < 10


def test_texts_are_not_kept_in_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"prompt": f"{number} " + "x" * 50_000, "answer": 1} for number in range(200)])
    tracemalloc.start()
    found = source(path=path)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) > 100
    assert kept < 1_000_000 and peak < 3_000_000


def test_tasks_are_the_same_in_a_fresh_process_and_any_order(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", numbered(200))
    program = f"""
import json
from dataclasses import asdict
from ptrl_plugin_datasets.jsonl import JsonLines
found = JsonLines(JsonLines.Config(path={path!r}, seed=3)).tasks("test")
print(json.dumps([found.columns().fingerprint, [asdict(found.task(index)) for index in (4, 0, 2)]]))
"""
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "99"}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True, text=True)
    found = source("test", path=path, seed=3)
    here = [found.columns().fingerprint, [asdict(found.task(index)) for index in (4, 0, 2)]]
    assert json.loads(ran.stdout) == json.loads(json.dumps(here))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(content=st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "ignore")))
def test_any_bytes_give_tasks_or_a_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any.jsonl"
    path.write_bytes(content)
    try:
        source(path=str(path))
    except DataSetError as error:
        assert "any.jsonl" in str(error)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(prompts=st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=20))
def test_prompts_survive_unchanged(tmp_path: Path, prompts: list[str]) -> None:
    path = write(tmp_path / "a.jsonl", [{"prompt": prompt, "answer": 1} for prompt in prompts])
    found = [task.messages[0]["content"] for split in ("train", "test") for task in tasks(split, path=path)]
    assert set(found) <= set(prompts)
    normalized = {" ".join(prompt.split()).casefold() for prompt in prompts}
    assert {" ".join(prompt.split()).casefold() for prompt in found} == normalized


@pytest.mark.skipif(not GSM8K.exists(), reason="../shared/data/gsm8k is not here")
def test_gsm8k_is_read_whole() -> None:
    options = {"path": str(GSM8K), "columns": {"prompt": "question"}, "answer_pattern": "#### (.+)"}
    train, test = tasks("train", **options), tasks("test", **options)
    assert len(train) + len(test) == 1319
    assert not {task.messages[0]["content"] for task in train} & {task.messages[0]["content"] for task in test}
    assert all(float(str(task.reference).replace(",", "")) is not None for task in train + test)
