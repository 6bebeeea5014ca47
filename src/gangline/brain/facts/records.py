"""The records of the history: jobs, the runs of their pods, the speed of nodes.

Segments, shapes of models and shortages of device memory are as masters report them.
"""

from enum import StrEnum
from typing import TypeAlias

import msgspec

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
