"""The dashboard on an embedded cluster: a job from its submission to its deletion, two viewers."""

import asyncio
from contextlib import suppress

import aiohttp
import pytest

from gangline.api.resources import NODES
from gangline.kube.errors import NotFound
from integration.cluster.embedded import EmbeddedCluster, until
from integration.dashboard.visitors import Visitor, account, bind, bind_in, dashboard, token_of

JOB = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "digits", "annotations": {"gangline.dev/owner": "ann"}},
    "spec": {
        "pytorchReplicaSpecs": {
            "Worker": {
                "replicas": 2,
                "restartPolicy": "OnFailure",
                "template": {
                    "spec": {
                        "containers": [
                            {
                                "name": "pytorch",
                                "image": "python:3.11",
                                "command": ["sh", "-c", "echo hello from a replica; sleep 600"],
                                "resources": {"limits": {"cpu": "100m"}},
                            }
                        ]
                    }
                },
            }
        }
    },
}
PAGE = "/jobs/default/pytorchjob/digits"
READ = [
    {"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
]
"""What a viewer of one namespace has, who may neither read logs nor change anything."""


@pytest.mark.slow
async def test_job_is_seen_live_and_changed_by_those_who_may(
    shared_cluster: EmbeddedCluster,
) -> None:
    async with (
        shared_cluster.client() as client,
        dashboard(client) as base,
        aiohttp.ClientSession() as session,
    ):
        boss, viewer = [
            Visitor(session, base, PAGE, Authorization=f"Bearer {await token_of(client, name)}")
            for name in ("boss", "viewer")
        ]
        await bind(client, "boss", "cluster-admin", account("boss"))
        await bind_in(client, "default", "viewer", READ, account("viewer"))
        jobs = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
        await client.request_json("POST", jobs, body=JOB)

        async def running() -> bool:
            return await boss.state() == "RUNNING"

        await until(running, 60, shared_cluster.said)
        status, view = await boss.json(PAGE)
        assert [cell["mark"] for cell in view["head"]["replicas"]] == ["R", "R"]
        assert view["content"]["summary"] == "The job runs, and nothing has failed."

        # The viewer of one namespace sees the job, and neither nodes nor logs nor buttons.
        status, text = await viewer.html(PAGE)
        assert status == 200
        assert f"{PAGE}/actions/" not in text
        assert (await viewer.json("/nodes"))[0] == 403
        assert "verb get on pods/log" in (await viewer.html(f"{PAGE}/logs"))[1]
        assert await viewer.act("suspend") == 403

        # A replica that dies is seen in the open stream; no node takes its successor meanwhile.
        nodes = [node.metadata.name for node in (await client.list(NODES)).items]
        for node in nodes:
            await client.patch(NODES, node, {"spec": {"unschedulable": True}})
        async with session.get(f"{base}{PAGE}/stream", headers=boss.headers) as stream:
            pod, now = (
                "/api/v1/namespaces/default/pods/digits-worker-1",
                {"gracePeriodSeconds": "0"},
            )
            async with asyncio.timeout(60):
                async for line in stream.content:
                    if b": Running, 2/2" in line:
                        with suppress(NotFound):  # it is being replaced already
                            await client.request_json("DELETE", pod, params=now)
                    elif b": Running, 1/2" in line or b": Restarting" in line:
                        break
        for node in nodes:
            await client.patch(NODES, node, {"spec": {"unschedulable": None}})
        await until(running, 60, shared_cluster.said)

        async def logged() -> bool:
            return "hello from a replica" in (await boss.html(f"{PAGE}/logs"))[1]

        await until(logged, 30, shared_cluster.said)

        assert await boss.act("suspend") == 200

        async def suspended() -> bool:
            return await viewer.state() == "SUSPENDED"

        await until(suspended, 60, shared_cluster.said)
        events = await client.request_json("GET", "/api/v1/namespaces/default/events")
        actions = [e["message"] for e in events["items"] if e["reason"] == "DashboardAction"]
        assert actions == ["system:serviceaccount:default:boss: suspend"]

        assert await boss.act("delete") == 200

        async def gone() -> bool:
            return (await boss.json(PAGE))[0] == 404

        await until(gone, 60, shared_cluster.said)
        assert (await viewer.json("/jobs"))[1]["total"] == 0
