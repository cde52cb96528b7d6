"""What holds of the tasks: names and parameters, splits, repetition, prompts, mixtures, levels."""

import json
import subprocess
import sys
import time
from dataclasses import asdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ptrl_plugin_reasoning_gym.environment import ReasoningGym
from ptrl_plugin_reasoning_gym.generation import data_set_seed
from ptrl_plugin_reasoning_gym.library import DataSetSpec, ReasoningGymError, names
from ptrl_plugin_reasoning_gym.prompts import prompt_of
from ptrl_plugin_reasoning_gym.source import Lazy, attempts_at, is_test

QUICK = [
    "ab", "aiw", "arc_1d", "base_conversion", "basic_arithmetic", "binary_alternation", "caesar_cipher",
    "chain_sum", "coin_flip", "count_bits", "dice", "fraction_simplification", "gcd", "gsm_symbolic",
    "graph_color", "knights_knaves", "lcm", "leg_counting", "letter_counting", "list_functions",
    "number_sorting", "pool_matrix", "prime_factorization", "products", "propositional_logic",
    "self_reference", "simple_equations", "spell_backward", "string_splitting", "tower_of_hanoi",
    "word_sorting",
]  # fmt: skip
HELPED = ["codeio", "isomorphic_strings", "ransom_note"]


def environment(**options):
    return ReasoningGym(ReasoningGym.Config(**options))


def tasks_of(split="train", **options):
    return environment(**options).tasks(split)


def prompts(source, count):
    return [source.task(index).messages[-1]["content"] for index in range(count)]


def test_all_105_data_sets_are_known_by_name():
    assert len(names()) == 105


@pytest.mark.parametrize("name", QUICK)
def test_no_prompt_or_question_is_in_both_splits(name):
    made = environment(dataset=name, size=400, test_size=60)
    train, test = made.tasks("train"), made.tasks("test")
    assert not set(prompts(train, 150)) & set(prompts(test, 60))
    questions = [{s.task(i).reference["question"] for i in range(60)} for s in (train, test)]
    assert not questions[0] & questions[1]


def test_a_space_of_two_dozen_prompts_is_split_too():
    options = {"dataset": "coin_flip", "parameters": {"min_trials": 3, "max_trials": 5}, "size": 300, "test_size": 50}
    train, test = set(prompts(tasks_of(**options), 300)), set(prompts(tasks_of("test", **options), 50))
    assert train and test and not train & test
    assert len(train | test) < 40


def test_a_prompt_keeps_its_side_under_every_seed_level_and_template():
    train = prompts(tasks_of(dataset="chain_sum", prompt="{expression}", seed=1, level=0), 300)
    test = prompts(tasks_of("test", dataset="chain_sum", prompt="{expression}", seed=2), 200)
    assert not set(train) & set(test)


def test_an_item_space_with_an_empty_side_is_an_error_that_says_so():
    one = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    options = {"dataset": "chain_sum", "parameters": one, "prompt": "the same for all", "size": 10, "test_size": 10}
    side = "train" if is_test("the same for all", 0.2) else "test"
    with pytest.raises(ReasoningGymError, match=rf"chain_sum.*{side} split.*too few\s+different prompts"):
        tasks_of(side, **options)


def test_tasks_are_the_same_in_any_order_and_in_fresh_processes_with_any_hash_seed():
    chosen = ["chain_sum", "list_functions", "pool_matrix", *HELPED]
    program = f"""
import json, sys
from dataclasses import asdict
from ptrl_plugin_reasoning_gym.environment import ReasoningGym
for name in {chosen}:
    source = ReasoningGym(ReasoningGym.Config(dataset=name, seed=3, size=50)).tasks("train")
    print(json.dumps([asdict(source.task(index)) for index in (7, 2, 0)]))
"""
    path = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "12345"}
    ran = subprocess.run([sys.executable, "-c", program], env=path, capture_output=True, text=True, check=True)
    for name, line in zip(chosen, ran.stdout.splitlines(), strict=True):
        made = environment(dataset=name, seed=3, size=50)
        source = made.tasks("train")
        here = [asdict(source.task(index)) for index in (0, 2, 7)]
        assert json.loads(json.dumps(here))[::-1] == json.loads(line), name
        made.close()


def test_neighbouring_seeds_give_other_tasks():
    first, second = (set(prompts(tasks_of(dataset="chain_sum", seed=seed), 200)) for seed in (0, 1))
    assert len(first & second) < 20
    assert data_set_seed(DataSetSpec("gcd"), 0) != data_set_seed(DataSetSpec("gcd"), 1)


def test_the_process_wide_generators_are_left_as_they_were():
    import random

    import numpy

    random.seed(5)
    numpy.random.seed(5)
    expected = random.random(), numpy.random.rand()
    random.seed(5)
    numpy.random.seed(5)
    prompts(tasks_of(dataset="pool_matrix"), 3)
    prompts(tasks_of(dataset="list_functions"), 3)
    assert (random.random(), numpy.random.rand()) == expected


def test_a_million_tasks_cost_nothing_until_they_are_asked_for():
    began = time.process_time()
    source = tasks_of(dataset="gcd", size=1_000_000, test_size=10)
    columns = source.columns()
    assert len(source) == len(columns.keys) == 1_000_000
    assert columns.keys[999_999] == source.task(999_999).key == "train-999999"
    assert time.process_time() - began < 0.5


def test_columns_agree_with_tasks_and_change_with_the_config():
    mixture = [{"name": "gcd", "level": [0, 2]}, {"name": "lcm", "weight": 2}]
    source = tasks_of(datasets=mixture, size=40)
    columns = source.columns()
    for index in range(40):
        task = source.task(index)
        assert (task.key, task.tags) == (columns.keys[index], columns.tags[index])
        assert task.difficulty == columns.difficulty[index]
    other = tasks_of(datasets=mixture, size=40, seed=1).columns()
    assert other.fingerprint != columns.fingerprint
    assert tasks_of(datasets=mixture, size=40).columns().fingerprint == columns.fingerprint


def test_a_mixture_follows_its_weights():
    source = tasks_of(datasets=[{"name": "gcd", "weight": 3}, {"name": "lcm"}], size=4000)
    tags = [tag for (tag,) in source.columns().tags]
    assert 0.70 < tags.count("gcd") / 4000 < 0.80


def test_a_level_makes_harder_items_and_is_the_difficulty():
    easy, hard = (tasks_of(dataset="chain_sum", level=level, level_range="upper_bound") for level in (0, 3))
    assert easy.task(0).difficulty == 0.0 and hard.task(0).difficulty == 3.0
    assert max(map(len, prompts(easy, 20))) < min(map(len, prompts(hard, 20)))


def test_parameters_win_over_the_level():
    source = tasks_of(dataset="chain_sum", level=3, parameters={"min_terms": 2, "max_terms": 2})
    assert {source.task(index).reference["metadata"]["num_terms"] for index in range(20)} == {2}


def test_a_template_is_filled_from_the_item_and_a_system_prompt_stands_before_it():
    task = tasks_of(dataset="spell_backward", prompt="reverse {word}", system="Be brief.").task(0)
    word = task.reference["metadata"]["word"]
    assert task.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"reverse {word}"},
    )
    assert task.reference["answer"] == word[::-1]


def test_lists_are_written_with_commas():
    task = tasks_of(dataset="gcd", prompt="gcd {numbers}").task(0)
    assert task.messages[0]["content"] == "gcd " + ", ".join(map(str, task.reference["metadata"]["numbers"]))


@given(st.text(max_size=200), st.text(max_size=50))
def test_a_template_looks_into_nothing_and_is_filled_once(template, value):
    item = {"question": "{word}" + value, "metadata": {"word": "{question}"}}
    try:
        filled = prompt_of(template + "{question}")(item)
    except ReasoningGymError as error:
        assert "has no field" in str(error)
    else:
        assert filled.endswith("{word}" + value)


@pytest.mark.parametrize("template", ["{word.__class__}", "{word[0]}", "{0}", "{}", "{word!r}", "{{", "{word:>9}"])
def test_format_syntax_is_plain_text(template):
    assert prompt_of(template)({"question": "q", "metadata": {"word": "w"}}) == template.replace("{word}", "w")


@pytest.mark.parametrize("field", ["wrd", "source_index"])
def test_an_unknown_field_names_the_data_set_and_its_fields(field):
    with pytest.raises(ReasoningGymError, match=r"spell_backward has no field.*word"):
        tasks_of(dataset="spell_backward", prompt=f"reverse {{{field}}}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "chain_sums"}, "no data set 'chain_sums'; did you mean 'chain_sum'"),
        ({"dataset": "composite"}, "datasets = "),
        ({"datasets": [{"name": "gdc"}]}, "did you mean 'gcd'"),
        ({}, "give either `dataset` or `datasets`"),
        ({"dataset": "gcd", "datasets": [{"name": "gcd"}]}, "give either"),
        (
            {"dataset": "chain_sum", "parameters": {"min_term": 2}},
            "'chain_sum' has no parameter 'min_term'; did",
        ),
        (
            {"dataset": "chain_sum", "parameters": {"min_terms": 9, "max_terms": 2}},
            "'chain_sum' refuses.*max_terms",
        ),
        ({"dataset": "chain_sum", "parameters": {"min_terms": "two"}}, "'chain_sum' refuses.*TypeError"),
        ({"dataset": "chain_sum", "parameters": {"seed": 2}}, "option of reasoning_gym.task"),
        ({"dataset": "basic_arithmetic", "parameters": {"operators": {1}}}, "'operators' is a set"),
        ({"dataset": "chain_sum", "level": 99}, "has the levels 0 to"),
        ({"dataset": "chain_sum", "level": []}, "at least one level"),
        ({"dataset": "gsm_symbolic", "level": 0}, "no curriculum"),
        ({"dataset": "caesar_cipher", "level": 3}, "'caesar_cipher' refuses its own defaults at level 3"),
        ({"datasets": [{"name": "gcd"}], "parameters": {"min_terms": 2}}, "each entry has its own"),
        ({"datasets": [{"name": "gcd", "weight": 0}]}, "greater than 0"),
        ({"dataset": "gcd", "size": 10**9}, "too large"),
        ({"dataset": "gcd", "sise": 10}, "sise"),
    ],
)
def test_a_wrong_option_is_an_error_that_says_what_was_meant(options, message):
    with pytest.raises(ValidationError, match=message):
        ReasoningGym.Config(**options)


def test_a_level_is_checked_together_with_the_parameters_it_needs():
    with pytest.raises(ValidationError, match="min_nodes must be >= 6"):
        ReasoningGym.Config(dataset="knight_swap", level=0)
    ReasoningGym.Config(dataset="knight_swap", level=0, parameters={"min_nodes": 6, "max_nodes": 6})


def test_an_index_outside_is_an_error():
    source = tasks_of(dataset="gcd", size=3)
    for index in (-1, 3):
        with pytest.raises(IndexError):
            source.task(index)


def test_the_helper_process_ends_with_the_environment_and_can_be_begun_again():
    made = environment(dataset="ransom_note", size=20)
    source = made.tasks("train")
    first = source.task(1)
    process = made._strata[0].generator._process
    made.close()
    assert process.poll() is not None
    assert source.task(1) == first
    made.close()


def test_a_helper_process_that_dies_is_a_clear_error():
    made = environment(dataset="ransom_note", size=20)
    source = made.tasks("train")
    made._strata[0].generator._process.kill()
    with pytest.raises(ReasoningGymError, match="helper that generates 'ransom_note' ended with status -9"):
        source.task(1)
    assert source.task(1).key == "train-1"
    made.close()


def test_importing_the_plugin_imports_no_reasoning_gym_and_drawing_imports_no_matplotlib():
    program = """
import sys
from ptrl_plugin_reasoning_gym.environment import ReasoningGym
from ptrl_plugin_reasoning_gym.reward import ReasoningGymScore
assert "reasoning_gym" not in sys.modules
ReasoningGym(ReasoningGym.Config(dataset="gcd")).tasks("train").task(3)
assert "matplotlib" not in sys.modules and "cellpylib" not in sys.modules
ReasoningGym(ReasoningGym.Config(dataset="game_of_life")).tasks("train").task(3)
import cellpylib
assert cellpylib.__file__
"""
    subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": ":".join(sys.path)}, check=True)


@given(st.floats(0.01, 0.99))
def test_enough_items_are_tried(miss):
    assert miss ** attempts_at(miss) <= 2.0**-63.9


@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(st.text(), st.floats(0.01, 0.5), st.floats(0.01, 0.5))
def test_a_larger_test_share_keeps_what_was_test(prompt, one, other):
    if is_test(prompt, min(one, other)):
        assert is_test(prompt, max(one, other))


@given(st.integers(0, 30), st.slices(30))
def test_lazy_columns_behave_as_lists(size, part):
    lazy, plain = Lazy(size, lambda index: index * 2), [index * 2 for index in range(size)]
    assert list(lazy) == plain and lazy[part] == plain[part]
    if plain:
        assert lazy[-1] == plain[-1]
    with pytest.raises(IndexError):
        lazy[size]
