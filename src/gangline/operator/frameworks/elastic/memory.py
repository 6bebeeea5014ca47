"""Resources of ElasticJob pods: from the template, from plans, and after running out of memory."""

from collections.abc import Mapping

from gangline.api import resource_list
from gangline.api.jobs.elastic import NodeRecord, RoleRecord
from gangline.api.meta.field_doc import ResourceList
from gangline.api.quantity import QuantityError
from gangline.api.resource_list import MEMORY
from gangline.operator.frameworks.elastic import nodes
from gangline.operator.model import pod_template
from gangline.operator.model.job import Manifest, ReplicaRole

MEMORY_GROWTH = 2
"""Factor by which memory grows after a pod ran out of it."""

_LIMITS, _REQUESTS = "limits", "requests"


def container_resources(container: Manifest) -> dict[str, ResourceList]:
    found = container.get("resources") or {}
    return {name: dict(found.get(name) or {}) for name in (_LIMITS, _REQUESTS)}


def pod_resources(
    container: Manifest, record: RoleRecord, node: NodeRecord
) -> dict[str, ResourceList]:
    """Return the resources of the main container in the pod of one rank."""
    asked = container_resources(container)
    for override in (record.resources, node.resources):
        if override:
            asked = {name: {**amounts, **override} for name, amounts in asked.items()}
    if node.memory:
        asked = _with_memory(asked, node.memory)
    return {name: amounts for name, amounts in asked.items() if amounts}


def grown_memory(
    job_roles: Mapping[str, ReplicaRole],
    records: Mapping[str, RoleRecord],
    limits: ResourceList,
    role: str,
    rank: int,
    container: str,
) -> str | None:
    """Return the memory of a rank's next pod after it ran out.

    Empty if its memory is not limited now, so that nothing has to grow; None if the job's limits do
    not allow more.
    """
    asked = _memory_of_rank(job_roles[role], records[role], rank, container)
    if not asked:
        return ""
    grown = asked * MEMORY_GROWTH
    ceiling = resource_list.parse_resources(limits).get(MEMORY)
    if ceiling is not None:
        others = sum(
            _memory_of_rank(each, records[name], index, container)
            for name, each in job_roles.items()
            for index in range(each.replicas)
            if (name, index) != (role, rank)
        )
        grown = min(grown, ceiling - others)
    return resource_list.format_resource(MEMORY, grown) if grown > asked else None


def total_requests(
    roles: Mapping[str, ReplicaRole], records: Mapping[str, RoleRecord], container: str
) -> resource_list.ResourceAmounts:
    """Sum the requests of all pods of a job."""
    return resource_list.sum_resources(
        _requests_of_rank(role, records[name], rank, container)
        for name, role in roles.items()
        for rank in range(role.replicas)
        if rank not in nodes.removed_ranks(records[name])
    )


def _requests_of_rank(
    role: ReplicaRole, record: RoleRecord, rank: int, container: str
) -> resource_list.ResourceAmounts:
    trains = pod_template.main_container(role.template, container)
    found = pod_resources(trains, record, nodes.node_of_rank(record, rank))
    try:
        return resource_list.parse_resources({**found.get(_LIMITS, {}), **found.get(_REQUESTS, {})})
    except QuantityError:
        return {}


def _memory_of_rank(role: ReplicaRole, record: RoleRecord, rank: int, container: str) -> int:
    """Return the bound on a rank's memory: its limit, else its request."""
    trains = pod_template.main_container(role.template, container)
    found = pod_resources(trains, record, nodes.node_of_rank(record, rank))
    try:
        amounts = {**found.get(_REQUESTS, {}), **found.get(_LIMITS, {})}
        return resource_list.parse_resources(amounts).get(MEMORY, 0)
    except QuantityError:
        return 0


def _with_memory(asked: dict[str, ResourceList], memory: str) -> dict[str, ResourceList]:
    """Set the memory limit where one exists, and the memory request where one exists."""
    return {
        name: {**amounts, MEMORY: memory} if MEMORY in amounts else amounts
        for name, amounts in asked.items()
    }
