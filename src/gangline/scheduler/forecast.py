"""Forecasts: when a pending gang is expected to start, and what would make it sooner.

The scheduler's own cycles run on a copy of the state, on virtual time. Each of many simulations
draws the run times of all gangs anew; the interval contains the middle 80 % of the simulated
starts. No gang arrives meanwhile: a later gang of higher priority, or of a queue that is owed more,
may delay the start. Time jumps from event to event, pods that may never end stay, and an evicted
gang is recreated immediately.

Run times: an estimate of the Brain comes first, then a stated limit (the annotation of the group, a
deadline of its pods), then nothing. A drawn run time exceeds what the gang has run already. An
estimate is the median of a log-normal distribution. Users state limits generously: the used part of
a limit is about uniform, and a part of the gangs is ended by it (Mu'alem and Feitelson,
"Utilization, Predictability, Workloads, and User Runtime Estimates", 2001). Without knowledge, a
gang that has run for a time t ends before 2 t with probability 1/2, and a gang that has not started
is drawn around the usual time of the others.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from random import Random
from statistics import NormalDist, median

from msgspec import structs

from gangline.api.volcano.scheduling import ROOT_QUEUE
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cycle.cycle import DEFAULT_POLICY, run_cycle
from gangline.scheduler.plugins.volumes import StorageState
from gangline.scheduler.preemption.preempt import EvictionPolicy
from gangline.scheduler.preemption.victims import ProtectedGangs
from gangline.scheduler.queueing import messages
from gangline.scheduler.queueing.queue_tree import ancestors
from gangline.scheduler.types import (
    CycleResult,
    GangId,
    GroupKey,
    PendingReason,
    PodGroupInfo,
    PodInfo,
    PodKey,
    gang_name,
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
MAX_QUEUES = 4
"""Number of other queues that are tried."""
MIN_GAIN_S = 60.0
MIN_GAIN = 0.1
"""A change is worth a mention if it saves so many seconds, and this part of the waiting time."""
MAX_AHEAD = 5
"""Number of gangs ahead that are named."""
TERMINATION_S = 30.0
"""Seconds until a terminating pod ends: the default grace period."""
MAX_EVENTS = 10_000
"""Number of events after which the simulation gives up."""
MAX_CYCLES = 20
"""Number of cycles at one moment: each of them evicts pods for another gang."""
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
Change = Callable[[SchedulerCache], None]
"""Changes a copy of the state before it is simulated."""
DrawRunTime = Callable[[GangId, int, float], float]
"""Returns the total run time of a gang, from its identity, the number of its starts in the
simulation, and the seconds that it has run.
"""


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

    @property
    def text(self) -> str:
        """When it is expected to start, in words."""
        if self.earliest_s is None:
            return "not within 30 days, unless resources are freed or added"
        earliest = _duration_text(self.earliest_s)
        if self.latest_s is None:
            return f"not before {earliest} from now; the latest time is unknown"
        if self.latest_s < 1:
            return "now"
        return (
            f"in {earliest} to {_duration_text(self.latest_s)} "
            "(probability 80 %, if no gang overtakes it)"
        )


def _duration_text(seconds: float) -> str:
    """Return a duration in one unit, rounded to two digits."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            count = seconds / size
            return f"{count:.1f} {unit}" if count < 10 else f"{count:.0f} {unit}"
    return f"{seconds:.0f} s"


@dataclass(frozen=True, slots=True)
class LinePosition:
    """The place of a gang in the line of its queue."""

    queue: str
    place: int
    """1: the first."""
    ahead: tuple[GangId, ...]
    """The gangs that are served before it, in their order."""


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
        now: the time of the state in seconds since the epoch.
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
    known_count = sum(forecaster.is_known(gang_id) for gang_id in others)
    sooner = []
    changes = what_ifs(state, GroupKey(gang)) if single_pod_key(gang) is None else ()
    for what_if in changes:
        changed = forecaster.forecast(gang, what_if.change, MIN_SAMPLES, budget_s / 2)
        if _is_sooner(changed, start):
            sooner.append(SoonerStart(what_if.text, changed))
    sooner.sort(key=lambda sooner_start: sooner_start.start.median_s or 0.0)
    return ExpectedStart(
        queue=position.queue,
        place=position.place,
        ahead=tuple(map(gang_name, position.ahead[:MAX_AHEAD])),
        start=start,
        known_run_times=known_count,
        run_times=len(others),
        sooner=tuple(sooner),
    )


def _is_sooner(changed: StartForecast, unchanged: StartForecast) -> bool:
    if changed.median_s is None:
        return False
    if unchanged.median_s is None:
        return True
    gain = unchanged.median_s - changed.median_s
    return gain >= max(MIN_GAIN_S, MIN_GAIN * unchanged.median_s)


def pending_queues(state: SchedulerCache) -> Mapping[GangId, str]:
    queues = {
        GangId(key): state.groups[key].queue for key in state.pending_members if key in state.groups
    }
    single = map(single_pod_id, state.pending_single_pods)
    return queues | dict.fromkeys(single, state.usage.queue_of(None))


def queue_lines(
    result: CycleResult, queues: Mapping[GangId, str]
) -> Mapping[str, Sequence[tuple[GangId, PendingReason]]]:
    """Return the line of each queue: the gangs that wait for resources, in their order.

    Args:
        queues: the queue of each pending gang.
    """
    lines: dict[str, list[tuple[GangId, PendingReason]]] = {}
    for verdict in result.pending_reasons:
        if verdict.reason not in (messages.NOT_ENOUGH_RESOURCES, messages.QUEUE_LIMIT):
            continue
        if not verdict.message:
            continue  # extra pods of a gang that runs
        if verdict.group is not None:
            gang = GangId(verdict.group)
        else:
            gang = single_pod_id(verdict.pods[0][0]) if verdict.pods else GangId("")
        if (queue := queues.get(gang)) is not None:
            lines.setdefault(queue, []).append((gang, verdict))
    return lines


def line_position(
    result: CycleResult, queue: str, target: GangId, queues: Mapping[GangId, str]
) -> LinePosition | None:
    """Return the place of a gang in the line of its queue; None: it is not in the line.

    Args:
        queues: the queue of each pending gang.
    """
    line = [gang for gang, _ in queue_lines(result, queues).get(queue, ())]
    if target not in line:
        return None
    ahead = line[: line.index(target)]
    return LinePosition(queue, len(ahead) + 1, tuple(ahead))


@dataclass(slots=True)
class Forecaster:
    """Forecasts on one state, which is left as it is.

    Args:
        now: its time in seconds since the epoch.
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
            change: a change of the state under which it is forecast.
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
            first_starts = self._simulation(number, change).run_until_all_started(
                targets, HORIZON_S
            )
            for target, samples_s in starts.items():
                samples_s.append(first_starts.get(target, math.inf))
            if number + 1 >= MIN_SAMPLES and time.process_time() - began > budget_s:
                break
        return {target: summarize(samples_s) for target, samples_s in starts.items()}

    def is_known(self, gang: GangId) -> bool:
        """Return whether the run time of a gang is known."""
        return self._run_time(self.state, gang).is_known

    def _simulation(self, number: int, change: Change | None) -> "LiveSimulation":
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
        run_time = self.run_times.get(gang) or self._known.get(gang)
        if run_time is None:
            key = single_pod_key(gang)
            if key is None:
                group = GroupKey(gang)
                run_time = known_run_time(state, group, state.members.get(group, {}).values())
            else:
                pod = state.pods.get(key)
                run_time = known_run_time(state, None, () if pod is None else (pod,))
            self._known[gang] = run_time
        return run_time

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


def _finite(seconds: float) -> float | None:
    return seconds if seconds < math.inf else None


class LiveSimulation:
    """The future of a state; the state is changed.

    Args:
        state: the state; the simulation owns it.
        now: the time of the state in seconds since the epoch.
    """

    def __init__(
        self, state: SchedulerCache, now: float, policy: EvictionPolicy, draw: DrawRunTime
    ) -> None:
        self.state = state
        self._now, self._policy, self._draw = now, policy, draw
        self._starts: dict[GangId, int] = {}
        """Number of the current start of each running gang."""
        self._first_starts: dict[GangId, float] = {}
        """Time of the first start of each gang in the simulation."""
        self._events: list[tuple[float, GangId, int]] = []
        for gang, pods in state.placed_members.items():
            self._add_running(gang, list(pods.values()))

    def run_until_all_started(
        self, targets: Iterable[GangId], horizon_s: float
    ) -> dict[GangId, float]:
        """Return the seconds until each of several gangs starts, without those that do not.

        Args:
            horizon_s: seconds after which the simulation ends.
        """
        began = self._now
        awaited = frozenset(targets)
        for _ in range(MAX_EVENTS):
            if self._run_cycles(awaited):
                break
            if not self._events or self._events[0][0] > began + horizon_s:
                break
            self._now = max(self._now, self._events[0][0])
            while self._events and self._events[0][0] <= self._now:
                _, gang, start = heappop(self._events)
                if self._starts.get(gang) == start:
                    self._end(gang)
        return {gang: at - began for gang, at in self._first_starts.items() if gang in awaited}

    def _add_running(self, gang: GangId, pods: list[PodInfo]) -> None:
        for pod in pods:
            if pod.is_terminating:
                self._add_event(self._now + TERMINATION_S, single_pod_id(pod.key))
        lasting = [pod for pod in pods if not pod.is_terminating]
        if not lasting or all(pod.may_run_forever for pod in lasting):
            return
        started = min((pod.started_at for pod in lasting if pod.started_at), default=self._now)
        elapsed = max(0.0, self._now - started)
        self._add_event(started + self._draw(gang, 0, elapsed), gang)

    def _add_event(self, at: float, gang: GangId) -> None:
        start = self._starts.setdefault(gang, 0)
        heappush(self._events, (max(at, self._now), gang, start))

    def _end(self, gang: GangId) -> None:
        """Remove a gang, or a pod."""
        del self._starts[gang]
        pod = single_pod_key(gang)
        if pod is not None:
            self.state.remove_pod(pod)
            return
        key = GroupKey(gang)
        for member in list(self.state.members.get(key, ())):
            self.state.remove_pod(member)
        self.state.remove_group(key)

    def _run_cycles(self, targets: frozenset[GangId]) -> bool:
        """Run cycles until none evicts pods; return whether all targets have started."""
        for _ in range(MAX_CYCLES):
            self.state.devices.release_unused()
            result = run_cycle(self.state, self._now, self._policy, explain=False)
            self._apply(result)
            if targets <= self._first_starts.keys():
                return True
            if not result.evictions:
                break
        end = ProtectedGangs(self.state, self._now).next_end()
        if end is not None:
            heappush(self._events, (end, GangId(""), -1))
        return False

    def _apply(self, result: CycleResult) -> None:
        state = self.state
        state.reservations = dict(result.reservations)
        state.devices.assume(result.devices)
        for binding in result.bindings:
            state.assume(binding.pod, binding.node, result.volumes)
            bound = structs.replace(state.pods[binding.pod], phase="Running", started_at=self._now)
            state.set_pod(bound)
        if state.storage.assumed:
            state.storage.bind_assumed()
            state.storage_changed()
        started = [
            single_pod_id(binding.pod) for binding in result.bindings if binding.group is None
        ]
        started += map(GangId, sorted(result.placed))
        for gang in started:
            self._first_starts.setdefault(gang, self._now)
            if gang not in self._starts:
                self._start(gang)
        broken: set[GroupKey] = set()
        for eviction in result.evictions:
            self._evict(state.pods[eviction.pod])
            if eviction.group is not None:
                broken.add(eviction.group)
        for key in sorted(broken):
            self._restart_if_broken(key)

    def _start(self, gang: GangId) -> None:
        number = self._starts.get(gang, 0) + 1
        self._starts[gang] = number
        heappush(self._events, (self._now + self._draw(gang, number, 0.0), gang, number))

    def _evict(self, pod: PodInfo) -> None:
        self.state.remove_pod(pod.key)
        if pod.group is not None or pod.belongs_to_job:
            self._recreate(pod)
        if pod.group is None:
            self._starts.pop(pod.gang_id, None)

    def _recreate(self, pod: PodInfo) -> None:
        self.state.remove_pod(pod.key)
        self.state.set_pod(
            structs.replace(
                pod,
                uid=f"{pod.uid}+",
                node=None,
                phase="Pending",
                started_at=0.0,
                is_terminating=False,
            )
        )

    def _restart_if_broken(self, key: GroupKey) -> None:
        members = list(self.state.members.get(key, {}).values())
        group = self.state.groups.get(key)
        running = [pod for pod in members if pod.holds_resources]
        if group is not None and len(running) >= max(1, group.min_member):
            return
        self._starts.pop(GangId(key), None)
        for pod in running:
            self._recreate(pod)
        self.state.former_members.pop(key, None)


def copy_state(state: SchedulerCache) -> SchedulerCache:
    """Return a copy that shares no table with the original; values are immutable and shared."""
    copied = SchedulerCache(state.nodes.weights)
    copied.queues = dict(state.queues)
    copied.class_protection = dict(state.class_protection)
    copied.budgets = dict(state.budgets)
    copied.quotas = {namespace: dict(quotas) for namespace, quotas in state.quotas.items()}
    _copy_storage(state.storage, copied.storage)
    state.devices.copy_to(copied.devices)
    for hypernode in state.nodes.hypernodes.values():
        copied.nodes.set_hypernode(hypernode)
    for row in sorted(state.nodes.rows.values()):
        node = state.nodes.infos[row]
        if node is not None:
            copied.set_node(node)
    for group in state.groups.values():
        copied.set_group(group)
    for pod in state.pods.values():
        copied.set_pod(pod)
    copied.nodes.request_mix = state.nodes.request_mix.copy()
    copied.reservations = dict(state.reservations)
    return copied


def _copy_storage(original: StorageState, copied: StorageState) -> None:
    copied.claims, copied.volumes = dict(original.claims), dict(original.volumes)
    copied.classes, copied.synced = dict(original.classes), original.synced
    copied.limits = {node: dict(limits) for node, limits in original.limits.items()}
    copied.capacities, copied.assumed = original.capacities, dict(original.assumed)


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
        elapsed_s: how long running gangs have run. Long gangs run at any moment more often than
            they start: without known pending gangs, a gang that starts is taken to be shorter.
    """
    stated = [
        run_time.estimate_s or run_time.limit_s / 2 for run_time in pending if run_time.is_known
    ]
    if stated:
        return max(SHORTEST_S, median(stated))
    ran = [seconds for seconds in elapsed_s if seconds > 0]
    return max(SHORTEST_S, median(ran) / 2) if ran else USUAL_S


def _above(random: Random, middle_s: float, spread: float, least_s: float) -> float:
    """Draw from a log-normal distribution the part above ``least_s``."""
    mean = math.log(middle_s)
    below = _STANDARD.cdf((math.log(least_s) - mean) / spread) if least_s > 0 else 0.0
    if below > 1 - _TAIL:
        return least_s / max(random.random(), _TAIL)
    drawn = min(max(random.uniform(below, 1.0), _TAIL), 1 - _TAIL)
    return math.exp(mean + spread * _STANDARD.inv_cdf(drawn))


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One change of a gang."""

    text: str
    change: Change


def what_ifs(state: SchedulerCache, key: GroupKey) -> Iterator[WhatIf]:
    """Yield the changes of a pending gang that are worth a simulation."""
    group = state.groups.get(key)
    if group is None:
        return
    if group.min_member > 1 and not group.subgroups:
        yield _fewer_members(state, group, group.min_member // 2)
    if group.network is not None and group.network.hard:
        yield WhatIf("without a required network domain", _set(replace(group, network=None)))
    inner = {queue.parent for queue in state.queues.values()} | {ROOT_QUEUE, group.queue}
    others = [
        name
        for name in sorted(state.queues)
        if name not in inner and all(state.queues[queue].open for queue in _path(state, name))
    ]
    for name in others[:MAX_QUEUES]:
        yield WhatIf(f"in queue {name!r}", _set(replace(group, queue=name)))


def _path(state: SchedulerCache, queue: str) -> list[str]:
    return [queue, *ancestors(state.queues, queue)]


def _set(group: PodGroupInfo) -> Change:
    def change(state: SchedulerCache) -> None:
        state.set_group(group)

    return change


def _fewer_members(state: SchedulerCache, group: PodGroupInfo, count: int) -> WhatIf:
    """Return the gang with fewer members; each role keeps the same part of its pods."""
    part = count / group.min_member
    by_role: dict[str, list[PodKey]] = {}
    for pod in sorted(state.members.get(group.key, {}).values(), key=lambda pod: pod.key):
        by_role.setdefault(pod.role, []).append(pod.key)
    kept = {role: max(1, round(len(pods) * part)) for role, pods in by_role.items()}
    surplus = [key for role, pods in by_role.items() for key in pods[kept[role] :]]
    left = sum(kept.values())
    minimums = tuple((role, min(most, kept.get(role, 0))) for role, most in group.min_task_member)
    smaller = replace(group, min_member=min(left, group.min_member), min_task_member=minimums)

    def change(state: SchedulerCache) -> None:
        for key in surplus:
            state.remove_pod(key)
        state.set_group(smaller)

    return WhatIf(f"with {left} instead of {left + len(surplus)} pods", change)
