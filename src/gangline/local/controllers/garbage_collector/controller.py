"""Garbage collector: watches every kind, and deletes objects whose owners were deleted."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial

import msgspec

from gangline.api.meta.objects import Object, ObjectMeta, OwnerReference
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
from gangline.local.controllers.garbage_collector import plan
from gangline.local.controllers.garbage_collector.plan import (
    GraphObject,
    OwnerGraph,
    graph_object,
    plan_collection,
)

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

    async def _act(self, item: GraphObject, action: plan.GarbageAction) -> None:
        match action:
            case plan.DeleteObject(propagation):
                await self._delete(item, propagation)
            case plan.RemoveOwnerReferences(uids):
                await self._keep_owners(item, lambda owner: owner.uid not in uids)
            case plan.OrphanDependents(dependents):
                for dependent in dependents:
                    await self._keep_owners(dependent, lambda owner: owner.uid != item.uid)
                await self._drop_finalizer(item, plan.ORPHAN)
            case plan.RemoveFinalizer(finalizer):
                await self._drop_finalizer(item, finalizer)
            case plan.UnblockOwners():
                await self._unblock(item)
            case plan.CheckObjects(uids):
                for uid in uids:
                    self._queue.add(uid)

    async def _live(self, item: GraphObject) -> Object | None:
        """Read the present object; None if it was deleted or replaced by another with its name."""
        try:
            live = await self._client.get(item.kind, item.name, item.namespace or None)
        except NotFound:
            return None
        return live if live.metadata.uid == item.uid else None

    async def _delete(self, item: GraphObject, propagation: plan.PropagationPolicy) -> None:
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
                propagation=plan.PropagationPolicy.FOREGROUND.value,
                uid=item.uid,
            )
