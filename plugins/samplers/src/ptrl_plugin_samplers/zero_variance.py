"""`samplers.zero_variance`: a group whose answers are all equally good or bad teaches nothing."""

from __future__ import annotations

import math

from ptrl.core import Decision, Drop, Filter, Group, Keep

_SAME = 1e-9
_SOLVED = 0.5


class ZeroVariance(Filter):
    """Drops groups whose raw metric is the same for all valid rollouts.

    Their group-relative advantages are all zero, so they add noise to the batch's size and nothing to its
    gradient: the filter of DAPO's dynamic sampling, 0 < solved < group size (arXiv 2503.14476, eq. 11). The
    engine fills the batch up. Judged is the raw metric and not the shaped reward, which varies with length or
    format where no answer is right.

    The reasons are `all solved` and `none solved` (the common metric is at least 0.5, or below), and
    `no verdict`. A group of one verdict cannot vary, so it is dropped too.
    """

    capabilities = frozenset({"drop"})

    def decide(self, group: Group) -> Decision:
        """Returns Keep when the metric varies, else Drop with the reason."""
        metrics = [metric for metric in group.metrics if math.isfinite(metric)]
        if not metrics:
            return Drop("no verdict")
        if max(metrics) - min(metrics) >= _SAME:
            return Keep()
        return Drop("all solved" if metrics[0] >= _SOLVED else "none solved")
