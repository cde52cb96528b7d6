"""What holds of the reward: where answers stand, who is at fault, and what no text can do."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptrl.core import Rollout, Task
from ptrl_plugin_reasoning_gym.environment import ReasoningGym
from ptrl_plugin_reasoning_gym.extraction import extract
from ptrl_plugin_reasoning_gym.guards import EVALUATED, INCOMPLETE, refusal
from ptrl_plugin_reasoning_gym.library import names, scorer
from ptrl_plugin_reasoning_gym.packing import pack, unpack
from ptrl_plugin_reasoning_gym.reward import ReasoningGymScore

SLOW = {
    "acre", "arc_agi", "codeio", "countdown", "figlet_font", "futoshiki", "game_of_life", "intermediate_integration",
    "isomorphic_strings", "jugs", "knight_swap", "polynomial_equations", "polynomial_multiplication", "puzzle24",
    "ransom_note", "rearc", "rubiks_cube", "simple_integration", "sokoban", "sudoku", "word_ladder",
    "zebra_puzzles",
}  # fmt: skip
HOSTILE = [
    "", " ", "x", "nan", "-inf", "1e99999999", "9" * 5000, "(" * 5000, "[" * 15_000, "{}", "[]", "[[]]", "null", "1",
    '{"a": {}}', "1/0", "1/2", "nan+nanj", "a=1", "¬" * 3000 + "A", "\x00", "\ud800", "é" * 10, "٣", "½", "\n" * 999,
    "True", "0 " * 2000, "a," * 9000, "1*" * 3000 + "1", "__import__('os').system('exit 7')", "().__class__",
    "x" * 99_999,
]  # fmt: skip


def reward(**options):
    return ReasoningGymScore(ReasoningGymScore.Config(**options))


@cache
def task_of(name, index=0, **options):
    made = ReasoningGym(ReasoningGym.Config(dataset=name, size=50, test_size=10, **options))
    task = made.tasks("train").task(index)
    made.close()
    return task


def score(task, text, **options):
    return reward(**options).score([Rollout(task=task, text=text)])[0]


@pytest.mark.parametrize("name", [name for name in names() if name not in SLOW])
def test_a_saved_task_is_solved_by_its_own_answer_and_by_no_hostile_text(name):
    task = task_of(name)
    task = replace(task, reference=json.loads(json.dumps(task.reference)))
    if task.reference["answer"]:
        assert score(task, task.reference["answer"], answer="whole").value == 1.0
    for text in HOSTILE:
        began = time.process_time()
        verdict = score(task, text, answer="whole")
        assert verdict.status == "ok" and 0.0 <= verdict.value <= 1.0, (text[:20], verdict)
        assert verdict.value < 1.0 or text.strip() in (task.reference["answer"], "1", "True"), text[:20]
        assert time.process_time() - began < 0.5, text[:20]


def test_the_reference_is_plain_data_that_keeps_tuples_and_integer_keys():
    task = task_of("arc_1d"), task_of("graph_color")
    for reference in (each.reference for each in task):
        assert json.loads(json.dumps(reference)) == reference
        assert {"dataset", "spec", "question", "answer", "metadata"} == reference.keys()
    assert isinstance(next(iter(unpack(task[1].reference["metadata"])["possible_answer"])), int)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text())


@given(
    st.recursive(
        PLAIN,
        lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner) | st.sets(st.integers()),
        max_leaves=20,
    )
)
def test_packing_survives_json_and_is_undone_by_unpacking(value):
    packed = json.loads(json.dumps(pack(value)))
    assert unpack(packed) == value
    assert type(unpack(packed)) is type(value)


def test_the_last_tag_and_the_last_box_are_the_answer():
    assert extract("<answer>1</answer> no, <answer> 2\n</answer>.", "tag") == "2"
    assert extract(r"\boxed{1} so \boxed{\frac{1}{2}}.", "boxed") == r"\frac{1}{2}"
    assert extract("  all of it \n", "whole") == "all of it"
    assert extract("<answer></answer>", "tag") == ""


@pytest.mark.parametrize("text", ["", "12", "<answer>12", "12</answer>", "</answer>12<answer>", r"\boxed{12"])
@pytest.mark.parametrize("policy", ["tag", "boxed"])
def test_without_an_answer_the_value_is_zero_and_the_reason_is_given(text, policy):
    verdict = score(task_of("gcd"), text, answer=policy)
    assert (verdict.status, verdict.value, verdict.metric) == ("ok", 0.0, 0.0)
    assert "no answer" in verdict.info["reason"]


@given(st.text(alphabet="<answer>/\\boxed{} 12", max_size=300), st.sampled_from(["tag", "boxed", "whole"]))
def test_what_is_extracted_is_part_of_the_text(text, policy):
    answer = extract(text, policy)
    assert answer is None or answer in text


@pytest.mark.parametrize("policy", ["tag", "boxed"])
def test_extraction_is_linear_in_the_text(policy):
    began = time.process_time()
    for piece in ("<answer>", "</answer>", r"\boxed{", "{", "}"):
        extract(piece * 200_000, policy)
    assert time.process_time() - began < 2


def test_the_metric_is_the_value_or_whether_it_reaches_the_threshold():
    task = task_of("spell_backward")
    almost = task.reference["answer"][:-1] + "_"
    partial = score(task, f"<answer>{almost}</answer>")
    assert 0.0 < partial.value < 1.0 and partial.metric == partial.value
    assert score(task, f"<answer>{almost}</answer>", solved_at=1.0).metric == 0.0
    assert score(task, f"<answer>{almost}</answer>", solved_at=0.01).metric == 1.0


def test_a_scorer_that_breaks_on_the_form_of_an_answer_has_judged_it():
    verdict = score(task_of("prime_factorization"), "<answer>no idea</answer>")
    assert (verdict.status, verdict.value) == ("ok", 0.0)
    assert "invalid literal" in verdict.info["reason"]
    assert score(task_of("boxnet"), "<answer>1</answer>").status == "ok"


def test_a_scorer_that_breaks_on_its_own_answer_has_failed():
    task = task_of("prime_factorization")
    broken = replace(task, reference={**task.reference, "answer": "none"})
    verdict = score(broken, "<answer>2 × 3</answer>")
    assert (verdict.status, verdict.value) == ("error", None)
    assert "prime_factorization" in verdict.info["reason"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 1.5])
def test_a_scorer_that_returns_no_share_has_failed(value, monkeypatch):
    task = task_of("gcd")
    monkeypatch.setattr(scorer(task.reference["spec"]), "score_answer", lambda answer, entry: value, raising=False)
    assert score(task, "<answer>1</answer>").status == "error"


@pytest.mark.parametrize("reference", [None, "12", {"answer": "12"}, ["a"]])
def test_a_task_of_another_environment_is_a_failure_of_that_rollout_only(reference):
    rollouts = [Rollout(task=Task(key="a", messages=(), reference=reference), text="<answer>1</answer>")]
    rollouts.append(Rollout(task=task_of("gcd"), text="<answer>x</answer>"))
    assert [verdict.status for verdict in reward().score(rollouts)] == ["error", "ok"]


def test_a_reference_that_names_no_data_set_is_a_failure():
    reference = {**task_of("gcd").reference, "spec": '{"name": "gdc"}', "dataset": "gdc"}
    verdict = score(Task(key="a", messages=(), reference=reference), "<answer>1</answer>")
    assert verdict.status == "error" and "did you mean 'gcd'" in verdict.info["reason"]


def test_an_answer_that_is_too_long_is_worth_nothing():
    assert "longer than 5" in score(task_of("gcd"), "<answer>123456</answer>", max_chars=5).info["reason"]


@pytest.mark.parametrize("name", sorted(EVALUATED))
def test_no_text_of_the_policy_is_run_as_code(name, tmp_path):
    """Also none that a guard's alphabet is made of, but for what the guard is there to let through."""
    made = tmp_path / "made"
    task = Task(key="a", messages=(), reference=_reference(name))
    for code in (f"open({str(made)!r}, 'w')", f"__import__('os').system('touch {made}')", "[open][0]", "Q()"):
        verdict = score(task, code, answer="whole")
        assert verdict.status == "error" if EVALUATED[name] is None else "evaluated" in verdict.info["reason"]
    assert not made.exists()


def _reference(name):
    spec = json.dumps({"name": name})
    return {"dataset": name, "spec": spec, "question": "", "answer": "", "metadata": {"numbers": [1]}}


def test_the_scorer_without_a_safe_form_is_refused_until_it_is_allowed():
    item = {"variable": "x", "integrand": "2*x"}
    reference = {**_reference("intermediate_integration"), "answer": "x**2 + C", "metadata": item}
    task = Task(key="a", messages=(), reference=reference)
    refused = score(task, "x**2 + C", answer="whole")
    assert refused.status == "error" and "allow_unsafe = true" in refused.info["reason"]
    assert score(task, "x**2 + C", answer="whole", allow_unsafe=True).value == 1.0


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("countdown", ["94*4 - 61 - 6", "(1 + 2)/3"]),
        ("puzzle24", ["10*(8 - 5) - 6"]),
        ("binary_matrix", ["0 1\n1 0", "[[0, 1], [1, 0]]"]),
        ("spiral_matrix", ["1 2 -3", "[1, 2, -3]"]),
        ("string_insertion", ["ABCDE", "['A', 'B']"]),
        ("n_queens", ["_ Q\nQ _", "[['_', 'Q'], ['Q', '_']]"]),
        ("polynomial_multiplication", ["-24897*z**4 + 2451*z**2", "x*y", "- 3"]),
        ("simple_integration", ["-34*x**8/15 - 5*x/4 + C", "(3/4)*X**2 + C"]),
    ],
)
def test_the_forms_that_a_question_asks_for_reach_the_scorer(name, texts):
    for text in texts:
        assert EVALUATED[name](text, {"answer": "", "metadata": {}}) == ""


@settings(max_examples=300)
@given(
    st.sampled_from(sorted(name for name, guard in EVALUATED.items() if guard)),
    st.text("x*/+-()[]'\"Q_A1 ,.", max_size=300),
)
def test_a_guard_lets_no_call_attribute_or_power_tower_through(name, text):
    if EVALUATED[name](text, {"answer": "", "metadata": {}}) == "":
        assert "." not in text
        assert "**(" not in text.replace(" ", "") and ")**" not in text.replace(" ", "")


@pytest.mark.parametrize("name", sorted(name for name, guard in EVALUATED.items() if guard))
def test_guards_take_no_time_whatever_the_text_is(name):
    began = time.process_time()
    for piece in ("1", "x", "+", " ", "1 + ", "*", "(", "[", "x**1 ", "+ ", "1/", "(1/1)"):
        for end in ("", "!", "\n"):
            EVALUATED[name](piece * 20_000 + end, {"answer": "", "metadata": {}})
            EVALUATED[name]((piece * 1000)[:190] + end, {"answer": "", "metadata": {}})
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("name", "text", "metadata"),
    [
        ("complex_arithmetic", "nan", {}),
        ("coin_flip", "1e99999999", {}),
        ("game_of_life_halting", "anything", {}),
        ("puzzle24", "6*4*1*1", {"numbers": [8, 5, 10, 6]}),
    ],
)
def test_holes_of_the_scorers_are_closed(name, text, metadata):
    assert name in INCOMPLETE
    assert refusal(name, text, {"answer": "False", "metadata": metadata})


def test_a_verdict_is_the_same_when_it_is_asked_for_again():
    rollouts = [
        Rollout(task=task_of(name), text=f"<answer>{task_of(name).reference['answer']}</answer>")
        for name in ("gcd", "spell_backward", "knights_knaves")
    ]
    assert reward().score(rollouts) == reward().score(rollouts)


def test_a_batch_of_256_is_scored_within_a_twentieth_of_a_demo_step():
    tasks = [task_of("chain_sum", index) for index in range(32)]
    rollouts = [Rollout(task=task, text=f"<answer>{number}</answer>") for task in tasks for number in range(8)]
    judge = reward()
    judge.score(rollouts)
    fastest = min(_seconds(judge, rollouts) for _ in range(5))
    assert fastest < 0.02


def _seconds(judge, rollouts):
    began = time.perf_counter()
    judge.score(rollouts)
    return time.perf_counter() - began


def test_a_task_is_judged_alike_in_a_fresh_process():
    task = task_of("arc_1d")
    program = """
import json, sys
from ptrl_plugin_reasoning_gym.reward import ReasoningGymScore
from ptrl.core import Rollout, Task
task = Task(key="a", messages=(), reference=json.load(sys.stdin))
text = f"<answer>{task.reference['answer']}</answer>"
print(ReasoningGymScore(ReasoningGymScore.Config()).score([Rollout(task=task, text=text)])[0].value)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(task.reference),
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        check=True,
    )
    assert ran.stdout.strip() == "1.0"
