"""Job traces, as CSV or JSON, clusters to run them on, and synthetic traces.

Columns (or keys) of a job: ``arrival`` (seconds), ``duration`` (seconds), ``size`` (pods).
Optional: ``name``, ``minimum`` (default: the size), ``cpu`` (1), ``memory`` (0) and ``gpu`` (0) of
each pod, ``queue`` (default), ``priority`` (0), ``fails_after`` (seconds of running after which it
fails once and restarts), ``checkpoint_every`` (seconds of running between checkpoints; 0: none),
``step_s`` (seconds of a step: a job with checkpoints saves at its end before an eviction; 0: it is
evicted immediately), ``save_s`` (seconds that such a save takes), ``max`` (pods that a resizer may
give it; default: the size), ``restart_s`` (seconds that a change of its pods takes), and its
scaling: ``r0``, ``r1``, ``x1``, ``noise`` (``Scaling``).

A cluster is YAML or JSON: nodes of a few kinds, and queues.

nodes:
  - {count: 100, cpu: 96, memory: 1Ti, gpu: 8, name: gpu, labels: {rack: r1}}
queues:
  - {name: team, weight: 2, parent: root, deserved: {cpu: 100}, dequeueStrategy: fifo}

Synthetic traces have the shapes of published traces of large GPU clusters, not their records. Most
jobs are small and short, while few large and long ones use most of the time, and arrivals follow
the day. Sources: Philly (Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN
Training Workloads", ATC 2019), Helios (Hu et al., "Characterization and Prediction of Deep Learning
Workloads in Large-Scale GPU Datacenters", SC 2021) and PAI (Weng et al., "MLaaS in the Wild", NSDI
2022). The parameters are our own approximations.
"""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated

import msgspec
import yaml

from gangline.api.job_resources import QUEUES
from gangline.api.quantity import QuantityError
from gangline.api.resource_list import CPU, GPU, MEMORY, PODS, parse_resource
from gangline.api.validation.validate import check_manifest
from gangline.api.volcano.scheduling import DEFAULT_QUEUE, ROOT_QUEUE
from gangline.scheduler.cache.convert import queue_info
from gangline.scheduler.types import NodeInfo, NodeName, QueueInfo, Request

_TIMES = ("fails_after", "checkpoint_every", "step_s", "save_s", "restart_s")
"""Optional columns in seconds, named as the fields of a job."""
_SCALING = ("r0", "r1", "x1", "noise")
_KNOWN = {"name", "arrival", "duration", "size", "minimum", "cpu", "memory", "gpu", "max"} | {
    *("queue", "priority"),
    *_TIMES,
    *_SCALING,
}
_REQUIRED = ("arrival", "duration")
_FORM = (
    "A trace is CSV whose first line names the columns, such as arrival,duration,size,gpu, "
    "or a JSON list of such jobs (in a file named .json)."
)


MOST_SECONDS = 1e10
"""About 300 years, so that times of arrival may be those of a clock."""
MOST_PODS = 1_000_000
"""Of a job; the same limit holds for the nodes of one kind."""


class TraceError(ValueError):
    """A trace or cluster description cannot be read. The message says where and why."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """How the time of a step depends on the number of pods.

    The unit of time is the computing of the job's global batch on one pod. With n pods it takes
    1 / n, and communication r0 + r1 x 2 (n - 1) / n + x1 x max(n - 2, 0), nothing for one pod.
    """

    r0: float = 0.0
    r1: float = 0.0
    x1: float = 0.0
    noise: float = 0.0
    """Noise of the gradients, in global batches of the job's size; 0: the batch may not grow."""

    def communication(self, pods: int) -> float:
        if pods == 1:
            return 0.0
        return self.r0 + self.r1 * 2 * (pods - 1) / pods + self.x1 * max(pods - 2, 0)

    def goodput(self, pods: int, size: int) -> float:
        """Return useful global batches per unit of time on ``pods`` pods of a job of ``size``.

        More pods may process a larger global batch; each of its samples is worth less by the
        noise of the gradients (McCandlish et al., 2018; Pollux, 2021).
        """
        fixed = 1 / (1 / pods + self.communication(pods))
        if not self.noise or pods <= size:
            return fixed
        growth = pods / size
        worth = (self.noise + 1) / (self.noise + growth)
        return max(fixed, growth / (1 / size + self.communication(pods)) * worth)


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A gang that arrives, runs, and ends."""

    name: str
    arrival: float
    """Seconds since the start of the trace."""
    duration: float
    """Seconds of running that it needs in total."""
    size: int
    request: Request
    """Request of each pod."""
    minimum: int
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    fails_after: float = 0.0
    """Seconds of running after which it fails once and restarts; 0: it does not fail."""
    checkpoint_every: float = 0.0
    """Seconds of running between checkpoints; 0: none."""
    step_s: float = 0.0
    """Seconds of a step; 0: unknown."""
    save_s: float = 0.0
    """Seconds that a save before an eviction takes."""
    maximum: int = 0
    """Pods that a resizer may give it; 0: ``size``."""
    scaling: Scaling | None = None
    """None: its speed does not depend on its pods."""
    restart_s: float = 0.0
    """Seconds that a change of its pods takes, in which it does no work."""

    @property
    def is_elastic(self) -> bool:
        """Whether a resizer may change its pods."""
        return max(self.maximum, self.size) > self.minimum and self.scaling is not None

    @property
    def saves_on_request(self) -> bool:
        """Whether it saves before an eviction."""
        return self.checkpoint_every > 0 and self.step_s > 0

    def rate(self, pods: int) -> float:
        """Return the work per second on ``pods`` pods; 1 on ``size`` pods."""
        if self.scaling is None:
            return 1.0
        own = self.scaling.goodput(self.size, self.size)
        return self.scaling.goodput(max(pods, 1), self.size) / own

    def checkpointed_work(self, seconds: float) -> float:
        """Return how many of these seconds of running a checkpoint has saved."""
        every = self.checkpoint_every
        return seconds - math.fmod(seconds, every) if every else 0.0


def read_trace(path: Path) -> list[TraceJob]:
    """Read a trace, in the order of arrival.

    Raises:
        TraceError: the file cannot be parsed.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = json.loads(text) if path.suffix == ".json" else _csv_rows(text)
    except UnicodeDecodeError as error:
        raise TraceError(f"{path} is no trace: it is not text in UTF-8. {_FORM}") from error
    except (OSError, json.JSONDecodeError) as error:
        raise TraceError(f"{path}: {error}") from error
    except csv.Error as error:
        raise TraceError(f"{path} is no trace: {error}. {_FORM}") from error
    if isinstance(rows, dict):
        rows = rows.get("jobs")
    if not isinstance(rows, list):
        raise TraceError(f"{path} is no trace: it has no list of jobs. {_FORM}")
    if not rows:
        raise TraceError(f"{path} is no trace: it has no jobs. {_FORM}")
    jobs = [_job(row, f"{path}, job {number}", number) for number, row in enumerate(rows, 1)]
    if twice := _first_twice([job.name for job in jobs]):
        raise TraceError(f"{path}: two jobs have the name {twice}")
    return sorted(jobs, key=lambda job: (job.arrival, job.name))


def _csv_rows(text: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file by column.

    Raises:
        Error: it is not CSV, or its first line does not name the required columns.
    """
    reader = csv.DictReader(text.splitlines(), strict=True)
    columns = [str(name).strip() for name in reader.fieldnames or ()]
    if missing := [name for name in _REQUIRED if name not in columns]:
        raise csv.Error(f"its first line has no {missing[0]} column")
    if twice := _first_twice(columns):
        raise csv.Error(f"its first line names the column {twice} twice")
    rows = list(reader)
    for number, row in enumerate(rows, 1):
        if None in row:
            raise csv.Error(f"job {number} has more values than the first line has columns")
    return rows


def _job(row: object, where: str, number: int) -> TraceJob:
    if not isinstance(row, Mapping):
        raise TraceError(f"{where}: not a job")
    if unknown := sorted(str(key) for key in row if key not in _KNOWN):
        raise TraceError(f"{where}: unknown {', '.join(unknown)}")
    given = {key: value for key, value in row.items() if value not in (None, "")}
    for name in _REQUIRED:
        if name not in given:
            raise TraceError(f"{where}: no {name}")
    try:
        size = _count(given, "size", 1, least=1)
        return TraceJob(
            name=str(given.get("name", f"job-{number}")),
            arrival=_seconds(given, "arrival"),
            duration=_seconds(given, "duration"),
            size=size,
            request=pod_request(given.get("cpu", 1), given.get("memory", 0), given.get("gpu", 0)),
            minimum=_count(given, "minimum", size, most=size),
            maximum=_count(given, "max", size, least=size),
            queue=str(given.get("queue", DEFAULT_QUEUE)),
            priority=_count(given, "priority", 0, least=-(2**31), most=2**31 - 1),
            scaling=_scaling(given),
            **{name: _seconds(given, name) for name in _TIMES},
        )
    except ValueError as error:
        raise TraceError(f"{where}: {error}") from error


def _count(
    given: Mapping[str, object], name: str, default: int, *, least: int = 0, most: int = MOST_PODS
) -> int:
    written = given.get(name, default)
    try:
        value = float(str(written))  # programs that know missing values write counts as 2.0
    except ValueError as error:
        raise ValueError(f"{name} is {written!r}, must be a whole number") from error
    if not least <= value <= most or not value.is_integer():
        raise ValueError(f"{name} is {written}, must be a whole number from {least} to {most}")
    return int(value)


def _seconds(given: Mapping[str, object], name: str) -> float:
    return _number(given, name, MOST_SECONDS, " seconds")


def _number(given: Mapping[str, object], name: str, most: float, unit: str = "") -> float:
    written = given.get(name, 0)
    try:
        value = float(str(written))
    except ValueError as error:
        raise ValueError(f"{name} is {written!r}, must be a number") from error
    if not 0 <= value <= most:
        raise ValueError(f"{name} is {written}, must be 0 to {most:g}{unit}")
    return value


def _first_twice(names: Sequence[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _scaling(given: Mapping[str, object]) -> Scaling | None:
    names = [name for name in _SCALING if name in given]
    if not names:
        return None
    return Scaling(**{name: _number(given, name, 1e9) for name in names})


def pod_request(cpu: object, memory: object, gpu: object) -> Request:
    """Return the request of a pod from Kubernetes quantities.

    Raises:
        ValueError: one of them is not a quantity.
    """
    counts = {PODS: 1}
    for name, written in ((CPU, cpu), (MEMORY, memory), (GPU, gpu)):
        if not isinstance(written, str | int | float):
            raise QuantityError(written, "is not a quantity", "write a number such as 2 or 500m")
        counts[name] = parse_resource(name, written)
        if counts[name] < 0:
            raise ValueError(f"{name} is {written}, must not be negative")
    return tuple(sorted((name, count) for name, count in counts.items() if count))


PODS_PER_NODE = 110


@dataclass(frozen=True, slots=True)
class SimulatedCluster:
    """Nodes and queues of a simulation."""

    nodes: tuple[NodeInfo, ...]
    queues: tuple[QueueInfo, ...] = ()


class _Nodes(msgspec.Struct, forbid_unknown_fields=True):
    count: Annotated[int, msgspec.Meta(ge=0, le=MOST_PODS)] = 1
    cpu: str | int | float = 1
    memory: str | int | float = 0
    gpu: int = 0
    name: str = "node"
    labels: dict[str, str] = {}


class _Description(msgspec.Struct, forbid_unknown_fields=True):
    nodes: list[_Nodes]
    queues: list[dict[str, object]] = []


def read_cluster(path: Path) -> SimulatedCluster:
    """Read the description of a cluster.

    Raises:
        TraceError: the file cannot be parsed.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
        described = msgspec.convert(raw, _Description)
        nodes = tuple(node for kind in described.nodes for node in _nodes(kind))
        queues = tuple(_queue(queue) for queue in described.queues)
        _check_tree({queue.name: queue.parent for queue in queues})
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError, QuantityError) as error:
        raise TraceError(f"{path}: {error}") from error
    if not nodes:
        raise TraceError(f"{path}: it has no nodes")
    if twice := _first_twice([node.name for node in nodes]):
        raise TraceError(f"{path}: two kinds of nodes have one name: {twice}")
    if twice := _first_twice([queue.name for queue in queues]):
        raise TraceError(f"{path}: two queues have the name {twice}")
    return SimulatedCluster(nodes, queues)


def uniform_cluster(count: int, cpu: float, memory: str, gpu: int) -> SimulatedCluster:
    return SimulatedCluster(tuple(_nodes(_Nodes(count, cpu, memory, gpu))))


def _nodes(kind: _Nodes) -> list[NodeInfo]:
    has = dict(pod_request(kind.cpu, kind.memory, kind.gpu)) | {PODS: PODS_PER_NODE}
    width = len(str(max(0, kind.count - 1)))
    return [
        NodeInfo(
            name=NodeName(f"{kind.name}-{index:0{width}d}"),
            allocatable=tuple(sorted(has.items())),
            labels=tuple(sorted(kind.labels.items())),
        )
        for index in range(kind.count)
    ]


def _queue(written: Mapping[str, object]) -> QueueInfo:
    spec = {key: value for key, value in written.items() if key != "name"}
    name = str(written.get("name") or "")
    if not name:
        raise ValueError("a queue has no name")
    checked = check_manifest(
        {
            "apiVersion": QUEUES.api_version,
            "kind": QUEUES.kind,
            "metadata": {"name": name},
            "spec": spec,
        }
    )
    if checked.errors:
        raise ValueError(f"queue {name}: {'; '.join(map(str, checked.errors))}")
    return queue_info(checked.job)


def _check_tree(parents: Mapping[str, str]) -> None:
    """Raise ValueError if a queue has no way to the root."""
    for name in parents:
        above, passed = parents[name], {name}
        while above in parents and above not in passed:
            passed.add(above)
            above = parents[above]
        if above in passed:
            raise ValueError(f"queue {name}: it is below itself, by way of {above}")
        if above not in {"", ROOT_QUEUE, DEFAULT_QUEUE}:
            raise ValueError(f"queue {name}: there is no queue {above}")


DAY_S = 86_400.0
NIGHT_RATE = 0.4
"""Arrival rate at the quietest hour, relative to the busiest."""
MAX_DURATION_S = 30 * DAY_S
_GPU = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class TraceShape:
    """Distribution of the jobs of a trace."""

    sizes: tuple[tuple[int, int, float], ...]
    """Number of pods, GPUs of each, and probability."""
    median_s: float
    """Median duration."""
    spread: float
    """Standard deviation of the logarithm of the duration."""
    fails: float
    """Fraction of jobs that fail once."""


TRACE_SHAPES = {
    "philly": TraceShape(
        ((1, 1, 0.80), (1, 2, 0.06), (1, 4, 0.06), (1, 8, 0.05), (2, 8, 0.02), (4, 8, 0.01)),
        median_s=900,
        spread=2.2,
        fails=0.25,
    ),
    "helios": TraceShape(
        ((1, 1, 0.62), (1, 4, 0.12), (1, 8, 0.17), (2, 8, 0.06), (8, 8, 0.025), (16, 8, 0.005)),
        median_s=240,
        spread=2.3,
        fails=0.15,
    ),
    "pai": TraceShape(
        ((1, 1, 0.40), (2, 1, 0.2), (4, 1, 0.2), (8, 1, 0.12), (16, 1, 0.05), (64, 1, 0.03)),
        median_s=600,
        spread=1.8,
        fails=0.1,
    ),
}


def generate_trace(
    shape: TraceShape,
    count: int,
    cluster: SimulatedCluster,
    load: float,
    seed: int,
    queues: Sequence[str] = (DEFAULT_QUEUE,),
) -> list[TraceJob]:
    """Return jobs that keep ``cluster`` busy by ``load`` (1: they request all of its GPUs).

    Equal arguments give equal jobs.
    """
    random = Random(seed)
    kinds = [(pods, gpus) for pods, gpus, _ in shape.sizes]
    chances = [chance for _, _, chance in shape.sizes]
    drawn = [(*random.choices(kinds, chances)[0], _duration(shape, random)) for _ in range(count)]
    devices = sum(dict(node.allocatable).get(_GPU, 0) for node in cluster.nodes)
    asked = sum(pods * gpus * duration for pods, gpus, duration in drawn)
    span = asked / max(1.0, devices * load)
    arrivals = sorted(_arrival(span, random) for _ in range(count))
    width = len(str(count))
    return [
        TraceJob(
            name=f"job-{index:0{width}d}",
            arrival=arrival,
            duration=duration,
            size=pods,
            request=pod_request(4 * gpus, f"{16 * gpus}Gi", gpus),
            minimum=pods,
            queue=random.choice(list(queues)),
            fails_after=duration * random.random() if random.random() < shape.fails else 0.0,
        )
        for index, (arrival, (pods, gpus, duration)) in enumerate(zip(arrivals, drawn, strict=True))
    ]


def _duration(shape: TraceShape, random: Random) -> float:
    drawn = random.lognormvariate(math.log(shape.median_s), shape.spread)
    return min(MAX_DURATION_S, max(1.0, drawn))


def _arrival(span: float, random: Random) -> float:
    """Draw an arrival time; the afternoon is busy, the night is quiet."""
    while True:
        moment = random.uniform(0, span)
        hour = math.sin(2 * math.pi * moment / DAY_S) / 2 + 0.5
        if random.random() < NIGHT_RATE + (1 - NIGHT_RATE) * hour:
            return moment
