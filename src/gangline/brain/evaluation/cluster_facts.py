"""What all jobs together show of the cluster: failures, speeds of nodes by the day, capacity.

Counted are failures that no user's code caused, and the device hours in which they happened. The
day of a node has the speed of its ranks in all jobs, its failed checks and its failures.

How far jobs can grow is asked of the scheduler before a plan is written, and remembered a while.
The round divides free devices; CPU, memory, quotas and the limits of queues are the scheduler's
matter. Its trial placement reads the cluster, so it is asked only for growth that nothing else
holds.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import TypeAlias

from msgspec.structs import replace

from gangline.api.failure import is_node_cause
from gangline.api.resource_list import CPU, MEMORY
from gangline.api.resources import PODS
from gangline.brain.advisers.advice import Advice, Reason, What, because
from gangline.brain.advisers.stragglers import node_scores
from gangline.brain.advisers.view import ClusterView, Exposure, NodeCheckResult
from gangline.brain.collection.collector import Collector, requests_by_node
from gangline.brain.evaluation.history import JobHistory
from gangline.brain.facts.records import NodeCapacity, NodeSpeed, PodRun, RankSpeed, Run
from gangline.brain.guard.policy import Bound
from gangline.brain.store.reader import Reader
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError

log = logging.getLogger(__name__)

_HOUR_MS = 3_600_000
WINDOW_MS = 30 * 24 * _HOUR_MS
"""What ended earlier does not count."""


def exposure_by_node(runs: Iterable[Run], now_ms: int) -> dict[str, Exposure]:
    """Return the exposure on each node; pods whose node is not known are under an empty name.

    Pods without devices count as one device. Pods of one job that fail on one node in one minute
    are one failure.
    """
    failures: dict[str, set[tuple[str, int]]] = defaultdict(set)
    hours: dict[str, float] = defaultdict(float)
    for run in runs:
        devices = {size.role: max(size.gpus, 1) for size in run.job.roles}
        for pod in run.pods:
            ended_ms = now_ms if pod.ended_ms is None else pod.ended_ms
            if now_ms - ended_ms > WINDOW_MS:
                continue
            lasted_ms = max(0, ended_ms - pod.started_ms)
            hours[pod.node] += lasted_ms / _HOUR_MS * devices.get(pod.role, 1)
            if is_node_failure(pod):
                failures[pod.node].add((run.job.uid, ended_ms // 60_000))
    return {
        node: Exposure(failures=float(len(failures[node])), gpu_hours=hours[node]) for node in hours
    }


def is_node_failure(pod: PodRun) -> bool:
    return pod.ended_ms is not None and is_node_cause(pod.cause)


DAY_MS = 86_400_000


class NodeDays:
    """Collects the present day; another day begins anew."""

    def __init__(self) -> None:
        self._begin(-1)

    def _begin(self, day: int) -> None:
        self._day = day
        self._scores: dict[str, dict[str, float]] = defaultdict(dict)
        """By node and job: its latest score."""
        self._failed_checks: dict[str, set[int]] = defaultdict(set)
        self._failures: dict[str, set[tuple[str, int]]] = defaultdict(set)

    def add(
        self, run: Run, speeds: Iterable[RankSpeed], checks: Iterable[NodeCheckResult], now_ms: int
    ) -> None:
        """Add what is known of one job now; repeated facts change nothing."""
        day, uid = now_ms // DAY_MS, run.job.uid
        if day != self._day:
            self._begin(day)
        for node, score in node_scores(speeds).items():
            self._scores[node][uid] = score
        for check in checks:
            if check.slow and check.at_ms // DAY_MS == day:
                self._failed_checks[check.node].add(check.at_ms)
        for pod in run.pods:
            if is_node_failure(pod) and (pod.ended_ms or 0) // DAY_MS == day:
                self._failures[pod.node].add((uid, pod.rank))

    def records(self, models: Mapping[str, str], now_ms: int) -> list[NodeSpeed]:
        """Return the day of each node of which anything is known; ``models`` are by node."""
        return [
            NodeSpeed(
                node=node,
                gpu_model=models.get(node, ""),
                day=self._day,
                score=fmean(self._scores[node].values() or [1.0]),
                jobs=len(self._scores[node]),
                checks_failed=len(self._failed_checks[node]),
                failures=len(self._failures[node]),
                observed_ms=now_ms,
            )
            for node in sorted({*self._scores, *self._failed_checks, *self._failures} - {""})
        ]


REFRESH_S = 60.0
HISTORY_DAYS = 30


class ClusterHealth:
    """Collected once a minute from all jobs in memory; days of nodes also from the history."""

    def __init__(self, collector: Collector, history: JobHistory) -> None:
        self._collector, self._history = collector, history
        self._days = NodeDays()
        self._refreshed_at: float | None = None
        self._speeds: tuple[NodeSpeed, ...] = ()
        self.by_node: dict[str, Exposure] = {}
        """Failures and device hours of each node."""

    async def refresh(self, nodes: Sequence[NodeCapacity], now_ms: int) -> None:
        now = time.monotonic()
        if self._refreshed_at is not None and now - self._refreshed_at < REFRESH_S:
            return
        self._refreshed_at = now
        runs: dict[str, Run] = {run.job.uid: run for run in self._history.ended_runs()}
        for observed in [job.observations for job in self._collector.jobs.values()]:
            if (run := observed.run()) is not None:
                runs[run.job.uid] = run
                speeds, checks = observed.rank_speeds(now_ms), observed.node_checks()
                self._days.add(run, speeds, checks, now_ms)
        self.by_node = exposure_by_node(runs.values(), now_ms)
        today = self._days.records({node.name: node.gpu_model for node in nodes}, now_ms)
        self._history.add_speeds(today)
        read = partial(Reader.node_speeds, since_day=now_ms // DAY_MS - HISTORY_DAYS)
        stored = await self._history.read(read)
        # Days of today take the place of older computations of them.
        days = {(speed.node, speed.day): speed for speed in (*(stored or ()), *today)}
        self._speeds = tuple(days[key] for key in sorted(days))

    def view(self, nodes: tuple[NodeCapacity, ...], price: float) -> ClusterView:
        """Return the cluster as advisers see it."""
        return ClusterView(
            nodes=nodes,
            price=price,
            node_speeds=self._speeds,
            exposure=Exposure.total(self.by_node.values()),
        )


GrowthCheck: TypeAlias = Callable[[str, str, int], Awaitable[tuple[int, str]]]
"""For a gang (``namespace/name``), a role and a number of pods: how many of them would get nodes
now, and why not the others."""

USED_MS = 60_000
"""Requests on nodes are read again after this time."""


class NodeRequests:
    """What the pods of all nodes request: read for jobs with parameter servers only, as it takes
    a list of all pods.
    """

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._used: dict[str, list[int]] = {}
        self._read_ms: int | None = None

    async def applied(self, view: ClusterView, now_ms: int) -> ClusterView:
        if self._read_ms is None or not 0 <= now_ms - self._read_ms < USED_MS:
            try:
                pods = (await self._client.list(PODS)).items
            except ApiError as error:
                log.info("free CPU and memory of nodes are not known: %s", error)
            else:
                self._used = requests_by_node(pods, CPU, MEMORY)
            self._read_ms = now_ms
        used = {name: (cpu, memory) for name, (cpu, memory) in self._used.items()}
        nodes = (replace(node, used=used.get(node.name, (0, 0))) for node in view.nodes)
        return replace(view, nodes=tuple(nodes))


CAPACITY = "capacity"
"""Name of the limit that free capacity is."""
MEMORY_MS = 300_000


class FreeCapacity:
    """The largest sizes that jobs can have now, as far as the scheduler was asked."""

    def __init__(self, check: GrowthCheck | None) -> None:
        self._check = check
        self._limits: dict[str, tuple[int, int, Reason]] = {}
        """When the scheduler was asked, workers, and why not more, by uid of the job."""

    def bounds(self, uid: str, now_ms: int) -> tuple[Bound, ...]:
        """Return the limits of the number of workers that are known now."""
        at_ms, workers, _ = self._limits.get(uid, (None, 0, None))
        if at_ms is None or not 0 <= now_ms - at_ms <= MEMORY_MS:
            self._limits.pop(uid, None)
            return ()
        return (Bound(what=What.WORKERS, role="worker", high=workers, name=CAPACITY),)

    def reason(self, uid: str, held: Reason | None) -> Reason | None:
        """Return why a job is held, with the scheduler's reason if capacity is the limit."""
        if uid in self._limits and held and held.arguments.get("limit") == CAPACITY:
            return self._limits[uid][2]
        return held

    async def lacks(
        self, uid: str, group: str, advice: Advice, value: float, now_ms: int
    ) -> Reason | None:
        """Ask whether a growth fits; return why not, and remember how far it would."""
        was = advice.was
        if advice.what is not What.WORKERS or was is None or value <= was or self._check is None:
            return None
        count = round(value - was)
        try:
            fits, why = await self._check(group, advice.role or "worker", count)
        except (ApiError, ValueError) as error:
            log.info("growth is not checked: %s", error, extra={"podgroup": group})
            return None
        if fits >= count:
            return None
        workers = round(was) + fits
        reason = because("NoCapacity", workers=workers, why=why or "no node has room")
        self._limits[uid] = now_ms, workers, reason
        return reason
