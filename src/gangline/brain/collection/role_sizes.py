"""Digestion of requests: what the pods of a job get by its specification and by plans. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from gangline.api.job_resources import MAIN_CONTAINERS
from gangline.api.jobs.elastic import ElasticJob
from gangline.api.jobs.kind import ReplicaSpecLike
from gangline.api.quantity import QuantityError
from gangline.api.resource_list import CPU, GPU, MEMORY, parse_resource
from gangline.brain.facts.records import PlannedSize, RoleSize

_NODE_MODEL_LABELS = ("nvidia.com/gpu.product", "gangline.dev/gpu-model")


def main_container(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the container of a template that trains; empty if there is none."""
    containers = [
        each
        for each in (template.get("spec") or {}).get("containers") or ()
        if isinstance(each, dict)
    ]
    named = (each for each in containers if each.get("name") in MAIN_CONTAINERS)
    return next(named, containers[0] if containers else {})


def role_sizes(roles: Mapping[str, ReplicaSpecLike], since_ms: int) -> Iterator[RoleSize]:
    """Yield what the specification requests for each role that trains or serves."""
    for role, spec in roles.items():
        if role in ("dlrover-master", "launcher"):
            continue
        container = main_container(spec.template)
        selector = ((spec.template or {}).get("spec") or {}).get("nodeSelector") or {}
        model = next((str(selector[key]) for key in _NODE_MODEL_LABELS if key in selector), "")
        yield RoleSize(
            role=role,
            since_ms=since_ms,
            replicas=1 if spec.replicas is None else spec.replicas,
            cpu_millis=_amount(container, CPU),
            memory_bytes=_amount(container, MEMORY),
            gpus=_amount(container, GPU) or 0,
            gpu_model=model,
        )


def planned_sizes(job: ElasticJob) -> Iterator[PlannedSize]:
    """Yield what plans have set, first of roles: memory that grew after a kill is not planned."""
    for role, record in sorted(job.status.roles.items()):
        ranks = [(int(rank), node.resources) for rank, node in record.nodes.items()]
        for rank, resources in [(None, record.resources), *ranks]:
            size = PlannedSize(
                role=role,
                rank=rank,
                cpu_millis=parsed_amount(CPU, resources.get(CPU)),
                memory_bytes=parsed_amount(MEMORY, resources.get(MEMORY)),
            )
            if size.cpu_millis is not None or size.memory_bytes is not None:
                yield size


def _amount(container: Mapping[str, Any], resource: str) -> int | None:
    """Return what a container requests: its request, else its limit; None if it has neither."""
    resources = container.get("resources") or {}
    for field in ("requests", "limits"):
        written = (resources.get(field) or {}).get(resource)
        if written is not None:
            return parsed_amount(resource, written)
    return None


def parsed_amount(resource: str, written: str | int | float | None) -> int | None:
    """Return an amount in the smallest unit; None if there is none or it is no amount."""
    try:
        return None if written is None else parse_resource(resource, written)
    except QuantityError:
        return None
