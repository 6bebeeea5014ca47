"""What all jobs together show of the cluster: failures, and the speed of each node by the day.

Counted are failures that no user's code caused, and the device hours in which they happened. The
day of a node has the speed of its ranks in all jobs, its failed checks and its failures.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from gangline.api.failure import is_node_cause
from gangline.brain.advisers.stragglers import node_scores
from gangline.brain.advisers.view import ClusterView, Exposure, NodeCheckResult
from gangline.brain.collection.collector import Collector
from gangline.brain.evaluation.history import JobHistory
from gangline.brain.facts.records import NodeCapacity, NodeSpeed, PodRun, RankSpeed, Run

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
        for job in list(self._collector.jobs.values()):
            run = job.observations.run()
            if run is not None:
                runs[run.job.uid] = run
                observed = job.observations
                speeds, checks = observed.rank_speeds(now_ms), observed.node_checks()
                self._days.add(run, speeds, checks, now_ms)
        self.by_node = exposure_by_node(runs.values(), now_ms)
        models = {node.name: node.gpu_model for node in nodes}
        today = self._days.records(models, now_ms)
        self._history.add_speeds(today)
        since_day = now_ms // DAY_MS - HISTORY_DAYS
        stored = await self._history.read(lambda r, cluster: r.node_speeds(cluster, since_day))
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
