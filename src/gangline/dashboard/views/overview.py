"""The overview: is all well? Counts, waiting gangs, failures by blame, nodes out of service."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

import msgspec

from gangline.api.core.pod import Pod
from gangline.api.resource_list import GPU
from gangline.dashboard.rights import NODE_KIND
from gangline.dashboard.views.base import JobRow, Observation, SeenJob, View
from gangline.dashboard.views.job import expected_start
from gangline.dashboard.views.jobs import NO_ACCOUNTS, job_row
from gangline.dashboard.views.nodes import NodeFailureRow, read_node_rows
from gangline.sdk.cluster_checks import ClusterCheckResult
from gangline.sdk.diagnosis import Diagnosis, diagnose
from gangline.sdk.goodput import Goodput
from gangline.sdk.jobs import JobState
from gangline.sdk.nodes import NodeRow
from gangline.sdk.usage import GpuUsage

FAILURES_OF = timedelta(hours=24)
MAX_ROWS = 8
MAX_DIAGNOSED = 200
"""Of more failures the oldest are only counted."""


class WaitingJob(View, frozen=True):
    row: JobRow
    expected_start: str = ""


class FailedJob(View, frozen=True):
    row: JobRow
    cause: str
    blame: str


class NodeProblem(View, frozen=True):
    name: str
    status: str
    reason: str


class GpuCounts(View, frozen=True):
    total: int
    allocated: int
    busy: float | None
    """Sum of their use; None if nothing measures it."""
    unhealthy: int

    @property
    def idle(self) -> float | None:
        """GPUs that are allocated and not used; None if nothing measures it."""
        return None if self.busy is None else max(0.0, self.allocated - self.busy)


class OverviewView(View, frozen=True):
    states: dict[str, int]
    total: int
    running: tuple[JobRow, ...]
    """The youngest jobs that run."""
    waiting: tuple[WaitingJob, ...]
    """The jobs that have waited longest."""
    waiting_total: int
    failed: tuple[FailedJob, ...]
    """The last failures."""
    blames: dict[str, int]
    """Failures of the last day by what they are put down to."""
    failed_total: int
    goodput: float | None
    """Productive part of the time of the elastic jobs that run; None without such jobs."""
    goodput_jobs: int
    gpus: GpuCounts | None
    """None if the viewer may not list nodes, or there are none."""
    nodes: int
    nodes_out: tuple[NodeProblem, ...]
    checks: tuple[ClusterCheckResult, ...]
    """Checks that did not pass; those of ``gangline doctor``."""
    checks_passed: int
    checks_pending: bool


def overview_view(
    seen: Observation,
    accounts: Mapping[str, Goodput] = NO_ACCOUNTS,
    checks: Sequence[ClusterCheckResult] | None = None,
    gpus: GpuUsage | None = None,
) -> OverviewView:
    """Return what the overview shows; ``checks`` are None until they are read."""
    jobs = list(seen.jobs())
    states: defaultdict[JobState, list[SeenJob]] = defaultdict(list)
    for job in jobs:
        states[job.job.state].append(job)
    waiting = [*states[JobState.QUEUING], *states[JobState.PENDING]]
    waiting.sort(key=lambda job: job.job.created)
    running = [*states[JobState.RUNNING], *states[JobState.RESTARTING]]
    running.sort(key=lambda job: job.job.started or job.job.created, reverse=True)
    failed = recent_failures(seen, jobs)
    roots = [diagnose_observed(seen, job).root for job in failed[:MAX_DIAGNOSED]]
    measured = [accounts[job.job.uid] for job in running if job.job.uid in accounts]
    wall = sum(account.wall_s for account in measured)
    sees_nodes = seen.scope.sees_all(NODE_KIND)
    rows = read_node_rows(seen) if sees_nodes else []
    shown_checks = checks if sees_nodes else ()
    return OverviewView(
        states={str(state): len(those) for state, those in states.items() if those},
        total=len(jobs),
        running=tuple(job_row(job, accounts) for job in running[:MAX_ROWS]),
        waiting=tuple(
            WaitingJob(job.row(), expected_start(seen.cluster.groups_of(job.job.uid)))
            for job in waiting[:MAX_ROWS]
        ),
        waiting_total=len(waiting),
        failed=tuple(
            FailedJob(job.row(), root.title if root else "", str(root.blame) if root else "")
            for job, root in zip(failed[:MAX_ROWS], roots, strict=False)
        ),
        blames=dict(Counter(str(root.blame) if root else "unknown" for root in roots)),
        failed_total=len(failed),
        goodput=sum(account.productive_s for account in measured) / wall if wall else None,
        goodput_jobs=len(measured),
        gpus=_count_gpus(rows, gpus) if rows else None,
        nodes=len(rows),
        nodes_out=tuple(
            NodeProblem(row.name, row.status, row.not_ready_reason)
            for row in rows
            if row.status != "Ready"
        ),
        checks=tuple(
            check for check in shown_checks or () if check.status in {"failed", "warning"}
        ),
        checks_passed=sum(check.status == "ok" for check in shown_checks or ()),
        checks_pending=shown_checks is None,
    )


def _count_gpus(rows: Sequence[NodeRow], used: GpuUsage | None) -> GpuCounts:
    return GpuCounts(
        total=sum(row.total.get(GPU, 0) for row in rows),
        allocated=sum(row.allocated.get(GPU, 0) for row in rows),
        busy=sum(used.nodes.values()) if used else None,
        unhealthy=sum(row.unhealthy_gpus for row in rows),
    )


def recent_failures(seen: Observation, jobs: Iterable[SeenJob]) -> list[SeenJob]:
    """Return the jobs that failed in the last day, the last one first."""
    since = seen.now - FAILURES_OF
    failed = [
        job
        for job in jobs
        if job.job.state is JobState.FAILED and (job.job.finished or job.job.created) >= since
    ]
    return sorted(failed, key=lambda job: job.job.finished or job.job.created, reverse=True)


def diagnose_observed(seen: Observation, shown: SeenJob) -> Diagnosis:
    """Diagnose a job by what is observed of it, without its logs."""
    pods = [
        msgspec.convert(msgspec.to_builtins(pod), Pod)
        for pod in seen.cluster.pods_of(shown.job.uid)
        if shown.job.replicas
    ]
    return diagnose(shown.job, pods, seen.events(shown.job))


def node_failures(seen: Observation, node: str) -> list[NodeFailureRow]:
    """Return the failures on a node in the last day, the last one first."""
    failures = []
    for shown in recent_failures(seen, seen.jobs())[:MAX_DIAGNOSED]:
        root = diagnose_observed(seen, shown).root
        if root is not None and root.node == node:
            row, blame = shown.row(), str(root.blame)
            name = f"{row.namespace}/{row.name}"
            failures.append(
                NodeFailureRow(root.at, name, row.path, root.replica, root.title, blame)
            )
    return failures
