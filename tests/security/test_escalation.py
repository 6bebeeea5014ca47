"""Users who may write roles or bindings, and try to give themselves more than they have."""

import asyncio
import json
from typing import Any

from security.conftest import AttackedServer
from security.rbac_objects import GROUP, RBAC, bind, binding, grant, role, rule

ROLES = f"{RBAC}/namespaces/default/roles"
ROLE_BINDINGS = f"{RBAC}/namespaces/default/rolebindings"
EVERYTHING = rule("*", "*", "*")
APPLY = {"Content-Type": "application/apply-patch+yaml"}
MERGE = {"Content-Type": "application/merge-patch+json"}
SECRETS, PODS = rule("", "secrets", "get"), rule("", "pods", "get,list")
WRITER = rule(GROUP, "roles,rolebindings,clusterroles,clusterrolebindings",
              "get,create,update,patch")  # fmt: skip


async def test_a_writer_of_roles_cannot_grant_rights_it_lacks(attacked: AttackedServer) -> None:
    await grant(attacked, "mallory", WRITER, PODS)

    async def write(method: str, path: str, body: Any, **more: Any) -> tuple[int, Any]:
        return await attacked.request(method, path, user="mallory", json=body, **more)

    for path in (ROLES, f"{RBAC}/clusterroles"):
        status, answer = await write("POST", path, role("r", SECRETS))
        assert (status, answer["reason"]) == (403, "Forbidden")
        assert '{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}' in answer["message"]
        assert (await write("POST", path, role("r", PODS)))[0] == 201
        assert (await write("PUT", f"{path}/r", role("r", SECRETS)))[0] == 403
        body = {"rules": [PODS, EVERYTHING]}
        assert (await write("PATCH", f"{path}/r", body, headers=MERGE))[0] == 403
        typed = {"apiVersion": f"{GROUP}/v1", "kind": "Role" if path == ROLES else "ClusterRole"}
        for name in ("r", "new"):
            status, _ = await write("PATCH", f"{path}/{name}?fieldManager=m&force=true",
                                    typed | role(name, EVERYTHING), headers=APPLY)  # fmt: skip
            assert status == 403
    _, own = await attacked.request("GET", f"{RBAC}/clusterroles/of-mallory")
    assert own["rules"] == [WRITER, PODS]
    # Long bodies are processed in a thread, and are checked like others.
    long = role("long", SECRETS)
    long["metadata"]["annotations"] = {"a": "x" * 100_000}
    assert (await write("POST", ROLES, long))[0] == 403
    paths = {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
    assert (await write("POST", f"{RBAC}/clusterroles", role("p", paths)))[0] == 403
    # A role of its own that only loses rules, or gets labels, is no escalation.
    labelled = {"metadata": {"labels": {"a": "b"}}}
    assert (await write("PATCH", f"{ROLES}/r", labelled, headers=MERGE))[0] == 200


async def test_an_aggregation_rule_needs_full_rights(attacked: AttackedServer) -> None:
    await grant(attacked, "mallory", WRITER, PODS)
    selector = {"matchLabels": {"kubernetes.io/bootstrapping": "rbac-defaults"}}
    gathering = {"aggregationRule": {"clusterRoleSelectors": [selector]}}
    path = f"{RBAC}/clusterroles"
    status, answer = await attacked.request(
        "POST", path, user="mallory", json=role("all") | gathering
    )
    assert (status, "cluster-admin" in answer["message"]) == (403, True)
    status, _ = await attacked.request(
        "PATCH", f"{path}/of-mallory", user="mallory", json=gathering, headers=MERGE
    )
    assert status == 403
    await bind(attacked, "chief", "cluster-admin")
    status, _ = await attacked.request("POST", path, user="chief", json=role("all") | gathering)
    assert status == 201


async def test_a_writer_of_bindings_cannot_bind_roles_beyond_its_rights(
    attacked: AttackedServer,
) -> None:
    await grant(attacked, "mallory", WRITER, PODS)
    await attacked.request("POST", ROLES, json=role("reads-secrets", SECRETS))
    await attacked.request("POST", ROLES, json=role("reads-pods", PODS))

    async def bound(path: str, kind: str, name: str) -> int:
        body = binding(f"to-{name}", kind, name, "mallory")
        status, _ = await attacked.request("POST", path, user="mallory", json=body)
        return status

    assert await bound(f"{RBAC}/clusterrolebindings", "ClusterRole", "cluster-admin") == 403
    assert await bound(ROLE_BINDINGS, "ClusterRole", "admin") == 403
    assert await bound(ROLE_BINDINGS, "Role", "reads-secrets") == 403
    assert await bound(ROLE_BINDINGS, "Role", "missing") == 404
    assert await bound(ROLE_BINDINGS, "Role", "reads-pods") == 201
    added = [{"apiGroup": GROUP, "kind": "User", "name": "mallory"}]
    status, _ = await attacked.request(
        "PATCH", f"{RBAC}/clusterrolebindings/cluster-admin", user="mallory",
        json={"subjects": added}, headers=MERGE,
    )  # fmt: skip
    assert status == 403
    # No user can turn a binding to another role.
    body = binding("to-reads-pods", "Role", "reads-secrets", "mallory")
    status, answer = await attacked.request("PUT", f"{ROLE_BINDINGS}/to-reads-pods", json=body)
    assert (status, answer["details"]["causes"][0]["field"]) == (422, "roleRef")


async def test_escalate_and_bind_are_rights_of_their_own(attacked: AttackedServer) -> None:
    named = rule(GROUP, "roles", "escalate", "r")
    binds = rule(GROUP, "clusterroles", "bind", "view")
    await grant(attacked, "delegate", WRITER, named, binds)
    await attacked.request("POST", ROLES, json=role("r"))

    async def write(method: str, path: str, body: Any) -> int:
        status, _ = await attacked.request(method, path, user="delegate", json=body)
        return status

    assert await write("PUT", f"{ROLES}/r", role("r", SECRETS)) == 200
    assert await write("POST", ROLES, role("other", SECRETS)) == 403
    view = binding("v", "ClusterRole", "view", "delegate")
    edit = binding("e", "ClusterRole", "edit", "delegate")
    assert await write("POST", ROLE_BINDINGS, view) == 201
    assert await write("POST", ROLE_BINDINGS, edit) == 403


async def test_an_apply_that_creates_needs_the_create_right(attacked: AttackedServer) -> None:
    await grant(attacked, "patcher", rule("", "configmaps", "get,patch"))
    await grant(attacked, "creator", rule("", "configmaps", "get,patch,create"))

    async def apply(user: str, name: str) -> tuple[int, Any]:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
        path = f"/api/v1/namespaces/default/configmaps/{name}?fieldManager=m"
        return await attacked.request(
            "PATCH", path, user=user, data=json.dumps(body), headers=APPLY
        )

    status, answer = await apply("patcher", "a")
    assert (status, answer["reason"]) == (403, "Forbidden")
    assert 'cannot create resource "configmaps"' in answer["message"]
    assert (await apply("creator", "a"))[0] == 201
    assert (await apply("patcher", "a"))[0] == 200


async def test_long_lists_in_a_rule_cost_no_product(attacked: AttackedServer) -> None:
    # Each choice of a group, a resource and a verb is a part of the rule: 10^9 in 30 kB.
    await grant(attacked, "mallory", WRITER, PODS)
    many = [f"a{number}" for number in range(1000)]
    wide = {"apiGroups": many, "resources": many, "verbs": many}
    async with asyncio.timeout(30):
        status, answer = await attacked.request(
            "POST", ROLES, user="mallory", json=role("wide", wide)
        )
        assert status == 403
        assert len(answer["message"]) < 1_000_000
        paths = {"nonResourceURLs": [f"/{name}" for name in many], "verbs": many}
        wide_paths = role("paths", paths, PODS)
        status, _ = await attacked.request(
            "POST", f"{RBAC}/clusterroles", user="mallory", json=wide_paths
        )
        assert status == 403
        # Repetitions of what the user holds.
        held = {"apiGroups": [""] * 1000, "resources": ["pods"] * 1000, "verbs": ["get"] * 1000}
        status, _ = await attacked.request(
            "POST", ROLES, user="mallory", json=role("repeated", held)
        )
        assert status == 201
