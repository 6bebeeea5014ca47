"""Adopts objects of other operators and orphaned objects; ``adoption`` decides which and how.

The controller runs beside the engine with a queue of its own. ``adopt_existing`` runs first:
existing pods need our labels before the engine reconciles their jobs, or the engine would create
them a second time.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec

from gangline.api.jobs.kubeflow import MANAGED_BY_US
from gangline.api.meta.objects import Object, Wire
from gangline.api.meta.resource import Resource
from gangline.kube.client.client import ApiClient
from gangline.kube.controller.controller import (
    Controller,
    ReconcileDone,
    ReconcileResult,
    RequeueAfter,
)
from gangline.kube.errors import ApiError, Conflict, NotFound
from gangline.kube.informers.informer import Informer
from gangline.operator import metrics
from gangline.operator.engine import adoption, manifests
from gangline.operator.engine.observe import (
    OWNED_RESOURCES,
    PODS,
    SERVICES,
    ClusterCache,
    JobKey,
    JobObservation,
    job_resource,
)
from gangline.operator.model import conditions, labels
from gangline.operator.model.job import Manifest, RawJob
from gangline.operator.model.plan import TargetKind
from gangline.operator.model.replicas import ObservedPod

log = logging.getLogger(__name__)

ADOPTION_WORKERS = 8
SERVICE_RETRY_S = 0.2
"""An old service waits this many seconds for its pod to get our labels, by which it then selects.
"""
POD_LABEL_TIMEOUT_S = 5.0
"""The start of the engine waits at most this many seconds: the API server may refuse to label a
pod.
"""
OPTIONAL_SYNC_TIMEOUT_S = 5.0
"""The start of the engine waits at most this many seconds for kinds that the operator may not list.
"""

_ORPHAN = "orphan"


class _ServiceSelector(Wire):
    selector: dict[str, str] = msgspec.field(default_factory=dict)


class LegacyService(Object):
    spec: _ServiceSelector = _ServiceSelector()


_LEGACY_SERVICES = Resource(LegacyService, "", "v1", "services", "Service")
_FOREIGN: Sequence[tuple[TargetKind, Resource[Any], str]] = (
    (TargetKind.POD, PODS, adoption.LEGACY_SELECTOR),
    (TargetKind.SERVICE, _LEGACY_SERVICES, adoption.LEGACY_SELECTOR),
)
_FOREIGN_PADDLE: Sequence[tuple[TargetKind, Resource[Any], str]] = (
    (TargetKind.POD, PODS, adoption.PADDLE_SELECTOR),
    (TargetKind.CONFIG_MAP, OWNED_RESOURCES[TargetKind.CONFIG_MAP], adoption.PADDLE_SELECTOR),
)


class AdoptionKey(NamedTuple):
    target: TargetKind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.target} {self.namespace}/{self.name}"


class AdoptionController:
    """Adopts objects that turn up. Call ``adopt_existing`` before the engine starts, and ``run`` in
    a task.
    """

    def __init__(
        self, client: ApiClient, cache: ClusterCache, namespaces: Sequence[str], *, gangs: bool
    ) -> None:
        self._client = client
        self._cache = cache
        self._gangs = gangs
        kinds = [framework.kind for framework in cache.frameworks.values()]
        self._kinds = adoption.kind_table(kinds)
        paddle = any(kind.framework == "paddle" for kind in kinds)
        self._foreign = [
            (target, Informer(client, resource, namespaces, labels=selector))
            for target, resource, selector in (*_FOREIGN, *(_FOREIGN_PADDLE if paddle else ()))
        ]
        self._controller: Controller[AdoptionKey] = Controller(
            "adoption", self._reconcile, workers=ADOPTION_WORKERS
        )
        self._add_listeners()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _, informer in self._foreign:
                tasks.create_task(informer.run())
            tasks.create_task(self._controller.run())

    async def adopt_existing(self) -> None:
        """Wait until each existing foreign object is adopted, or the API server refused."""
        slots = asyncio.Semaphore(ADOPTION_WORKERS)
        for target, informer in self._foreign:
            # The operator requires rights to pods and services; other rights may be missing.
            needed = target in (TargetKind.POD, TargetKind.SERVICE)
            with suppress(TimeoutError):
                async with asyncio.timeout(None if needed else OPTIONAL_SYNC_TIMEOUT_S):
                    await informer.wait_for_sync()
            keys = [_key(target, item) for item in informer.items()]
            await asyncio.gather(*(self._adopt_with_timeout(key, slots) for key in keys))

    async def _adopt_with_timeout(self, key: AdoptionKey, slots: asyncio.Semaphore) -> None:
        # A failure here is retried by the controller, whose queue has the object too.
        loop = asyncio.get_running_loop()
        give_up = loop.time() + POD_LABEL_TIMEOUT_S
        async with slots:
            with suppress(ApiError):
                while isinstance(result := await self._reconcile(key), RequeueAfter):
                    if loop.time() > give_up:
                        return
                    await asyncio.sleep(result.seconds)

    def _add_listeners(self) -> None:
        for target, informer in self._foreign:
            informer.add_listener(partial(self._changed, target))
        for target, informer in self._cache.informers.items():
            informer.add_index(_ORPHAN, _job_of_orphan)
            informer.add_listener(partial(self._changed, target))
        for jobs in self._cache.jobs.values():
            jobs.add_listener(self._job_changed)

    def _changed(self, target: TargetKind, _: Object | None, new: Object | None) -> None:
        if new is None:
            return
        meta = new.metadata
        foreign = target is not TargetKind.POD_GROUP and labels.JOB_NAME not in meta.labels
        if foreign or adoption.is_orphan(meta) or self._should_join_gang(new):
            self._controller.queue.add(_key(target, new))

    def _job_changed(self, old: RawJob | None, new: RawJob | None) -> None:
        if new is None or (old is not None and old.metadata.uid == new.metadata.uid):
            return
        job = f"{new.metadata.namespace}/{new.metadata.name}"
        for target, informer in self._cache.informers.items():
            for item in informer.by_index(_ORPHAN, job):
                self._controller.queue.add(_key(target, item))

    async def _reconcile(self, key: AdoptionKey) -> ReconcileResult:
        item = self._cache.informers[key.target].get(key.namespace, key.name)
        for target, informer in self._foreign:
            foreign = informer.get(key.namespace, key.name) if target is key.target else None
            # The two watches have no common order: an object that has our labels already may
            # still be in the cache of those that lack them.
            if foreign is not None and not (item and item.metadata.uid == foreign.metadata.uid):
                return await self._add_labels(key, foreign)
        if item is not None and adoption.is_orphan(item.metadata):
            await self._set_owner(key, item)
        elif item is not None and self._should_join_gang(item):
            await self._write(key, adoption.gang_patch(item), "gang")
        return ReconcileDone()

    async def _add_labels(self, key: AdoptionKey, item: Object) -> ReconcileResult:
        selector = item.spec.selector if isinstance(item, LegacyService) else None
        if selector is not None and self._is_foreign_pod(key):
            return RequeueAfter(SERVICE_RETRY_S)
        patch = adoption.label_patch(key.target, item.metadata, self._kinds, selector)
        if patch is None:
            return ReconcileDone()
        if key.target is TargetKind.POD and adoption.PADDLE_LABEL in item.metadata.labels:
            # First, because it has no labels: it could not be found once its pod has ours.
            await self._label_service_of(key, item)
        await self._write(key, patch, "labels")
        return ReconcileDone()

    def _is_foreign_pod(self, service: AdoptionKey) -> bool:
        pods = (informer for target, informer in self._foreign if target is TargetKind.POD)
        return any(informer.get(service.namespace, service.name) for informer in pods)

    async def _label_service_of(self, pod: AdoptionKey, item: Object) -> None:
        key = pod._replace(target=TargetKind.SERVICE)
        try:
            service = await self._client.get(SERVICES, key.name, key.namespace)
        except NotFound:
            return
        patch = adoption.label_patch(key.target, service.metadata, self._kinds)
        if patch and labels.JOB_NAME not in service.metadata.labels:
            await self._write(key, patch, "labels")

    async def _set_owner(self, key: AdoptionKey, item: Object) -> None:
        """Make a job the owner of an orphan, if exactly one accepts it: jobs of two kinds may have
        one name.
        """
        if not adoption.is_claimable(item):
            return
        controller = item.metadata.labels[labels.OPERATOR_NAME]
        name = item.metadata.labels[labels.JOB_NAME]
        accepting: list[JobObservation] = []
        for kind in self._kinds.values():
            if kind.controller == controller:
                with suppress(msgspec.DecodeError):
                    observation = self._cache.observe(JobKey(kind.identity, key.namespace, name))
                    if observation is not None and _accepts_objects(observation):
                        accepting.append(observation)
        if len(accepting) != 1 or not await self._job_exists(accepting[0]):
            return
        owner = manifests.owner_reference(accepting[0].job_state.job)
        await self._write(key, adoption.owner_patch(item.metadata, owner), "owner")

    async def _job_exists(self, observation: JobObservation) -> bool:
        """Ask the API server, because the cache may not show yet that the job is being deleted."""
        job = observation.job_state.job
        try:
            now = await self._client.get(job_resource(job.kind), job.name, job.meta.namespace)
        except NotFound:
            return False
        return now.metadata.uid == job.meta.uid and now.metadata.deletion_timestamp is None

    def _should_join_gang(self, item: Object) -> bool:
        if not self._gangs or not isinstance(item, ObservedPod) or not adoption.lacks_gang(item):
            return False
        return adoption.kind_of(item.metadata.controller, self._kinds) is not None

    async def _write(self, key: AdoptionKey, patch: Manifest, what: str) -> None:
        metrics.WRITES.labels(key.target, "patch").inc()
        # Deleted or changed meanwhile: the watch shows the change and the object is requeued.
        with suppress(NotFound, Conflict):
            item = await self._client.patch(
                self._cache.resources[key.target], key.name, patch, key.namespace
            )
            seen = self._cache.informers[key.target].get(key.namespace, key.name)
            self._cache.unobserved[key.target].record_created(item, seen)
            metrics.ADOPTED.labels(key.target, what).inc()
            log.info("adopted", extra={"object": str(key), "given": what})


def _key(target: TargetKind, item: Object) -> AdoptionKey:
    return AdoptionKey(target, item.metadata.namespace, item.metadata.name)


def _accepts_objects(observation: JobObservation) -> bool:
    job = observation.job_state.job
    ours = job.policy.managed_by in (None, MANAGED_BY_US)
    return (
        ours
        and not job.is_deleting
        and not conditions.is_finished(observation.job_state.status.conditions)
    )


def _job_of_orphan(item: Object) -> Iterable[str]:
    meta = item.metadata
    if not adoption.is_orphan(meta):
        return ()
    return (f"{meta.namespace}/{meta.labels[labels.JOB_NAME]}",)
