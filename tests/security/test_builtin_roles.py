"""The built-in roles: what a user of ``view``, ``edit`` or ``admin`` gets, and nothing more."""

from itertools import product
from typing import Any

import msgspec
import pytest

from security.conftest import AttackedServer
from security.rbac_objects import RBAC, bind, grant, role, rule

PODS = "/api/v1/namespaces/default/pods"
EXEC = f"{PODS}/p/exec?command=id&stdout=true"
WEBSOCKET = {
    "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}  # fmt: skip


async def status_of(
    attacked: AttackedServer, user: str, method: str, path: str, **more: Any
) -> int:
    status, _ = await attacked.request(method, path, user=user, **more)
    return status


async def test_view_reads_pods_but_no_secrets_and_no_roles(attacked: AttackedServer) -> None:
    await bind(attacked, "reader", "view", "default")
    secrets = "/api/v1/namespaces/default/secrets"
    roles = f"{RBAC}/namespaces/default/roles"
    assert await status_of(attacked, "reader", "GET", PODS) == 200
    assert await status_of(attacked, "reader", "GET", secrets) == 403
    assert await status_of(attacked, "reader", "GET", f"{secrets}?watch=true") == 403
    assert await status_of(attacked, "reader", "GET", roles) == 403
    assert await status_of(attacked, "reader", "GET", "/api/v1/nodes") == 403


async def test_a_get_right_opens_no_stream_into_a_pod(attacked: AttackedServer) -> None:
    streams = ("exec", "attach", "portforward")
    await bind(attacked, "reader", "view", "default")
    resources = ",".join(f"pods/{stream}" for stream in streams)
    await grant(attacked, "getter", rule("", resources, "get,list,watch"))
    for stream, user in product(streams, ("reader", "getter")):
        path = f"{PODS}/p/{stream}?command=id&stdout=true&ports=80"
        assert await status_of(attacked, user, "GET", path, headers=WEBSOCKET) == 403
        assert await status_of(attacked, user, "POST", path) == 403


async def test_the_create_right_opens_a_stream_with_every_method(attacked: AttackedServer) -> None:
    await grant(attacked, "creator", rule("", "pods/exec", "create"))
    for method in ("GET", "POST"):  # the pod does not exist, which only authorized users learn
        assert await status_of(attacked, "creator", method, EXEC, headers=WEBSOCKET) == 404


async def test_edit_writes_workloads_but_no_roles(attacked: AttackedServer) -> None:
    await bind(attacked, "editor", "edit", "default")
    made = {"metadata": {"name": "s"}, "stringData": {"a": "b"}}
    secrets = "/api/v1/namespaces/default/secrets"
    assert await status_of(attacked, "editor", "POST", secrets, json=made) == 201
    assert await status_of(attacked, "editor", "GET", f"{secrets}/s") == 200
    roles = f"{RBAC}/namespaces/default/roles"
    assert await status_of(attacked, "editor", "POST", roles, json=role("r")) == 403
    for path in ("namespaces", "nodes", "persistentvolumes"):
        body = {"metadata": {"name": "x"}}
        assert await status_of(attacked, "editor", "POST", f"/api/v1/{path}", json=body) == 403
    assert await status_of(attacked, "editor", "GET", "/api/v1/namespaces/kube-system/pods") == 403


async def test_admin_writes_roles_of_its_namespace_only(attacked: AttackedServer) -> None:
    await bind(attacked, "chief", "admin", "default")
    made = role("r", rule("", "pods", "get"))
    roles = f"{RBAC}/namespaces/default/roles"
    assert await status_of(attacked, "chief", "POST", roles, json=made) == 201
    elsewhere = f"{RBAC}/namespaces/kube-system/roles"
    assert await status_of(attacked, "chief", "POST", elsewhere, json=made) == 403
    assert await status_of(attacked, "chief", "POST", f"{RBAC}/clusterroles", json=made) == 403


async def test_view_and_edit_cover_training_jobs(attacked: AttackedServer) -> None:
    async def allowed(name: str, verb: str, resource: str, group: str) -> bool:
        attributes = {"namespace": "default", "verb": verb, "resource": resource, "group": group}
        review = {"spec": {"user": name, "resourceAttributes": attributes}}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        _, answer = await attacked.request("POST", path, json=review)
        found: bool = answer["status"]["allowed"]
        return found

    await bind(attacked, "reader", "view", "default")
    await bind(attacked, "editor", "edit", "default")
    groups = {
        "pytorchjobs": "kubeflow.org", "mpijobs": "kubeflow.org", "msjobs": "mindspore.gitee.com",
        "paddlejobs": "batch.paddlepaddle.org", "elasticjobs": "elastic.iml.github.io",
        "podgroups": "scheduling.volcano.sh",
    }  # fmt: skip
    for resource, group in groups.items():
        assert await allowed("reader", "watch", resource, group)
        assert not await allowed("reader", "create", resource, group)
        assert await allowed("editor", "create", resource, group)
    assert await allowed("reader", "get", "queues", "scheduling.volcano.sh")
    assert not await allowed("editor", "update", "queues", "scheduling.volcano.sh")


async def test_a_local_review_stays_in_its_namespace(attacked: AttackedServer) -> None:
    await bind(attacked, "chief", "admin", "default")
    path = "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews"

    async def review(**attributes: Any) -> tuple[int, Any]:
        body = {"spec": {"user": "other", **attributes}}
        return await attacked.request("POST", path, user="chief", json=body)

    pods = {"verb": "list", "resource": "pods"}
    assert (await review(resourceAttributes=pods | {"namespace": "default"}))[0] == 201
    assert (await review(resourceAttributes=pods | {"namespace": "kube-system"}))[0] == 422
    assert (await review(resourceAttributes=pods))[0] == 422
    assert (await review(nonResourceAttributes={"verb": "get", "path": "/metrics"}))[0] == 400
    _, answer = await review(
        resourceAttributes=pods | {"namespace": "default", "path": "/version", "verb": "get"}
    )
    assert not answer["status"]["allowed"]


async def test_aggregated_roles_follow_the_roles_they_select(attacked: AttackedServer) -> None:
    await bind(attacked, "reader", "view", "default")
    made = role("more", rule("", "secrets", "list"))
    made["metadata"]["labels"] = {"rbac.authorization.k8s.io/aggregate-to-view": "true"}
    path, secrets = f"{RBAC}/clusterroles/more", "/api/v1/namespaces/default/secrets"
    await attacked.request("POST", f"{RBAC}/clusterroles", json=made)
    await wait_for_rules(attacked, lambda rules: made["rules"][0] in rules)
    assert await status_of(attacked, "reader", "GET", secrets) == 200
    await attacked.request("DELETE", path)
    await wait_for_rules(attacked, lambda rules: made["rules"][0] not in rules)
    assert await status_of(attacked, "reader", "GET", secrets) == 403


async def wait_for_rules(attacked: AttackedServer, reached: Any) -> None:
    """Wait until the rules of ``admin``, which gets them from ``view`` by two steps, are so."""
    path = f"{RBAC}/clusterroles?watch=true&fieldSelector=metadata.name%3Dadmin&timeoutSeconds=30"
    async with attacked.stream(path) as lines:
        async for line in lines:
            if reached(msgspec.json.decode(line)["object"]["rules"]):
                return
    pytest.fail("the rules of the role did not change")
