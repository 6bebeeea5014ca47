"""Which pods stand behind a service, under which names and conditions, and their slices."""

import pytest

from gangline.api.core.container import Container, ContainerPort
from gangline.api.core.core import Endpoints, Service
from gangline.api.core.pod import Pod, PodSpec
from gangline.api.core.service import (
    EndpointAddress,
    EndpointConditions,
    EndpointPort,
    EndpointSubset,
    ServicePort,
    ServiceSpec,
)
from gangline.api.meta.objects import ObjectMeta
from gangline.local.controllers.endpoints import (
    build_endpoints,
    build_slices,
    content,
    mirror_endpoints,
    service_endpoints,
)
from gangline.local.network.cluster_network import MANAGED_BY_LABEL, SERVICE_NAME_LABEL
from unit.local.controllers.builders import a_pod


def a_service(publish: bool = False, target: int | str | None = None) -> Service:
    return Service(
        metadata=ObjectMeta(name="s", namespace="ns", uid="s", labels={"app": "web"}),
        spec=ServiceSpec(
            selector={"app": "x"},
            publish_not_ready_addresses=publish,
            ports=[ServicePort(name="a", port=80, target_port=target)],
        ),
    )


def endpoints_of(service: Service, *pods: Pod) -> list[EndpointSubset]:
    return build_endpoints(service, service_endpoints(service, pods)).subsets


@pytest.mark.parametrize(
    ("pod", "publish", "listed", "waiting", "conditions"),
    [
        pytest.param(a_pod(), False, 1, 0, (True, True, False), id="ready"),
        pytest.param(a_pod(ready=False), False, 0, 1, (False, False, False), id="not ready"),
        pytest.param(a_pod(ready=False), True, 1, 0, (True, False, False), id="published"),
        pytest.param(a_pod(ip=""), True, 0, 0, None, id="without address"),
        pytest.param(a_pod(phase="Failed"), True, 0, 0, None, id="ended"),
        pytest.param(a_pod(going=True), False, 0, 0, (False, True, True), id="leaving"),
        pytest.param(
            a_pod(going=True, ready=False), False, 0, 0, (False, False, True), id="leaving, unready"
        ),
        pytest.param(
            a_pod(going=True), True, 1, 0, (True, True, True), id="leaving, but published"
        ),
    ],
)
def test_a_pod_is_an_endpoint(
    pod: Pod,
    publish: bool,
    listed: int,
    waiting: int,
    conditions: tuple[bool, bool, bool] | None,
) -> None:
    service = a_service(publish)
    subsets = endpoints_of(service, pod)
    assert sum(len(subset.addresses) for subset in subsets) == listed
    assert sum(len(subset.not_ready_addresses) for subset in subsets) == waiting
    (slice_,) = build_slices(service, service_endpoints(service, [pod])).values()
    shown = [endpoint.conditions for endpoint in slice_.endpoints]
    assert shown == ([EndpointConditions(*conditions)] if conditions else [])


def test_a_named_port_is_looked_up_in_each_pod() -> None:
    ports = [ContainerPort(name="http", container_port=8080)]
    spec = PodSpec(containers=[Container(name="c", ports=ports)])
    subsets = endpoints_of(a_service(target="http"), a_pod(spec=spec), a_pod("q", ip="10.1.0.3"))
    with_port = [subset for subset in subsets if subset.ports]
    assert [[port.port for port in subset.ports] for subset in with_port] == [[8080]]
    assert [address.ip for address in with_port[0].addresses] == ["10.1.0.2"]


def test_a_pod_of_the_services_subdomain_keeps_its_host_name() -> None:
    spec = PodSpec(hostname="worker-0", subdomain="s")
    (subset,) = endpoints_of(a_service(), a_pod(spec=spec))
    assert [address.hostname for address in subset.addresses] == ["worker-0"]


def test_a_slice_of_a_selecting_service_is_managed_as_in_kubernetes() -> None:
    (slice_,) = build_slices(a_service(), {}).values()
    assert slice_.metadata.labels == {
        "app": "web",
        SERVICE_NAME_LABEL: "s",
        MANAGED_BY_LABEL: "endpointslice-controller.k8s.io",
    }
    assert [owner.kind for owner in slice_.metadata.owner_references] == ["Service"]
    assert (slice_.endpoints, slice_.address_type) == ([], "IPv4")


def mirrored(*addresses: str, port: int = 80) -> EndpointSubset:
    return EndpointSubset(
        addresses=[EndpointAddress(ip=ip, node_name="n1") for ip in addresses],
        not_ready_addresses=[EndpointAddress(ip="fd00::9")],
        ports=[EndpointPort(name="http", port=port, protocol="TCP")],
    )


def test_endpoints_of_others_are_mirrored_with_a_slice_for_each_set_of_ports() -> None:
    meta = ObjectMeta(name="web", namespace="team", uid="u", labels={"app": "web"})
    subsets = [mirrored("10.0.0.1"), mirrored("fd00::1", port=81)]
    slices = mirror_endpoints(Endpoints(metadata=meta, subsets=subsets))
    assert [(s.address_type, s.ports[0].port) for s in slices.values()] == [
        ("IPv4", 80),
        ("IPv6", 81),
    ]
    first = slices["web-0"]
    assert first.metadata.labels == {
        "app": "web",
        SERVICE_NAME_LABEL: "web",
        MANAGED_BY_LABEL: "endpointslicemirroring-controller.k8s.io",
    }
    assert [owner.uid for owner in first.metadata.owner_references] == ["u"]
    assert [endpoint.node_name for endpoint in first.endpoints] == ["n1", ""]
    assert [e.conditions.ready for e in first.endpoints if e.conditions] == [True, False]
    moved = mirror_endpoints(Endpoints(metadata=meta, subsets=[mirrored("10.0.0.9")]))
    assert content(first) != content(moved["web-0"])
