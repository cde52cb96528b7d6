"""The schema of saved rollouts, version 1: what `ptrl score` and the report read back.

One JSON object a line:

| key | what |
|---|---|
| `schema` | 1 |
| `step` | training step, from 1; the step of the evaluation for held-out rollouts |
| `domain`, `key` | the task |
| `ticket`, `index` | the group, and the position in it |
| `prompt` | the task's messages |
| `messages` | what followed, by turn |
| `text` | what the policy wrote last |
| `reference` | what rewards judge by, where it is plain data |
| `finish`, `status`, `turns`, `tokens` | how it ended; tokens chosen by the policy |
| `metric`, `total`, `training_reward`, `valid` | the composed numbers |
| `scores` | by label: `value`, `metric`, `status`, `parts`, `info` |
| `token_ids`, `loss_mask`, `logprobs`, `prompt_ids` | only where `run.rollouts.tokens` is set |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ptrl.core.errors import RunFolderError
from ptrl.core.files import finite
from ptrl.core.records import Rollout, Score, ScoredRollout, Task

SCHEMA = 1
MAXIMUM_DEPTH = 20


def rollout_line(scored: ScoredRollout, step: int, *, tokens: bool = False) -> str:
    """Returns one scored rollout as a line of JSON, without the line's end."""
    data = rollout_to_plain(scored, step, tokens=tokens)
    try:
        return json.dumps(data, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return json.dumps(_plain(data), allow_nan=False, separators=(",", ":"))


def rollout_to_plain(scored: ScoredRollout, step: int, *, tokens: bool = False) -> dict[str, Any]:
    """Returns one scored rollout as plain data."""
    rollout = scored.rollout
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "step": step,
        "domain": rollout.task.domain,
        "key": rollout.task.key,
        "ticket": rollout.ticket,
        "index": rollout.index,
        "prompt": rollout.task.messages,
        "messages": rollout.messages,
        "text": rollout.text,
        "reference": rollout.task.reference,
        "finish": rollout.finish,
        "status": rollout.status,
        "turns": rollout.turns,
        "tokens": sum(rollout.loss_mask),
        "metric": scored.metric,
        "total": scored.total,
        "training_reward": scored.training_reward,
        "valid": scored.valid,
        "scores": {label: _score_to_plain(score) for label, score in scored.scores.items()},
    }
    if rollout.info:
        data["info"] = dict(rollout.info)
    if tokens:
        data["prompt_ids"] = rollout.prompt_ids
        data["token_ids"] = rollout.token_ids
        data["loss_mask"] = rollout.loss_mask
        data["logprobs"] = [round(value, 6) for value in rollout.logprobs]
    return data


def _score_to_plain(score: Score) -> dict[str, Any]:
    data: dict[str, Any] = {"value": score.value, "status": score.status}
    if score.metric is not None:
        data["metric"] = score.metric
    if score.parts:
        data["parts"] = dict(score.parts)
    if score.info:
        data["info"] = dict(score.info)
    return data


def _plain(value: Any, depth: int = MAXIMUM_DEPTH) -> Any:
    """Returns data that JSON can hold: NaN becomes null, and what is not plain or is too deep becomes its text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return finite(value)
    if isinstance(value, Mapping) and depth:
        return {str(key): _plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)) and depth:
        return [_plain(item, depth - 1) for item in value]
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__}, whose __repr__ raised {type(error).__name__}>"


def rollout_from_plain(data: Mapping[str, Any]) -> Rollout:
    """Returns the rollout of a saved line.

    Raises:
        RunFolderError: When the line has another schema or lacks a key.
    """
    if data.get("schema") != SCHEMA:
        raise RunFolderError(f"a saved rollout has schema {data.get('schema')!r}; this ptrl reads {SCHEMA}")
    try:
        task = Task(
            key=data["key"],
            domain=data["domain"],
            messages=tuple(data["prompt"]),
            reference=data.get("reference"),
        )
        return Rollout(
            index=data["index"],
            ticket=data["ticket"],
            task=task,
            messages=tuple(data["messages"]),
            text=data["text"],
            prompt_ids=tuple(data.get("prompt_ids", ())),
            token_ids=tuple(data.get("token_ids", ())),
            loss_mask=tuple(data.get("loss_mask", ())),
            logprobs=tuple(data.get("logprobs", ())),
            finish=data["finish"],
            status=data["status"],
            turns=data["turns"],
            info=data.get("info", {}),
        )
    except (KeyError, TypeError) as error:
        raise RunFolderError(f"a saved rollout lacks or misuses {error}") from None
