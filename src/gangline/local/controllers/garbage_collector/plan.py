"""The garbage collector's graph of owners and dependents, and its decisions.

The graph holds every object that owns or is owned. `plan_collection` applies the rules of
Kubernetes to one object:

1. an object is deleted after all its owners have been deleted;
2. an owner in foreground deletion waits for the dependents that block it;
3. orphaning removes the references to the owner before the owner is deleted.

The caller finds out whether an owner that is not in the graph exists (``exists``).
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from gangline.api.meta.objects import Object, ObjectMeta, OwnerReference
from gangline.api.meta.resource import Resource

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


@dataclass(frozen=True, slots=True)
class GraphObject:
    """The fields of an object that garbage collection needs."""

    kind: Resource[Object]
    namespace: str
    name: str
    uid: str
    owners: tuple[OwnerReference, ...]
    finalizers: frozenset[str]
    is_deleting: bool
    """True if its deletion has begun."""

    @property
    def is_deleting_dependents(self) -> bool:
        """True if it is being deleted after its dependents."""
        return self.is_deleting and FOREGROUND in self.finalizers

    @property
    def is_orphaning(self) -> bool:
        """True if it is being deleted without its dependents."""
        return self.is_deleting and ORPHAN in self.finalizers


def graph_object(kind: Resource[Object], metadata: ObjectMeta) -> GraphObject:
    return GraphObject(
        kind=kind,
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        owners=tuple(metadata.owner_references),
        finalizers=frozenset(metadata.finalizers),
        is_deleting=metadata.deletion_timestamp is not None,
    )


class OwnerGraph:
    """All objects by uid, with the dependents of each."""

    def __init__(self) -> None:
        self._items: dict[str, GraphObject] = {}
        self._dependents: dict[str, set[str]] = defaultdict(set)

    def get(self, uid: str) -> GraphObject | None:
        return self._items.get(uid)

    def dependents(self, uid: str) -> list[GraphObject]:
        """Return the objects with ``uid`` as an owner, in a stable order."""
        dependents = (self._items[dependent] for dependent in self._dependents.get(uid, ()))
        return sorted(dependents, key=lambda dependent: dependent.uid)

    def put(self, new: GraphObject) -> set[str]:
        """Add or replace an object; return the uids of all objects to check again."""
        old = self._items.get(new.uid)
        if old == new:
            return set()
        self._unlink(old)
        self._items[new.uid] = new
        for owner in new.owners:
            self._dependents[owner.uid].add(new.uid)
        affected = {new.uid}
        if new.is_deleting_dependents or new.is_orphaning:
            affected |= self._dependents.get(new.uid, set())
        # An owner in deletion may have waited until this reference was removed or unblocked.
        for owner in (*new.owners, *(old.owners if old else ())):
            affected |= {owner.uid} if self._waits(owner.uid) else set()
        return affected

    def remove(self, uid: str) -> set[str]:
        """Remove a deleted object; return the uids of all objects to check again."""
        old = self._items.pop(uid, None)
        if old is None:
            return set()
        self._unlink(old)
        waiting = {owner.uid for owner in old.owners if self._waits(owner.uid)}
        return set(self._dependents.get(uid, ())) | waiting

    def _waits(self, uid: str) -> bool:
        owner = self._items.get(uid)
        return owner is not None and (owner.is_deleting_dependents or owner.is_orphaning)

    def _unlink(self, old: GraphObject | None) -> None:
        for owner in old.owners if old else ():
            dependents = self._dependents[owner.uid]
            dependents.discard(old.uid if old else "")
            if not dependents:
                del self._dependents[owner.uid]


class PropagationPolicy(Enum):
    """Kubernetes' deletion propagation policies."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Delete the object."""

    propagation: PropagationPolicy


@dataclass(frozen=True, slots=True)
class RemoveOwnerReferences:
    """Remove the references to these owners from the object."""

    uids: frozenset[str]


@dataclass(frozen=True, slots=True)
class OrphanDependents:
    """Remove the reference to the object from ``dependents``, then remove its orphan finalizer."""

    dependents: tuple[GraphObject, ...]


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Remove a finalizer of the object: no dependent blocks its deletion any more."""

    finalizer: str


@dataclass(frozen=True, slots=True)
class UnblockOwners:
    """Clear ``blockOwnerDeletion`` in the object and delete it: it and its owners wait for each
    other.
    """


@dataclass(frozen=True, slots=True)
class CheckObjects:
    """Check these objects: the deletion of the present one waits for them."""

    uids: tuple[str, ...]


GarbageAction: TypeAlias = (
    DeleteObject
    | RemoveOwnerReferences
    | OrphanDependents
    | RemoveFinalizer
    | UnblockOwners
    | CheckObjects
    | None
)
"""None: the object stays unchanged."""
OwnerExists: TypeAlias = Callable[[OwnerReference], bool]


def plan_collection(graph: OwnerGraph, uid: str, exists: OwnerExists) -> GarbageAction:
    """Return the action for one object; ``exists`` is called for owners outside the graph."""
    item = graph.get(uid)
    if item is None:
        return None
    if item.is_deleting:
        return _plan_deleting(graph, item)
    return _plan_owned(graph, item, exists)


def _plan_deleting(graph: OwnerGraph, item: GraphObject) -> GarbageAction:
    if item.is_orphaning:
        return OrphanDependents(tuple(graph.dependents(item.uid)))
    if not item.is_deleting_dependents:
        return None
    blocking = [
        dependent
        for dependent in graph.dependents(item.uid)
        if any(owner.uid == item.uid and owner.block_owner_deletion for owner in dependent.owners)
    ]
    if not blocking:
        return RemoveFinalizer(FOREGROUND)
    return CheckObjects(tuple(dependent.uid for dependent in blocking if not dependent.is_deleting))


def _plan_owned(graph: OwnerGraph, item: GraphObject, exists: OwnerExists) -> GarbageAction:
    if not item.owners:
        return None
    owners = [(owner, graph.get(owner.uid)) for owner in item.owners]
    waiting = [owner for owner, object_ in owners if object_ and object_.is_deleting_dependents]
    missing = [owner for owner, object_ in owners if object_ is None and not exists(owner)]
    if len(waiting) + len(missing) < len(owners):  # Another owner remains.
        ended = frozenset(owner.uid for owner in (*missing, *waiting))
        return RemoveOwnerReferences(ended) if ended else None
    dependents = graph.dependents(item.uid)
    if waiting and dependents:
        if any(dependent.is_deleting_dependents for dependent in dependents):
            return UnblockOwners()
        return DeleteObject(PropagationPolicy.FOREGROUND)
    policies = {ORPHAN: PropagationPolicy.ORPHAN, FOREGROUND: PropagationPolicy.FOREGROUND}
    chosen = (policy for finalizer, policy in policies.items() if finalizer in item.finalizers)
    return DeleteObject(next(chosen, PropagationPolicy.BACKGROUND))
