"""Garbage collector: deletes objects without their owners, and finishes foreground deletion.

It watches all kinds with metadata-only informers. The graph holds every object that owns or is
owned. `plan_collection` (pure) applies the rules of Kubernetes to one object:

1. an object is deleted after all its owners have been deleted;
2. an owner in foreground deletion waits for the dependents that block it;
3. orphaning removes the references to the owner before the owner is deleted.

The caller finds out whether an owner that is not in the graph exists (``exists``).
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TypeAlias

import msgspec

from gangline.api.meta.objects import Object, ObjectMeta, OwnerReference
from gangline.api.meta.resource import Resource
from gangline.api.resources import CUSTOM_RESOURCE_DEFINITIONS
from gangline.kube.errors import ApiError, Conflict, NotFound
from gangline.kube.informers.informer import Informer
from gangline.local.controllers.context import (
    ControllerContext,
    DiscoveredKind,
    QueueLoop,
    discover_kinds,
    patch_metadata,
)

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


log = logging.getLogger(__name__)

REDISCOVER_S = 60.0
SETTLE_S = 0.2
"""The routes of a new definition appear shortly after it, and definitions often come in groups."""
SYNC_TIMEOUT_S = 10.0
UNKNOWN_OWNER_RETRY_S = 15.0


def _metadata_only(object_: Object) -> Object:
    """Reduce an object to the metadata that garbage collection reads."""
    meta = object_.metadata
    return Object(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            deletion_timestamp=meta.deletion_timestamp,
            owner_references=meta.owner_references,
            finalizers=meta.finalizers,
        )
    )


_OwnerFilter = Callable[[OwnerReference], bool]


class GarbageCollector(QueueLoop):
    """One metadata-only informer for each kind, one graph of owners, and workers that act on it."""

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._graph = OwnerGraph()
        self._watches: dict[DiscoveredKind, asyncio.Task[None]] = {}
        self._stale = asyncio.Event()
        self._queue = self._add_queue("garbage", self._reconcile, workers=8)
        definitions = context.informers.informer(CUSTOM_RESOURCE_DEFINITIONS)
        definitions.add_listener(lambda *_: self._stale.set())

    async def run(self) -> None:
        self._graph, self._watches = OwnerGraph(), {}
        async with asyncio.TaskGroup() as tasks:
            await self._follow_new_kinds(tasks, wait=True)
            tasks.create_task(self._rediscover(tasks))
            tasks.create_task(super().run())

    async def _rediscover(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REDISCOVER_S):
                    await self._stale.wait()
            self._stale.clear()
            await asyncio.sleep(SETTLE_S)
            try:
                await self._follow_new_kinds(tasks)
            except ApiError as error:
                log.debug("discovery failed", extra={"error": str(error)})
                self._stale.set()

    async def _follow_new_kinds(self, tasks: asyncio.TaskGroup, *, wait: bool = False) -> None:
        kinds = await discover_kinds(self._client)
        for kind in self._watches.keys() - set(kinds):
            self._watches.pop(kind).cancel()
        informers = []
        for kind in kinds:
            if kind not in self._watches:
                informer = Informer(self._client, kind, transform=_metadata_only)
                informer.add_listener(partial(self._changed, kind))
                self._watches[kind] = tasks.create_task(informer.run())
                informers.append(informer)
        # A kind that cannot be listed must not block the others. That is safe: an owner that is
        # not in the graph is read from the server before its dependents are deleted.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SYNC_TIMEOUT_S if wait else 0):
                for informer in informers:
                    await informer.wait_for_sync()

    def _changed(self, kind: DiscoveredKind, old: Object | None, new: Object | None) -> None:
        affected: set[str] = set()
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            affected |= self._graph.remove(old.metadata.uid)
        if new is not None:
            affected |= self._graph.put(graph_object(kind, new.metadata))
        for uid in affected:
            self._queue.add(uid)

    async def _reconcile(self, uid: str) -> float | None:
        item = self._graph.get(uid)
        if item is None or not (item.owners or item.is_deleting):
            return None
        existing: set[str] = set()
        if not item.is_deleting:
            for owner in item.owners:
                if self._graph.get(owner.uid) is None:
                    exists = await self._exists(item, owner)
                    if exists is None:
                        return UNKNOWN_OWNER_RETRY_S
                    existing |= {owner.uid} if exists else set()
        action = plan_collection(self._graph, uid, lambda owner: owner.uid in existing)
        await self._act(item, action)
        return None

    async def _exists(self, item: GraphObject, owner: OwnerReference) -> bool | None:
        """Ask the server for an owner that is not in the graph; None if its kind is unknown."""
        kind = self._kind_of(owner)
        if kind is None:
            return None
        if kind.namespaced and not item.namespace:
            # A cluster-scoped object cannot have a namespaced owner: its namespace is unknown.
            return True
        namespace = item.namespace if kind.namespaced else None
        try:
            live = await self._client.get(kind, owner.name, namespace)
        except NotFound:
            return False
        return live.metadata.uid == owner.uid

    def _kind_of(self, owner: OwnerReference) -> DiscoveredKind | None:
        group = owner.api_version.rpartition("/")[0]
        for kind in self._watches:
            if (kind.group, kind.kind) == (group, owner.kind):
                return kind
        return None

    async def _act(self, item: GraphObject, action: GarbageAction) -> None:
        match action:
            case DeleteObject(propagation):
                await self._delete(item, propagation)
            case RemoveOwnerReferences(uids):
                await self._keep_owners(item, lambda owner: owner.uid not in uids)
            case OrphanDependents(dependents):
                for dependent in dependents:
                    await self._keep_owners(dependent, lambda owner: owner.uid != item.uid)
                await self._drop_finalizer(item, ORPHAN)
            case RemoveFinalizer(finalizer):
                await self._drop_finalizer(item, finalizer)
            case UnblockOwners():
                await self._unblock(item)
            case CheckObjects(uids):
                for uid in uids:
                    self._queue.add(uid)

    async def _live(self, item: GraphObject) -> Object | None:
        """Read the present object; None if it was deleted or replaced by another with its name."""
        try:
            live = await self._client.get(item.kind, item.name, item.namespace or None)
        except NotFound:
            return None
        return live if live.metadata.uid == item.uid else None

    async def _delete(self, item: GraphObject, propagation: PropagationPolicy) -> None:
        if (present := await self._live(item)) is None:
            return
        if tuple(present.metadata.owner_references) != item.owners:
            # The decision was based on an old version: check the present one again.
            self._changed(item.kind, None, present)
            return
        with contextlib.suppress(NotFound):
            await self._client.delete(
                item.kind,
                item.name,
                item.namespace or None,
                propagation=propagation.value,
                uid=item.uid,
                resource_version=present.metadata.resource_version,
            )

    async def _keep_owners(self, item: GraphObject, keep: _OwnerFilter) -> None:
        if (present := await self._live(item)) is not None:
            owners = [owner for owner in present.metadata.owner_references if keep(owner)]
            if owners != present.metadata.owner_references:
                references = msgspec.to_builtins(owners)
                await patch_metadata(self._client, item.kind, present, ownerReferences=references)

    async def _drop_finalizer(self, item: GraphObject, finalizer: str) -> None:
        if (present := await self._live(item)) is not None:
            left = [one for one in present.metadata.finalizers if one != finalizer]
            await patch_metadata(self._client, item.kind, present, finalizers=left)

    async def _unblock(self, item: GraphObject) -> None:
        if (present := await self._live(item)) is None:
            return
        owners = [
            msgspec.structs.replace(owner, block_owner_deletion=False)
            for owner in present.metadata.owner_references
        ]
        references = msgspec.to_builtins(owners)
        await patch_metadata(self._client, item.kind, present, ownerReferences=references)
        with contextlib.suppress(NotFound, Conflict):
            await self._client.delete(
                item.kind,
                item.name,
                item.namespace or None,
                propagation=PropagationPolicy.FOREGROUND.value,
                uid=item.uid,
            )
