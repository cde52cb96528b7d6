"""The records that travel between environments, policies, rewards, samplers and observers.

All are frozen, slotted and built by keyword, so that fields can be added with defaults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

Role = Literal["system", "user", "assistant", "tool"]
Split = Literal["train", "test"]
FinishReason = Literal["stop", "length", "environment", "error"]
RolloutStatus = Literal["ok", "truncated", "error"]
ScoreStatus = Literal["ok", "abstain", "error", "timeout"]
OutcomeStatus = Literal["ok", "error", "stale", "dropped"]
RewardRole = Literal["outcome", "process", "format", "efficiency", "preference", "gate"]


class Message(TypedDict):
    """One chat message, in the form that chat templates and chat endpoints take."""

    role: Role
    content: str
    name: NotRequired[str]
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing to solve.

    Args:
        key: Identifies the task within its domain, the same in every process and run.
        domain: The config's name of the domain; filled in by the session.
        messages: The prompt as chat messages.
        reference: What a reward judges by: an answer, tests, a data set's entry. Never shown to the policy.
        difficulty: The data set's own estimate, any unit, larger is harder; None if it has none.
        tags: Free labels for samplers and reports.
        info: Plain data that environments leave for rewards.
        demonstration: A worked continuation of `messages`, for supervised stages; empty if there is none.
    """

    key: str
    messages: tuple[Message, ...]
    domain: str = ""
    reference: Any = None
    difficulty: float | None = None
    tags: tuple[str, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)
    demonstration: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One reward's verdict on one rollout.

    Args:
        value: What is optimized; None exactly when `status` is not `ok`.
        metric: Did it solve the task, 0 to 1; only of outcome rewards, where it defaults to `value`.
        status: `ok`; `abstain` (cannot judge this one); `error` or `timeout` (the verifier's own failure).
        parts: Named contributions to the value, for reports.
        evidence: Plain data for rewards that need this one; not logged.
        info: Reasons and details that reports show.
    """

    value: float | None
    metric: float | None = None
    status: ScoreStatus = "ok"
    parts: Mapping[str, float] = field(default_factory=dict)
    evidence: Any = None
    info: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def abstain(cls, reason: str) -> Score:
        """Returns the verdict of a reward that cannot judge this rollout."""
        return cls(value=None, status="abstain", info={"reason": reason})

    @classmethod
    def failure(cls, reason: str, status: Literal["error", "timeout"] = "error") -> Score:
        """Returns the verdict of a verifier that failed: masked and counted, never a zero."""
        return cls(value=None, status=status, info={"reason": reason})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A sampler's order for one group of rollouts.

    Args:
        id: Unique in the run; outcomes are idempotent by it.
        index: The task's position in the catalog.
        domain: The domain that the index lies in.
        group_size: How many rollouts to make of the task.
        probe: Drawn uniformly, so that its outcome is an unbiased estimate of the domain's accuracy.
    """

    id: str
    index: int
    domain: str
    group_size: int
    probe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One finished attempt of the policy at a task.

    Token fields are empty where the policy is reached through text only (a chat endpoint).

    Args:
        index: Position in its group, from 0.
        ticket: Id of the ticket the rollout was made for; empty in evaluation.
        task: The task.
        messages: What followed the prompt, by turn: the policy's messages and the environment's.
        text: What the policy wrote in its last turn, without the end-of-turn token.
        prompt_ids: Token ids of the prompt.
        token_ids: Token ids after the prompt, the policy's and the environment's.
        loss_mask: 1 where the policy chose the token, as long as `token_ids`.
        logprobs: Log-probability of each chosen token when it was sampled, in nats; 0 where the mask is 0.
        finish: Why it ended.
        status: `truncated` when a limit cut it, `error` when the environment or engine failed.
        turns: Number of turns the policy took.
        policy_version: Version of the weights that began it.
        step_rewards: What the environment's steps reported, in order.
        info: Plain data that the environment left for rewards.
        scores: Verdicts of the rewards that this one `needs`, by label.
        timings: Seconds by phase.
    """

    index: int = 0
    ticket: str = ""
    task: Task
    messages: tuple[Message, ...] = ()
    text: str = ""
    prompt_ids: Sequence[int] = ()
    token_ids: Sequence[int] = ()
    loss_mask: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    finish: FinishReason = "stop"
    status: RolloutStatus = "ok"
    turns: int = 1
    policy_version: int = 0
    step_rewards: tuple[float, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, Score] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRollout:
    """A rollout with every verdict and the two numbers composed of them.

    Args:
        rollout: The rollout.
        scores: Every composed reward's verdict, by label.
        metric: The raw metric of the domain's outcome reward, 0 to 1; None when there is no verdict.
        total: Product of gates times weighted sum of values, without statistics; None when there is no verdict.
        training_reward: What the optimizer sees: scaled by component and group. 0 when `valid` is False.
        valid: Whether the outcome reward reached a verdict and the rollout itself did not fail.
    """

    rollout: Rollout
    scores: Mapping[str, Score]
    metric: float | None
    total: float | None
    training_reward: float = 0.0
    valid: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All rollouts of one ticket, scored."""

    ticket: Ticket
    task: Task
    members: tuple[ScoredRollout, ...]

    @property
    def metrics(self) -> list[float]:
        """The raw metric of each member that has one."""
        return [member.metric for member in self.members if member.valid and member.metric is not None]

    @property
    def zero_variance(self) -> bool:
        """Whether the raw metric is the same for all valid members, so that the group teaches nothing."""
        metrics = self.metrics
        return len(metrics) < 2 or max(metrics) - min(metrics) < 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a sampler learns of one ticket. Raw metric only; a failed verifier is not a failed rollout.

    Args:
        ticket: The ticket's id.
        key: The task's key.
        domain: The task's domain.
        index: The task's position in the catalog.
        successes: Valid rollouts whose metric is at least 0.5.
        valid: Rollouts with a verdict.
        metric_sum: Sum of the raw metric over valid rollouts.
        metric_square_sum: Sum of its squares.
        masked: Rollouts without a verdict.
        truncated: Rollouts that a limit cut.
        staleness: Policy versions between the ticket's draw and its report.
        status: `error` when no rollout has a verdict, `dropped` when a filter dropped the group.
        probe: Whether the ticket was a probe.
    """

    ticket: str
    key: str
    domain: str
    index: int
    successes: int
    valid: int
    metric_sum: float
    metric_square_sum: float
    masked: int = 0
    truncated: int = 0
    staleness: int = 0
    status: OutcomeStatus = "ok"
    probe: bool = False

    @property
    def mean(self) -> float:
        """Mean raw metric over valid rollouts; NaN when there is none."""
        return self.metric_sum / self.valid if self.valid else math.nan

    @classmethod
    def of(cls, group: Group, *, status: OutcomeStatus = "ok", staleness: int = 0) -> Outcome:
        """Summarizes a scored group."""
        metrics = group.metrics
        return cls(
            ticket=group.ticket.id,
            key=group.task.key,
            domain=group.ticket.domain,
            index=group.ticket.index,
            successes=sum(metric >= 0.5 for metric in metrics),
            valid=len(metrics),
            metric_sum=math.fsum(metrics),
            metric_square_sum=math.fsum(metric * metric for metric in metrics),
            masked=len(group.members) - len(metrics),
            truncated=sum(member.rollout.status == "truncated" for member in group.members),
            staleness=staleness,
            status=status if metrics else "error",
            probe=group.ticket.probe,
        )
