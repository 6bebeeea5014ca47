"""Endpoints as slices."""

import msgspec

from gangline.api.core.core import Endpoints
from gangline.api.core.service import EndpointAddress, EndpointPort, EndpointSubset
from gangline.api.meta.objects import ObjectMeta, OwnerReference
from gangline.local.controllers.endpoints import (
    MANAGED_BY_LABEL,
    SERVICE_NAME_LABEL,
    mirror_endpoints,
    slice_content,
)


def endpoints(*subsets: EndpointSubset, **labels: str) -> Endpoints:
    meta = ObjectMeta(name="web", namespace="team", uid="u", labels=labels)
    return Endpoints(metadata=meta, subsets=list(subsets))


def subset(*ready: str, waiting: tuple[str, ...] = (), port: int = 80) -> EndpointSubset:
    return EndpointSubset(
        addresses=[EndpointAddress(ip=ip, node_name="n1") for ip in ready],
        not_ready_addresses=[EndpointAddress(ip=ip) for ip in waiting],
        ports=[EndpointPort(name="http", port=port, protocol="TCP")],
    )


def test_a_slice_names_its_service_and_keeps_its_labels() -> None:
    (slice_,) = mirror_endpoints(endpoints(subset("10.0.0.1"), app="web")).values()
    assert slice_.metadata.labels[SERVICE_NAME_LABEL] == "web"
    assert slice_.metadata.labels["app"] == "web"
    assert slice_.metadata.owner_references[0].uid == "u"
    assert slice_.ports[0].port == 80
    assert slice_.endpoints[0].node_name == "n1"


def test_slice_has_the_readiness_of_each_endpoint() -> None:
    (slice_,) = mirror_endpoints(endpoints(subset("10.0.0.1", waiting=("10.0.0.2",)))).values()
    ready = [endpoint.conditions.ready for endpoint in slice_.endpoints if endpoint.conditions]
    assert ready == [True, False]


def test_each_set_of_ports_has_its_slice() -> None:
    slices = mirror_endpoints(endpoints(subset("10.0.0.1"), subset("10.0.0.2", port=81)))
    assert sorted(slices) == ["web-0", "web-1"]


def test_no_address_is_an_empty_slice() -> None:
    (slice_,) = mirror_endpoints(endpoints()).values()
    assert slice_.endpoints == []
    assert slice_.address_type == "IPv4"


def test_the_family_is_that_of_the_addresses() -> None:
    (slice_,) = mirror_endpoints(endpoints(subset("fd00::1"))).values()
    assert slice_.address_type == "IPv6"


def test_slices_differ_only_in_service_fields() -> None:
    one, other = (
        mirror_endpoints(endpoints(subset("10.0.0.1"))),
        mirror_endpoints(endpoints(subset("10.0.0.1"))),
    )
    assert slice_content(one["web-0"]) == slice_content(other["web-0"])
    moved = mirror_endpoints(endpoints(subset("10.0.0.9")))
    assert slice_content(one["web-0"]) != slice_content(moved["web-0"])


def test_a_slice_of_a_selecting_service_is_managed_as_in_kubernetes() -> None:
    selected = endpoints(subset("10.0.0.1"))
    owner = OwnerReference(kind="Service", name="web", uid="s")
    selected = msgspec.structs.replace(
        selected, metadata=msgspec.structs.replace(selected.metadata, owner_references=[owner])
    )
    managed = {
        slice_.metadata.labels[MANAGED_BY_LABEL]: slice_.metadata.owner_references[0].kind
        for given in (selected, endpoints(subset("10.0.0.1")))
        for slice_ in mirror_endpoints(given).values()
    }
    assert managed == {
        "endpointslice-controller.k8s.io": "Service",
        "endpointslicemirroring-controller.k8s.io": "Endpoints",
    }
