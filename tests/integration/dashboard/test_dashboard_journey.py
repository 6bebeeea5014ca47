"""The dashboard on an embedded cluster: a job from its submission to its deletion, two viewers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import pytest

from gangline.api.resources import NODES
from gangline.dashboard.run import run
from gangline.dashboard.settings import DashboardSettings, LoginMode
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import NotFound
from integration.cluster.embedded import EmbeddedCluster, until

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
RBAC = "/apis/rbac.authorization.k8s.io/v1"


class Visitor:
    """Reads pages with a token."""

    def __init__(self, session: aiohttp.ClientSession, base: str, token: str) -> None:
        self.session = session
        self.base = base
        self.headers = {"Authorization": f"Bearer {token}"}

    async def json(self, path: str) -> tuple[int, dict[str, Any]]:
        headers = {**self.headers, "Accept": "application/json"}
        async with self.session.get(f"{self.base}{path}", headers=headers) as answer:
            return answer.status, await answer.json()

    async def html(self, path: str) -> tuple[int, str]:
        async with self.session.get(f"{self.base}{path}", headers=self.headers) as answer:
            return answer.status, await answer.text()

    async def act(self, action: str, **fields: str) -> int:
        """Open the confirming page of an action and send its form."""
        status, view = await self.json(f"{PAGE}/actions/{action}")
        if status != 200:
            return status
        form = {"generation": str(view["generation"]), **fields}
        address = f"{self.base}{PAGE}/actions/{action}"
        headers = {**self.headers, "Accept": "application/json"}
        async with self.session.post(address, data=form, headers=headers) as answer:
            return answer.status

    async def state(self) -> str:
        return str((await self.json(PAGE))[1].get("head", {}).get("row", {}).get("state"))


async def token_of(client: ApiClient, name: str) -> str:
    """Make a service account, and return a token of it."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    path = "/api/v1/namespaces/default/serviceaccounts"
    await client.request_json("POST", path, body=account)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = await client.request_json("POST", f"{path}/{name}/token", body=request)
    return str(answer["status"]["token"])


async def bind(client: ApiClient, name: str, role: str, namespace: str) -> None:
    kind = "RoleBinding" if namespace else "ClusterRoleBinding"
    body = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "Role" if namespace else "ClusterRole",
            "name": role,
        },
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
    }
    where = f"/namespaces/{namespace}/rolebindings" if namespace else "/clusterrolebindings"
    await client.request_json("POST", f"{RBAC}{where}", body=body)


@asynccontextmanager
async def dashboard(client: ApiClient) -> AsyncIterator[str]:
    """Run a dashboard in mode ``token``; yield its address."""
    stop, address = asyncio.Event(), asyncio.get_running_loop().create_future()
    settings = DashboardSettings(auth=LoginMode.TOKEN)
    serving = asyncio.create_task(run(client, settings, stop, address.set_result))
    try:
        await asyncio.wait({serving, address}, return_when=asyncio.FIRST_COMPLETED)
        yield (await address).rstrip("/")
    finally:
        stop.set()
        await serving


@pytest.mark.slow
async def test_job_is_seen_live_and_changed_by_those_who_may(
    shared_cluster: EmbeddedCluster,
) -> None:
    async with (
        shared_cluster.client() as client,
        dashboard(client) as base,
        aiohttp.ClientSession() as session,
    ):
        role = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "viewer"},
            "rules": READ,
        }
        await client.request_json("POST", f"{RBAC}/namespaces/default/roles", body=role)
        boss = Visitor(session, base, await token_of(client, "boss"))
        viewer = Visitor(session, base, await token_of(client, "viewer"))
        await bind(client, "boss", "cluster-admin", "")
        await bind(client, "viewer", "viewer", "default")
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
