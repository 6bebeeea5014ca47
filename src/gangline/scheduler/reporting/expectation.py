"""When a pending gang is expected to start: place in line, an interval, what makes it sooner."""

from collections.abc import Mapping
from dataclasses import dataclass

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cycle.cycle import run_cycle
from gangline.scheduler.forecast.forecast import (
    BUDGET_S,
    MIN_SAMPLES,
    Forecaster,
    StartForecast,
    line_position,
)
from gangline.scheduler.forecast.what_if import what_ifs
from gangline.scheduler.preemption.preempt import EvictionPolicy
from gangline.scheduler.types.types import (
    GangId,
    GroupKey,
    gang_name,
    single_pod_id,
    single_pod_key,
)

MIN_GAIN_S = 60.0
MIN_GAIN = 0.1
"""A change is worth a mention if it saves so many seconds, and this part of the waiting time."""
MAX_AHEAD = 5
"""Number of gangs ahead that are named."""


@dataclass(frozen=True, slots=True)
class SoonerStart:
    """A change with which the gang would start sooner."""

    change: str
    start: StartForecast


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """When a gang is expected to start."""

    queue: str
    place: int
    """Its place in the line of its queue; 1: the first."""
    ahead: tuple[str, ...]
    """Names of the first of the gangs that are served before it."""
    start: StartForecast
    known_run_times: int
    """Number of running gangs, and of gangs ahead, whose run time is known."""
    run_times: int
    """Number of these gangs."""
    sooner: tuple[SoonerStart, ...] = ()


def expected_start(
    state: SchedulerCache,
    gang: GangId,
    now: float,
    policy: EvictionPolicy,
    budget_s: float = BUDGET_S,
) -> ExpectedStart | None:
    """Forecast the start of a pending gang; None: it does not wait for its turn.

    Args:
        state: the live state; it is not changed.
        gang: the gang.
        now: the time of the state in seconds since the epoch.
        policy: the scheduler's policy of evictions.
        budget_s: seconds of processor time for the simulations of each question.
    """
    result = run_cycle(state, now, policy)
    queues = pending_queues(state)
    queue = queues.get(gang)
    position = line_position(result, queue, gang, queues) if queue is not None else None
    if position is None:
        return None
    forecaster = Forecaster(state, now, policy)
    start = forecaster.forecast(gang, budget_s=budget_s)
    others = [*state.placed_members, *position.ahead]
    known = sum(forecaster.is_known(each) for each in others)
    sooner = []
    changes = what_ifs(state, GroupKey(gang)) if single_pod_key(gang) is None else ()
    for each in changes:
        changed = forecaster.forecast(gang, each.change, MIN_SAMPLES, budget_s / 2)
        if _is_sooner(changed, start):
            sooner.append(SoonerStart(each.text, changed))
    sooner.sort(key=lambda found: found.start.median_s or 0.0)
    return ExpectedStart(
        queue=position.queue,
        place=position.place,
        ahead=tuple(map(gang_name, position.ahead[:MAX_AHEAD])),
        start=start,
        known_run_times=known,
        run_times=len(others),
        sooner=tuple(sooner),
    )


def pending_queues(state: SchedulerCache) -> Mapping[GangId, str]:
    """Return the queue of each pending gang and single pod."""
    queues = {
        GangId(key): state.groups[key].queue for key in state.pending_members if key in state.groups
    }
    single = map(single_pod_id, state.pending_single_pods)
    return queues | dict.fromkeys(single, state.usage.queue_of(None))


def _is_sooner(changed: StartForecast, known: StartForecast) -> bool:
    if changed.median_s is None:
        return False
    if known.median_s is None:
        return True
    gain = known.median_s - changed.median_s
    return gain >= max(MIN_GAIN_S, MIN_GAIN * known.median_s)
