"""Which number the pod of each rank has: pure functions of what the status remembers.

A rank starts with its own number. Made anew, it gets the next number of its role, so that a pod
that is gone and the one in its place are never taken for each other, and the new one can be made
while the old one is still on its way out. Ranks without a story are not listed, so that the status
of a large job stays small. Numbers are a function of what is stored and of the number of replicas:
an operator that dies before it has stored them comes to the same ones.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from gangline.api.elastic import NodeRecord, RoleRecord
from gangline.operator import indexes
from gangline.operator.replicas import Slots

_FRESH = NodeRecord()


@dataclass(frozen=True, slots=True)
class Loss:
    """How a rank lost its pod."""

    counted: bool = False
    """It counts as a failure of this rank."""
    memory: str = ""
    """What the next pod gets, because this one ran out of it."""


def extended(record: RoleRecord, replicas: int) -> RoleRecord:
    """Give each rank below ``replicas`` that has no number its own, or the next one."""
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


def node(record: RoleRecord, rank: int) -> NodeRecord:
    """Return what is known of a rank."""
    return record.nodes.get(str(rank)) or replace(_FRESH, id=rank)


def changed(record: RoleRecord, rank: int, **fields: object) -> RoleRecord:
    """Remember something of a rank."""
    nodes: Mapping[str, NodeRecord] = {
        **record.nodes,
        str(rank): replace(node(record, rank), **fields),
    }
    return replace(record, nodes=dict(nodes))


def relaunched(record: RoleRecord, losses: Mapping[int, Loss]) -> RoleRecord:
    """Give ranks the next numbers, because their pods have failed or are gone.

    Args:
        record: the role's record, extended to all of its ranks.
        losses: how each of these ranks lost its pod.
    """
    if not losses:
        return record
    nodes, next_id = dict(record.nodes), record.next_id
    for rank, loss in sorted(losses.items()):
        before = node(record, rank)
        nodes[str(rank)] = replace(
            before,
            id=next_id,
            relaunches=before.relaunches + 1,
            failures=before.failures + loss.counted,
            memory=loss.memory or before.memory,
        )
        next_id += 1
    left = indexes.write(made(record) - losses.keys())
    return replace(record, nodes=nodes, next_id=next_id, made=left)


def made(record: RoleRecord) -> frozenset[int]:
    """The ranks whose present pod has been seen: one that is missing again was removed."""
    return indexes.read(record.made)


def with_seen(record: RoleRecord, seen: Iterable[int]) -> RoleRecord:
    """Remember that the present pods of these ranks have been seen."""
    known = made(record)
    found = known | frozenset(seen)
    return record if found == known else replace(record, made=indexes.write(found))


def absent(record: RoleRecord) -> frozenset[int]:
    """The ranks that a plan removed."""
    return indexes.read(record.absent)


def late(record: RoleRecord, count: int) -> frozenset[int]:
    """The ranks that come too late: the others have been leaving for some time."""
    if not record.leaving:
        return frozenset()
    return frozenset(range(count)) - indexes.read(record.leaving)


def with_leaving(record: RoleRecord, slots: Slots) -> RoleRecord:
    """Remember who is at work when the first has ended well; forget it when all begin anew."""
    if bool(slots.completed) == bool(record.leaving):
        return record
    at_work = {rank for rank, pod in enumerate(slots.pods) if pod and pod.active}
    told = indexes.write(at_work | slots.completed) if slots.completed else ""
    return replace(record, leaving=told)


def current(record: RoleRecord, specified: int) -> RoleRecord:
    """Forget the size that a plan gave once somebody has changed that of the specification."""
    if record.over in (None, specified):
        return record
    return replace(record, replicas=None, over=None, absent="")


def size(record: RoleRecord, specified: int) -> int:
    """How many ranks there are, absent ones among them."""
    return specified if record.replicas is None else record.replicas


def resized(record: RoleRecord, wanted: Iterable[int], specified: int) -> RoleRecord:
    """Have just these ranks."""
    ranks = frozenset(wanted)
    count = max(ranks, default=-1) + 1
    gone = indexes.write(frozenset(range(count)) - ranks)
    return replace(record, replicas=count, over=specified, absent=gone)


def ranks(record: RoleRecord, specified: int) -> frozenset[int]:
    """The ranks that there are."""
    return frozenset(range(size(record, specified))) - absent(record)
