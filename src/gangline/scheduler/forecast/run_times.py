"""Run times of gangs: what is known about them, and drawing them from it.

Three sources are known, the best first: an estimate of the Brain, a stated limit (the annotation of
the group, a deadline of its pods), and nothing. A drawn run time exceeds what the gang has run
already. An estimate is the median of a log-normal distribution. Users state limits generously: the
used part of a limit is about uniform, and a part of the gangs is ended by it (Mu'alem and
Feitelson, "Utilization, Predictability, Workloads, and User Runtime Estimates", 2001). Without
knowledge, a gang that has run for a time t ends before 2 t with probability 1/2, and a gang that
has not started is drawn around the usual time of the others.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from statistics import NormalDist, median

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.types.types import GroupKey, PodInfo

ESTIMATE_SPREAD = 0.6
"""Standard deviation of the logarithm of a run time around its estimate."""
UNKNOWN_SPREAD = 1.8
"""The same around the usual run time, for a gang about which nothing is known."""
ENDED_BY_LIMIT = 0.2
"""Part of the gangs that run until their limit."""
UNKNOWN_TAIL = 1.5
"""Exponent of the tail of the run time of a running gang about which nothing is known."""
USUAL_S = 1800.0
"""Usual run time if nothing is known about any gang."""
SHORTEST_S = 60.0
_STANDARD = NormalDist()
_TAIL = 1e-6


@dataclass(frozen=True, slots=True)
class RunTime:
    """What is known about the run time of a gang, in seconds; 0: unknown."""

    estimate_s: float = 0.0
    limit_s: float = 0.0

    @property
    def is_known(self) -> bool:
        return bool(self.estimate_s or self.limit_s)

    def draw(self, random: Random, elapsed_s: float, usual_s: float = USUAL_S) -> float:
        """Draw a total run time that exceeds ``elapsed_s``."""
        if self.estimate_s:
            total = _above(random, self.estimate_s, ESTIMATE_SPREAD, elapsed_s)
        elif self.limit_s:
            total = self._part_of_limit(random, elapsed_s)
        elif elapsed_s:
            total = max(elapsed_s, SHORTEST_S) * max(random.random(), _TAIL) ** (-1 / UNKNOWN_TAIL)
        else:
            total = _above(random, usual_s, UNKNOWN_SPREAD, 0.0)
        limited = min(total, self.limit_s) if self.limit_s else total
        return max(limited, elapsed_s + 1.0)

    def _part_of_limit(self, random: Random, elapsed_s: float) -> float:
        used = min(1.0, elapsed_s / self.limit_s)
        ends_before = (1 - ENDED_BY_LIMIT) * (1 - used)
        if random.random() * (ends_before + ENDED_BY_LIMIT) >= ends_before:
            return self.limit_s
        return self.limit_s * random.uniform(used, 1.0)


def known_run_time(
    state: SchedulerCache, group: GroupKey | None, pods: Iterable[PodInfo]
) -> RunTime:
    """Return what the objects of the cluster say about the run time of a gang."""
    limits = [pod.max_run_time_s for pod in pods]
    of_pods = max(limits, default=0.0) if all(limits) else 0.0
    facts = state.groups.get(group) if group is not None else None
    if facts is None:
        return RunTime(limit_s=of_pods)
    stated = [limit for limit in (of_pods, facts.max_run_time_s) if limit]
    return RunTime(facts.run_time_estimate_s, min(stated, default=0.0))


def usual_run_time(pending: Iterable[RunTime], elapsed_s: Iterable[float]) -> float:
    """Return the usual run time of a gang that starts.

    Args:
        pending: what is known about the pending gangs.
        elapsed_s: how long running gangs have run. Long gangs run at any moment more often than
            they start: without known pending gangs, a gang that starts is taken to be shorter.
    """
    stated = [each.estimate_s or each.limit_s / 2 for each in pending if each.is_known]
    if stated:
        return max(SHORTEST_S, median(stated))
    ran = [each for each in elapsed_s if each > 0]
    return max(SHORTEST_S, median(ran) / 2) if ran else USUAL_S


def _above(random: Random, middle_s: float, spread: float, least_s: float) -> float:
    """Draw from a log-normal distribution the part above ``least_s``."""
    mean = math.log(middle_s)
    below = _STANDARD.cdf((math.log(least_s) - mean) / spread) if least_s > 0 else 0.0
    if below > 1 - _TAIL:
        return least_s / max(random.random(), _TAIL)
    drawn = min(max(random.uniform(below, 1.0), _TAIL), 1 - _TAIL)
    return math.exp(mean + spread * _STANDARD.inv_cdf(drawn))
