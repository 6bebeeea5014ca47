"""Adopts objects of other operators and orphaned objects; ``adoption`` decides which and how.

The controller runs beside the engine with a queue of its own. ``take_over`` runs first: existing
pods need our labels before the engine reconciles their jobs, or the engine would create them a
second time.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec

from gangline.api.kubeflow import MANAGED_BY_US
from gangline.api.meta import Object, Wire
from gangline.api.resource import Resource
from gangline.api.resources import POD_GROUPS
from gangline.kube.client import Client
from gangline.kube.controller import After, Controller, Done, Result
from gangline.kube.errors import ApiError, Conflict, NotFound
from gangline.kube.informer import Informer
from gangline.operator import adoption, build, conditions, labels, metrics
from gangline.operator.cache import EXTRAS, PODS, SERVICES, Cache, JobKey, Sight, job_resource
from gangline.operator.decision import Target
from gangline.operator.job import Manifest
from gangline.operator.recent import RecentObjects
from gangline.operator.replicas import Pod
from gangline.operator.stored import StoredJob

log = logging.getLogger(__name__)

WORKERS = 8
PODS_FIRST_S = 0.2
"""An old service waits this many seconds for its pod to get our labels, by which it then selects.
"""
PODS_PATIENCE_S = 5.0
"""The start of the engine waits at most this many seconds: the API server may refuse to label a
pod.
"""
OTHERS_PATIENCE_S = 5.0
"""The start of the engine waits at most this many seconds for kinds that the operator may not list.
"""

_ORPHAN = "orphan"


class _Selects(Wire):
    selector: dict[str, str] = msgspec.field(default_factory=dict)


class OldService(Object):
    """The fields of a service that adoption reads."""

    spec: _Selects = _Selects()


_OLD_SERVICES = Resource(OldService, "", "v1", "services", "Service")
_FOREIGN: Sequence[tuple[Target, Resource[Any], str]] = (
    (Target.POD, PODS, adoption.OLD_SELECTOR),
    (Target.SERVICE, _OLD_SERVICES, adoption.OLD_SELECTOR),
)
_FOREIGN_PADDLE: Sequence[tuple[Target, Resource[Any], str]] = (
    (Target.POD, PODS, adoption.PADDLE_SELECTOR),
    (Target.CONFIG_MAP, EXTRAS[Target.CONFIG_MAP], adoption.PADDLE_SELECTOR),
)
_RESOURCES: Mapping[Target, Resource[Any]] = {
    Target.POD: PODS,
    Target.SERVICE: SERVICES,
    Target.POD_GROUP: POD_GROUPS,
    **EXTRAS,
}


class ItemKey(NamedTuple):
    """Identifies an object in the adoption queue."""

    target: Target
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.target} {self.namespace}/{self.name}"


class Adopter:
    """Adopts objects that turn up. Call ``take_over`` before the engine starts, and ``run`` in a
    task.
    """

    def __init__(
        self, client: Client, cache: Cache, namespaces: Sequence[str], *, gangs: bool
    ) -> None:
        self._client = client
        self._cache = cache
        self._gangs = gangs
        kinds = [framework.kind for framework in cache.frameworks.values()]
        self._kinds = {(kind.group, kind.kind): kind for kind in kinds}
        self._by_controller = {kind.controller: kind for kind in kinds}
        paddle = any(kind.framework == "paddle" for kind in kinds)
        self._foreign = [
            (target, Informer(client, resource, namespaces, labels=selector))
            for target, resource, selector in (*_FOREIGN, *(_FOREIGN_PADDLE if paddle else ()))
        ]
        self._followed: dict[Target, Informer[Any]] = {
            Target.POD: cache.pods,
            Target.SERVICE: cache.services,
            **({Target.POD_GROUP: cache.groups} if cache.groups else {}),
            **cache.extras,
        }
        self._recent: dict[Target, RecentObjects[Any]] = {
            Target.POD: cache.recent_pods,
            Target.SERVICE: cache.recent_services,
            Target.POD_GROUP: cache.recent_groups,
            **cache.recent_extras,
        }
        self._controller: Controller[ItemKey] = Controller(
            "adoption", self._reconcile, workers=WORKERS
        )
        self._listen()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _, informer in self._foreign:
                tasks.create_task(informer.run())
            tasks.create_task(self._controller.run())

    async def take_over(self) -> None:
        """Wait until each existing object of another operator is adopted, or the API server
        refused.
        """
        slots = asyncio.Semaphore(WORKERS)
        for target, informer in self._foreign:
            # The operator requires rights to pods and services; other rights may be missing.
            needed = target in (Target.POD, Target.SERVICE)
            with suppress(TimeoutError):
                async with asyncio.timeout(None if needed else OTHERS_PATIENCE_S):
                    await informer.synced()
            keys = [_key(target, item) for item in informer.items()]
            await asyncio.gather(*(self._attempt(key, slots) for key in keys))

    async def _attempt(self, key: ItemKey, slots: asyncio.Semaphore) -> None:
        # A failure here is retried by the controller, whose queue has the object too.
        loop = asyncio.get_running_loop()
        give_up = loop.time() + PODS_PATIENCE_S
        async with slots:
            with suppress(ApiError):
                while isinstance(result := await self._reconcile(key), After):
                    if loop.time() > give_up:
                        return
                    await asyncio.sleep(result.seconds)

    def _listen(self) -> None:
        for target, informer in self._foreign:
            informer.add_listener(partial(self._changed, target))
        for target, informer in self._followed.items():
            informer.add_index(_ORPHAN, _job_of_orphan)
            informer.add_listener(partial(self._changed, target))
        for jobs in self._cache.jobs.values():
            jobs.add_listener(self._job_changed)

    def _changed(self, target: Target, _: Object | None, new: Object | None) -> None:
        if new is None:
            return
        meta = new.metadata
        foreign = target is not Target.POD_GROUP and labels.JOB_NAME not in meta.labels
        if foreign or adoption.is_orphan(meta) or self._shall_join(new):
            self._controller.queue.add(_key(target, new))

    def _job_changed(self, old: StoredJob | None, new: StoredJob | None) -> None:
        """Enqueue the orphans of a job that was created."""
        if new is None or (old is not None and old.metadata.uid == new.metadata.uid):
            return
        job = f"{new.metadata.namespace}/{new.metadata.name}"
        for target, informer in self._followed.items():
            for item in informer.by_index(_ORPHAN, job):
                self._controller.queue.add(_key(target, item))

    async def _reconcile(self, key: ItemKey) -> Result:
        for target, informer in self._foreign:
            item = informer.get(key.namespace, key.name) if target is key.target else None
            if item is not None:
                return await self._label(key, item)
        item = self._followed[key.target].get(key.namespace, key.name)
        if item is not None and adoption.is_orphan(item.metadata):
            await self._claim(key, item)
        elif item is not None and self._shall_join(item):
            await self._write(key, adoption.joined(item), "gang")
        return Done()

    async def _label(self, key: ItemKey, item: Object) -> Result:
        """Add our labels to an object of an upstream operator."""
        selector = item.spec.selector if isinstance(item, OldService) else None
        if selector is not None and self._is_foreign_pod(key):
            return After(PODS_FIRST_S)
        patch = adoption.labelled(key.target, item.metadata, self._kinds, selector)
        if patch is None:
            return Done()
        if key.target is Target.POD and adoption.PADDLE_LABEL in item.metadata.labels:
            # First, because it has no labels: it could not be found once its pod has ours.
            await self._label_service_of(key, item)
        await self._write(key, patch, "labels")
        return Done()

    def _is_foreign_pod(self, service: ItemKey) -> bool:
        pods = (informer for target, informer in self._foreign if target is Target.POD)
        return any(informer.get(service.namespace, service.name) for informer in pods)

    async def _label_service_of(self, pod: ItemKey, item: Object) -> None:
        key = pod._replace(target=Target.SERVICE)
        try:
            service = await self._client.get(SERVICES, key.name, key.namespace)
        except NotFound:
            return
        patch = adoption.labelled(key.target, service.metadata, self._kinds)
        if patch and labels.JOB_NAME not in service.metadata.labels:
            await self._write(key, patch, "labels")

    async def _claim(self, key: ItemKey, item: Object) -> None:
        """Make a job the owner of an orphan, if it accepts one."""
        kind = self._by_controller.get(item.metadata.labels[labels.OPERATOR_NAME])
        if kind is None or not adoption.is_claimable(item):
            return
        name = item.metadata.labels[labels.JOB_NAME]
        with suppress(msgspec.DecodeError):
            observation = self._cache.observe(JobKey(kind.kind, key.namespace, name))
            if (
                observation is None
                or not _takes(observation)
                or not await self._is_still_there(observation)
            ):
                return
            owner = build.owner(observation.observed.job)
            await self._write(key, adoption.claimed(item.metadata, owner), "owner")

    async def _is_still_there(self, observation: Sight) -> bool:
        """Ask the API server, because the cache may not show yet that the job is being deleted."""
        job = observation.observed.job
        try:
            now = await self._client.get(job_resource(job.kind), job.name, job.meta.namespace)
        except NotFound:
            return False
        return now.metadata.uid == job.meta.uid and now.metadata.deletion_timestamp is None

    def _shall_join(self, item: Object) -> bool:
        """Return whether a pod of one of our jobs lacks the annotation of its gang."""
        if not self._gangs or not isinstance(item, Pod) or not adoption.is_outside_gang(item):
            return False
        return adoption.kind_of(item.metadata.controller, self._kinds) is not None

    async def _write(self, key: ItemKey, patch: Manifest, what: str) -> None:
        metrics.WRITES.labels(key.target, "patch").inc()
        # Deleted or changed meanwhile: the watch shows the change and the object is requeued.
        with suppress(NotFound, Conflict):
            item = await self._client.patch(_RESOURCES[key.target], key.name, patch, key.namespace)
            seen = self._followed[key.target].get(key.namespace, key.name)
            self._recent[key.target].made(item, seen)
            metrics.ADOPTED.labels(key.target, what).inc()
            log.info("adopted", extra={"object": str(key), "given": what})


def _key(target: Target, item: Object) -> ItemKey:
    return ItemKey(target, item.metadata.namespace, item.metadata.name)


def _takes(observation: Sight) -> bool:
    """Return whether a job is ours and unfinished, so that it accepts objects."""
    job = observation.observed.job
    ours = job.policy.managed_by in (None, MANAGED_BY_US)
    return (
        ours
        and not job.deleting
        and not conditions.is_finished(observation.observed.status.conditions)
    )


def _job_of_orphan(item: Object) -> Iterable[str]:
    meta = item.metadata
    if not adoption.is_orphan(meta):
        return ()
    return (f"{meta.namespace}/{meta.labels[labels.JOB_NAME]}",)
