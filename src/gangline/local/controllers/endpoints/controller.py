"""Endpoints controller: keeps the Endpoints of each service with a selector up to date."""

import contextlib

import msgspec

from gangline.api.core.core import Endpoints, Service
from gangline.api.core.pod import Pod, is_pod_ready
from gangline.api.resources import ENDPOINTS, PODS, SERVICES
from gangline.kube.controller.controller import Controller, ReconcileDone, ReconcileResult
from gangline.kube.errors import AlreadyExists, NotFound
from gangline.kube.informers.informer import ObjectKey, object_key
from gangline.local.controllers.context import BY_NAMESPACE, ControllerContext
from gangline.local.controllers.endpoints.plan import build_endpoints


class EndpointsController:
    """Watches services and pods; writes Endpoints."""

    def __init__(self, context: ControllerContext) -> None:
        self._client = context.client
        self._services = context.informers.informer(
            SERVICES, indexes={BY_NAMESPACE: lambda service: [service.metadata.namespace]}
        )
        self._pods = context.informers.informer(
            PODS, indexes={BY_NAMESPACE: lambda pod: [pod.metadata.namespace]}
        )
        self._endpoints = context.informers.informer(ENDPOINTS)
        self._controller: Controller[ObjectKey] = Controller("endpoints", self._reconcile)
        self._services.add_listener(self._service_changed)
        self._pods.add_listener(self._pod_changed)

    async def run(self) -> None:
        await self._controller.run()

    def _service_changed(self, old: Service | None, new: Service | None) -> None:
        service = new or old
        assert service is not None
        self._controller.queue.add(object_key(service))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and new is not None and _endpoint_fields(old) == _endpoint_fields(new):
            return
        pod = new or old
        assert pod is not None
        for service in self._services.by_index(BY_NAMESPACE, pod.metadata.namespace):
            if any(_selects(service, seen) for seen in (old, new) if seen is not None):
                self._controller.queue.add(object_key(service))

    async def _reconcile(self, key: ObjectKey) -> ReconcileResult:
        service = self._services.get(key.namespace, key.name)
        present = self._endpoints.get(key.namespace, key.name)
        if service is None:
            if present is not None:
                with contextlib.suppress(NotFound):
                    await self._client.delete(ENDPOINTS, key.name, key.namespace)
        elif service.spec.selector and service.metadata.deletion_timestamp is None:
            pods = self._pods.by_index(BY_NAMESPACE, key.namespace)
            desired = build_endpoints(service, [pod for pod in pods if _selects(service, pod)])
            await self._write(desired, present)
        return ReconcileDone()

    async def _write(self, desired: Endpoints, present: Endpoints | None) -> None:
        namespace, meta = desired.metadata.namespace, desired.metadata
        if present is None:
            # The informer's copy may be outdated; its next event triggers another pass.
            with contextlib.suppress(AlreadyExists):
                await self._client.create(ENDPOINTS, desired, namespace)
                return
            present = await self._client.get(ENDPOINTS, meta.name, namespace)
        same_labels = present.metadata.labels == meta.labels
        if present.subsets == desired.subsets and same_labels:
            return
        metadata = msgspec.structs.replace(
            present.metadata, labels=meta.labels, owner_references=meta.owner_references
        )
        await self._client.update(
            ENDPOINTS, msgspec.structs.replace(desired, metadata=metadata), namespace
        )


def _selects(service: Service, pod: Pod) -> bool:
    selector = service.spec.selector
    return bool(selector) and selector.items() <= pod.metadata.labels.items()


def _endpoint_fields(pod: Pod) -> tuple[object, ...]:
    return (
        pod.status.pod_ip,
        pod.status.phase,
        is_pod_ready(pod),
        pod.metadata.deletion_timestamp is None,
        pod.metadata.labels,
        pod.metadata.uid,
    )
