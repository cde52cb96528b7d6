"""An episode makes token ids, loss mask and limits, whatever the policy and the environment do."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptrl.core import EpisodeError, Message, State, Step, Task
from ptrl.core.episode import Episode, Transcript
from ptrl.core.policy import Sampling, Tokenizer

END = 1


class Letters:
    """One token per character; `$` ends a turn. Roles are written as one letter and a colon."""

    end_of_turn_ids = frozenset({END})

    def __init__(self, rewrites: bool = False) -> None:
        self.rewrites = rewrites

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = False,
    ) -> str:
        parts = []
        for place, message in enumerate(messages):
            content = message["content"]
            if self.rewrites and message["role"] == "assistant" and place + 1 < len(messages):
                content = content.rpartition("</think>")[2]
            parts.append(f"{message['role'][0]}:{content}$\n")
        return "".join(parts) + ("a:" if add_generation_prompt else "")

    def encode(self, text: str) -> list[int]:
        return [END if letter == "$" else ord(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join("$" if token == END else chr(token) for token in ids)


def episode(limit: int = 100, *, per_turn: int | None = None, context: int | None = None, **options: Any) -> Episode:
    task = Task(key="k", messages=({"role": "user", "content": "hi"},))
    return Episode(
        task=task,
        state=State(task=task, tokens_per_turn=per_turn),
        transcript=Transcript(options.get("tokenizer", Letters())),
        sampling=Sampling(max_new_tokens=limit),
        context_length=context,
    )


def feed(one: Episode, text: str, finish: str = "stop") -> Message | None:
    ids = Letters().encode(text)
    return one.feed(ids, [-0.5] * len(ids), finish).message  # type: ignore[arg-type]


def tool(text: str) -> Step:
    return Step(append=[{"role": "tool", "content": text}])


def test_the_fake_is_a_tokenizer() -> None:
    assert isinstance(Letters(), Tokenizer)


def test_one_turn_is_the_prompt_and_what_was_sampled() -> None:
    one = episode()
    assert Letters().decode(one.prompt_ids()) == "u:hi$\na:"
    assert feed(one, "yes$") == {"role": "assistant", "content": "yes"}
    assert one.advance(Step(done=True)) is None
    rollout = one.rollout()
    assert (rollout.text, rollout.status, rollout.finish, rollout.turns) == ("yes", "ok", "stop", 1)
    assert Letters().decode(rollout.token_ids) == "yes$"
    assert list(rollout.loss_mask) == [1, 1, 1, 1]


def test_a_tools_answer_is_rendered_as_the_templates_delta_and_masked() -> None:
    one = episode()
    one.prompt_ids()
    feed(one, "call$")
    assert Letters().decode(one.advance(tool("7")) or []) == "\nt:7$\na:"
    feed(one, "seven$")
    one.advance(Step(done=True))
    rollout = one.rollout()
    assert Letters().decode(rollout.token_ids) == "call$\nt:7$\na:seven$"
    chosen = [letter for letter, mask in zip("call$\nt:7$\na:seven$", rollout.loss_mask, strict=True) if mask]
    assert "".join(chosen) == "call$seven$"
    assert [message["role"] for message in rollout.messages] == ["assistant", "tool", "assistant"]


def test_a_turn_that_did_not_end_itself_is_closed_before_the_environment_speaks() -> None:
    one = episode(per_turn=4)
    one.prompt_ids()
    assert feed(one, "call", "length") is not None
    assert Letters().decode(one.advance(tool("7")) or []) == "$\nt:7$\na:"


def test_an_environment_may_continue_the_policys_own_message() -> None:
    one = episode()
    one.prompt_ids()
    feed(one, "2+2=")
    assert Letters().decode(one.advance(Step(append="4;")) or []) == "4;"
    feed(one, "so 4$")
    one.advance(Step(done=True))
    assert one.rollout().messages == ({"role": "assistant", "content": "2+2=4;so 4"},)
    assert one.rollout().text == "so 4"


def test_text_cannot_follow_a_message_that_the_policy_ended() -> None:
    one = episode()
    one.prompt_ids()
    feed(one, "done$")
    with pytest.raises(EpisodeError, match="append messages"):
        one.advance(Step(append="more"))


def test_a_template_that_rewrites_earlier_turns_is_refused_with_the_way_out() -> None:
    one = episode(tokenizer=Letters(rewrites=True))
    one.prompt_ids()
    feed(one, "call$")
    with pytest.raises(EpisodeError, match=r"set model\.chat_template"):
        one.advance(tool("7"))


def test_a_template_that_rewrites_does_not_matter_in_one_turn() -> None:
    one = episode(tokenizer=Letters(rewrites=True))
    one.prompt_ids()
    feed(one, "yes$")
    assert one.advance(Step(done=True)) is None
    assert one.rollout().status == "ok"


def test_the_total_limit_truncates() -> None:
    one = episode(limit=3)
    one.prompt_ids()
    assert one.turn_limit() == 3
    assert feed(one, "abc", "length") is None
    assert (one.rollout().status, one.rollout().finish) == ("truncated", "length")


def test_environment_text_over_the_limit_is_cut_and_truncates() -> None:
    one = episode(limit=10)
    one.prompt_ids()
    feed(one, "call$")
    assert one.advance(tool("a long answer")) is None
    assert len(one.rollout().token_ids) == 10
    assert one.rollout().status == "truncated"


def test_a_prompt_that_fills_the_context_is_a_failure_that_says_so() -> None:
    one = episode(context=8)
    one.prompt_ids()
    assert one.done
    assert one.rollout().status == "error"
    assert "leaves none of the context of 8" in one.rollout().info["reason"]


def test_what_steps_report_is_kept_for_rewards() -> None:
    one = episode()
    one.prompt_ids()
    feed(one, "a$")
    one.advance(Step(append=[{"role": "tool", "content": "x"}], reward=0.5, info={"calls": 1}))
    feed(one, "b$")
    one.advance(Step(done=True, truncated=True, reward=1, info={"calls": 2, "won": True}))
    rollout = one.rollout()
    assert rollout.step_rewards == (0.5, 1.0)
    assert rollout.info == {"calls": 2, "won": True}
    assert (rollout.status, rollout.finish) == ("truncated", "environment")


def test_what_an_environment_said_stays_said_whatever_it_does_with_its_message() -> None:
    one = episode()
    one.prompt_ids()
    feed(one, "a$")
    message: Message = {"role": "tool", "content": "7"}
    one.advance(Step(append=[message]))
    message["content"] = "8"
    assert one.rollout().messages[1]["content"] == "7"


def test_an_environments_failure_is_no_verdict_on_the_policy() -> None:
    one = episode()
    one.prompt_ids()
    feed(one, "a$")
    assert one.advance(Step(status="error", info={"reason": "down"})) is None
    assert one.rollout().status == "error"


LETTERS = st.text(alphabet="abc:\n", max_size=8)


@settings(max_examples=200)
@given(
    turns=st.lists(st.tuples(LETTERS, st.booleans(), LETTERS), min_size=1, max_size=5),
    limit=st.integers(1, 60),
    per_turn=st.none() | st.integers(1, 9),
    context=st.none() | st.integers(12, 60),
)
def test_sampled_ids_are_kept_masks_fit_and_no_limit_is_exceeded(
    turns: list[tuple[str, bool, str]], limit: int, per_turn: int | None, context: int | None
) -> None:
    one = episode(limit, per_turn=per_turn, context=context)
    prompt = one.prompt_ids()
    sampled: list[int] = []
    for text, ends, answer in turns:
        if one.done:
            break
        room = one.turn_limit()
        assert room >= 1
        wanted = Letters().encode(text + "$" * ends)
        ids = wanted[:room] or [END]
        cut = len(ids) == room and ids[-1] != END
        if not cut and ids[-1] != END:
            ids = [*ids[: room - 1], END]
        sampled += ids
        message = one.feed(ids, [-1.0] * len(ids), "length" if cut else "stop").message
        assert (message is None) == one.done
        if message is not None and one.advance(tool(answer)) is None:
            assert one.done
    rollout = one.rollout()
    count = len(rollout.token_ids)
    assert count == len(rollout.loss_mask) == len(rollout.logprobs) <= limit
    assert context is None or len(prompt) + count <= context
    chosen = [token for token, mask in zip(rollout.token_ids, rollout.loss_mask, strict=True) if mask]
    assert chosen == sampled
    masked = [value for value, mask in zip(rollout.logprobs, rollout.loss_mask, strict=True) if not mask]
    assert set(masked) <= {0.0}
