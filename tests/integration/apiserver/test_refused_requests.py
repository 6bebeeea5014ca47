"""Requests that Kubernetes refuses, or answers otherwise than a plain store would."""

from typing import Any

import pytest

from integration.apiserver.test_server_protocol import MAPS, PODS, Http, config_map, http, pod

__all__ = ["http"]

APPLY = {"Content_Type": "application/apply-patch+yaml"}
MERGE = {"Content_Type": "application/merge-patch+json"}
ROOT = "/api/v1/namespaces/default"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
SETS = "/apis/apps/v1/namespaces/default/statefulsets"


def causes(answer: Any) -> set[str]:
    return {cause["field"] for cause in answer["details"]["causes"]}


async def test_what_contradicts_itself_is_refused(http: Http) -> None:
    await http("POST", MAPS, config_map("a"))
    await http("POST", PODS, pod("p"))
    await http("POST", LEASES, {"metadata": {"name": "l"}})
    applied = {"apiVersion": "v1", "kind": "ConfigMap", **config_map("a")}
    named = applied | {"metadata": {"name": "new", "uid": "x"}}
    for method, path, body, headers, code, told in (
        ("POST", f"{PODS}/p/eviction", {"metadata": {"name": "q"}}, {}, 400, "name"),
        ("PUT", f"{LEASES}/l", {"metadata": {"name": "l"}}, {}, 422, "resourceVersion"),
        ("PATCH", f"{MAPS}/a?fieldManager=t", applied | {"surprise": 1}, APPLY, 400,
         ".surprise: field not declared in schema"),
        ("PATCH", f"{MAPS}/new?fieldManager=t", named, APPLY, 409, "uid mismatch"),
        ("PATCH", f"{MAPS}/a?fieldManager=t", applied | {"metadata": {"uid": "x"}}, APPLY, 422,
         "field is immutable"),
        ("PATCH", f"{MAPS}/a", {"metadata": None}, MERGE, 400, "name must be provided"),
        ("DELETE", f"{MAPS}/a", {"propagationPolicy": "Orphan", "orphanDependents": True}, {}, 422,
         "propagationPolicy"),
        ("DELETE", f"{MAPS}/a", {"propagationPolicy": "Other"}, {}, 422, "propagationPolicy"),
        ("DELETE", f"{MAPS}/a", {"dryRun": ["Some"]}, {}, 422, "dryRun"),
        ("GET", f"{MAPS}?resourceVersionMatch=Exact", None, {}, 422, "resourceVersionMatch"),
        ("GET", f"{MAPS}?timeoutSeconds=x", None, {}, 400, "timeoutSeconds"),
    ):  # fmt: skip
        status, answer = await http(method, path, body, **headers)
        assert (status, told in answer["message"]) == (code, True), (path, answer)
    assert (await http("GET", f"{MAPS}/a"))[0] == 200


async def test_all_errors_of_an_object_are_reported_together(http: Http) -> None:
    env = [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nothing"}}}]
    spec = {
        "terminationGracePeriodSeconds": -1,  # which the schema forbids
        "containers": [{"name": "X", "env": env}],
        "restartPolicy": "Sometimes",
    }
    status, answer = await http("POST", PODS, {"metadata": {"name": "P_"}, "spec": spec})
    assert status == 422
    assert causes(answer) == {
        "metadata.name", "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath",
        "spec.containers[0].image", "spec.containers[0].name", "spec.restartPolicy",
        "spec.terminationGracePeriodSeconds",
    }  # fmt: skip
    labels = {"labels": {"-": "x"}}
    assert causes((await http("POST", MAPS, {"metadata": labels}))[1]) >= {"metadata.name"}


@pytest.mark.parametrize(
    ("expansion", "phase", "size", "code"),
    [
        (True, "Bound", "2Gi", 200), (False, "Bound", "2Gi", 403), (True, "Pending", "2Gi", 403),
        (True, "Bound", "500Mi", 422), (True, "Bound", "1Gi", 200),
    ],
)  # fmt: skip
async def test_claims_grow_only_where_their_class_supports_it(
    http: Http, expansion: bool, phase: str, size: str, code: int
) -> None:
    name = {"metadata": {"name": "c"}}
    await http("POST", CLASSES, {**name, "provisioner": "x", "allowVolumeExpansion": expansion})
    spec = {
        "storageClassName": "c",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    path = f"{ROOT}/persistentvolumeclaims"
    assert (await http("POST", path, {**name, "spec": spec}))[0] == 201
    await http("PATCH", f"{path}/c/status", {"status": {"phase": phase}}, **MERGE)
    change = {"spec": {"resources": {"requests": {"storage": size}}}}
    assert (await http("PATCH", f"{path}/c", change, **MERGE))[0] == code


async def test_a_node_port_belongs_to_one_service(http: Http) -> None:
    for name, port, code in (("a", 30100, 201), ("b", 30100, 422), ("c", 80, 422), ("d", 0, 201)):
        spec = {"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]}
        status, answer = await http(
            "POST", f"{ROOT}/services", {"metadata": {"name": name}, "spec": spec}
        )
        assert status == code
        assert code == 201 or causes(answer) == {"spec.ports[0].nodePort"}


async def test_stateful_sets_mount_their_claims_and_keep_them(http: Http) -> None:
    mounts = [{"name": "data", "mountPath": "/data"}]
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod("p")["spec"]}
    template["spec"]["containers"][0]["volumeMounts"] = mounts
    claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    spec = {
        "selector": {"matchLabels": {"a": "b"}},
        "template": template,
        "volumeClaimTemplates": [claim],
    }
    assert (await http("POST", SETS, {"metadata": {"name": "s"}, "spec": spec}))[0] == 201
    for change, code in (({"replicas": 2}, 200), ({"serviceName": "x"}, 422)):
        assert (await http("PATCH", f"{SETS}/s", {"spec": change}, **MERGE))[0] == code
