"""EndpointSlice mirroring controller: keeps slices equal to their Endpoints object."""

import contextlib

import msgspec

from gangline.api.core.core import Endpoints, EndpointSlice
from gangline.api.resources import ENDPOINT_SLICES, ENDPOINTS
from gangline.kube.controller.controller import Controller, ReconcileDone, ReconcileResult
from gangline.kube.errors import AlreadyExists, NotFound
from gangline.kube.informers.informer import ObjectKey, object_key
from gangline.local.controllers.context import ControllerContext
from gangline.local.controllers.endpoint_slices.plan import (
    MANAGED_BY_LABEL,
    MANAGER,
    SERVICE_NAME_LABEL,
    is_equivalent_slice,
    mirror_endpoints,
)

BATCH_S = 0.3
"""Delay in which changes are merged: no component waits for slices, only people read them."""


class EndpointSliceController:
    """Watches Endpoints; writes EndpointSlices."""

    def __init__(self, context: ControllerContext) -> None:
        self._client = context.client
        self._endpoints = context.informers.informer(ENDPOINTS)
        self._slices = context.informers.informer(
            ENDPOINT_SLICES, labels=f"{MANAGED_BY_LABEL}={MANAGER}", indexes={"service": _service}
        )
        self._controller: Controller[ObjectKey] = Controller("endpoint-slices", self._reconcile)
        self._endpoints.add_listener(self._endpoints_changed)
        self._slices.add_listener(self._slice_changed)

    async def run(self) -> None:
        await self._controller.run()

    def _endpoints_changed(self, old: Endpoints | None, new: Endpoints | None) -> None:
        endpoints = new or old
        assert endpoints is not None
        self._controller.queue.add_after(object_key(endpoints), BATCH_S)

    def _slice_changed(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        # Own writes arrive here too; their pass finds nothing to change.
        changed = new or old
        assert changed is not None
        name = changed.metadata.labels.get(SERVICE_NAME_LABEL, "")
        self._controller.queue.add_after(ObjectKey(changed.metadata.namespace, name), BATCH_S)

    async def _reconcile(self, key: ObjectKey) -> ReconcileResult:
        endpoints = self._endpoints.get(key.namespace, key.name)
        desired = mirror_endpoints(endpoints) if endpoints is not None else {}
        found = self._slices.by_index("service", f"{key.namespace}/{key.name}")
        present = {each.metadata.name: each for each in found}
        for name, slice_ in desired.items():
            await self._write(slice_, present.get(name))
        for name in present.keys() - desired.keys():
            with contextlib.suppress(NotFound):
                await self._client.delete(ENDPOINT_SLICES, name, key.namespace)
        return ReconcileDone()

    async def _write(self, desired: EndpointSlice, present: EndpointSlice | None) -> None:
        namespace = desired.metadata.namespace
        if present is None:
            # The informer's copy may be outdated; its next event triggers another pass.
            with contextlib.suppress(AlreadyExists):
                await self._client.create(ENDPOINT_SLICES, desired, namespace)
        elif not is_equivalent_slice(present, desired):
            metadata = msgspec.structs.replace(
                desired.metadata, resource_version=present.metadata.resource_version
            )
            body = msgspec.structs.replace(desired, metadata=metadata)
            await self._client.update(ENDPOINT_SLICES, body, namespace)


def _service(slice_: EndpointSlice) -> list[str]:
    meta = slice_.metadata
    return [f"{meta.namespace}/{meta.labels.get(SERVICE_NAME_LABEL, '')}"]
