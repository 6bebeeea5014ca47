"""Bodies that other programs encode from Kubernetes' ``generated.proto`` files."""

from typing import Any

from integration.apiserver.test_server_protocol import Http, http
from kubernetes_proto import encode_body, needs_sources, varint

__all__ = ["http"]

PROTOBUF = "application/vnd.kubernetes.protobuf"
AS_CLIENT_GO = {"Content_Type": PROTOBUF, "Accept": f"{PROTOBUF},application/json"}
DEFAULT = "/namespaces/default"

pytestmark = needs_sources


def named(api_version: str, kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **more}


async def test_events_of_a_scheduler_are_read_with_their_own_numbers(http: Http) -> None:
    event = named(
        "events.k8s.io/v1", "Event", "placed",
        eventTime="2026-11-23T08:00:00.000001Z", reportingController="default-scheduler",
        reportingInstance="here", action="Binding", reason="Scheduled", type="Normal",
        regarding={"kind": "Pod", "name": "web", "namespace": "default"}, note="on node1",
    )  # fmt: skip
    path = f"/apis/events.k8s.io/v1{DEFAULT}/events"
    status, stored = await http("POST", path, encode_body(event), **AS_CLIENT_GO)
    assert status == 201, stored
    assert {**event, "metadata": {}} == {**stored, "metadata": {}}
    _, core = await http("GET", f"/api/v1{DEFAULT}/events/placed")
    assert (core["message"], core["involvedObject"]["name"]) == ("on node1", "web")
    assert core["reportingComponent"] == "default-scheduler"


async def test_unknown_field_is_refused_with_its_number(http: Http) -> None:
    body = encode_body(named("v1", "ConfigMap", "odd"), varint(77 << 3) + varint(1))
    status, answer = await http("POST", f"/api/v1{DEFAULT}/configmaps", body, **AS_CLIENT_GO)
    assert (status, answer["reason"]) == (400, "BadRequest")
    assert "unknown field 77 in ConfigMap" in answer["message"]


async def test_newer_fields_of_pods_are_kept(http: Http) -> None:
    resize = [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]
    containers = [{"name": "main", "image": "busybox", "resizePolicy": resize}]
    sidecars = [{"name": "side", "image": "busybox", "restartPolicy": "Always"}]
    spec = {"containers": containers, "initContainers": sidecars}
    body = encode_body(named("v1", "Pod", "newer", spec=spec))
    status, pod = await http("POST", f"/api/v1{DEFAULT}/pods", body, **AS_CLIENT_GO)
    assert status == 201, pod
    assert pod["spec"]["initContainers"][0]["restartPolicy"] == "Always"
    assert pod["spec"]["containers"][0]["resizePolicy"] == resize
