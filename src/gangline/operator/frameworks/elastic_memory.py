"""Resources of ElasticJob pods: from the template, from plans, and after running out of memory."""

from collections.abc import Mapping

from gangline.api import resourcelist
from gangline.api.describe import ResourceList
from gangline.api.elastic import NodeRecord, RoleRecord
from gangline.api.quantity import QuantityError
from gangline.api.resourcelist import MEMORY
from gangline.operator import template
from gangline.operator.frameworks import elastic_nodes as nodes
from gangline.operator.job import Manifest, Role

GROWTH = 2
"""Factor by which memory grows after a pod ran out of it."""

_LIMITS, _REQUESTS = "limits", "requests"


def given(container: Manifest) -> dict[str, ResourceList]:
    found = container.get("resources") or {}
    return {name: dict(found.get(name) or {}) for name in (_LIMITS, _REQUESTS)}


def of_pod(container: Manifest, record: RoleRecord, node: NodeRecord) -> dict[str, ResourceList]:
    """Return the resources of the main container in the pod of one rank."""
    asked = given(container)
    for override in (record.resources, node.resources):
        if override:
            asked = {name: {**amounts, **override} for name, amounts in asked.items()}
    if node.memory:
        asked = _with_memory(asked, node.memory)
    return {name: amounts for name, amounts in asked.items() if amounts}


def with_more(
    job_roles: Mapping[str, Role],
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
    asked = _memory(job_roles[role], records[role], rank, container)
    if not asked:
        return ""
    grown = asked * GROWTH
    ceiling = resourcelist.amounts(limits).get(MEMORY)
    if ceiling is not None:
        others = sum(
            _memory(each, records[name], index, container)
            for name, each in job_roles.items()
            for index in range(each.replicas)
            if (name, index) != (role, rank)
        )
        grown = min(grown, ceiling - others)
    return resourcelist.quantity_of(MEMORY, grown) if grown > asked else None


def total(
    roles: Mapping[str, Role], records: Mapping[str, RoleRecord], container: str
) -> resourcelist.Amounts:
    """Sum the requests of all pods of a job."""
    return resourcelist.total(
        _asked(role, records[name], rank, container)
        for name, role in roles.items()
        for rank in range(role.replicas)
        if rank not in nodes.absent(records[name])
    )


def _asked(role: Role, record: RoleRecord, rank: int, container: str) -> resourcelist.Amounts:
    trains = template.main_container(role.template, container)
    found = of_pod(trains, record, nodes.node(record, rank))
    try:
        return resourcelist.amounts({**found.get(_LIMITS, {}), **found.get(_REQUESTS, {})})
    except QuantityError:
        return {}


def _memory(role: Role, record: RoleRecord, rank: int, container: str) -> int:
    """Return the bound on a rank's memory: its limit, else its request."""
    trains = template.main_container(role.template, container)
    found = of_pod(trains, record, nodes.node(record, rank))
    try:
        amounts = {**found.get(_REQUESTS, {}), **found.get(_LIMITS, {})}
        return resourcelist.amounts(amounts).get(MEMORY, 0)
    except QuantityError:
        return 0


def _with_memory(asked: dict[str, ResourceList], memory: str) -> dict[str, ResourceList]:
    """Set the memory limit where one exists, and the memory request where one exists."""
    return {
        name: {**amounts, MEMORY: memory} if MEMORY in amounts else amounts
        for name, amounts in asked.items()
    }
