"""Simulation on virtual time: jobs arrive and end, and a cycle runs after each event.

Time jumps from event to event; nothing is sampled and nothing sleeps. Evicted and failed gangs are
recreated at the same moment, and repeat their work since the last checkpoint. Evicted pods end
after 1 to 4 further cycles of that moment, since on a cluster cycles run while pods are ending.

A gang with checkpoints whose step time is known saves before its pods begin to end: it works to the
end of its present step, stops there, and answers when the save is written. If that takes longer
than the scheduler waits, it is evicted without an answer, and the work since its last checkpoint is
lost.

A resizer, which the caller gives, may change the pods of elastic jobs at each tick. Their speed
follows the pods that are bound; a change costs the job's restart time and no work.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from heapq import heapify, heappop, heappush

from msgspec import structs

from gangline.api.volcano.scheduling import DEFAULT_QUEUE
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.node_table import DEFAULT_WEIGHTS
from gangline.scheduler.cycle.cycle import run_cycle
from gangline.scheduler.plugins.scores import ScoreWeights
from gangline.scheduler.preemption.preempt import EvictionPolicy
from gangline.scheduler.preemption.save_first import DEFAULT_SAVE_WAIT_S, SaveOutcome, SaveRequests
from gangline.scheduler.simulate.trace import SimulatedCluster, TraceJob
from gangline.scheduler.types import (
    EPOCH,
    CycleResult,
    GroupKey,
    PlacementConstraints,
    PodEviction,
    PodGroupInfo,
    PodInfo,
    PodKey,
    QueueInfo,
    shape_of,
)

NAMESPACE = "sim"
ARRIVES, ENDS, TICKS, SAVES = 0, 1, 2, 3
ANYWHERE = PlacementConstraints()
SLOWEST_END = 4
"""Maximal number of cycles that an evicted pod takes to end."""
CycleObserver = Callable[[SchedulerCache, CycleResult, float], None]
"""Called with each result before it is applied."""


@dataclass(frozen=True, slots=True)
class PlannedSave:
    """How a gang carries out a request to save."""

    stops_at: float
    """Time at which it stops working: the end of its present step."""
    answers_at: float
    """Time at which the save is written."""


@dataclass(slots=True, eq=False)
class JobRun:
    """The state of one job in the simulation."""

    job: TraceJob
    started: float | None = None
    """Time of its last start: when its minimum got nodes."""
    first_started: float | None = None
    ended: float | None = None
    starts: int = 0
    """Number of starts; end events of an earlier start are ignored."""
    evicted: int = 0
    failed: bool = False
    saved: float = 0.0
    """Seconds of work that need not be repeated."""
    lost: float = 0.0
    """Seconds of work that had to be repeated."""
    pods: int = 0
    """Pods that it has or waits for."""
    bound: int = 0
    """Bound pods of an elastic job since ``started``."""
    rate: float = 1.0
    """Work per second since ``started``."""
    resized: int = 0
    """Changes of its bound pods while it ran."""
    restarting: float = 0.0
    """Seconds in which it did no work because of changes."""

    def __post_init__(self) -> None:
        self.pods = self.job.size

    def work(self, now: float) -> float:
        """Return the seconds of work since its last start or change."""
        return 0.0 if self.started is None else max(now - self.started, 0.0) * self.rate

    def interrupt(self, now: float, *, is_saved: bool = False) -> None:
        """Lose the work since the last checkpoint; with ``is_saved`` there is one of this time."""
        if self.started is not None:
            ran = self.work(now)
            kept = ran if is_saved else self.job.checkpointed_work(ran)
            self.saved += kept
            self.lost += ran - kept
            self.started = None

    @property
    def waited(self) -> float | None:
        return None if self.first_started is None else self.first_started - self.job.arrival


@dataclass(frozen=True, slots=True)
class ResizeView:
    """What a resizer sees at a tick."""

    now: float
    running: tuple[JobRun, ...]
    """Elastic jobs that run, in the order of the trace."""
    waiting: tuple[JobRun, ...]
    """Jobs that wait for their minimum, in the order of arrival."""
    free: Mapping[str, Mapping[str, int]]
    """Free amounts of each resource, by node."""


Resizer = Callable[[ResizeView], Mapping[str, int]]
"""Returns the new number of pods of some elastic jobs, by name; the engine keeps their bounds."""


@dataclass(frozen=True, slots=True)
class Resizing:
    """A resizer and the time between its calls."""

    resizer: Resizer
    tick_s: float = 60.0


@dataclass(slots=True)
class Sample:
    """The state of the cluster from a moment on."""

    at: float
    running: dict[str, int]
    """Amounts in use."""
    waiting: int
    """Number of pending gangs."""


@dataclass(slots=True)
class SimulationHistory:
    """The records of a simulation."""

    runs: dict[str, JobRun] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    decisions: int = 0
    evictions: int = 0


class Simulation:
    """A cluster on virtual time."""

    def __init__(  # noqa: PLR0913, PLR0917 - the cluster, the jobs, and how they are scheduled
        self,
        cluster: SimulatedCluster,
        jobs: Iterable[TraceJob],
        policy: EvictionPolicy | None = None,
        watchers: Sequence[CycleObserver] = (),
        quantum_s: float = 0.0,
        weights: ScoreWeights = DEFAULT_WEIGHTS,
        resizing: Resizing | None = None,
        save_wait_s: float = DEFAULT_SAVE_WAIT_S,
    ) -> None:
        self.state = SchedulerCache(weights)
        self.state.queues[DEFAULT_QUEUE] = QueueInfo(DEFAULT_QUEUE)
        for queue in cluster.queues:
            self.state.queues[queue.name] = queue
        self._nodes = cluster.nodes
        for node in cluster.nodes:
            self.state.set_node(node)
        self.history = SimulationHistory({job.name: JobRun(job) for job in jobs})
        self._ending: dict[PodKey, int] = {}
        """Evicted pods, with the number of cycles after which they will have ended."""
        self._saving: dict[str, JobRun] = {}
        """Runs that write checkpoints and have not ended."""
        self._policy = policy or EvictionPolicy()
        self.saves = SimulatedSaves(save_wait_s)
        self._watchers = watchers
        self._quantum_s = quantum_s
        self._events: list[tuple[float, int, str, int]] = [
            (run.job.arrival, ARRIVES, name, 0) for name, run in self.history.runs.items()
        ]
        self._resizing = resizing
        self._elastic = {name: run for name, run in self.history.runs.items() if run.job.is_elastic}
        """Elastic runs that have not ended."""
        if resizing is not None and self._events:
            self._events.append((min(self._events)[0] + resizing.tick_s, TICKS, "", 0))
        heapify(self._events)

    def run(self, until: float = float("inf")) -> SimulationHistory:
        """Run until no event is left, or until ``until`` seconds."""
        while self._events and self._events[0][0] <= until:
            now = self._events[0][0]
            last = now + self._quantum_s
            while self._events and self._events[0][0] <= last:
                now, kind, name, start = heappop(self._events)
                self._handle_event(kind, name, start, now)
            self._run_cycles(now)
        return self.history

    def _handle_event(self, kind: int, name: str, start: int, now: float) -> None:
        if kind == TICKS:
            self._tick(now)
            return
        if kind == SAVES:
            return  # the cycle of this moment finds the save, or the end of the wait
        run = self.history.runs[name]
        if kind == ARRIVES:
            self._create(run)
        elif start == run.starts and run.ended is None:
            self._end(run, now)

    def _create(self, run: JobRun) -> None:
        job = run.job
        created = EPOCH + timedelta(seconds=job.arrival)
        key = _group_of(run)
        group = PodGroupInfo(
            key,
            min_member=job.minimum,
            queue=job.queue,
            priority=job.priority,
            created=created,
        )
        self.state.set_group(group)
        for index in range(run.pods):
            self._add_pod(run, index, f"{run.starts}.{run.evicted}")

    def _add_pod(self, run: JobRun, index: int, incarnation: str) -> None:
        job, key = run.job, _group_of(run)
        pod, created = PodKey(f"{key}-{index}"), EPOCH + timedelta(seconds=job.arrival)
        shape = shape_of(job.request, ANYWHERE)
        uid = f"{pod}#{incarnation}"
        self.state.set_pod(PodInfo(pod, uid, shape, created, job.priority, key))

    def _tick(self, now: float) -> None:
        """Let the resizer decide, and change the pods of the jobs that it names."""
        assert self._resizing is not None
        for name, pods in sorted(self._resizing.resizer(self._view(now)).items()):
            run = self._elastic.get(name)
            if run is not None and run.started is not None:
                self._resize(run, pods)
        if any(run.ended is None for run in self.history.runs.values()):
            heappush(self._events, (now + self._resizing.tick_s, TICKS, "", 0))

    def _view(self, now: float) -> ResizeView:
        runs = self.history.runs.values()
        free: dict[str, dict[str, int]] = {}
        for node in self._nodes:
            left = free[node.name] = dict(node.allocatable)
            for pod in self.state.nodes.pods_by_node.get(node.name, {}).values():
                for name, amount in pod.shape.request:
                    left[name] = left.get(name, 0) - amount
        return ResizeView(
            now,
            tuple(run for run in self._elastic.values() if run.started is not None),
            tuple(
                sorted(
                    (r for r in runs if r.started is None and r.ended is None
                     and r.job.arrival <= now),
                    key=lambda run: (run.job.arrival, run.job.name),
                )
            ),
            free,
        )  # fmt: skip

    def _resize(self, run: JobRun, pods: int) -> None:
        job = run.job
        pods = min(max(pods, job.minimum, 1), max(job.maximum, job.size))
        key = _group_of(run)
        members = self.state.members.get(key, {})
        if pods < run.pods:  # pods without a node go first
            order = sorted(members.values(), key=lambda pod: (pod.node is None, pod.key))
            for pod in order[pods:]:
                self.state.remove_pod(pod.key)
                self.state.former_members.get(key, {}).pop(pod.key, None)  # it does not return
        missing, index = pods - len(self.state.members.get(key, {})), 0
        while missing > 0:
            if PodKey(f"{key}-{index}") not in self.state.pods:
                self._add_pod(run, index, f"{run.starts}.{run.evicted}.{run.resized}")
                missing -= 1
            index += 1
        run.pods = pods

    def _follow_bound_pods(self, now: float) -> None:
        """Change the speed of elastic jobs whose number of bound pods has changed."""
        for run in self._elastic.values():
            if run.started is None or self.saves.is_asked(_group_of(run)):
                continue
            bound = self._bound(run)
            if bound == run.bound or bound < run.job.minimum:
                continue
            run.saved += run.work(now)
            # A change during a restart begins it again.
            run.restarting += now + run.job.restart_s - max(run.started, now)
            run.started = now + run.job.restart_s
            run.bound, run.rate = bound, run.job.rate(bound)
            run.resized += 1
            run.starts += 1
            self._schedule_end(run)

    def _bound(self, run: JobRun) -> int:
        key = _group_of(run)
        return sum(pod.node is not None for pod in self.state.members.get(key, {}).values())

    def _remove(self, run: JobRun) -> None:
        key = _group_of(run)
        for pod in list(self.state.members.get(key, {})):
            self.state.remove_pod(pod)
        self.state.former_members.pop(key, None)

    def _end(self, run: JobRun, now: float) -> None:
        self._remove(run)
        run.starts += 1
        if run.job.fails_after and not run.failed:
            run.failed = True
            run.interrupt(now)
            self._create(run)
            return
        self.state.remove_group(_group_of(run))
        self._saving.pop(run.job.name, None)
        self._elastic.pop(run.job.name, None)
        run.ended = now

    def _run_cycles(self, now: float) -> None:
        """Run cycles until none evicts pods and all evicted pods were recreated."""
        self._note_checkpoints(now)
        self._settle_saves(now)
        for _ in range((SLOWEST_END + 1) * (len(self.history.runs) + 1)):
            decision = run_cycle(self.state, now, self._policy, explain=bool(self._watchers))
            for watch in self._watchers:
                watch(self.state, decision, now)
            self.history.decisions += 1
            self._apply_result(decision, now)
            if not self._ending:
                break
            self._end_evicted()
        self._follow_bound_pods(now)
        running = dict(self.state.usage.by_queue)
        total: dict[str, int] = {}
        for amounts in running.values():
            for name, amount in amounts.items():
                total[name] = total.get(name, 0) + amount
        waiting = len(self.state.pending_members)
        self.history.samples.append(Sample(now, total, waiting))

    def _note_checkpoints(self, now: float) -> None:
        """Update the checkpoint times of groups."""
        for run in self._saving.values():
            if run.started is not None and (kept := run.job.checkpointed_work(run.work(now))):
                group = self.state.groups[_group_of(run)]
                moment = run.started + kept / run.rate
                if group.checkpointed_at != moment:
                    self.state.set_group(replace(group, checkpointed_at=moment))

    def _apply_result(self, decision: CycleResult, now: float) -> None:
        self.state.reservations = dict(decision.reservations)
        self.saves.transfer(decision, self._is_waiting)
        for binding in decision.bindings:
            self.state.assume(binding.pod, binding.node, decision.volumes)
            bound = structs.replace(self.state.pods[binding.pod], phase="Running", started_at=now)
            self.state.set_pod(bound)
        for group in decision.placed:
            self._start(self.history.runs[group.partition("/")[2]], now)
        gangs: dict[GroupKey, list[PodEviction]] = {}
        for eviction in decision.evictions:
            assert eviction.group is not None
            gangs.setdefault(eviction.group, []).append(eviction)
        for group, evictions in sorted(gangs.items()):
            if not self._ask_for_save(group, evictions, now):
                self._evict_gang(group, evictions, now)
        self._settle_saves(now)

    def _ask_for_save(self, group: GroupKey, evictions: list[PodEviction], now: float) -> bool:
        """Hold evictions back if their gang saves first; return whether it does."""
        run = self.history.runs[group.partition("/")[2]]
        if not run.job.saves_on_request or run.started is None or not self.saves.wait_s:
            return False
        for eviction in evictions:
            self.state.evict(eviction.pod, eviction.uid)
        plan = plan_save(now, run.started, run.rate, run.job.step_s, run.job.save_s)
        ends_at = self.saves.ask(group, evictions, now, plan)
        if ends_at is not None:
            heappush(self._events, (ends_at, SAVES, run.job.name, 0))
            if plan.stops_at < self._end_of(run):
                run.starts += 1  # it stops, so its end is put off
        return True

    def _settle_saves(self, now: float) -> None:
        """Evict gangs whose wait is over; those whose eviction is withdrawn continue."""
        for outcome in self.saves.settle(now, self._is_waiting, self._is_present):
            run = self.history.runs[outcome.group.partition("/")[2]]
            if outcome.evict:
                self._evict_gang(outcome.group, outcome.evict, now)
                if run.started is not None:  # only pods beyond its minimum are evicted
                    self._continue(run, self.saves.plans[outcome.group], now)
            for eviction in outcome.withdraw:
                self.state.undo_eviction(eviction.pod, eviction.uid)
            if outcome.is_closed:
                plan = self.saves.plans.pop(outcome.group)
                if outcome.withdraw and run.started is not None:
                    self._continue(run, plan, now)

    def _continue(self, run: JobRun, plan: PlannedSave, now: float) -> None:
        """Continue after an eviction was withdrawn: the stop has cost time and no work."""
        assert run.started is not None
        if plan.stops_at < self._end_of(run):
            run.started += max(now - plan.stops_at, 0.0)
            run.starts += 1
            self._schedule_end(run)

    def _is_waiting(self, beneficiary: str) -> bool:
        reservation = self.state.reservations.get(beneficiary)
        return reservation is not None and reservation.preempting

    def _is_present(self, eviction: PodEviction) -> bool:
        pod = self.state.pods.get(eviction.pod)
        return pod is not None and pod.uid == eviction.uid

    def _evict_gang(self, group: GroupKey, evictions: Iterable[PodEviction], now: float) -> None:
        for eviction in evictions:
            self._evict(eviction.pod)
        self._interrupt_evicted(self.history.runs[group.partition("/")[2]], now)

    def _evict(self, pod: PodKey) -> None:
        self.history.evictions += 1
        self.state.evict(pod, self.state.pods[pod].uid)
        self._ending[pod] = 1 + self.history.evictions % SLOWEST_END

    def _start(self, run: JobRun, now: float) -> None:
        if run.started is not None:
            return
        run.started = now
        if run.first_started is None:
            run.first_started = now
        if run.job.name in self._elastic:
            run.bound = self._bound(run)
            run.rate = run.job.rate(run.bound)
        if run.job.checkpoint_every:
            self._saving[run.job.name] = run
        self._schedule_end(run)

    def _schedule_end(self, run: JobRun) -> None:
        heappush(self._events, (self._end_of(run), ENDS, run.job.name, run.starts))

    @staticmethod
    def _end_of(run: JobRun) -> float:
        """Return when a run ends or fails if nothing interrupts it."""
        assert run.started is not None
        failing = run.job.fails_after and not run.failed
        left = run.job.duration - run.saved
        lasts = min(run.job.fails_after, left) if failing else left
        return run.started + lasts / run.rate

    def _interrupt_evicted(self, run: JobRun, now: float) -> None:
        """End the work of a gang that is broken, and all of its pods."""
        key = _group_of(run)
        members = self.state.members[key].values()
        left = [pod for pod in members if pod.node is not None and not pod.is_terminating]
        run.evicted += 1
        if len(left) < run.job.minimum:
            for pod in left:
                self._evict(pod.key)
            plan = self.saves.plans.get(key)
            stopped_at = now if plan is None else min(now, plan.stops_at)
            run.interrupt(stopped_at, is_saved=self.saves.is_answered(key, now))
            run.starts += 1

    def _end_evicted(self) -> None:
        """Let a cycle pass for evicted pods, and recreate those that have ended."""
        groups = set()
        for pod, cycles in list(self._ending.items()):
            self._ending[pod] = cycles - 1
            if not cycles:
                group = self.state.pods[pod].group
                assert group is not None
                groups.add(group)
                del self._ending[pod]
                self.state.remove_pod(pod)
        for group in sorted(groups):
            if not any(pod.is_terminating for pod in self.state.members.get(group, {}).values()):
                self._recreate(self.history.runs[group.partition("/")[2]])

    def _recreate(self, run: JobRun) -> None:
        """Recreate the pods that a gang lacks."""
        key = _group_of(run)
        self.state.former_members.pop(key, None)
        for index in range(run.pods):
            if PodKey(f"{key}-{index}") not in self.state.pods:
                self._add_pod(run, index, f"{run.starts}.{run.evicted}")


def _group_of(run: JobRun) -> GroupKey:
    return GroupKey(f"{NAMESPACE}/{run.job.name}")


def plan_save(now: float, started: float, rate: float, step_s: float, save_s: float) -> PlannedSave:
    """Return when a gang stops and answers.

    Args:
        now: time of the request.
        started: time of its last start or change.
        step_s: work of one step, in seconds.
        save_s: seconds that the save takes.
    """
    work = max(now - started, 0.0) * rate
    stops_at = max(now, started + math.ceil(work / step_s - 1e-9) * step_s / rate)
    return PlannedSave(stops_at, stops_at + save_s)


class SimulatedSaves:
    """Open requests, and the plans of the gangs that they ask."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s
        self.plans: dict[GroupKey, PlannedSave] = {}
        self.count = 0
        """Number of requests so far."""
        self._requests = SaveRequests()

    def is_asked(self, group: GroupKey) -> bool:
        return group in self._requests.open

    def ask(
        self, group: GroupKey, evictions: Sequence[PodEviction], now: float, plan: PlannedSave
    ) -> float | None:
        """Hold evictions back; return when the wait ends at the latest, None: it is known."""
        request = self._requests.begin(group, evictions, now, self.wait_s, str(self.count))
        if request is None:
            return None
        self.count += 1
        self.plans[group] = plan
        return min(plan.answers_at, request.deadline)

    def is_answered(self, group: GroupKey, now: float) -> bool:
        """Return whether a gang has written its save."""
        return group in self.plans and now >= self.plans[group].answers_at

    def transfer(self, result: CycleResult, is_waiting: Callable[[str], bool]) -> None:
        """Change the beneficiaries of evictions, where reservations went to other gangs."""
        self._requests.transfer(result.displaced, result.awaited, is_waiting)

    def settle(
        self,
        now: float,
        is_waiting: Callable[[str], bool],
        is_present: Callable[[PodEviction], bool],
    ) -> Iterable[SaveOutcome]:
        """Return what is to be done now."""
        return self._requests.settle(
            now,
            answered_id=lambda group: (
                self._requests.open[group].id if self.is_answered(group, now) else ""
            ),
            is_waiting=is_waiting,
            is_present=is_present,
        )
