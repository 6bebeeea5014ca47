"""The records of the history: jobs, the runs of their pods, the speed of nodes.

Segments, shapes of models and shortages of device memory are as masters report them.

Two observations of one thing become one, the same in any order and however often they arrive:
``merge`` is commutative, associative and idempotent, so that a re-list changes nothing. Fields that
only grow are merged one by one; the others come from the record that counts more. The last
criterion is the encoded record: it has no meaning, but it does not depend on the order of arrival.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgspec
from msgspec.structs import replace

from gangline.api.jobs.training_facts import DeviceShortageFacts, ModelShapeFacts, SegmentFacts


class Outcome(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DELETED = "deleted"


class Mode(StrEnum):
    """What the Brain may do for a job, from least to most."""

    OFF = "off"
    ADVISE = "advise"
    APPLY = "apply"


class Image(msgspec.Struct, frozen=True, kw_only=True):
    repository: str = ""
    tag: str = ""
    digest: str = ""


class RoleSize(msgspec.Struct, frozen=True, kw_only=True):
    """What the pods of one role request, from ``since_ms`` on."""

    role: str
    since_ms: int
    replicas: int
    cpu_millis: int | None = None
    memory_bytes: int | None = None
    gpus: int = 0
    gpu_model: str = ""


class PlannedSize(msgspec.Struct, frozen=True, kw_only=True):
    """What plans have set for the new pods of a role, or of one of its ranks."""

    role: str
    rank: int | None = None
    """None: all ranks without a size of their own."""
    cpu_millis: int | None = None
    """None: the specification counts, as for the memory."""
    memory_bytes: int | None = None


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What the job's own annotations and fields allow the Brain."""

    mode: Mode = Mode.ADVISE
    may: frozenset[str] | None = None
    """Fields that may be changed (``workers``, ``memory``, ``cpu``, ``ps``, ``batch``,
    ``checkpoints``, ``placement``); None: all of them."""
    named: frozenset[str] = frozenset()
    """Fields that the job names itself: for some changes silence is not consent."""
    max_global_batch: int | None = None
    learning_rate_rule: str = ""
    """``adascale``, ``linear``, ``sqrt``; empty: none is known, so the global batch stays."""


class RecordedJob(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job, from its submission to its end. ``(cluster, uid)`` identifies it."""

    cluster: str
    uid: str
    namespace: str
    name: str
    stem: str
    """The name without numbers and generated suffixes."""
    kind: str
    strategy: str = "allreduce"
    """``allreduce``, ``ps`` or ``other``."""
    owner: str = ""
    """The user who submitted it, as far as it is known."""
    queue: str = ""
    image: Image = Image()
    command_digest: str = ""
    """Keyed digest of command and arguments: equal commands match within one cluster only."""
    spec_digest: str = ""
    submitted_ms: int
    started_ms: int | None = None
    finished_ms: int | None = None
    outcome: Outcome = Outcome.RUNNING
    cause: str = ""
    """Reason of a failure, as ``gangline.api.failure`` names it."""
    workers_min: int | None = None
    workers_max: int | None = None
    workers_asked: int | None = None
    unit: int = 1
    """Workers are added and removed in multiples of it."""
    wishes: Wishes = Wishes()
    roles: tuple[RoleSize, ...] = ()
    planned: tuple[PlannedSize, ...] = ()
    """What plans have changed of it. A next run starts with ``roles``."""
    model: ModelShapeFacts | None = None
    restarts: int = 0
    complete: bool = False
    """True if it was watched from its start to its end."""
    observed_ms: int = 0
    """When this was observed. Of two records of one job the later one counts."""

    @property
    def key(self) -> tuple[()]:
        """Identifies a record beside cluster and UID, as those of the other records do."""
        return ()


class PodRun(msgspec.Struct, frozen=True, kw_only=True):
    """One container run of one rank. ``(job, role, rank, number)`` identifies it."""

    role: str
    rank: int
    number: int
    """Counts the pods and restarts of this rank, from 0."""
    node: str = ""
    started_ms: int
    ended_ms: int | None = None
    cause: str = ""
    oom: bool = False
    limit_memory_bytes: int | None = None
    peak_memory_bytes: int | None = None
    """The highest resident memory; None if nobody measured it, never 0."""
    cpu_p50_millis: int | None = None
    cpu_p95_millis: int | None = None
    cpu_max_millis: int | None = None
    samples: int = 0

    @property
    def key(self) -> tuple[str, int, int]:
        return self.role, self.rank, self.number


class MemorySample(msgspec.Struct, frozen=True, kw_only=True):
    """The memory that one rank used at one time, for the search for growth."""

    role: str
    rank: int
    at_ms: int
    memory_bytes: int


class RankSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """The compute time of one rank in one window of a minute, for the search for stragglers."""

    rank: int
    pod: str
    node: str = ""
    """Empty while it is not known."""
    gpu_model: str
    window_ms: int
    compute_s: float
    wait_s: float | None = None
    """Time in exchanges; the slow rank waits least."""


class NodeSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """One day of a node: its ranks against the median of their jobs; 1.0 is the median."""

    node: str
    gpu_model: str = ""
    day: int
    """Days since 1970."""
    score: float
    jobs: int
    checks_failed: int = 0
    failures: int = 0
    observed_ms: int = 0
    """When it was computed. Of two records of one day the later one counts."""

    @property
    def key(self) -> tuple[str, int]:
        return self.node, self.day


Record: TypeAlias = RecordedJob | SegmentFacts | PodRun | NodeSpeed
"""What the history stores."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A job with everything known of it."""

    job: RecordedJob
    segments: tuple[SegmentFacts, ...] = ()
    pods: tuple[PodRun, ...] = ()
    shortages: tuple[DeviceShortageFacts, ...] = ()
    """As the job's master reports them; the store does not have them."""


class NodeCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """What one node offers in total and has free."""

    name: str
    gpu_model: str = ""
    gpus: int = 0
    gpus_free: int = 0
    cpu_millis: int = 0
    memory_bytes: int = 0
    used: tuple[int, int] = (0, 0)
    """Millicores and bytes that its pods have requested, where these were read."""

    @property
    def free(self) -> tuple[int, int]:
        """Millicores and bytes that a new pod can request."""
        return max(self.cpu_millis - self.used[0], 0), max(self.memory_bytes - self.used[1], 0)


_FINALITY: Final = {Outcome.RUNNING: 0, Outcome.DELETED: 1, Outcome.FAILED: 2, Outcome.SUCCEEDED: 3}
"""A job that ended and was deleted later has succeeded or failed."""

R = TypeVar("R", bound=Record)


def merge(one: R, other: R) -> R:
    return cast(R, _MERGES[type(one)](one, other))


def _merge_jobs(one: RecordedJob, other: RecordedJob) -> RecordedJob:
    counts = max(one, other, key=_job_weight)
    ended = counts.outcome is not Outcome.RUNNING
    return replace(
        counts,
        submitted_ms=min(one.submitted_ms, other.submitted_ms),
        started_ms=_known(min, one.started_ms, other.started_ms),
        restarts=max(one.restarts, other.restarts),
        # Only a record of the end can say that everything was watched; after a restart of the
        # Brain a later record of the same end cannot.
        complete=ended and (_watched(one) or _watched(other)),
        roles=_merge_roles(one.roles, other.roles),
        model=_merge_models(one.model, other.model),
    )


def _merge_pod_runs(one: PodRun, other: PodRun) -> PodRun:
    """Peaks and samples only grow."""
    counts = max(one, other, key=_pod_weight)
    return replace(
        counts,
        started_ms=min(one.started_ms, other.started_ms),
        oom=one.oom or other.oom,
        peak_memory_bytes=_known(max, one.peak_memory_bytes, other.peak_memory_bytes),
        cpu_max_millis=_known(max, one.cpu_max_millis, other.cpu_max_millis),
    )


_MERGES: Final[dict[type, Callable[[Any, Any], Record]]] = {
    RecordedJob: _merge_jobs,
    # The observation with more steps: segments are closed, so they only seldom differ.
    SegmentFacts: lambda *both: max(both, key=lambda one: (one.steps, one.until, _bytes(one))),
    PodRun: _merge_pod_runs,
    # The later computation of the day.
    NodeSpeed: lambda *both: max(both, key=lambda one: (one.observed_ms, one.jobs, _bytes(one))),
}


def _watched(job: RecordedJob) -> bool:
    return job.complete and job.outcome is not Outcome.RUNNING


def _job_weight(job: RecordedJob) -> tuple[int, int, int, bytes]:
    bare = replace(
        job, submitted_ms=0, started_ms=None, restarts=0, complete=False, roles=(), model=None
    )
    return (_FINALITY[job.outcome], job.observed_ms, job.finished_ms or 0, _bytes(bare))


def _pod_weight(pod: PodRun) -> tuple[bool, int, bytes]:
    bare = replace(pod, started_ms=0, oom=False, peak_memory_bytes=None, cpu_max_millis=None)
    return (pod.ended_ms is not None, pod.samples, _bytes(bare))


def _merge_roles(one: tuple[RoleSize, ...], other: tuple[RoleSize, ...]) -> tuple[RoleSize, ...]:
    # Of sizes of one role and time the last counts.
    ordered = sorted((*one, *other), key=lambda size: (size.role, size.since_ms, _bytes(size)))
    return tuple({(size.role, size.since_ms): size for size in ordered}.values())


def _merge_models(
    one: ModelShapeFacts | None, other: ModelShapeFacts | None
) -> ModelShapeFacts | None:
    """The model of which more is known."""

    def weight(model: ModelShapeFacts) -> tuple[int, bytes]:
        return sum(value is not None for value in msgspec.structs.astuple(model)), _bytes(model)

    models = [model for model in (one, other) if model is not None]
    return max(models, key=weight, default=None)


def _known(choose: Callable[..., int | None], *amounts: int | None) -> int | None:
    return choose((amount for amount in amounts if amount is not None), default=None)


def _bytes(record: msgspec.Struct) -> bytes:
    return msgspec.json.encode(record, order="deterministic")
