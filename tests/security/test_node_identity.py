"""What the identity of one node opens, and what reaches a node that is not one."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from integration.cluster.embedded import until
from security.conftest import AttackedServer, StartedPod

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
PODS = "/api/v1/namespaces/default/pods"


def node_folder(server: AttackedServer, node: str) -> Path:
    return server.data / "kubelet" / node / "pki"


async def as_node(server: AttackedServer, method: str, path: str, **more: Any) -> tuple[int, Any]:
    """Send a request with the client certificate of node-1, as its kubelet does."""
    folder = node_folder(server, "node-1")
    tls = ssl.create_default_context(cafile=server.data / "pki" / "ca.crt")
    tls.load_cert_chain(folder / "client.crt", folder / "client.key")
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session,
        session.request(method, server.url + path, **more) as answer,
    ):
        return answer.status, await answer.json()


async def create_secrets(server: AttackedServer, *names: str) -> None:
    for name in names:
        body = {"metadata": {"name": name}, "stringData": {"key": name}}
        status, answer = await server.request(
            "POST", "/api/v1/namespaces/default/secrets", json=body
        )
        assert status == 201, answer


def uses_secret(name: str, node: str) -> dict[str, Any]:
    """Fields of a pod's spec."""
    volumes = [{"name": "v", "secret": {"secretName": name}}]
    return {"volumes": volumes, "nodeName": node}


async def test_a_node_reads_only_what_its_pods_refer_to(
    attacked_cluster: AttackedServer, started_pod: StartedPod
) -> None:
    await create_secrets(attacked_cluster, "mine", "theirs", "unused")
    sleep = ["sleep", "60"]
    await started_pod("default", "mine", sleep, **uses_secret("mine", "node-1"))
    await started_pod("default", "theirs", sleep, **uses_secret("theirs", "node-2"))
    secrets = "/api/v1/namespaces/default/secrets"
    for path, expected in (
        (f"{secrets}/mine", 200),
        (f"{secrets}/theirs", 403),
        (f"{secrets}/unused", 403),
        (f"{secrets}/none", 403),
        (secrets, 403),
        ("/api/v1/secrets", 403),
        (f"{secrets}?fieldSelector=metadata.name%3Dmine", 200),
        (f"{PODS}/mine", 200),
        (f"{PODS}/theirs", 403),
        ("/api/v1/pods", 403),
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1", 200),
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-2", 403),
        ("/api/v1/nodes/node-1", 200),
        ("/api/v1/nodes/node-2", 403),
        ("/api/v1/nodes", 403),
        (f"{LEASES}/node-1", 200),
        (f"{LEASES}/node-2", 403),
        (f"{PODS}/mine/log", 403),
        ("/apis/rbac.authorization.k8s.io/v1/clusterroles", 403),
    ):
        status, answer = await as_node(attacked_cluster, "GET", path)
        assert status == expected, (path, answer)


async def test_a_node_writes_only_its_own_objects(
    attacked_cluster: AttackedServer, started_pod: StartedPod
) -> None:
    sleep = ["sleep", "60"]
    await started_pod("default", "theirs", sleep, nodeName="node-2")
    await started_pod("default", "mine", sleep, nodeName="node-1")
    labels = {"metadata": {"labels": {"node-restriction.kubernetes.io/tenant": "a"}}}
    control_plane = {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}
    taint = {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}
    failed = {"status": {"phase": "Failed"}}
    for path, patch, why in (
        ("/api/v1/nodes/node-2", {"metadata": {"labels": {"a": "b"}}}, "modify node"),
        ("/api/v1/nodes/node-2/status", {"status": {"phase": "x"}}, "modify node"),
        ("/api/v1/nodes/node-1", labels, "modify labels"),
        ("/api/v1/nodes/node-1", control_plane, "modify labels"),
        ("/api/v1/nodes/node-1/status", labels, "modify labels"),
        ("/api/v1/nodes/node-1", taint, "modify taints"),
        (f"{PODS}/theirs/status", failed, "spec.nodeName set to itself"),
        (f"{PODS}/mine/status", {"metadata": {"labels": {"a": "b"}}}, "update labels"),
        (f"{LEASES}/node-2", {"spec": {"holderIdentity": "x"}}, "cannot patch"),
    ):
        status, answer = await as_node(
            attacked_cluster,
            "PATCH",
            path,
            json=patch,
            headers={"Content-Type": "application/merge-patch+json"},
        )
        assert status == 403, (path, answer)
        assert why in answer["message"], answer
    for method, path, body, why in (
        ("DELETE", f"{PODS}/theirs", {}, "spec.nodeName set to itself"),
        ("DELETE", "/api/v1/nodes/node-2", {}, "cannot delete"),
        ("POST", f"{PODS}/theirs/eviction", {"metadata": {"name": "theirs"}}, "only evict"),
        ("POST", "/api/v1/nodes", {"metadata": {"name": "node-3"}}, "modify node"),
        ("POST", LEASES, {"metadata": {"name": "node-3"}}, "same name"),
        ("POST", PODS, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c",
         "image": "i"}], "nodeName": "node-2"}}, "mirror pods"),
        ("POST", f"{PODS}/mine/exec?command=id&stdout=1", {}, "cannot create"),
    ):  # fmt: skip
        status, answer = await as_node(attacked_cluster, method, path, json=body)
        assert status == 403, (path, answer)
        assert why in answer["message"], answer


async def test_a_node_gets_tokens_for_its_own_pods_only(
    attacked_cluster: AttackedServer, started_pod: StartedPod
) -> None:
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    for name in ("mine", "theirs"):
        await attacked_cluster.request("POST", accounts, json={"metadata": {"name": name}})
    pods = {
        "mine": await started_pod(
            "default", "mine", ["sleep", "60"], nodeName="node-1", serviceAccountName="mine"
        ),
        "theirs": await started_pod(
            "default", "theirs", ["sleep", "60"], nodeName="node-2", serviceAccountName="theirs"
        ),
    }

    def bound_to(pod: str) -> dict[str, Any]:
        uid = pods[pod]["metadata"]["uid"]
        return {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid}}

    without_uid = {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "mine"}}
    for account, spec, expected in (
        ("mine", bound_to("mine"), 201),
        ("mine", {}, 403),
        ("mine", without_uid, 403),
        ("mine", bound_to("mine") | {"audiences": ["vault"]}, 403),
        ("theirs", bound_to("theirs"), 403),
        ("default", {}, 403),
    ):
        status, answer = await as_node(
            attacked_cluster, "POST", f"{accounts}/{account}/token", json={"spec": spec}
        )
        assert status == expected, answer


async def test_each_node_has_a_private_key_that_only_its_owner_reads(
    attacked_cluster: AttackedServer,
) -> None:
    await kubelet_port(attacked_cluster)
    keys = {}
    for node in ("node-1", "node-2"):
        folder = node_folder(attacked_cluster, node)
        assert folder.stat().st_mode & 0o777 == 0o700
        for name in ("client", "server"):
            key = folder / f"{name}.key"
            assert key.stat().st_mode & 0o777 == 0o600
            keys[node, name] = key.read_bytes()
    assert len({*keys.values()}) == 4
    assert not (attacked_cluster.data / "pki" / "kubelet.token").exists()


async def kubelet_port(server: AttackedServer) -> int:
    async def published() -> int:
        code, node = await server.request("GET", "/api/v1/nodes/node-1")
        status = node.get("status", {}) if code == 200 else {}
        endpoint = (status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}
        return int(endpoint.get("Port") or 0)

    return await until(published)


async def test_the_kubelet_serves_the_api_server_only(attacked_cluster: AttackedServer) -> None:
    port = await kubelet_port(attacked_cluster)
    url = f"https://127.0.0.1:{port}/stats/summary"
    authority = attacked_cluster.data / "pki" / "ca.crt"
    with pytest.raises(aiohttp.ClientError):
        async with aiohttp.ClientSession() as session:
            await session.get(url.replace("https", "http"))
    anonymous = ssl.create_default_context(cafile=authority)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=anonymous)) as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(url, server_hostname="node-1")
    for certificate, key in (
        (node_folder(attacked_cluster, "node-2") / "client.crt", "client.key"),
        (attacked_cluster.data / "pki" / "admin.crt", "admin.key"),
    ):
        tls = ssl.create_default_context(cafile=authority)
        tls.load_cert_chain(certificate, certificate.with_name(key))
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session,
            session.get(url, server_hostname="node-1") as answer,
        ):
            assert answer.status == 403


async def test_another_server_at_the_address_of_a_node_receives_no_credential(
    attacked: AttackedServer,
) -> None:
    received = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.read(65536))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    await attacked.request("POST", "/api/v1/nodes", json={"metadata": {"name": "evil"},
                                                          "status": status})  # fmt: skip
    pod = {"metadata": {"name": "p"},
           "spec": {"nodeName": "evil", "containers": [{"name": "c", "image": "i"}]}}  # fmt: skip
    await attacked.request("POST", PODS, json=pod)
    for path in (f"{PODS}/p/log", f"{PODS}/-/log?keptFor=6b1e4f4c-0d0b-4a39-8a4a-2f8a3c9c7f55"):
        code, body = await attacked.request("GET", path)
        assert (code, body["reason"]) == (503, "ServiceUnavailable")
    await attacked.request("GET", "/apis/metrics.k8s.io/v1beta1/nodes")
    server.close()
    assert received, "the server was asked"
    assert b"HTTP/1.1" not in received
    assert b"earer" not in received


async def test_a_node_with_the_address_of_another_is_not_that_node(
    attacked_cluster: AttackedServer,
) -> None:
    port = await kubelet_port(attacked_cluster)
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    await attacked_cluster.request("POST", "/api/v1/nodes", json={"metadata": {"name": "other"},
                                                                  "status": status})  # fmt: skip
    pod = {"metadata": {"name": "p"},
           "spec": {"nodeName": "other", "containers": [{"name": "c", "image": "i"}]}}  # fmt: skip
    await attacked_cluster.request("POST", PODS, json=pod)
    code, body = await attacked_cluster.request("GET", f"{PODS}/p/log")
    assert (code, body["reason"]) == (503, "ServiceUnavailable")
