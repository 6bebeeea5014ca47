"""What the master of an elastic job publishes about its training, and the tuning that it receives.

Facts are JSON in one ConfigMap of the job, or the body of ``POST /v1/facts`` of a Brain. Tuning is
JSON in a second ConfigMap. The operator creates both, empty. Fields that are absent are not known,
which is never the same as 0. Readers ignore fields that they do not know.

Units: ``since`` and ``until`` are milliseconds since 1970 UTC, amounts of memory are bytes, and
everything called seconds is seconds.
"""

from typing import Final

from gangline.api.meta.objects import Wire

FACTS_VERSION: Final = 1
FACTS_KEY: Final = "facts"
TUNING_KEY: Final = "tuning"
FACTS_LABEL: Final = "gangline.dev/training-facts"
"""Label of the ConfigMaps with facts, with the value ``true``: readers select by it."""
FACTS_MAX_BYTES: Final = 16 * 1024
FACTS_MAX_SEGMENTS: Final = 20

GOOD, WARM_UP, DISTURBED = "good", "warm_up", "disturbed"
"""Quality of a segment."""


def facts_name(job: str) -> str:
    """Return the name of the ConfigMap with the facts of an ElasticJob."""
    return f"elasticjob-{job}-facts"


def tuning_name(job: str) -> str:
    """Return the name of the ConfigMap with the tuning of an ElasticJob."""
    return f"elasticjob-{job}-tuning"


class StepSeconds(Wire):
    """Times of steps: Welford's count, mean and sum of squared deviations.

    ``m2 / (count - 1)`` is the variance of one observation, and divided by ``count`` again the
    squared standard error of the mean. One observation is a step, or the mean of the steps between
    two heartbeats if the script reports only step numbers.
    """

    count: int
    mean: float
    m2: float = 0.0


class SlowestNode(Wire):
    """The node of a segment whose compute time was highest."""

    name: str
    """Name of the pod, or of the host outside of a cluster."""
    rank: int
    """Rank of the node in the world."""
    compute_seconds: float
    factor: float
    """Its compute time over the median of the nodes."""


class RestartFacts(Wire):
    """What interrupted the training between the end of the last segment and the end of this one."""

    count: int = 0
    seconds: dict[str, float] = {}
    """Lost time by phase: waiting, starting, checking, restarting, checkpoint, hanging, lost."""


class SegmentFacts(Wire):
    """Closed stretch of training with the same settings."""

    round: int
    """The round of the rendezvous. It changes with each world."""
    since: int
    until: int
    nodes: int
    procs: int
    """Worker processes, the world size."""
    steps: int
    step_seconds: StepSeconds
    quality: str = GOOD
    """``good``, ``warm_up`` (the first 20 steps or 60 s after a start), ``disturbed``."""
    devices_per_node: int | None = None
    device_model: str = ""
    """Several models are separated by commas. Empty: not reported."""
    micro_batch: int | None = None
    """Records of one process in one micro-step."""
    accumulation: int | None = None
    """Micro-steps of one process in a step."""
    global_batch: int | None = None
    """Records of all processes in a step."""
    step_first: int | None = None
    step_last: int | None = None
    compute_seconds: float | None = None
    """Mean per step of one process, all its micro-steps, without exchanges. So are the next two."""
    sync_seconds: float | None = None
    """Exposed exchange of gradients: what training waits for after the last gradient."""
    data_seconds: float | None = None
    """Wait for records."""
    slowest: SlowestNode | None = None
    grad_sqr: float | None = None
    """Squared norm of the true gradient, estimated."""
    grad_var: float | None = None
    """Trace of the covariance of the gradient of one record, estimated."""
    memory_peak: dict[str, int] = {}
    """Highest allocated device memory, by device model."""
    device_memory: dict[str, int] = {}
    """Memory of one device, by device model."""
    loader_workers: int | None = None
    """Data loader processes of one process; 0: it loads its records itself."""
    save_seconds: float | None = None
    """Time for which one checkpoint stops training."""
    save_interval_seconds: float | None = None
    """Time between two checkpoints."""
    saves_adapt: bool = False
    """True if the trainer chooses that time itself, from the rate of failures."""
    restarts: RestartFacts | None = None

    @property
    def key(self) -> tuple[int, int]:
        """Identifies the segment within its job."""
        return self.round, self.since


class PodFacts(Wire):
    """Memory and processors that one pod has used from its start to ``until``."""

    name: str
    rank: int
    since: int
    until: int
    peak_memory_bytes: int | None = None
    """Peak of the pod's cgroup without the file cache, or the sum of the peaks of its processes."""
    cpu_millis_p50: int | None = None
    """Of one-minute means, as are the next two; of shorter ones in the first minute."""
    cpu_millis_p95: int | None = None
    cpu_millis_max: int | None = None
    samples: int = 0


class RankFacts(Wire):
    """Times of one node of the present world in the last minutes, for the search for slow nodes.

    The lists have one entry for each minute from ``windows_since`` of the document on; None where
    the node reported nothing.
    """

    name: str
    """Name of the pod, or of the host outside of a cluster."""
    rank: int
    """Rank of the node in the world."""
    device_model: str = ""
    compute_seconds: tuple[float | None, ...] = ()
    """Mean per step, of the slowest process of the node, without exchanges."""
    sync_seconds: tuple[float | None, ...] = ()
    """Exposed exchange of gradients, of the process that waits least; empty: not reported."""


class NodeFacts(Wire):
    """Result of a node check."""

    name: str
    """Name of the pod, or of the host outside of a cluster."""
    rank: int
    at: int
    """Milliseconds since 1970 UTC."""
    passed: bool
    factor: float | None = None
    """Seconds of the matrix test over the median of the nodes: above 1 is slow."""


class DeviceShortageFacts(Wire):
    """A worker ran out of the memory of its device. Its container may have gone on."""

    device_model: str
    micro_batch: int
    """The records that the worker had, or was tuned to."""
    at: int
    """The last time, in milliseconds since 1970 UTC."""


class ModelShapeFacts(Wire):
    """Shape of the model, as far as the script reports it."""

    params: int | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    vocab: int | None = None
    sequence: int | None = None


class TrainingFacts(Wire):
    """Everything that a job publishes: at most 20 segments and 16 KiB of JSON."""

    v: int
    namespace: str = ""
    name: str = ""
    uid: str = ""
    segments: tuple[SegmentFacts, ...] = ()
    """The latest ones, oldest first."""
    pods: tuple[PodFacts, ...] = ()
    pods_total: int = 0
    """The number of pods; ``pods`` holds rank 0 and those with the highest peaks if it is fewer."""
    nodes: tuple[NodeFacts, ...] = ()
    windows_since: int = 0
    """Start of the first minute of ``ranks``."""
    ranks: tuple[RankFacts, ...] = ()
    """Of the present world: the slowest nodes, and an even selection of the others."""
    device_shortages: tuple[DeviceShortageFacts, ...] = ()
    """One for each device model and micro-batch, the latest last."""
    model: ModelShapeFacts | None = None
    tuning_version: int | None = None
    """The tuning that all nodes have applied."""
    tunes_batch: bool = False
    """True if the workers read batch size and loader settings (``--auto-tunning``)."""


class LoaderTuning(Wire):
    """Settings of the data loader. None keeps the present value."""

    batch_size: int | None = None
    """Records of a micro-batch. Ignored unless the job fixes its global batch."""
    num_workers: int | None = None
    pin_memory: bool | None = None


class OptimizerTuning(Wire):
    """Settings of the optimizer. None keeps the present value."""

    learning_rate: float | None = None
    weight_decay: float | None = None


class CheckpointTuning(Wire):
    """Prior of the rate of failures: their number in some seconds of this job's training."""

    failures: float
    seconds: float


class JobTuning(Wire):
    """Tuning of a job, written by the Brain."""

    v: int
    version: int
    """Rises with each change. Lower ones than the last are ignored."""
    dataloader: LoaderTuning | None = None
    devices: dict[str, LoaderTuning] = {}
    """Settings of the data loader for nodes with this device model, instead of the former."""
    optimizer: OptimizerTuning | None = None
    checkpoint: CheckpointTuning | None = None
