"""What masters publish, and everything observed of one job joined to a ``Run``. Pure.

The text comes from a job, which may write anything into it. Each entry is decoded on its own, and
an entry outside of what is physically possible (``facts.belief``) is dropped and counted. What
advice on a running job needs beside the records of the history (minutes of ranks, node checks) is
not stored: a Brain that starts reads the latest document again.

An observation is idempotent, and joining two of them is commutative: a re-list after a restart, in
any order, gives the same records as the events did.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from gangline.api.failure import DEVICE_OUT_OF_MEMORY
from gangline.api.jobs.elastic import WORKER
from gangline.api.jobs.training_facts import (
    DISTURBED,
    FACTS_MAX_SEGMENTS,
    FACTS_VERSION,
    DeviceShortageFacts,
    ModelShapeFacts,
    NodeFacts,
    PodFacts,
    RankFacts,
    SegmentFacts,
    TrainingFacts,
)
from gangline.brain.advisers.stragglers import SLOW
from gangline.brain.advisers.view import DevicePeak, NodeCheckResult
from gangline.brain.collection.job_digest import ContainerRun, merge_runs
from gangline.brain.collection.measurements import ReportedStep, SampleBuffer, StepProgress
from gangline.brain.facts.belief import FUTURE_MS, believe
from gangline.brain.facts.records import Outcome, PodRun, RankSpeed, RecordedJob, Run

MAX_FACTS_BYTES = 64 * 1024
MAX_SHORTAGES = 100
WINDOW_MS = 60_000
FRESH_MS = 15 * 60_000
"""Older minutes say nothing about the present speed of a node."""

NO_FACTS = TrainingFacts(v=FACTS_VERSION)

RunKey: TypeAlias = tuple[str, int, int]
"""Role, rank and start of a run."""

K = TypeVar("K")
S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class DigestedFacts:
    facts: TrainingFacts = NO_FACTS
    windows: tuple[RankSpeed, ...] = ()
    """Minutes of ranks, whose nodes are not known yet."""
    dropped: int = 0
    """Number of entries that were not believed."""
    problem: str = ""
    """Why nothing of the document was read; empty if it was."""


def digest_facts(text: str | bytes, now_ms: int) -> DigestedFacts:
    """Return the believable entries of a document. Never raises."""
    if not text:
        return DigestedFacts()
    if len(text) > MAX_FACTS_BYTES:
        return DigestedFacts(problem=f"has {len(text)} bytes, at most {MAX_FACTS_BYTES} are read")
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return DigestedFacts(problem=f"is not JSON: {error}")
    if not isinstance(document, dict):
        return DigestedFacts(problem="is not a JSON object")
    if document.get("v") != FACTS_VERSION:
        version = document.get("v")
        return DigestedFacts(problem=f"has version {version!r}, this program reads {FACTS_VERSION}")
    return _digest(document, now_ms)


def _digest(document: dict[str, Any], now_ms: int) -> DigestedFacts:
    dropped = 0

    def believed(entries: Any, kind: type[S], most: int = 0) -> tuple[S, ...]:
        nonlocal dropped
        found: list[S] = []
        if entries is not None and not isinstance(entries, list):
            dropped += 1
            entries = None
        for entry in (entries or ())[-most:]:
            try:
                record, impossible = believe(msgspec.convert(entry, kind), now_ms)
            except (msgspec.ValidationError, ValueError, OverflowError):
                record, impossible = None, [kind.__name__]
            dropped += bool(impossible)
            found += [] if record is None else [record]
        return tuple(found)

    since, model = document.get("windowsSince"), document.get("model")
    ranks = believed(document.get("ranks"), RankFacts)
    facts = TrainingFacts(
        v=FACTS_VERSION,
        segments=believed(document.get("segments"), SegmentFacts, FACTS_MAX_SEGMENTS),
        pods=believed(document.get("pods"), PodFacts),
        nodes=believed(document.get("nodes"), NodeFacts),
        device_shortages=believed(
            document.get("deviceShortages"), DeviceShortageFacts, MAX_SHORTAGES
        ),
        model=next(iter(believed(None if model is None else [model], ModelShapeFacts)), None),
        tunes_batch=document.get("tunesBatch") is True,
    )
    windows: tuple[RankSpeed, ...] = ()
    if isinstance(since, int) and 0 < since <= now_ms + FRESH_MS:
        windows = tuple(window for rank in ranks for window in _minutes(rank, since))
    return DigestedFacts(facts, windows, dropped)


def _minutes(rank: RankFacts, since_ms: int) -> Iterator[RankSpeed]:
    waits: Sequence[float | None] = rank.sync_seconds or [None] * len(rank.compute_seconds)
    for index, (compute, wait) in enumerate(zip(rank.compute_seconds, waits, strict=False)):
        if compute is not None:
            yield RankSpeed(
                pod=rank.name,
                rank=rank.rank,
                gpu_model=rank.device_model,
                window_ms=since_ms + index * WINDOW_MS,
                compute_s=compute,
                wait_s=wait,
            )


def device_peaks(
    segments: Iterable[SegmentFacts],
    known_memory: Callable[[str], int | None],
    shortages: Iterable[DeviceShortageFacts] = (),
    remembered: Iterable[DeviceShortageFacts] = (),
) -> tuple[DevicePeak, ...]:
    """Return the highest device memory of each micro-batch and device model; the present one last.

    A micro-batch for which memory has ever been short counts as such, even if it also ran well:
    samples differ in length.

    Args:
        known_memory: returns the memory of a device model that masters do not report, None if it
            is not known either.
        remembered: those of its family, which say nothing about its present state.
    """
    peaks: dict[tuple[str, int], DevicePeak] = {}
    last_ms: dict[tuple[str, int], int] = {}
    memories: dict[str, int] = {}
    for segment in sorted(segments, key=lambda segment: segment.until):
        micro_batch = segment.micro_batch
        for model, peak in segment.memory_peak.items():
            memory = segment.device_memory.get(model) or known_memory(model)
            memories[model] = memory or 0
            if micro_batch is None or not memory or peak > memory:
                continue
            before = peaks.get((model, micro_batch))
            last_ms[model, micro_batch] = segment.until
            peaks[model, micro_batch] = DevicePeak(
                gpu_model=model,
                micro_batch=micro_batch,
                peak_bytes=max(peak, before.peak_bytes if before else 0),
                memory_bytes=memory,
            )
    own = {(shortage.device_model, shortage.micro_batch): shortage.at for shortage in shortages}
    for key in own.keys() | {(one.device_model, one.micro_batch) for one in remembered}:
        memory = memories.get(key[0]) or known_memory(key[0]) or 0
        peaks[key] = DevicePeak(
            gpu_model=key[0],
            micro_batch=key[1],
            peak_bytes=memory,
            memory_bytes=memory,
            oom=True,
            at_ms=own.get(key),
        )
        last_ms[key] = max(own.get(key, 0), last_ms.get(key, 0))
    return tuple(peaks[key] for key in sorted(peaks, key=lambda key: last_ms[key]))


def ended_by_shortage(runs: Iterable[Run]) -> list[DeviceShortageFacts]:
    """Return the micro-batches at which runs have ended for lack of device memory.

    The micro-batch is known where a run had only one.
    """
    shortages = []
    for run in runs:
        short = (pod for pod in run.pods if pod.cause == DEVICE_OUT_OF_MEMORY)
        ended = [pod.ended_ms or pod.started_ms for pod in short]
        had = {(segment.device_model, segment.micro_batch) for segment in run.segments}
        if not ended or len(had) != 1:
            continue
        ((model, micro_batch),) = had
        if model and micro_batch and "," not in model:
            shortages.append(DeviceShortageFacts(model, micro_batch, max(ended)))
    return shortages


def restart_seconds(segments: Iterable[SegmentFacts]) -> float | None:
    restarts = [segment.restarts for segment in segments if segment.restarts]
    costs = [math.fsum(one.seconds.values()) / one.count for one in restarts if one.count]
    return max(costs, default=None)


START_TOLERANCE_MS = 120_000
"""A master observes a pod at most this long before its container reports its start."""
MAX_SEGMENTS = 2_000
"""Segments of one job in memory; the store has the others."""


class NodeSize(NamedTuple):
    cpu_millis: int
    memory_bytes: int


_UNLIMITED = NodeSize(1 << 62, 1 << 62)
_SHARED = 1.1
"""Peaks of processes that are added count shared pages repeatedly."""


@dataclass(slots=True)
class JobObservations:
    """The observations of one job, by their identity."""

    job: RecordedJob | None = None
    runs: dict[RunKey, ContainerRun] = field(default_factory=dict)
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
    polled: dict[RunKey, SampleBuffer] = field(default_factory=dict)
    """What the metrics API showed of each run, by its key."""
    model: ModelShapeFacts | None = None
    earlier: dict[RunKey, PodRun] = field(default_factory=dict)
    """Runs that the store knew when this process started."""
    nodes: Mapping[str, NodeSize] = field(default_factory=dict)
    """Sizes of all nodes: no pod uses more than its node has, whatever is reported of it."""
    watched_from_start: bool = False
    has_reports: bool = False
    """Whether its master has reported segments."""
    progress: StepProgress = field(default_factory=StepProgress)
    """Step numbers of a program without an agent."""

    def add_job(self, job: RecordedJob) -> bool:
        """Take a newer state of the job. Returns whether anything but its time has changed."""
        before = self.job
        if before is not None and before == replace(job, observed_ms=before.observed_ms):
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
        facts = digested.facts
        self.has_reports = self.has_reports or bool(facts.segments)
        before = self.shortages, self.model
        self.shortages = facts.device_shortages or self.shortages
        self.model = facts.model or self.model
        changed = [before != (self.shortages, self.model)]
        # A segment is closed when it is reported; a copy with more steps is the later one.
        for one in facts.segments:
            changed.append(_put(self.segments, one.key, one, lambda one: one.steps))
        for pod in facts.pods:
            changed.append(_put(self.facts, (pod.name, pod.since), pod, lambda pod: pod.until))
        self._drop_old_segments()
        self.windows = digested.windows
        for check in facts.nodes:
            _put(self.checks, check.name, check, lambda check: check.at)
        return any(changed)

    def add_steps(self, steps: Iterable[ReportedStep]) -> bool:
        """Take step numbers of a job with parameter servers. Returns whether a segment closed."""
        if self.has_reports or self.job is None or self.job.strategy != "ps":
            return False
        workers = [run for run in self.runs.values() if run.role == WORKER]
        times = [(run.started_ms, run.ended_ms or math.inf) for run in workers]

        def workers_at(at_ms: int) -> int:
            return sum(begin <= at_ms < end for begin, end in times)

        closed = self.progress.add(steps, workers_at)
        self.segments |= {segment.key: segment for segment in closed}
        self._drop_old_segments()
        return bool(closed)

    def mark_future(self, now_ms: int) -> bool:
        """Mark segments of times to come: a clock was ahead. Returns whether any was marked."""
        future = [
            key
            for key, segment in self.segments.items()
            if segment.until > now_ms + FUTURE_MS and segment.quality != DISTURBED
        ]
        for key in future:
            self.segments[key] = replace(self.segments[key], quality=DISTURBED)
        return bool(future)

    def _drop_old_segments(self) -> None:
        for key in sorted(self.segments)[: max(0, len(self.segments) - MAX_SEGMENTS)]:
            del self.segments[key]

    def nodes_of_pods(self) -> dict[str, str]:
        """Return the node on which each pod runs, or ran last, where it is known."""
        runs = sorted(self.runs.values(), key=lambda run: run.started_ms)
        return {run.pod: run.node for run in runs if run.node}

    def rank_speeds(self, now_ms: int) -> tuple[RankSpeed, ...]:
        """Return the recent minutes of ranks, of pods whose node is known and could be named."""
        nodes = self.nodes_of_pods()
        return tuple(
            replace(window, node=node)
            for window in self.windows
            if now_ms - window.window_ms <= FRESH_MS and (node := nodes.get(window.pod))
        )

    def node_checks(self) -> tuple[NodeCheckResult, ...]:
        """Return the results of node checks by the node of the pod, oldest first."""
        nodes = self.nodes_of_pods()
        checks = sorted(self.checks.values(), key=lambda check: check.at)
        return tuple(
            NodeCheckResult(
                node=node,
                at_ms=check.at,
                slow=not check.passed or (check.factor or 0.0) >= 1 + SLOW,
            )
            for check in checks
            if (node := nodes.get(check.name))
        )

    def run(self) -> Run | None:
        """Return the records; None while the job itself is not known."""
        if self.job is None:
            return None
        ended = self.job.outcome is not Outcome.RUNNING
        # The status has the time of the first reconciliation, before which a job has only waited.
        started_ms = self.job.started_ms if ended else None
        job = replace(
            self.job,
            model=self.model or self.job.model,
            complete=self.watched_from_start and ended,
            started_ms=min((key[2] for key in (*self.runs, *self.earlier)), default=started_ms),
        )
        segments = tuple(self.segments[key] for key in sorted(self.segments))
        return Run(
            job=job, segments=segments, pods=tuple(self._pod_runs()), shortages=self.shortages
        )

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
                pod_runs.append(replace(self.earlier[key], number=number))
                continue
            most = possible_use(run.limit_memory_bytes, self.nodes, run.node)
            polled = self.polled.get(key) or SampleBuffer()
            pod_runs.append(_pod_run(run, number, usage.get(key), polled, most))
        return pod_runs


def _put(stored: dict[K, S], key: K, new: S, progress: Callable[[S], int]) -> bool:
    """Store what has progressed more than what is stored. Returns whether it has."""
    before = stored.get(key)
    is_later = before is None or progress(before) < progress(new)
    if is_later:
        stored[key] = new
    return is_later


def _usage_by_run(
    runs: Mapping[RunKey, ContainerRun], reports: Iterable[PodFacts]
) -> dict[RunKey, PodFacts]:
    """Assign each report to the last run of its pod that had started by then."""
    by_pod: dict[str, list[ContainerRun]] = {}
    for run in runs.values():
        by_pod.setdefault(run.pod, []).append(run)
    by_run: dict[RunKey, PodFacts] = {}
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
    sizes = [nodes[node]] if node in nodes else [*nodes.values()] or [_UNLIMITED]
    cpu, memory = map(max, zip(*sizes, strict=True))
    return NodeSize(cpu, memory if limit is None else min(memory, round(_SHARED * limit)))


def _pod_run(
    run: ContainerRun, number: int, report: PodFacts | None, polled: SampleBuffer, most: NodeSize
) -> PodRun:
    peaks = (report.peak_memory_bytes if report else None, polled.peak_memory_bytes)
    cpu = [quantile(polled.cpu_millis, share) for share in (0.5, 0.95, 1.0)]
    if report is not None:
        reported = [report.cpu_millis_p50, report.cpu_millis_p95, report.cpu_millis_max]
        if all(x is not None and x <= most.cpu_millis for x in reported[1:]):
            cpu = reported
    observed = {name: getattr(run, name) for name in PodRun.__struct_fields__}
    measured = {
        "number": number,
        "peak_memory_bytes": max((x for x in peaks if x and x <= most.memory_bytes), default=None),
        **dict(zip(("cpu_p50_millis", "cpu_p95_millis", "cpu_max_millis"), cpu, strict=True)),
        "samples": max(report.samples if report else 0, polled.count),
    }
    return PodRun(**(observed | measured))


def quantile(ordered: Sequence[int], share: float) -> int | None:
    """Return a quantile of sorted samples, an observed one; None if there is none."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
