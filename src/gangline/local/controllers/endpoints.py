"""Endpoints and EndpointSlices: the addresses of the pods behind each service with a selector.

A pod counts while it has an address and has not ended. It is listed under ``addresses`` if it is
ready, or always if the service publishes not-ready addresses. Rendezvous depends on the latter:
members of a gang must find each other before any of them is ready. Slices also have pods that are
being deleted, which may serve until their end, as their conditions say.

Endpoints that others write are mirrored as slices, for clients that read no Endpoints. There is one
slice for each set of ports. Its name follows from that of the service, so that a repeated creation
fails with AlreadyExists and adds no duplicate.
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

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
from gangline.api.meta.objects import Object, ObjectMeta
from gangline.api.meta.resource import Resource
from gangline.api.resources import ENDPOINT_SLICES, ENDPOINTS, PODS, SERVICES
from gangline.kube.errors import AlreadyExists, ApiError, NotFound
from gangline.kube.informers.informer import ObjectKey, object_key
from gangline.local.controllers.context import (
    BY_NAMESPACE,
    ControllerContext,
    QueueLoop,
    namespace_ends,
    namespace_of,
)
from gangline.local.controllers.replica_sets.plan import owner_reference
from gangline.local.network.cluster_network import (
    MANAGED_BY_LABEL,
    MANAGER,
    MIRROR,
    SERVICE_NAME_LABEL,
)

T = TypeVar("T", Endpoints, EndpointSlice)
SKIP_LABEL = "endpointslice.kubernetes.io/skip-mirror"
BATCH_S = 0.3
"""Delay in which changes of slices are merged: no component waits for them, only people do."""
PortList = tuple[EndpointPort, ...]
EndpointGroups = Mapping[PortList, Sequence[Endpoint]]
"""Endpoints by their ports; pods may number the same named port differently."""


def service_endpoints(service: Service, pods: Iterable[Pod]) -> EndpointGroups:
    """Return the endpoints of ``service``, also those that are being deleted; ``pods`` are those
    that its selector matches.
    """
    groups: dict[PortList, list[Endpoint]] = defaultdict(list)
    for pod in pods:
        if pod.status.pod_ip and pod.status.phase not in TERMINAL_PHASES:
            groups[_ports(service, pod)].append(_endpoint(service, pod))
    for endpoints in groups.values():
        endpoints.sort(key=lambda endpoint: (endpoint.addresses[0], endpoint.hostname))
    return dict(
        sorted(groups.items(), key=lambda item: [(port.name, port.port) for port in item[0]])
    )


def build_endpoints(service: Service, groups: EndpointGroups) -> Endpoints:
    """Return the Endpoints of a service, without those that are being deleted."""
    subsets = [
        EndpointSubset(
            addresses=[_address(e) for e in group if _has(e, ready=True)],
            not_ready_addresses=[
                _address(e) for e in group if _has(e, ready=False, terminating=False)
            ],
            ports=list(ports),
        )
        for ports, group in groups.items()
    ]
    return Endpoints(
        api_version="v1",
        kind="Endpoints",
        metadata=ObjectMeta(
            name=service.metadata.name,
            namespace=service.metadata.namespace,
            labels=_labels(service),
            owner_references=[owner_reference(SERVICES, service)],
        ),
        subsets=[s for s in subsets if s.addresses or s.not_ready_addresses],
    )


def build_slices(service: Service, groups: EndpointGroups) -> dict[str, EndpointSlice]:
    """Return the slices of a service by name; without endpoints there is one empty slice."""
    labels = {**_labels(service), MANAGED_BY_LABEL: MANAGER}
    return _slices(service, SERVICES, labels, list(groups.items()))


def mirror_endpoints(endpoints: Endpoints) -> dict[str, EndpointSlice]:
    """Return the slices of Endpoints that others write, by name."""
    groups = [
        (
            tuple(subset.ports),
            [
                Endpoint(
                    addresses=[address.ip],
                    conditions=EndpointConditions(ready=ready, serving=ready, terminating=False),
                    hostname=address.hostname,
                    node_name=address.node_name,
                    target_ref=address.target_ref,
                )
                for ready, listed in (
                    (True, subset.addresses),
                    (False, subset.not_ready_addresses),
                )
                for address in listed
            ],
        )
        for subset in endpoints.subsets
    ]
    labels = {**endpoints.metadata.labels, MANAGED_BY_LABEL: MIRROR}
    return _slices(endpoints, ENDPOINTS, labels, groups)


def content(written: Endpoints | EndpointSlice) -> tuple[object, ...]:
    """The fields that the controller keeps up to date."""
    if isinstance(written, Endpoints):
        return written.metadata.labels, written.subsets
    return written.metadata.labels, written.address_type, written.endpoints, written.ports


def _slices(
    owner: Object,
    kind: Resource[Any],
    labels: Mapping[str, str],
    groups: Sequence[tuple[PortList, Sequence[Endpoint]]],
) -> dict[str, EndpointSlice]:
    meta = owner.metadata
    return {
        f"{meta.name}-{number}": EndpointSlice(
            metadata=ObjectMeta(
                name=f"{meta.name}-{number}",
                namespace=meta.namespace,
                labels={**labels, SERVICE_NAME_LABEL: meta.name},
                owner_references=[owner_reference(kind, owner)],
            ),
            address_type="IPv6" if group and ":" in group[0].addresses[0] else "IPv4",
            endpoints=list(group),
            ports=list(ports),
        )
        for number, (ports, group) in enumerate(groups or [((), [])])
    }


def _labels(service: Service) -> dict[str, str]:
    headless = service.spec.cluster_ip == "None"
    return service.metadata.labels | ({"service.kubernetes.io/headless": ""} if headless else {})


def _endpoint(service: Service, pod: Pod) -> Endpoint:
    terminating = pod.metadata.deletion_timestamp is not None
    serving = is_pod_ready(pod)
    listed = service.spec.publish_not_ready_addresses or (serving and not terminating)
    named = pod.spec.hostname and pod.spec.subdomain == service.metadata.name
    return Endpoint(
        addresses=[pod.status.pod_ip],
        conditions=EndpointConditions(ready=listed, serving=serving, terminating=terminating),
        hostname=pod.spec.hostname if named else "",
        node_name=pod.spec.node_name,
        target_ref=ObjectReference(
            kind="Pod",
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            uid=pod.metadata.uid,
        ),
    )


def _has(endpoint: Endpoint, *, ready: bool, terminating: bool | None = None) -> bool:
    conditions = endpoint.conditions or EndpointConditions()
    return conditions.ready is ready and terminating in (None, conditions.terminating)


def _address(endpoint: Endpoint) -> EndpointAddress:
    return EndpointAddress(
        ip=endpoint.addresses[0],
        hostname=endpoint.hostname,
        node_name=endpoint.node_name,
        target_ref=endpoint.target_ref,
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


class EndpointsController(QueueLoop):
    """Two queues: Endpoints, which the network follows, and slices, which may come later."""

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        informers = context.informers
        by_namespace = {BY_NAMESPACE: namespace_of}
        self._services = informers.informer(SERVICES, indexes=by_namespace)
        self._pods = informers.informer(PODS, indexes=by_namespace)
        self._endpoints = informers.informer(ENDPOINTS)
        self._slices = informers.informer(
            ENDPOINT_SLICES,
            labels=f"{MANAGED_BY_LABEL} in ({MANAGER},{MIRROR})",
            indexes={"service": lambda slice_: ["/".join(_service_key(slice_))]},
        )
        self._for_endpoints = self._add_queue("endpoints", self._reconcile)
        self._for_slices = self._add_queue("endpoint-slices", self._reconcile_slices)
        self._services.add_listener(self._service_changed)
        self._pods.add_listener(self._pod_changed)
        self._endpoints.add_listener(self._endpoints_changed)
        self._slices.add_listener(self._slice_changed)

    def _service_changed(self, old: Service | None, new: Service | None) -> None:
        if (service := new or old) is not None:
            self._for_endpoints.add(object_key(service))
            self._for_slices.add_after(object_key(service), BATCH_S)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and new is not None and _endpoint_fields(old) == _endpoint_fields(new):
            return
        pod = new or old
        assert pod is not None
        for service in self._services.by_index(BY_NAMESPACE, pod.metadata.namespace):
            if any(_selects(service, seen) for seen in (old, new) if seen is not None):
                self._service_changed(None, service)

    def _endpoints_changed(self, old: Endpoints | None, new: Endpoints | None) -> None:
        if (endpoints := new or old) is not None:
            self._for_slices.add_after(object_key(endpoints), BATCH_S)

    def _slice_changed(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        # Own writes arrive here too; their pass finds nothing to change.
        if (changed := new or old) is not None:
            self._for_slices.add_after(_service_key(changed), BATCH_S)

    async def _reconcile(self, key: ObjectKey) -> None:
        service = self._services.get(key.namespace, key.name)
        present = self._endpoints.get(key.namespace, key.name)
        if service is None:
            if present is not None:
                with contextlib.suppress(NotFound):
                    await self._client.delete(ENDPOINTS, key.name, key.namespace)
        elif service.spec.selector and service.metadata.deletion_timestamp is None:
            desired = build_endpoints(service, self._groups(service))
            with _ending_namespace_ignored():
                await self._write(ENDPOINTS, desired, present)

    async def _reconcile_slices(self, key: ObjectKey) -> None:
        service = self._services.get(key.namespace, key.name)
        endpoints = self._endpoints.get(key.namespace, key.name)
        desired: dict[str, EndpointSlice] = {}
        if service is not None and service.spec.selector:
            desired = build_slices(service, self._groups(service))
        elif endpoints is not None and endpoints.metadata.labels.get(SKIP_LABEL) != "true":
            desired = mirror_endpoints(endpoints)
        slices = self._slices.by_index("service", f"{key.namespace}/{key.name}")
        present = {slice_.metadata.name: slice_ for slice_ in slices}
        with _ending_namespace_ignored():
            for name, slice_ in desired.items():
                await self._write(ENDPOINT_SLICES, slice_, present.get(name))
        for name in present.keys() - desired.keys():
            with contextlib.suppress(NotFound):
                await self._client.delete(ENDPOINT_SLICES, name, key.namespace)

    def _groups(self, service: Service) -> EndpointGroups:
        pods = self._pods.by_index(BY_NAMESPACE, service.metadata.namespace)
        return service_endpoints(service, [pod for pod in pods if _selects(service, pod)])

    async def _write(self, kind: Resource[T], desired: T, present: T | None) -> None:
        meta = desired.metadata
        if present is None:
            with contextlib.suppress(AlreadyExists):
                await self._client.create(kind, desired, meta.namespace)
                return
            if isinstance(desired, EndpointSlice):
                return  # It is another's, or its next event triggers another pass.
            present = await self._client.get(kind, meta.name, meta.namespace)
        if content(present) != content(desired):
            metadata = msgspec.structs.replace(
                present.metadata, labels=meta.labels, owner_references=meta.owner_references
            )
            body = msgspec.structs.replace(desired, metadata=metadata)
            await self._client.update(kind, body, meta.namespace)


@contextlib.contextmanager
def _ending_namespace_ignored() -> Iterator[None]:
    """Ignore that nothing is created any more: services may outlive their endpoints there."""
    try:
        yield
    except ApiError as error:
        if not namespace_ends(error):
            raise


def _service_key(slice_: EndpointSlice) -> ObjectKey:
    meta = slice_.metadata
    return ObjectKey(meta.namespace, meta.labels.get(SERVICE_NAME_LABEL, ""))


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
