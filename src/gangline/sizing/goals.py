"""Whether the resources that a job requests are those that its training needs.

What was planned is stored as an annotation of the job: ``gangline plan --like JOB`` and
``--check JOB`` know the model of a job from it.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gangline.api.figures import format_figure, format_scaled
from gangline.sizing.model import ModelShape, ShapeError
from gangline.sizing.plan import Plan
from gangline.sizing.traced import TracedModel
from gangline.sizing.transformer import TransformerModel

IDLE_SHARE = 0.30
"""Waiting for the network or the pipeline may take this share of a step."""
HOST_SHARE = 1.25
"""Host memory of a node beside what checkpoints in memory need, as a share of it."""
PROCESS_BYTES = 8e9
"""Host memory of the process of a GPU: CUDA, NCCL and libraries, pinned buffers, and the part of a
checkpoint that it loads at a time.
"""
LOADER_BYTES = 1e9
"""Host memory of a process that loads data."""
MUCH_HOST = 4
"""More than this times the needed host memory is wasteful."""
CPUS_PER_GPU = (1, 32)
"""Cores that the process of a GPU needs at least, and of which more are wasteful."""


class ResourceVerdict(StrEnum):
    """How a requested resource compares with the needed one."""

    FITS = "fits"
    TOO_SMALL = "too small"
    WASTEFUL = "wasteful"


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What a job requests, of its pods with GPUs."""

    pods: int
    pod_gpus: int
    pod_memory_bytes: float = 0.0
    """0: no limit."""
    pod_cpus: float = 0.0
    """0: not stated."""
    shared_memory_bytes: float = 0.0
    """0: not requested."""
    processes: int = 0
    """Training processes of a pod; 0: one for each GPU."""
    gpu: str = ""
    """Product name of the GPUs; empty: not stated."""

    @property
    def gpus(self) -> int:
        return self.pods * self.pod_gpus


@dataclass(frozen=True, slots=True)
class ResourceFinding:
    """One resource of a job, compared."""

    resource: str
    requested: str
    needed: str
    verdict: ResourceVerdict
    reason: str = ""


def host_memory_bytes(plan: Plan) -> float:
    """Host memory that a node of the training needs."""
    loaders = plan.host.loader_workers if plan.host else 1
    processes = plan.node_devices * (PROCESS_BYTES + loaders * LOADER_BYTES)
    return processes + plan.checkpoints.host_bytes_per_node * HOST_SHARE + _offloaded_bytes(plan)


def _offloaded_bytes(plan: Plan) -> float:
    """Bytes of optimizer states of all ranks of a node that are in its memory."""
    states, model = plan.request.states, plan.request.model
    if not states.offloaded or not plan.choices:
        return 0.0
    layout = plan.choices[0].candidate.layout
    kept = dataclasses.replace(states, optimizer=states.offloaded)
    return model.memory(layout, kept).optimizer * plan.node_devices


def node_cpus(plan: Plan) -> int:
    """Cores that the processes of a node of the training need; 0 if nothing fits."""
    return plan.host.device_cpus * plan.node_devices if plan.host else 0


def has_known_loading(plan: Plan) -> bool:
    """Whether the cost of a sample is measured, or that of tokens, which is nearly nothing."""
    return bool(plan.request.sample_cpu_s) or not isinstance(plan.request.model, TracedModel)


def check_job(request: JobRequest, plan: Plan) -> tuple[ResourceFinding, ...]:
    """Compare each resource that a job requests with what ``plan`` computes for it.

    The plan is that of the job's training on the job's GPUs.
    """
    return tuple(_findings(request, plan))


def _findings(request: JobRequest, plan: Plan) -> Iterator[ResourceFinding]:
    yield _gpus(request, plan)
    if plan.choices:
        yield _gpu_memory(plan)
    if request.processes:
        yield _between(
            "processes of a pod", request.processes, request.pod_gpus, request.pod_gpus,
            "a process for each GPU of the pod",
        )  # fmt: skip
    if request.pod_cpus:
        least, most = (cpus * request.pod_gpus for cpus in _device_cpus(plan))
        yield _between(
            "CPUs of a pod", request.pod_cpus, least, most,
            "a core for each process, more for data loading",
        )  # fmt: skip
    if request.pod_memory_bytes:
        needed = host_memory_bytes(plan)
        yield _memory(
            "memory of a pod", request.pod_memory_bytes, needed,
            "checkpoints in memory and the processes",
        )  # fmt: skip
    if request.shared_memory_bytes:
        needed = plan.checkpoints.host_bytes_per_node
        yield _memory(
            "shared memory", request.shared_memory_bytes, needed, "two copies of the states"
        )


def _device_cpus(plan: Plan) -> tuple[int, int]:
    least, most = CPUS_PER_GPU
    if plan.host is None or not has_known_loading(plan):
        return least, most
    return max(least, plan.host.loader_workers), max(most, 2 * plan.host.device_cpus)


def _gpus(request: JobRequest, plan: Plan) -> ResourceFinding:
    requested, kind = str(request.gpus), plan.request.device.name
    if not plan.fits:
        needed = str(plan.fitting_devices or "GPUs with more memory")
        reason = f"no layout fits into {request.gpus} x {kind}"
        return ResourceFinding("GPUs", requested, needed, ResourceVerdict.TOO_SMALL, reason)
    if plan.misses:
        return ResourceFinding("GPUs", requested, "more", ResourceVerdict.TOO_SMALL, plan.misses[0])
    step = plan.choices[0].candidate.step
    idle = (step.exposed + step.bubble) / step.total
    if idle > IDLE_SHARE:
        reason = f"{idle:.0%} of a step is waiting for other GPUs: fewer, or a faster network"
        return ResourceFinding("GPUs", requested, "fewer", ResourceVerdict.WASTEFUL, reason)
    return ResourceFinding(
        "GPUs", requested, requested, ResourceVerdict.FITS, plan.choices[0].layout_title
    )


def _gpu_memory(plan: Plan) -> ResourceFinding:
    has, used = plan.request.device.memory_bytes, plan.choices[0].candidate.memory.high
    return ResourceFinding(
        "memory of a GPU",
        format_scaled(has, "B"),
        format_scaled(used, "B"),
        ResourceVerdict.FITS,
        f"{used / has:.0%} full",
    )


def _between(
    resource: str, requested: float, least: float, most: float, reason: str
) -> ResourceFinding:
    needed = format_figure(least)
    if least != most:
        needed += f" to {format_figure(most)}"
    verdict = ResourceVerdict.FITS
    if requested < least:
        verdict = ResourceVerdict.TOO_SMALL
    elif requested > most:
        verdict = ResourceVerdict.WASTEFUL
    return ResourceFinding(resource, format_figure(requested), needed, verdict, reason)


def _memory(resource: str, requested: float, needed: float, reason: str) -> ResourceFinding:
    verdict = ResourceVerdict.FITS
    if requested < needed:
        verdict = ResourceVerdict.TOO_SMALL
    elif requested > MUCH_HOST * needed:
        verdict = ResourceVerdict.WASTEFUL
    return ResourceFinding(
        resource, format_scaled(requested, "B"), format_scaled(needed, "B"), verdict, reason
    )


ANNOTATION = "gangline.dev/planned-training"


@dataclass(frozen=True, slots=True)
class PlannedTraining:
    """The training that a job was planned for."""

    model: TransformerModel | TracedModel
    tokens: float
    global_batch: int
    precision: str
    optimizer: str
    gpu: str
    adapter: str = ""
    adapter_rank: int = 16
    offload: bool = False


def write_record(plan: Plan) -> str:
    """Return the annotation of the job of ``plan``."""
    request, model = plan.request, plan.request.model
    if isinstance(model, TracedModel):
        kind, given = "traced", _changed(model)
    else:
        kind, given = "shape", _changed(model.shape)
    record = {
        kind: given,
        "tokens": plan.tokens,
        "globalBatch": plan.global_batch,
        "precision": request.precision.value,
        "optimizer": request.optimizer.value,
        "gpu": request.device.name,
    }
    if request.adapter:
        record |= {"adapter": request.adapter, "adapterRank": request.adapter_rank}
    if request.offload:
        record["offload"] = True
    return json.dumps(record, separators=(",", ":"))


def read_record(annotations: Mapping[str, str]) -> PlannedTraining | None:
    """Read the annotation of a job; None if it has none.

    Raises:
        ShapeError: the annotation is damaged.
    """
    text = annotations.get(ANNOTATION)
    if text is None:
        return None
    try:
        record = json.loads(text)
        model: TransformerModel | TracedModel = (
            TracedModel(**record["traced"])
            if "traced" in record
            else TransformerModel(ModelShape(**record["shape"]))
        )
        return PlannedTraining(
            model,
            float(record["tokens"]),
            int(record["globalBatch"]),
            str(record["precision"]),
            str(record["optimizer"]),
            str(record["gpu"]),
            str(record.get("adapter", "")),
            int(record.get("adapterRank", 16)),
            record.get("offload") is True,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ShapeError(ANNOTATION, f"is damaged: {error}") from error


def _changed(model: ModelShape | TracedModel) -> dict[str, Any]:
    """Return the fields that differ from their defaults."""
    return {
        field.name: value
        for field in dataclasses.fields(model)
        if (value := getattr(model, field.name)) != field.default
        and not (field.name == "uncounted" and not value)
    }
