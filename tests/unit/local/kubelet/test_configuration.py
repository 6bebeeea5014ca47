"""Environment variables have Kubernetes' sources and their order."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.core.container import Container
from gangline.api.core.pod import Pod
from gangline.api.core.service import Service
from gangline.local.kubelet.configuration import (
    ContainerConfigError,
    ValueSources,
    build_environment,
    expand_references,
    field_value,
    service_variables,
)

SOURCES = ValueSources(
    objects={
        ("configmap", "cm"): {"k": b"from map", "other": b"x"},
        ("secret", "s"): {"k": b"from secret"},
    },
    allocatable={"cpu": 4000, "memory": 1 << 30},
    node_name="n1",
    host_ip="10.0.0.1",
    pod_ip="10.1.0.2",
)


def a_pod(**container: Any) -> Pod:
    meta = {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "labels": {"b": "2", "a": 'quo"te'},
        "annotations": {"x.io/y": "why"},
    }
    spec = {"containers": [{"name": "c", **container}], "serviceAccountName": "sa"}
    return msgspec.convert({"metadata": meta, "spec": spec}, Pod)


def environment(base: dict[str, str] | None = None, **container: Any) -> dict[str, str]:
    pod = a_pod(**container)
    return build_environment(pod, pod.spec.containers[0], SOURCES, base or {})


def from_field(path: str) -> dict[str, Any]:
    return {"name": "V", "valueFrom": {"fieldRef": {"fieldPath": path}}}


def from_resource(resource: str, divisor: str | None = None) -> dict[str, Any]:
    ref = {"resource": resource, **({"divisor": divisor} if divisor else {})}
    return {"name": "V", "valueFrom": {"resourceFieldRef": ref}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y$(B)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(A", "$(A"),
        ("$A $", "$A $"),
    ],
)
def test_references_expand_as_in_kubernetes(text: str, expected: str) -> None:
    assert expand_references(text, {"A": "1"}) == expected


@given(st.text(alphabet="ab$()"))
def test_expanding_without_variables_only_turns_double_dollars_into_one(text: str) -> None:
    assert expand_references(text, {}) == text.replace("$$", "$")


def test_later_definitions_win_and_see_earlier_ones() -> None:
    variables = environment(
        base={"PATH": "/bin", "A": "base"},
        envFrom=[
            {"prefix": "M_", "configMapRef": {"name": "cm"}},
            {"secretRef": {"name": "s"}},
            {"configMapRef": {"name": "absent", "optional": True}},
        ],
        env=[{"name": "A", "value": "own"}, {"name": "B", "value": "$(A) $(M_k) $(k) $(C)"}],
    )
    assert variables["PATH"] == "/bin"
    assert variables["A"] == "own"
    assert variables["B"] == "own from map from secret $(C)"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "ns"),
        ("metadata.uid", "u"),
        ("metadata.labels['b']", "2"),
        ("metadata.annotations['x.io/y']", "why"),
        ("metadata.labels['none']", ""),
        ("metadata.labels", 'a="quo\\"te"\nb="2"'),
        ("spec.nodeName", "n1"),
        ("spec.serviceAccountName", "sa"),
        ("status.hostIP", "10.0.0.1"),
        ("status.podIP", "10.1.0.2"),
    ],
)
def test_fields_of_the_pod(path: str, value: str) -> None:
    assert field_value(a_pod(), path, SOURCES) == value


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("limits.cpu", None, "2"),
        ("limits.cpu", "1m", "1500"),
        ("requests.cpu", None, "1"),
        ("limits.memory", None, "1073741824"),
        ("limits.memory", "1Mi", "1024"),
        ("requests.memory", None, "134217728"),
    ],
)
def test_resources_of_the_container(resource: str, divisor: str | None, value: str) -> None:
    resources = {"limits": {"cpu": "1.5"}, "requests": {"cpu": "0.5", "memory": "128Mi"}}
    variables = environment(resources=resources, env=[from_resource(resource, divisor)])
    assert variables["V"] == value


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        (
            {"name": "V", "valueFrom": {"configMapKeyRef": {"name": "no", "key": "k"}}},
            'configmap "no" not found',
        ),
        (
            {"name": "V", "valueFrom": {"secretKeyRef": {"name": "s", "key": "no"}}},
            "couldn't find key no in Secret ns/s",
        ),
        (from_field("spec.dreams"), "'spec.dreams' is not a field"),
        (from_resource("wishes.cpu"), "neither limits.NAME nor requests.NAME"),
    ],
)
def test_what_is_missing_is_named(env: dict[str, Any], problem: str) -> None:
    with pytest.raises(ContainerConfigError, match=problem):
        environment(env=[env])


@pytest.mark.parametrize(
    ("source", "name", "value"),
    [("configMapKeyRef", "cm", "from map"), ("secretKeyRef", "s", "from secret")],
)
def test_keys_of_maps_and_secrets_are_read(source: str, name: str, value: str) -> None:
    reference = {source: {"name": name, "key": "k"}}
    assert environment(env=[{"name": "V", "valueFrom": reference}]) == {"V": value}


def test_what_is_optional_may_be_missing() -> None:
    ref = {"name": "no", "key": "k", "optional": True}
    assert environment(env=[{"name": "V", "valueFrom": {"secretKeyRef": ref}}]) == {}


def a_service(name: str, namespace: str, address: str, *ports: dict[str, Any]) -> Service:
    spec = {"clusterIP": address, "ports": list(ports)}
    return msgspec.convert(
        {"metadata": {"name": name, "namespace": namespace}, "spec": spec}, Service
    )


def test_services_of_the_namespace_are_variables() -> None:
    services = [
        a_service("my-db", "ns", "10.2.0.1", {"name": "sql", "port": 5432}, {"port": 80}),
        a_service("kubernetes", "default", "10.2.0.2", {"port": 443}),
        a_service("other", "elsewhere", "10.2.0.3", {"port": 1}),
        a_service("headless", "ns", "None", {"port": 1}),
    ]
    variables = service_variables(a_pod(), services)
    assert variables["MY_DB_SERVICE_HOST"] == "10.2.0.1"
    assert variables["MY_DB_SERVICE_PORT"] == "5432"
    assert variables["MY_DB_SERVICE_PORT_SQL"] == "5432"
    assert variables["MY_DB_PORT"] == "tcp://10.2.0.1:5432"
    assert variables["MY_DB_PORT_80_TCP_ADDR"] == "10.2.0.1"
    assert variables["KUBERNETES_SERVICE_HOST"] == "10.2.0.2"
    assert not any(name.startswith(("OTHER", "HEADLESS")) for name in variables)


def test_service_links_can_be_declined_but_for_the_api_server() -> None:
    pod = a_pod()
    pod = msgspec.structs.replace(
        pod, spec=msgspec.structs.replace(pod.spec, enable_service_links=False)
    )
    services = [
        a_service("db", "ns", "10.2.0.1", {"port": 1}),
        a_service("kubernetes", "default", "10.2.0.2", {"port": 443}),
    ]
    assert set(service_variables(pod, services)) == {
        name for name in service_variables(pod, services) if name.startswith("KUBERNETES")
    }


def test_a_container_without_anything_has_the_base_only() -> None:
    assert environment(base={"A": "1"}) == {"A": "1"}
    assert Container().env == []
