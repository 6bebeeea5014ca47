"""Nodes that lose power or network, and the status of a cluster.

Takes 20 s: nodes lose power, and are missed after their time of silence.
"""

import os

import pytest

from gangline.api.core.pod import Pod
from gangline.api.meta.conditions import is_condition_true
from gangline.api.resources import NODES, PODS
from gangline.kube.client.client import ApiClient
from gangline.local.virtual_nodes import PARTITIONED_ANNOTATION, STOPPED_ANNOTATION
from integration.cluster.embedded import EmbeddedCluster, running, until

pytestmark = pytest.mark.slow

HASTY = [
    {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute",
     "tolerationSeconds": 0}
    for taint in ("unreachable", "not-ready")
]  # fmt: skip


async def run_on(client: ApiClient, node: str, name: str, seconds: str) -> None:
    """Run a pod on a node and wait until its process is there."""
    container = {"name": "c", "image": "none", "command": ["sleep", seconds]}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 1,
            "tolerations": HASTY,
            "containers": [container],
        },
    }
    await client.create(PODS, body, "default")

    async def runs() -> bool:
        return bool(running(f"sleep {seconds}"))

    await until(runs)


async def annotate(client: ApiClient, node: str, key: str, value: str | None) -> None:
    await client.patch(NODES, node, {"metadata": {"annotations": {key: value}}})


async def ready(client: ApiClient, node: str) -> bool:
    nodes = (await client.list(NODES)).items
    return any(
        found.metadata.name == node and is_condition_true(found.status.conditions, "Ready")
        for found in nodes
    )


async def going(client: ApiClient, name: str) -> bool:
    return (await client.get(PODS, name, "default")).metadata.deletion_timestamp is not None


async def gone(client: ApiClient, name: str) -> bool:
    return not [pod for pod in (await client.list(PODS)).items if pod.metadata.name == name]


async def test_stopped_node_loses_its_pods_and_boots_again(
    embedded_cluster: EmbeddedCluster,
) -> None:
    seconds = f"{os.getpid()}.71"
    async with embedded_cluster.client() as client:
        await until(lambda: ready(client, "node-2"))
        await run_on(client, "node-2", "p", seconds)
        await annotate(client, "node-2", STOPPED_ANNOTATION, "true")

        async def dead() -> bool:
            return not running(f"sleep {seconds}")

        await until(dead, within_s=3)
        await until(lambda: going(client, "p"), explain=embedded_cluster.said)
        assert not await ready(client, "node-2")
        assert await ready(client, "node-1")

        await annotate(client, "node-2", STOPPED_ANNOTATION, None)
        await until(lambda: gone(client, "p"), explain=embedded_cluster.said)
        await until(lambda: ready(client, "node-2"))


async def test_pods_of_a_node_that_is_cut_off_run_on_and_end_when_it_hears_of_it(
    embedded_cluster: EmbeddedCluster,
) -> None:
    seconds = f"{os.getpid()}.72"
    async with embedded_cluster.client() as client:
        await until(lambda: ready(client, "node-2"))
        await run_on(client, "node-2", "p", seconds)
        await annotate(client, "node-2", PARTITIONED_ANNOTATION, "true")
        await until(lambda: going(client, "p"), explain=embedded_cluster.said)
        assert running(f"sleep {seconds}")

        await annotate(client, "node-2", PARTITIONED_ANNOTATION, None)
        await until(lambda: gone(client, "p"), explain=embedded_cluster.said)
        assert not running(f"sleep {seconds}")


async def test_a_service_leads_to_its_pod_by_name(shared_cluster: EmbeddedCluster) -> None:
    serve = (
        "import http.server as h;"
        "h.HTTPServer(('', 8000), h.SimpleHTTPRequestHandler).serve_forever()"
    )
    ask = (
        "import urllib.request, time\n"
        "for _ in range(100):\n"
        "    try: raise SystemExit(urllib.request.urlopen('http://web:8080').status != 200)\n"
        "    except OSError: time.sleep(0.1)\n"
        "raise SystemExit(2)"
    )
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 8080, "targetPort": 8000}]},
    }
    async with shared_cluster.client() as client:
        await client.request_json("POST", "/api/v1/namespaces/default/services", body=service)
        for name, program in (("web", serve), ("asker", ask)):
            container = {"name": "c", "image": "none", "command": ["python3", "-c", program]}
            spec = {"restartPolicy": "Never", "containers": [container]}
            meta = {"name": name, "labels": {"app": name}}
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
            await client.create(PODS, body, "default")

        async def answered() -> Pod | None:
            pod = await client.get(PODS, "asker", "default")
            return pod if pod.status.phase in ("Succeeded", "Failed") else None

        pod = await until(answered, 30, shared_cluster.said)
        assert pod.status.phase == "Succeeded", pod.status
