"""Which pods stand behind a service, and under which names."""

import pytest

from gangline.api.core.container import Container, ContainerPort
from gangline.api.core.core import Service
from gangline.api.core.pod import Pod, PodSpec
from gangline.api.core.service import ServicePort, ServiceSpec
from gangline.api.meta.objects import ObjectMeta
from gangline.local.controllers.endpoints import build_endpoints
from unit.local.controllers.builders import a_pod


def a_service(publish: bool = False, target: int | str | None = None) -> Service:
    return Service(
        metadata=ObjectMeta(name="s", namespace="ns", uid="s"),
        spec=ServiceSpec(
            selector={"app": "x"},
            publish_not_ready_addresses=publish,
            ports=[ServicePort(name="a", port=80, target_port=target)],
        ),
    )


@pytest.mark.parametrize(
    ("pod", "publish", "listed", "waiting"),
    [
        pytest.param(a_pod(), False, 1, 0, id="ready"),
        pytest.param(a_pod(ready=False), False, 0, 1, id="not ready"),
        pytest.param(a_pod(ready=False), True, 1, 0, id="not ready, but published"),
        pytest.param(a_pod(ip=""), True, 0, 0, id="without address"),
        pytest.param(a_pod(phase="Failed"), True, 0, 0, id="ended"),
        pytest.param(a_pod(going=True), False, 0, 0, id="going"),
        pytest.param(a_pod(going=True), True, 1, 0, id="going, but published"),
    ],
)
def test_a_pod_is_an_endpoint(pod: Pod, publish: bool, listed: int, waiting: int) -> None:
    subsets = build_endpoints(a_service(publish), [pod]).subsets
    assert sum(len(subset.addresses) for subset in subsets) == listed
    assert sum(len(subset.not_ready_addresses) for subset in subsets) == waiting


def test_a_named_port_is_looked_up_in_each_pod() -> None:
    ports = [ContainerPort(name="http", container_port=8080)]
    spec = PodSpec(containers=[Container(name="c", ports=ports)])
    endpoints = build_endpoints(
        a_service(target="http"), [a_pod(spec=spec), a_pod("q", ip="10.1.0.3")]
    )
    with_port = [subset for subset in endpoints.subsets if subset.ports]
    assert [[port.port for port in subset.ports] for subset in with_port] == [[8080]]
    assert [address.ip for address in with_port[0].addresses] == ["10.1.0.2"]


def test_a_pod_of_the_services_subdomain_keeps_its_host_name() -> None:
    spec = PodSpec(hostname="worker-0", subdomain="s")
    (subset,) = build_endpoints(a_service(), [a_pod(spec=spec)]).subsets
    assert [address.hostname for address in subset.addresses] == ["worker-0"]
