"""What all jobs together show of the cluster: failures, and the speed of each node."""

import time
from collections.abc import Iterable, Sequence

from gangline.brain.advisers.view import ClusterView, Exposure
from gangline.brain.collection.collector import Collector, WatchedJob
from gangline.brain.collection.live_facts import node_checks, rank_speeds
from gangline.brain.evaluation.exposure import exposure_by_node, total
from gangline.brain.evaluation.history import History
from gangline.brain.evaluation.node_days import DAY_MS, NodeDays
from gangline.brain.facts.records import Job, NodeCapacity, NodeSpeed, Run

REFRESH_S = 60.0
HISTORY_DAYS = 30


class ClusterFacts:
    """Collected once a minute from all jobs in memory; days of nodes also from the history."""

    def __init__(self, collector: Collector, history: History) -> None:
        self._collector, self._history = collector, history
        self._days = NodeDays()
        self._refreshed_at: float | None = None
        self._speeds: tuple[NodeSpeed, ...] = ()
        self.by_node: dict[str, Exposure] = {}
        """Failures and device hours of each node."""

    async def refresh(self, nodes: Sequence[NodeCapacity], now_ms: int) -> None:
        """Collect again if a minute has passed."""
        now = time.monotonic()
        if self._refreshed_at is not None and now - self._refreshed_at < REFRESH_S:
            return
        self._refreshed_at = now
        runs: dict[str, Run] = {run.job.uid: run for run in self._history.ended_runs()}
        for job in list(self._collector.jobs.values()):
            run = job.observations.run()
            if run is not None:
                runs[run.job.uid] = run
                self._add_day(job, run, now_ms)
        self.by_node = exposure_by_node(runs.values(), now_ms)
        models = {node.name: node.gpu_model for node in nodes}
        today = self._days.records(models, now_ms)
        self._history.add_speeds(today)
        stored = await self._history.node_speeds(now_ms // DAY_MS - HISTORY_DAYS)
        self._speeds = _joined(stored, today)

    def view(self, nodes: tuple[NodeCapacity, ...], price: float) -> ClusterView:
        """Return the cluster as advisers see it."""
        return ClusterView(
            nodes=nodes,
            price=price,
            node_speeds=self._speeds,
            exposure=total(self.by_node.values()),
        )

    def _add_day(self, job: WatchedJob, run: Run, now_ms: int) -> None:
        where = job.observations.nodes_of_pods()
        speeds = rank_speeds(job.observations.windows, lambda pod: where.get(pod, ""), now_ms)
        checks = node_checks(job.observations.checks.values(), lambda pod: where.get(pod, ""))
        self._days.add(run, speeds, checks, now_ms)


def _joined(stored: Iterable[NodeSpeed], today: Iterable[NodeSpeed]) -> tuple[NodeSpeed, ...]:
    """Return the stored days with those of today in the place of older computations of them."""
    found = {(speed.node, speed.day): speed for speed in stored}
    found |= {(speed.node, speed.day): speed for speed in today}
    return tuple(found[key] for key in sorted(found))


def devices_in_restart(jobs: Iterable[tuple[Job, bool]]) -> int:
    """Return the devices of jobs that do not train because of a change of their size.

    Args:
        jobs: each running job, and whether a plan of it is not finished.
    """
    return sum(role.replicas * role.gpus for job, is_open in jobs if is_open for role in job.roles)
