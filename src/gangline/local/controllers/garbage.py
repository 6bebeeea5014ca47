"""The garbage collector's graph of owners and dependents, and its decisions.

The graph holds every object that owns or is owned. `decide` applies the rules of Kubernetes to one
object:

1. an object is deleted after all its owners have been deleted;
2. an owner in foreground deletion waits for the dependents that block it;
3. orphaning removes the references to the owner before the owner is deleted.

The caller finds out whether an owner that is not in the graph exists (``exists``).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from gangline.api.meta import ObjectMeta, OwnerReference

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


@dataclass(frozen=True, slots=True)
class Item:
    """The fields of an object that garbage collection needs."""

    group: str
    version: str
    plural: str
    namespace: str
    name: str
    uid: str
    owners: tuple[OwnerReference, ...]
    finalizers: frozenset[str]
    going: bool
    """True if its deletion has begun."""

    @property
    def in_foreground(self) -> bool:
        """True if it is being deleted after its dependents."""
        return self.going and FOREGROUND in self.finalizers

    @property
    def orphaning(self) -> bool:
        """True if it is being deleted without its dependents."""
        return self.going and ORPHAN in self.finalizers


def item(group: str, version: str, plural: str, metadata: ObjectMeta) -> Item:
    """Extract these fields from an object's metadata."""
    return Item(
        group=group,
        version=version,
        plural=plural,
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        owners=tuple(metadata.owner_references),
        finalizers=frozenset(metadata.finalizers),
        going=metadata.deletion_timestamp is not None,
    )


class Graph:
    """All objects by uid, with the dependents of each."""

    def __init__(self) -> None:
        self._items: dict[str, Item] = {}
        self._dependents: dict[str, set[str]] = defaultdict(set)

    def get(self, uid: str) -> Item | None:
        return self._items.get(uid)

    def dependents(self, uid: str) -> list[Item]:
        """Return the objects with ``uid`` as an owner, in a stable order."""
        found = (self._items[dependent] for dependent in self._dependents.get(uid, ()))
        return sorted(found, key=lambda dependent: dependent.uid)

    def put(self, new: Item) -> set[str]:
        """Add or replace an object; return the uids of all objects to check again."""
        old = self._items.get(new.uid)
        if old == new:
            return set()
        self._unlink(old)
        self._items[new.uid] = new
        for owner in new.owners:
            self._dependents[owner.uid].add(new.uid)
        affected = {new.uid}
        if new.in_foreground or new.orphaning:
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
        return owner is not None and (owner.in_foreground or owner.orphaning)

    def _unlink(self, old: Item | None) -> None:
        for owner in old.owners if old else ():
            dependents = self._dependents[owner.uid]
            dependents.discard(old.uid if old else "")
            if not dependents:
                del self._dependents[owner.uid]


class Propagation(Enum):
    """Kubernetes' deletion propagation policies."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


class Nothing(Enum):
    """The object stays unchanged."""

    TO_DO = auto()


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the object."""

    propagation: Propagation


@dataclass(frozen=True, slots=True)
class DropOwners:
    """Remove the references to these owners from the object."""

    uids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Release:
    """Remove the reference to the object from ``dependents``, then remove its orphan finalizer."""

    dependents: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class DropFinalizer:
    """Remove a finalizer of the object: no dependent blocks its deletion any more."""

    finalizer: str


@dataclass(frozen=True, slots=True)
class Unblock:
    """Clear ``blockOwnerDeletion`` in the object and delete it: it and its owners wait for each
    other.
    """


@dataclass(frozen=True, slots=True)
class LookAt:
    """Check these objects: the deletion of the present one waits for them."""

    uids: tuple[str, ...]


Action: TypeAlias = Nothing | Delete | DropOwners | Release | DropFinalizer | Unblock | LookAt
Exists: TypeAlias = Callable[[OwnerReference], bool]


def decide(graph: Graph, uid: str, exists: Exists) -> Action:
    """Return the action for one object; ``exists`` is called for owners outside the graph."""
    found = graph.get(uid)
    if found is None:
        return Nothing.TO_DO
    if found.going:
        return _decide_going(graph, found)
    return _decide_owned(graph, found, exists)


def _decide_going(graph: Graph, found: Item) -> Action:
    if found.orphaning:
        return Release(tuple(graph.dependents(found.uid)))
    if not found.in_foreground:
        return Nothing.TO_DO
    blocking = [
        dependent for dependent in graph.dependents(found.uid) if _blocks(dependent, found.uid)
    ]
    if not blocking:
        return DropFinalizer(FOREGROUND)
    return LookAt(tuple(dependent.uid for dependent in blocking if not dependent.going))


def _blocks(dependent: Item, uid: str) -> bool:
    return any(owner.uid == uid and owner.block_owner_deletion for owner in dependent.owners)


def _decide_owned(graph: Graph, found: Item, exists: Exists) -> Action:
    solid, dangling, waiting = _classify(graph, found.owners, exists)
    if not found.owners:
        return Nothing.TO_DO
    if solid:
        gone = frozenset(owner.uid for owner in (*dangling, *waiting))
        return DropOwners(gone) if gone else Nothing.TO_DO
    dependents = graph.dependents(found.uid)
    if waiting and dependents:
        if any(dependent.in_foreground for dependent in dependents):
            return Unblock()
        return Delete(Propagation.FOREGROUND)
    if ORPHAN in found.finalizers:
        return Delete(Propagation.ORPHAN)
    if FOREGROUND in found.finalizers:
        return Delete(Propagation.FOREGROUND)
    return Delete(Propagation.BACKGROUND)


Owners: TypeAlias = list[OwnerReference]


def _classify(
    graph: Graph, owners: Iterable[OwnerReference], exists: Exists
) -> tuple[Owners, Owners, Owners]:
    solid: Owners = []
    dangling: Owners = []
    waiting: Owners = []
    for owner in owners:
        known = graph.get(owner.uid)
        if known is not None:
            (waiting if known.in_foreground else solid).append(owner)
        else:
            (solid if exists(owner) else dangling).append(owner)
    return solid, dangling, waiting
