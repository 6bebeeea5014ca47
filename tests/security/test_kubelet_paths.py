"""Text of clients that reaches the address or the path of a request to a kubelet."""

from urllib.parse import quote
from uuid import uuid4

from security.conftest import AttackedServer, StartedPod

PODS = "/api/v1/namespaces/default/pods"


async def allow_logs_of(server: AttackedServer, namespace: str, user: str) -> None:
    """Bind a role that reads logs in one namespace to a user."""
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    role = {
        "metadata": {"name": "logs"},
        "rules": [{"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}],
    }
    binding = {
        "metadata": {"name": "logs"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "logs"},
        "subjects": [{"kind": "User", "name": user}],
    }
    for plural, body in (("roles", role), ("rolebindings", binding)):
        status, answer = await server.request("POST", f"{path}/{plural}", json=body)
        assert status == 201, answer


async def test_archived_logs_are_read_by_uid_only(
    attacked_cluster: AttackedServer, started_pod: StartedPod
) -> None:
    await started_pod("team-b", "private", ["sh", "-c", "echo of team b; exec sleep 60"])
    await attacked_cluster.request("POST", "/api/v1/namespaces", json={"metadata": {"name": "a"}})
    await allow_logs_of(attacked_cluster, "a", "mallory")
    for owner in (
        "../../containerLogs/team-b/private/c",
        "..%2f..%2fcontainerLogs/team-b/private/c",
        "../../stats/summary",
        "../team-b/" + str(uuid4()),
        str(uuid4()) + "?pod=private",
    ):
        status, body = await attacked_cluster.request(
            "GET",
            f"/api/v1/namespaces/a/pods/-/log?keptFor={quote(owner, safe='')}",
            user="mallory",
        )
        assert status == 400, body
        assert "not a UID" in body["message"]
    status, body = await attacked_cluster.request(
        "GET", f"/api/v1/namespaces/a/pods/-/log?keptFor={uuid4()}", user="mallory"
    )
    assert (status, body) == (200, "")


async def test_the_address_of_a_node_is_only_an_address(attacked: AttackedServer) -> None:
    for host, port in (
        ("127.0.0.1:1/evil?x=", 10250),
        ("user@evil.example", 10250),
        ("evil.example", 10250),
        ("fe80::1%a]/evil", 10250),
        ("127.0.0.1", 0x10000 + 10250),
    ):
        status = {
            "addresses": [{"type": "InternalIP", "address": host}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        name = f"n{uuid4()}"
        node = {"metadata": {"name": name}, "status": status}
        spec = {"nodeName": name, "containers": [{"name": "c", "image": "i"}]}
        pod = {"metadata": {"name": name}, "spec": spec}
        code, body = await attacked.request("POST", "/api/v1/nodes", json=node)
        assert code == 201, body
        code, body = await attacked.request("POST", PODS, json=pod)
        assert code == 201, body
        code, body = await attacked.request("GET", f"{PODS}/{name}/log")
        assert (code, body["reason"]) == (503, "ServiceUnavailable")
        assert "no valid address" in body["message"]


async def test_options_of_logs_never_fail_the_kubelet(
    attacked_cluster: AttackedServer, started_pod: StartedPod
) -> None:
    await started_pod("default", "p", ["sh", "-c", "echo line; exec sleep 60"])
    path = f"{PODS}/p/log"
    for option in ("sinceSeconds=99999999999999999", "sinceTime=2020-01-01T00:00:00"):
        status, body = await attacked_cluster.request("GET", f"{path}?{option}")
        assert (status, body["code"]) == (400, 400), body
