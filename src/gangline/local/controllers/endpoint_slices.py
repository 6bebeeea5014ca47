"""EndpointSlice mirroring controller: EndpointSlices for clients that read no Endpoints.

There is one slice for each set of ports. Its name follows from the name of the Endpoints object, so
that a repeated creation fails with AlreadyExists and adds no duplicate.
"""

import contextlib

import msgspec

from gangline.api.core.core import Endpoints, EndpointSlice
from gangline.api.core.service import Endpoint, EndpointAddress, EndpointConditions, EndpointSubset
from gangline.api.meta.objects import ObjectMeta, OwnerReference
from gangline.api.resources import ENDPOINT_SLICES, ENDPOINTS
from gangline.kube.controller.controller import Controller, ReconcileDone, ReconcileResult
from gangline.kube.errors import AlreadyExists, NotFound
from gangline.kube.informers.informer import ObjectKey, object_key
from gangline.local.controllers.context import ControllerContext, QueueLoop

SERVICE_NAME_LABEL = "kubernetes.io/service-name"
MANAGED_BY_LABEL = "endpointslice.kubernetes.io/managed-by"
MANAGER = "endpointslicemirroring-controller.k8s.io"


def mirror_endpoints(endpoints: Endpoints) -> dict[str, EndpointSlice]:
    """Return the slices of ``endpoints`` by name; without a subset there is one empty slice."""
    subsets = endpoints.subsets or [EndpointSubset()]
    named = (
        (f"{endpoints.metadata.name}-{number}", subset) for number, subset in enumerate(subsets)
    )
    return {name: _slice(name, endpoints, subset) for name, subset in named}


def slice_content(slice_: EndpointSlice) -> tuple[object, ...]:
    """The fields that the controller keeps up to date."""
    return slice_.metadata.labels, slice_.address_type, slice_.endpoints, slice_.ports


def _slice(name: str, endpoints: Endpoints, subset: EndpointSubset) -> EndpointSlice:
    meta = endpoints.metadata
    owner = OwnerReference(
        api_version="v1",
        kind="Endpoints",
        name=meta.name,
        uid=meta.uid,
        controller=True,
        block_owner_deletion=True,
    )
    addresses = [*subset.addresses, *subset.not_ready_addresses]
    return EndpointSlice(
        metadata=ObjectMeta(
            name=name,
            namespace=meta.namespace,
            labels={**meta.labels, SERVICE_NAME_LABEL: meta.name, MANAGED_BY_LABEL: MANAGER},
            owner_references=[owner],
        ),
        address_type="IPv6" if addresses and ":" in addresses[0].ip else "IPv4",
        endpoints=[
            _endpoint(address, number < len(subset.addresses))
            for number, address in enumerate(addresses)
        ],
        ports=subset.ports,
    )


def _endpoint(address: EndpointAddress, ready: bool) -> Endpoint:
    return Endpoint(
        addresses=[address.ip],
        conditions=EndpointConditions(ready=ready, serving=ready, terminating=False),
        hostname=address.hostname,
        node_name=address.node_name,
        target_ref=address.target_ref,
    )


BATCH_S = 0.3
"""Delay in which changes are merged: no component waits for slices, only people read them."""


class EndpointSliceController(QueueLoop):
    def __init__(self, context: ControllerContext) -> None:
        self._client = context.client
        self._endpoints = context.informers.informer(ENDPOINTS)
        self._slices = context.informers.informer(
            ENDPOINT_SLICES, labels=f"{MANAGED_BY_LABEL}={MANAGER}", indexes={"service": _service}
        )
        self._controller: Controller[ObjectKey] = Controller("endpoint-slices", self._reconcile)
        self._endpoints.add_listener(self._endpoints_changed)
        self._slices.add_listener(self._slice_changed)

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
        slices = self._slices.by_index("service", f"{key.namespace}/{key.name}")
        present = {slice_.metadata.name: slice_ for slice_ in slices}
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
        elif slice_content(present) != slice_content(desired):
            metadata = msgspec.structs.replace(
                desired.metadata, resource_version=present.metadata.resource_version
            )
            body = msgspec.structs.replace(desired, metadata=metadata)
            await self._client.update(ENDPOINT_SLICES, body, namespace)


def _service(slice_: EndpointSlice) -> list[str]:
    meta = slice_.metadata
    return [f"{meta.namespace}/{meta.labels.get(SERVICE_NAME_LABEL, '')}"]
