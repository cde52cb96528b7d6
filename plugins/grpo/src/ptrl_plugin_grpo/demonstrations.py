"""Worked examples as training rows: the assistant's messages are learnt, all else is context."""

from ptrl.core import Message, OptimizerError, Task
from ptrl.core.episode import Transcript
from ptrl_plugin_grpo.batches import TrainingRow
from ptrl_plugin_grpo.tokenizer import ChatTokenizer


def demonstration_row(task: Task, transcript: Transcript, tokenizer: ChatTokenizer, number: int) -> TrainingRow:
    """Returns a task's demonstration, tokenized turn by turn just as a rollout of it would be.

    Args:
        task: A task with a demonstration that begins with an assistant message.
        transcript: Renders the prompt, and what stands between turns.
        tokenizer: The policy's tokenizer.
        number: Number of the row.

    Raises:
        OptimizerError: When the task has no demonstration, or one that the policy's turns could not make.
    """
    messages = list(task.demonstration)
    if not messages or messages[0]["role"] != "assistant":
        raise OptimizerError(
            f"the task {task.key!r} of domain {task.domain!r} has no demonstration that begins with an"
            " assistant message; a supervised stage needs an environment that gives Task.demonstration"
        )
    end = tokenizer.end_of_turn_id
    tokens: list[int] = []
    mask: list[int] = []
    while messages:
        turn = [*tokenizer.encode(messages.pop(0)["content"]), end]
        tokens += turn
        mask += [1] * len(turn)
        between: list[Message] = []
        while messages and messages[0]["role"] != "assistant":
            between.append(messages.pop(0))
        if messages and not between:
            raise OptimizerError(
                f"the demonstration of the task {task.key!r} of domain {task.domain!r} has two assistant messages in"
                " a row, which no rollout could have; join them"
            )
        if messages:
            context = transcript.delta_ids(between, closed=True)
            tokens += context
            mask += [0] * len(context)
    return TrainingRow(
        prompt=transcript.prompt_ids(task.messages, ()),
        tokens=tokens,
        mask=mask,
        logprobs=[0.0] * len(tokens),
        group=number,
    )
