"""Simulates the future of a live state: running gangs end, pending ones start, on virtual time.

Time jumps from event to event, and cycles of the scheduler run at each. Pods that may never end
stay, no gang arrives, and an evicted gang is recreated immediately.
"""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from msgspec.structs import replace

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cycle.cycle import run_cycle
from gangline.scheduler.preemption.preempt import EvictionPolicy
from gangline.scheduler.preemption.protection import ProtectedGangs
from gangline.scheduler.types.types import (
    CycleResult,
    GangId,
    GroupKey,
    PodInfo,
    single_pod_id,
    single_pod_key,
)

TERMINATION_S = 30.0
"""Seconds until a terminating pod ends: the default grace period."""
MAX_EVENTS = 10_000
"""Number of events after which the simulation gives up."""
MAX_CYCLES = 20
"""Number of cycles at one moment: each of them evicts pods for another gang."""
DrawRunTime = Callable[[GangId, int, float], float]
"""Returns the total run time of a gang, from its identity, the number of its starts in the
simulation, and the seconds that it has run.
"""


class LiveSimulation:
    """The future of a state; the state is changed.

    Args:
        state: the state; the simulation owns it.
        now: the time of the state in seconds since the epoch.
        policy: the scheduler's policy of evictions.
        draw: draws run times.
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
            targets: the gangs.
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
            result = run_cycle(self.state, self._now, self._policy)
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
        for binding in result.bindings:
            state.assume(binding.pod, binding.node)
            bound = replace(state.pods[binding.pod], phase="Running", started_at=self._now)
            state.set_pod(bound)
        started = [single_pod_id(each.pod) for each in result.bindings if each.group is None]
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
            replace(
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
