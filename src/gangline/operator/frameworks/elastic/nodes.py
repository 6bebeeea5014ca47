"""The node number and the resources of each rank's pod, as a function of the stored status.

A rank starts with its own number. On replacement it gets the next number of its role. So a deleted
pod and its successor are never confused, and the successor can be created while the old pod still
terminates. Ranks that never changed are not listed, which keeps the status of a large job small.
Invariant: numbers depend only on the stored record and the number of replicas, so an operator that
is killed before it stores them computes the same ones again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from gangline.api import resource_list
from gangline.api.jobs.elastic import NodeRecord, RoleRecord
from gangline.api.meta.field_doc import ResourceList
from gangline.api.quantity import QuantityError
from gangline.api.resource_list import MEMORY
from gangline.operator.model import pod_template
from gangline.operator.model.job import Manifest, ReplicaRole
from gangline.operator.model.replicas import ReplicaSlots, format_indexes, parse_indexes

_FRESH = NodeRecord()


@dataclass(frozen=True, slots=True)
class NodeLoss:
    counts_as_failure: bool = False
    """The loss counts as a failure of this rank."""
    memory: str = ""
    """Memory of the next pod if this one ran out of it; empty: unchanged."""


def assign_node_ids(record: RoleRecord, replicas: int) -> RoleRecord:
    """Assign a number to each rank below ``replicas`` that has none: its own or the next."""
    if not record.next_id:
        return replace(record, first=replicas, next_id=replicas)
    first, next_id, nodes = record.first, record.next_id, dict(record.nodes)
    for rank in range(record.first, replicas):
        if str(rank) in nodes:
            continue
        if rank == first == next_id:
            first += 1
        else:
            nodes[str(rank)] = replace(_FRESH, id=next_id)
        next_id += 1
    if next_id == record.next_id:
        return record
    return replace(record, first=first, next_id=next_id, nodes=nodes)


def node_of_rank(record: RoleRecord, rank: int) -> NodeRecord:
    return record.nodes.get(str(rank)) or replace(_FRESH, id=rank)


def update_node(record: RoleRecord, rank: int, **fields: object) -> RoleRecord:
    node = replace(node_of_rank(record, rank), **fields)
    return replace(record, nodes={**record.nodes, str(rank): node})


def relaunch(record: RoleRecord, losses: Mapping[int, NodeLoss]) -> RoleRecord:
    if not losses:
        return record
    nodes, next_id = dict(record.nodes), record.next_id
    for rank, loss in sorted(losses.items()):
        before = node_of_rank(record, rank)
        nodes[str(rank)] = replace(
            before,
            id=next_id,
            relaunches=before.relaunches + 1,
            failures=before.failures + loss.counts_as_failure,
            memory=loss.memory or before.memory,
        )
        next_id += 1
    left = format_indexes(created_ranks(record) - losses.keys())
    return replace(record, nodes=nodes, next_id=next_id, made=left)


def created_ranks(record: RoleRecord) -> frozenset[int]:
    """Return the ranks whose current pod was observed: if it is missing, it was deleted."""
    return parse_indexes(record.made)


def record_created_ranks(record: RoleRecord, seen: Iterable[int]) -> RoleRecord:
    recorded = created_ranks(record)
    created = recorded.union(seen)
    return record if created == recorded else replace(record, made=format_indexes(created))


def removed_ranks(record: RoleRecord) -> frozenset[int]:
    return parse_indexes(record.absent)


def late_ranks(record: RoleRecord, count: int) -> frozenset[int]:
    """Return the ranks that start too late, because others have finished already."""
    if not record.leaving:
        return frozenset()
    return frozenset(range(count)) - parse_indexes(record.leaving)


def record_leaving(record: RoleRecord, slots: ReplicaSlots) -> RoleRecord:
    """Record the active ranks when the first one has succeeded; clear them when all restart."""
    if bool(slots.completed) == bool(record.leaving):
        return record
    at_work = {rank for rank, pod in enumerate(slots.pods) if pod and pod.is_active}
    leaving = format_indexes(at_work | slots.completed) if slots.completed else ""
    return replace(record, leaving=leaving)


def drop_outdated_size(record: RoleRecord, specified: int) -> RoleRecord:
    """Drop the size that a plan set if the specified size has changed since."""
    if record.over in (None, specified):
        return record
    return replace(record, replicas=None, over=None, absent="")


def rank_count(record: RoleRecord, specified: int) -> int:
    return specified if record.replicas is None else record.replicas


def resize(record: RoleRecord, ranks: Iterable[int], specified: int) -> RoleRecord:
    ranks = frozenset(ranks)
    count = max(ranks, default=-1) + 1
    removed = format_indexes(frozenset(range(count)) - ranks)
    return replace(record, replicas=count, over=specified, absent=removed)


def active_ranks(record: RoleRecord, specified: int) -> frozenset[int]:
    return frozenset(range(rank_count(record, specified))) - removed_ranks(record)


MEMORY_GROWTH = 2
"""Factor by which memory grows after a pod ran out of it."""

_LIMITS, _REQUESTS = "limits", "requests"


def pod_resources(
    container: Manifest, record: RoleRecord, node: NodeRecord
) -> dict[str, ResourceList]:
    """Return the resources of the main container in the pod of one rank."""
    given = container.get("resources") or {}
    asked: dict[str, ResourceList] = {
        name: dict(given.get(name) or {}) for name in (_LIMITS, _REQUESTS)
    }
    for override in (record.resources, node.resources):
        if override:
            asked = {name: {**amounts, **override} for name, amounts in asked.items()}
    if node.memory:
        asked = {
            name: {**amounts, MEMORY: node.memory} if MEMORY in amounts else amounts
            for name, amounts in asked.items()
        }
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
            _memory_of_rank(job_role, records[name], index, container)
            for name, job_role in job_roles.items()
            for index in range(job_role.replicas)
            if (name, index) != (role, rank)
        )
        grown = min(grown, ceiling - others)
    return resource_list.format_resource(MEMORY, grown) if grown > asked else None


def total_requests(
    roles: Mapping[str, ReplicaRole], records: Mapping[str, RoleRecord], container: str
) -> resource_list.ResourceAmounts:
    return resource_list.sum_resources(
        _amounts_of_rank(role, records[name], rank, container, (_LIMITS, _REQUESTS))
        for name, role in roles.items()
        for rank in range(role.replicas)
        if rank not in removed_ranks(records[name])
    )


def _memory_of_rank(role: ReplicaRole, record: RoleRecord, rank: int, container: str) -> int:
    """Return the bound on a rank's memory: its limit, else its request."""
    amounts = _amounts_of_rank(role, record, rank, container, (_REQUESTS, _LIMITS))
    return amounts.get(MEMORY, 0)


def _amounts_of_rank(
    role: ReplicaRole, record: RoleRecord, rank: int, container: str, kinds: tuple[str, str]
) -> resource_list.ResourceAmounts:
    """Return a rank's resources, of which the last of the two kinds has precedence."""
    trains = pod_template.main_container(role.template, container)
    resources = pod_resources(trains, record, node_of_rank(record, rank))
    try:
        first, last = (resources.get(kind, {}) for kind in kinds)
        return resource_list.parse_resources({**first, **last})
    except QuantityError:
        return {}
