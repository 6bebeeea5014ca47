"""Garbage collector: watches every kind, and deletes objects whose owners were deleted."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial

import msgspec

from gangline.api.meta.objects import Object, ObjectMeta, OwnerReference
from gangline.api.resources import CUSTOM_RESOURCE_DEFINITIONS
from gangline.kube.controller.controller import (
    Controller,
    ReconcileDone,
    ReconcileResult,
    RequeueAfter,
)
from gangline.kube.errors import ApiError, Conflict, NotFound
from gangline.kube.informers.informer import Informer
from gangline.local.controllers.context import (
    ControllerContext,
    DiscoveredKind,
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


class GarbageCollector:
    """One metadata-only informer for each kind, one graph of owners, and workers that act on it."""

    def __init__(self, context: ControllerContext) -> None:
        self._client = context.client
        self._graph = OwnerGraph()
        self._kinds: dict[tuple[str, str], DiscoveredKind] = {}
        self._watches: dict[DiscoveredKind, asyncio.Task[None]] = {}
        self._stale = asyncio.Event()
        self._controller: Controller[str] = Controller("garbage", self._reconcile, workers=8)
        definitions = context.informers.informer(CUSTOM_RESOURCE_DEFINITIONS)
        definitions.add_listener(lambda *_: self._stale.set())

    async def run(self) -> None:
        self._graph, self._watches = OwnerGraph(), {}
        async with asyncio.TaskGroup() as tasks:
            await self._follow_new_kinds(tasks, wait=True)
            tasks.create_task(self._rediscover(tasks))
            tasks.create_task(self._controller.run())

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
        kinds = {(kind.group, kind.plural): kind for kind in await discover_kinds(self._client)}
        for kind in set(self._watches) - set(kinds.values()):
            self._watches.pop(kind).cancel()
        informers = []
        for kind in kinds.values():
            if kind not in self._watches:
                informer = Informer(self._client, kind, transform=_metadata_only)
                informer.add_listener(partial(self._changed, kind))
                self._watches[kind] = tasks.create_task(informer.run())
                informers.append(informer)
        self._kinds = kinds
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
            affected |= self._graph.put(
                graph_object(kind.group, kind.version, kind.plural, new.metadata)
            )
        for uid in affected:
            self._controller.queue.add(uid)

    async def _reconcile(self, uid: str) -> ReconcileResult:
        item = self._graph.get(uid)
        if item is None or not (item.owners or item.is_deleting):
            return ReconcileDone()
        existing: set[str] = set()
        if not item.is_deleting:
            for owner in item.owners:
                if self._graph.get(owner.uid) is None:
                    exists = await self._exists(item, owner)
                    if exists is None:
                        return RequeueAfter(UNKNOWN_OWNER_RETRY_S)
                    existing |= {owner.uid} if exists else set()
        action = plan_collection(self._graph, uid, lambda owner: owner.uid in existing)
        return await self._act(item, action)

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
        for kind in self._kinds.values():
            if (kind.group, kind.kind) == (group, owner.kind):
                return kind
        return None

    async def _act(self, item: GraphObject, action: plan.GarbageAction) -> ReconcileResult:
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
                    self._controller.queue.add(uid)
        return ReconcileDone()

    async def _live(self, item: GraphObject) -> tuple[DiscoveredKind, Object] | None:
        """Read the present object; None if it was deleted or replaced by another with its name."""
        kind = self._kinds.get((item.group, item.plural))
        if kind is None:
            return None
        try:
            live = await self._client.get(kind, item.name, item.namespace or None)
        except NotFound:
            return None
        return (kind, live) if live.metadata.uid == item.uid else None

    async def _delete(self, item: GraphObject, propagation: plan.PropagationPolicy) -> None:
        if (live := await self._live(item)) is None:
            return
        kind, present = live
        if tuple(present.metadata.owner_references) != item.owners:
            # The decision was based on an old version: check the present one again.
            self._changed(kind, None, present)
            return
        with contextlib.suppress(NotFound):
            await self._client.delete(
                kind,
                item.name,
                item.namespace or None,
                propagation=propagation.value,
                uid=item.uid,
                resource_version=present.metadata.resource_version,
            )

    async def _keep_owners(self, item: GraphObject, keep: _OwnerFilter) -> None:
        if (live := await self._live(item)) is not None:
            kind, present = live
            owners = [owner for owner in present.metadata.owner_references if keep(owner)]
            if owners != present.metadata.owner_references:
                references = msgspec.to_builtins(owners)
                await patch_metadata(self._client, kind, present, ownerReferences=references)

    async def _drop_finalizer(self, item: GraphObject, finalizer: str) -> None:
        if (live := await self._live(item)) is not None:
            kind, present = live
            left = [one for one in present.metadata.finalizers if one != finalizer]
            await patch_metadata(self._client, kind, present, finalizers=left)

    async def _unblock(self, item: GraphObject) -> None:
        if (live := await self._live(item)) is None:
            return
        kind, present = live
        owners = [
            msgspec.structs.replace(owner, block_owner_deletion=False)
            for owner in present.metadata.owner_references
        ]
        references = msgspec.to_builtins(owners)
        await patch_metadata(self._client, kind, present, ownerReferences=references)
        with contextlib.suppress(NotFound, Conflict):
            await self._client.delete(
                kind,
                item.name,
                item.namespace or None,
                propagation=plan.PropagationPolicy.FOREGROUND.value,
                uid=item.uid,
            )
