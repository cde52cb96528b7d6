"""The one evaluation path: held-out tasks, greedy or sampled, judged by the raw metric."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import fmean

from ptrl.core.composition import Component, compose
from ptrl.core.contracts.observer import Decoding, DomainResult, Evaluation
from ptrl.core.episode import Transcript
from ptrl.core.policy import Policy, Sampling
from ptrl.core.records import ScoredRollout, Split
from ptrl.core.session.driver import drive
from ptrl.core.session.worker import Worker


def evaluate(
    worker: Worker,
    policy: Policy,
    transcript: Transcript | None,
    components: Callable[[str], Sequence[Component]],
    *,
    split: Split,
    decoding: Decoding,
    sampling: Sampling,
    tasks: int,
    batch: int,
    step: int,
) -> Evaluation:
    """Measures a policy on the first tasks of a split, the same ones every time.

    Args:
        worker: Environments and rewards.
        policy: Who takes the turns.
        transcript: Renders for the policy's tokenizer; None for a chat policy.
        components: Returns how a domain's rewards take part.
        split: The split.
        decoding: Recorded; `sampling` says how.
        sampling: How tokens are chosen, and limits.
        tasks: At most this many tasks per domain.
        batch: Episodes in flight at a time.
        step: Number of training steps the policy had.
    """
    begin = time.perf_counter()
    names = [domain.name for domain in worker.plan.domains]
    wanted = [(name, index) for name in names for index in range(min(tasks, len(worker.source(name, split))))]
    scored: list[ScoredRollout] = []
    for start in range(0, len(wanted), batch):
        orders = [(worker.task(name, split, index), 0, "") for name, index in wanted[start : start + batch]]
        rollouts = drive(worker, policy, orders, sampling, transcript)
        for name in names:
            own = [rollout for rollout in rollouts if rollout.task.domain == name]
            for rollout, verdicts in zip(own, worker.score(name, [[one] for one in own]), strict=True):
                item = compose(verdicts[0], components(name))
                scored.append(
                    ScoredRollout(
                        rollout=rollout,
                        scores=verdicts[0],
                        metric=item.metric if item.valid else None,
                        total=item.total,
                        valid=item.valid,
                    )
                )
    results = {name: _result([one for one in scored if one.rollout.task.domain == name]) for name in names}
    metrics = [result.metric for result in results.values() if result.metric is not None]
    return Evaluation(
        step=step,
        split=split,
        decoding=decoding,
        domains=results,
        mean=fmean(metrics) if metrics else None,
        seconds=time.perf_counter() - begin,
        rollouts=scored,
    )


def _result(scored: Sequence[ScoredRollout]) -> DomainResult:
    metrics = [one.metric for one in scored if one.metric is not None]
    totals = [one.total for one in scored if one.total is not None]
    count = max(1, len(scored))
    return DomainResult(
        metric=math.fsum(metrics) / len(metrics) if metrics else None,
        total=math.fsum(totals) / len(totals) if totals else None,
        tasks=len(metrics),
        masked=len(scored) - len(metrics),
        truncated=sum(one.rollout.status == "truncated" for one in scored) / count,
        tokens=sum(sum(one.rollout.loss_mask) for one in scored) / count,
    )
