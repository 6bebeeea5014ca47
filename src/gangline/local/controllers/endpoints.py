"""Endpoints and EndpointSlices: the addresses of the pods behind each service with a selector.

A pod counts while it has an address and has not ended. It is listed under ``addresses`` if it is
ready, or always if the service publishes not-ready addresses. Rendezvous depends on the latter:
members of a gang must find each other before any of them is ready.

EndpointSlices mirror Endpoints, for clients that read none: one slice for each set of ports. Its
name follows from the name of the Endpoints object, so that a repeated creation fails with
AlreadyExists and adds no duplicate.
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterable

import msgspec

from gangline.api.core.core import Endpoints, EndpointSlice, ObjectReference, Service
from gangline.api.core.pod import Pod, is_pod_ready
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.core.service import (
    Endpoint,
    EndpointAddress,
    EndpointConditions,
    EndpointPort,
    EndpointSubset,
    ServicePort,
)
from gangline.api.meta.objects import ObjectMeta
from gangline.api.resources import ENDPOINT_SLICES, ENDPOINTS, PODS, SERVICES
from gangline.kube.controller.controller import Controller, ReconcileDone, ReconcileResult
from gangline.kube.errors import AlreadyExists, NotFound
from gangline.kube.informers.informer import ObjectKey, object_key
from gangline.local.controllers.context import (
    BY_NAMESPACE,
    ControllerContext,
    QueueLoop,
    enqueue_changes,
)
from gangline.local.controllers.replica_sets.plan import owner_reference
from gangline.local.network.cluster_network import (
    MANAGED_BY_LABEL,
    MANAGER,
    MIRROR,
    SERVICE_NAME_LABEL,
)

SKIP_LABEL = "endpointslice.kubernetes.io/skip-mirror"


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
    service = [owner for owner in meta.owner_references if owner.kind == "Service"]
    owners = service or [owner_reference("v1", "Endpoints", endpoints)]
    manager = MANAGER if service else MIRROR
    addresses = [*subset.addresses, *subset.not_ready_addresses]
    return EndpointSlice(
        metadata=ObjectMeta(
            name=name,
            namespace=meta.namespace,
            labels={**meta.labels, SERVICE_NAME_LABEL: meta.name, MANAGED_BY_LABEL: manager},
            owner_references=owners,
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
            ENDPOINT_SLICES,
            labels=f"{MANAGED_BY_LABEL} in ({MANAGER},{MIRROR})",
            indexes={"service": _service},
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
        skipped = endpoints is None or endpoints.metadata.labels.get(SKIP_LABEL) == "true"
        desired = mirror_endpoints(endpoints) if endpoints is not None and not skipped else {}
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


PortList = tuple[EndpointPort, ...]


def build_endpoints(service: Service, pods: Iterable[Pod]) -> Endpoints:
    """Return the endpoints of ``service``; ``pods`` are those that its selector matches."""
    ready: dict[PortList, list[EndpointAddress]] = defaultdict(list)
    waiting: dict[PortList, list[EndpointAddress]] = defaultdict(list)
    for pod in pods:
        if not pod.status.pod_ip or pod.status.phase in TERMINAL_PHASES:
            continue
        deleting = pod.metadata.deletion_timestamp is not None
        listed = service.spec.publish_not_ready_addresses or (is_pod_ready(pod) and not deleting)
        if deleting and not listed:
            continue
        (ready if listed else waiting)[_ports(service, pod)].append(_address(service, pod))
    return Endpoints(
        api_version="v1",
        kind="Endpoints",
        metadata=_metadata(service),
        subsets=[
            EndpointSubset(
                addresses=_sorted(ready.get(ports, [])),
                not_ready_addresses=_sorted(waiting.get(ports, [])),
                ports=list(ports),
            )
            for ports in sorted(
                ready.keys() | waiting.keys(),
                key=lambda ports: [(port.name, port.port) for port in ports],
            )
        ],
    )


def _metadata(service: Service) -> ObjectMeta:
    labels = dict(service.metadata.labels)
    if service.spec.cluster_ip == "None":
        labels["service.kubernetes.io/headless"] = ""
    return ObjectMeta(
        name=service.metadata.name,
        namespace=service.metadata.namespace,
        labels=labels,
        owner_references=[owner_reference("v1", "Service", service)],
    )


def _ports(service: Service, pod: Pod) -> PortList:
    numbered = ((port, _number(port, pod)) for port in service.spec.ports)
    return tuple(
        EndpointPort(
            name=port.name,
            port=number,
            protocol=port.protocol or "TCP",
            app_protocol=port.app_protocol,
        )
        for port, number in numbered
        if number is not None
    )


def _number(port: ServicePort, pod: Pod) -> int | None:
    """Resolve a target port, which may be the name of a port of the pod; None if the pod has no
    such port.
    """
    target = port.target_port or port.port
    if isinstance(target, int):
        return target
    if target.isdigit():
        return int(target)
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        for declared in container.ports:
            if declared.name == target and (declared.protocol or "TCP") == (port.protocol or "TCP"):
                return declared.container_port
    return None


def _address(service: Service, pod: Pod) -> EndpointAddress:
    named = pod.spec.hostname and pod.spec.subdomain == service.metadata.name
    return EndpointAddress(
        ip=pod.status.pod_ip,
        hostname=pod.spec.hostname if named else "",
        node_name=pod.spec.node_name,
        target_ref=ObjectReference(
            kind="Pod",
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            uid=pod.metadata.uid,
        ),
    )


def _sorted(addresses: list[EndpointAddress]) -> list[EndpointAddress]:
    return sorted(addresses, key=lambda address: (address.ip, address.hostname))


class EndpointsController(QueueLoop):
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
        self._services.add_listener(enqueue_changes(self._controller))
        self._pods.add_listener(self._pod_changed)

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
