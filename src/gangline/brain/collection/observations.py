"""Everything observed of one job, joined to a ``Run``. Pure; the order of observations is free.

An observation is idempotent, and joining two of them is commutative. So a re-list after a restart,
in any order, gives the same records as the events did.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from gangline.api.jobs.training_facts import (
    DeviceShortageFacts,
    ModelShapeFacts,
    NodeFacts,
    PodFacts,
    SegmentFacts,
)
from gangline.brain.collection.job_digest import ContainerRun, merge_runs
from gangline.brain.collection.live_facts import DigestedFacts
from gangline.brain.facts.records import Job, Outcome, PodRun, RankSpeed, Run

START_TOLERANCE_MS = 120_000
"""A master observes a pod at most this long before its container reports its start."""
MAX_SEGMENTS = 2_000
"""Segments of one job in memory; the store has the others."""


class PolledUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What the metrics API showed of one run of a pod."""

    peak_memory_bytes: int
    cpu_millis: tuple[int, ...]
    """The latest samples, sorted."""
    samples: int


class NodeSize(NamedTuple):
    """CPU and memory of a node, or the most of them that something can use."""

    cpu_millis: int
    memory_bytes: int


_UNLIMITED = 1 << 62
_SHARED = 1.1
"""Peaks of processes that are added count shared pages repeatedly."""


@dataclass(slots=True)
class JobObservations:
    """The observations of one job, by their identity."""

    job: Job | None = None
    runs: dict[tuple[str, int, int], ContainerRun] = field(default_factory=dict)
    segments: dict[tuple[int, int], SegmentFacts] = field(default_factory=dict)
    windows: tuple[RankSpeed, ...] = ()
    """The last minutes of the nodes, of the latest document. These and the next two are not stored.
    """
    shortages: tuple[DeviceShortageFacts, ...] = ()
    """Of the latest document."""
    checks: dict[str, NodeFacts] = field(default_factory=dict)
    """The last node check of each pod."""
    facts: dict[tuple[str, int], PodFacts] = field(default_factory=dict)
    """Reports of masters, by pod and start."""
    polled: dict[tuple[str, int, int], PolledUsage] = field(default_factory=dict)
    """By the key of the run."""
    model: ModelShapeFacts | None = None
    earlier: dict[tuple[str, int, int], PodRun] = field(default_factory=dict)
    """Runs that the store knew when this process started."""
    nodes: Mapping[str, NodeSize] = field(default_factory=dict)
    """Sizes of all nodes: no pod uses more than its node has, whatever is reported of it."""
    watched_from_start: bool = False

    def add_job(self, job: Job) -> bool:
        """Take a newer state of the job. Returns whether anything but its time has changed."""
        before = self.job
        if before is not None and before == msgspec.structs.replace(
            job, observed_ms=before.observed_ms
        ):
            return False
        self.job = job
        return True

    def add_run(self, run: ContainerRun) -> bool:
        """Join an observation of a run. Returns whether anything is new."""
        before = self.runs.get(run.key)
        joined = merge_runs(before, run) if before else run
        self.runs[run.key] = joined
        return joined != before

    def add_facts(self, digested: DigestedFacts) -> bool:
        """Join what the master reported. Returns whether anything is new."""
        facts, changed = digested.facts, False
        for segment in facts.segments:
            # A segment is closed when it is reported; a copy with more steps is the later one.
            stored = self.segments.get(segment.key)
            if stored is None or stored.steps < segment.steps:
                self.segments[segment.key] = segment
                changed = True
        for key in sorted(self.segments)[: max(0, len(self.segments) - MAX_SEGMENTS)]:
            del self.segments[key]
        self.windows = digested.windows
        if facts.device_shortages and facts.device_shortages != self.shortages:
            self.shortages = facts.device_shortages
            changed = True
        for check in facts.nodes:
            earlier = self.checks.get(check.name)
            if earlier is None or earlier.at <= check.at:
                self.checks[check.name] = check
        for pod in facts.pods:
            place = (pod.name, pod.since)
            before = self.facts.get(place)
            if before is None or before.until < pod.until:
                self.facts[place] = pod
                changed = True
        if facts.model is not None and facts.model != self.model:
            self.model = facts.model
            changed = True
        return changed

    def nodes_of_pods(self) -> dict[str, str]:
        """Return the node on which each pod runs, or ran last, where it is known."""
        runs = sorted(self.runs.values(), key=lambda run: run.started_ms)
        return {run.pod: run.node for run in runs if run.node}

    def run(self) -> Run | None:
        """Return the records; None while the job itself is not known."""
        if self.job is None:
            return None
        job = msgspec.structs.replace(
            self.job,
            model=self.model or self.job.model,
            complete=self.watched_from_start and self.job.outcome is not Outcome.RUNNING,
            started_ms=self._started_ms(self.job),
        )
        segments = tuple(self.segments[key] for key in sorted(self.segments))
        return Run(
            job=job,
            segments=segments,
            pods=tuple(self._pod_runs()),
            shortages=self.shortages,
        )

    def _started_ms(self, job: Job) -> int | None:
        """Return when the first pod started: the status has the time of the first reconciliation,
        before which a running job has only waited.
        """
        starts = [key[2] for key in (*self.runs, *self.earlier)]
        ended = job.outcome is not Outcome.RUNNING
        return min(starts, default=job.started_ms if ended else None)

    def _pod_runs(self) -> list[PodRun]:
        """Number the runs of each rank by their start; so the order of events has no effect."""
        keys = sorted({*self.runs, *self.earlier})
        counts: dict[tuple[str, int], int] = {}
        pod_runs: list[PodRun] = []
        usage = _usage_by_run(self.runs, self.facts.values())
        for key in keys:
            role, rank, _ = key
            number = counts.get((role, rank), 0)
            counts[role, rank] = number + 1
            run = self.runs.get(key)
            if run is None:
                pod_runs.append(msgspec.structs.replace(self.earlier[key], number=number))
                continue
            most = possible_use(run.limit_memory_bytes, self.nodes, run.node)
            pod_runs.append(_pod_run(run, number, usage.get(key), self.polled.get(key), most))
        return pod_runs


def _usage_by_run(
    runs: Mapping[tuple[str, int, int], ContainerRun], reports: Iterable[PodFacts]
) -> dict[tuple[str, int, int], PodFacts]:
    """Assign each report to the last run of its pod that had started by then."""
    by_pod: dict[str, list[ContainerRun]] = {}
    for run in runs.values():
        by_pod.setdefault(run.pod, []).append(run)
    by_run: dict[tuple[str, int, int], PodFacts] = {}
    for report in sorted(reports, key=lambda report: (report.since, report.until)):
        limit = report.since + START_TOLERANCE_MS
        started = [run for run in by_pod.get(report.name, ()) if run.started_ms <= limit]
        if started:
            by_run[max(started, key=lambda run: run.started_ms).key] = report
    return by_run


def possible_use(limit: int | None, nodes: Mapping[str, NodeSize], node: str) -> NodeSize:
    """Return the most CPU and memory that a pod with a limit of memory can have used on a node.

    Where the node is not known, it is the largest one; without any node all is possible.
    """
    size = nodes.get(node)
    if size is None:
        cpu = max((one.cpu_millis for one in nodes.values()), default=_UNLIMITED)
        memory = max((one.memory_bytes for one in nodes.values()), default=_UNLIMITED)
        size = NodeSize(cpu, memory)
    return (
        size
        if limit is None
        else NodeSize(size.cpu_millis, min(size.memory_bytes, round(_SHARED * limit)))
    )


def _pod_run(
    run: ContainerRun,
    number: int,
    report: PodFacts | None,
    polled: PolledUsage | None,
    most: NodeSize,
) -> PodRun:
    reported = (
        report.peak_memory_bytes if report else None,
        polled.peak_memory_bytes if polled else None,
    )
    peaks = [peak for peak in reported if peak and peak <= most.memory_bytes]
    cpu: tuple[int | None, ...]
    millis = [report.cpu_millis_p95, report.cpu_millis_max] if report else [None]
    if report is not None and all(x is not None and x <= most.cpu_millis for x in millis):
        cpu = (report.cpu_millis_p50, report.cpu_millis_p95, report.cpu_millis_max)
    else:
        used = polled.cpu_millis if polled else ()
        cpu = (quantile(used, 0.5), quantile(used, 0.95), quantile(used, 1.0))
    return PodRun(
        role=run.role,
        rank=run.rank,
        number=number,
        node=run.node,
        started_ms=run.started_ms,
        ended_ms=run.ended_ms,
        cause=run.cause,
        oom=run.oom,
        limit_memory_bytes=run.limit_memory_bytes,
        peak_memory_bytes=max(peaks, default=None),
        cpu_p50_millis=cpu[0],
        cpu_p95_millis=cpu[1],
        cpu_max_millis=cpu[2],
        samples=max(report.samples if report else 0, polled.samples if polled else 0),
    )


def quantile(ordered: tuple[int, ...], share: float) -> int | None:
    """Return a quantile of sorted samples, an observed one; None if there is none."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
