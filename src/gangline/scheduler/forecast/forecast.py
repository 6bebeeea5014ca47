"""When a pending gang is expected to start: an interval from many simulations of the live state.

Each simulation draws the run times of all gangs anew. The interval contains the middle 80 % of the
simulated starts. It assumes that no gang arrives meanwhile; a later gang of higher priority, or of
a queue that is owed more, may delay the start.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cycle.cycle import DEFAULT_POLICY
from gangline.scheduler.forecast.live_simulation import LiveSimulation
from gangline.scheduler.forecast.run_times import RunTime, known_run_time, usual_run_time
from gangline.scheduler.forecast.snapshot import copy_state
from gangline.scheduler.preemption.preempt import EvictionPolicy
from gangline.scheduler.queueing import messages
from gangline.scheduler.types.types import (
    CycleResult,
    GangId,
    GroupKey,
    single_pod_id,
    single_pod_key,
)

SAMPLES = 40
"""Number of simulations."""
MIN_SAMPLES = 9
"""The smallest number that has a middle 80 %."""
COVERAGE = 0.8
HORIZON_S = 30 * 86_400.0
BUDGET_S = 4.0
"""Seconds of processor time after which no further simulation starts."""
Change = Callable[[SchedulerCache], None]
"""Changes a copy of the state before it is simulated."""


@dataclass(frozen=True, slots=True)
class StartForecast:
    """When a gang is expected to start."""

    earliest_s: float | None
    """Seconds from now to the begin of the interval; None: it is not expected to start."""
    latest_s: float | None
    """Seconds from now to the end of the interval; None: it is unknown."""
    median_s: float | None
    chance: float
    """Part of the simulations in which it started."""
    samples: int


@dataclass(frozen=True, slots=True)
class LinePosition:
    """The place of a gang in the line of its queue."""

    queue: str
    place: int
    """1: the first."""
    ahead: tuple[GangId, ...]
    """The gangs that are served before it, in their order."""


@dataclass(slots=True)
class Forecaster:
    """Forecasts on one state, which is left as it is.

    Args:
        state: the live state.
        now: its time in seconds since the epoch.
        policy: the scheduler's policy of evictions.
        run_times: run times of gangs that are known otherwise.
        seed: equal seeds give equal forecasts, as far as the time suffices.
    """

    state: SchedulerCache
    now: float
    policy: EvictionPolicy = DEFAULT_POLICY
    run_times: Mapping[GangId, RunTime] = field(default_factory=dict)
    seed: int = 0
    _known: dict[GangId, RunTime] = field(default_factory=dict)
    _usual_s: float = 0.0

    def forecast(
        self,
        target: GangId,
        change: Change | None = None,
        samples: int = SAMPLES,
        budget_s: float = BUDGET_S,
    ) -> StartForecast:
        """Forecast the start of a pending gang, or of a single pod.

        Args:
            target: the gang.
            change: a change of the state under which it is forecast.
            samples: number of simulations.
            budget_s: seconds of processor time for them; at least ``MIN_SAMPLES`` run.
        """
        return self.forecast_all([target], change, samples, budget_s)[target]

    def forecast_all(
        self,
        targets: Sequence[GangId],
        change: Change | None = None,
        samples: int = SAMPLES,
        budget_s: float = BUDGET_S,
    ) -> dict[GangId, StartForecast]:
        """Forecast the starts of several gangs by the same simulations; see ``forecast``."""
        began = time.process_time()
        starts: dict[GangId, list[float]] = {target: [] for target in targets}
        for number in range(samples):
            found = self._simulation(number, change).run_until_all_started(targets, HORIZON_S)
            for target, each in starts.items():
                each.append(found.get(target, math.inf))
            if number + 1 >= MIN_SAMPLES and time.process_time() - began > budget_s:
                break
        return {target: summarize(each) for target, each in starts.items()}

    def is_known(self, gang: GangId) -> bool:
        """Return whether the run time of a gang is known."""
        return self._run_time(self.state, gang).is_known

    def _simulation(self, number: int, change: Change | None) -> LiveSimulation:
        copied = copy_state(self.state)
        if change is not None:
            change(copied)
        return LiveSimulation(
            copied,
            self.now,
            self.policy,
            lambda gang, start, elapsed: self._draw(copied, number, (gang, start), elapsed),
        )

    def _draw(
        self, state: SchedulerCache, number: int, of: tuple[GangId, int], elapsed: float
    ) -> float:
        # One generator for each gang: a change of one gang leaves the draws of the others.
        gang, start = of
        random = Random(f"{self.seed}/{number}/{gang}/{start}")
        return self._run_time(state, gang).draw(random, elapsed, self._usual())

    def _run_time(self, state: SchedulerCache, gang: GangId) -> RunTime:
        known = self.run_times.get(gang) or self._known.get(gang)
        if known is None:
            key = single_pod_key(gang)
            if key is None:
                group = GroupKey(gang)
                known = known_run_time(state, group, state.members.get(group, {}).values())
            else:
                pod = state.pods.get(key)
                known = known_run_time(state, None, () if pod is None else (pod,))
            self._known[gang] = known
        return known

    def _usual(self) -> float:
        if not self._usual_s:
            state = self.state
            pending = [self._run_time(state, GangId(key)) for key in state.pending_members]
            elapsed = [
                self.now - min(pod.started_at for pod in pods.values())
                for pods in state.placed_members.values()
                if all(pod.started_at and not pod.may_run_forever for pod in pods.values())
            ]
            self._usual_s = usual_run_time(pending, elapsed)
        return self._usual_s


def summarize(starts: list[float]) -> StartForecast:
    """Return the middle of the simulated starts; infinite ones stand for gangs that never start."""
    ordered = sorted(starts)
    count = len(ordered)
    outside = max(1, round((1 - COVERAGE) / 2 * (count + 1)))
    lowest, middle, highest = ordered[outside - 1], ordered[count // 2], ordered[count - outside]
    return StartForecast(
        earliest_s=_finite(lowest),
        latest_s=_finite(highest),
        median_s=_finite(middle),
        chance=sum(start < math.inf for start in ordered) / count,
        samples=count,
    )


def line_position(
    result: CycleResult, queue: str, target: GangId, queues: Mapping[GangId, str]
) -> LinePosition | None:
    """Return the place of a gang in the line of its queue; None: it is not in the line.

    Args:
        result: the result of a cycle.
        queue: the queue of the gang.
        target: the gang.
        queues: the queue of each pending gang.
    """
    ahead: list[GangId] = []
    for verdict in result.pending_reasons:
        if verdict.reason not in (messages.NOT_ENOUGH_RESOURCES, messages.QUEUE_LIMIT):
            continue
        if not verdict.message:
            continue  # extra pods of a gang that runs
        if verdict.group is not None:
            gang = GangId(verdict.group)
        else:
            gang = single_pod_id(verdict.pods[0][0]) if verdict.pods else GangId("")
        if gang == target:
            return LinePosition(queue, len(ahead) + 1, tuple(ahead))
        if queues.get(gang) == queue:
            ahead.append(gang)
    return None


def _finite(seconds: float) -> float | None:
    return seconds if seconds < math.inf else None
