"""What a job requests for its training: a stored job (``--like``, ``--check``) or a manifest."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gangline.api.jobs.kubeflow import SHARED_MEMORY_ANNOTATION
from gangline.api.quantity import quantity_or_none
from gangline.api.resources import NODES
from gangline.cli.params.target import ClusterTarget
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import Forbidden, NotFound
from gangline.sdk.client import JobClient
from gangline.sdk.goodput import read_goodput
from gangline.sdk.jobs import Job

if TYPE_CHECKING:
    from gangline.sizing.goals import JobRequest

PRODUCT_LABEL = "nvidia.com/gpu.product"
_GPU_RESOURCES = ("/gpu", "/Ascend910", "/npu")


@dataclass(frozen=True, slots=True)
class JobSource:
    """A job of any kind, from a file or from the cluster."""

    manifest: Mapping[str, Any]
    gpu: str = ""
    """Product name of the GPUs of its nodes; empty if it does not run."""
    steps_per_s: float = 0.0
    """What it reports; 0: nothing."""

    @property
    def annotations(self) -> dict[str, str]:
        annotations = (self.manifest.get("metadata") or {}).get("annotations") or {}
        return {str(name): str(value) for name, value in annotations.items()}


def read_job_request(job: JobSource) -> "JobRequest | None":
    """Read what the pods with GPUs of a job request; None if no pod has any."""
    from gangline.sizing.goals import JobRequest

    pods, largest = 0, None
    for replicas, template in _templates(job.manifest.get("spec")):
        pod = template.get("spec") or {}
        limits = list(_limits(pod))
        gpus = int(sum(_gpus(limit) for limit in limits))
        if not gpus:
            continue
        pods += replicas
        selector = (pod.get("nodeSelector") or {}).get(PRODUCT_LABEL, "")
        if largest is None or gpus > largest.pod_gpus:
            largest = JobRequest(
                pods=0,
                pod_gpus=gpus,
                pod_memory_bytes=sum(_amount(limit, "memory") for limit in limits),
                pod_cpus=sum(_amount(limit, "cpu") for limit in limits),
                shared_memory_bytes=_shared_memory(job),
                processes=_processes(job.manifest),
                gpu=job.gpu or str(selector),
            )
    return None if largest is None else replace(largest, pods=pods)


def _templates(spec: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Find the pod templates with their number of replicas, in jobs of any kind."""
    if isinstance(spec, list):
        for item in spec:
            yield from _templates(item)
    if not isinstance(spec, Mapping):
        return
    template = spec.get("template")
    if isinstance(template, Mapping):
        replicas = spec.get("replicas", spec.get("parallelism", 1))
        yield (replicas if isinstance(replicas, int) else 1), template
        return
    for value in spec.values():
        yield from _templates(value)


def _limits(pod: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for container in pod.get("containers") or []:
        resources = container.get("resources") or {}
        yield {**(resources.get("requests") or {}), **(resources.get("limits") or {})}


def _gpus(limits: Mapping[str, Any]) -> float:
    return sum(_amount(limits, name) for name in limits if name.endswith(_GPU_RESOURCES))


def _amount(limits: Mapping[str, Any], name: str) -> float:
    quantity = quantity_or_none(limits.get(name, 0))
    return quantity.nano / 1e9 if quantity is not None else 0.0


def _shared_memory(job: JobSource) -> float:
    quantity = quantity_or_none(job.annotations.get(SHARED_MEMORY_ANNOTATION))
    return quantity.nano / 1e9 if quantity is not None else 0.0


def _processes(manifest: Mapping[str, Any]) -> int:
    stated = str((manifest.get("spec") or {}).get("nprocPerNode") or "")
    return int(stated) if stated.isdigit() else 0


async def load_job(target: ClusterTarget, name: str) -> JobSource:
    """Load a job with what it reports.

    Raises:
        NoSuchJob, AmbiguousJob: as ``JobClient.get``.
    """
    async with target.connect() as client:
        jobs, namespace = JobClient(client), target.namespace_of(client)
        job = await jobs.get(name, namespace)
        manifest = await jobs.manifest(job.name, namespace)
        goodput = await read_goodput(client, job)
        steps_per_s = goodput.steps_per_s if goodput else 0.0
        return JobSource(manifest, await _product(client, job), steps_per_s)


async def _product(client: ApiClient, job: Job) -> str:
    """Return the product name of the GPUs of the job's nodes; empty if it is unknown."""
    for replica in job.replicas:
        if replica.node:
            try:
                node = await client.get(NODES, replica.node)
            except (NotFound, Forbidden):
                return ""
            return node.metadata.labels.get(PRODUCT_LABEL, "")
    return ""
