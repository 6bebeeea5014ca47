"""The dashboard with the rights of the chart, for a viewer who may read one namespace only."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from e2e import component_rights
from e2e.jobs import job, replica
from e2e.scenario import Scenario
from e2e.waiting import PATIENCE_S, eventually
from gangline.api.resources import NAMESPACES, PODS, PYTORCH_JOBS
from gangline.dashboard.settings import (
    DashboardSettings,
    LoginMode,
    parse_networks,
)
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import load_config
from integration.dashboard.visitors import BY_TOKEN, Visitor, account, bind_in, dashboard, token_of

READ = [
    {"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
]
BY_PROXY = DashboardSettings(auth=LoginMode.HEADER, trusted_proxies=parse_networks(["127.0.0.1"]))


@pytest.fixture
async def hidden(scenario: Scenario) -> AsyncIterator[str]:
    """The address of a job in a namespace that the viewer may not read."""
    namespace = f"{scenario.namespace}-hidden"
    await scenario.client.create(NAMESPACES, {"metadata": {"name": namespace}})
    manifest = job("hidden", worker=replica("sleep 600"))
    manifest["spec"]["runPolicy"]["suspend"] = True
    await scenario.client.create(PYTORCH_JOBS, manifest, namespace)
    yield f"/jobs/{namespace}/pytorchjob/hidden"
    await scenario.client.delete(NAMESPACES, namespace, propagation="Background")


@pytest.mark.parametrize("settings", [BY_TOKEN, BY_PROXY], ids=["token", "header"])
async def test_viewer_of_one_namespace_sees_its_jobs_live_and_nothing_else(
    scenario: Scenario, hidden: str, settings: DashboardSettings, tmp_path: Path
) -> None:
    namespace, admin = scenario.namespace, scenario.cluster.kubeconfig
    await scenario.submit(job("seen", worker=replica("echo hello; sleep 600", 2)))
    await scenario.running("seen", 2)
    page = f"/jobs/{namespace}/pytorchjob/seen"
    component_rights.install(admin, dashboard={"enabled": True, "impersonation": True})
    config = component_rights.write_kubeconfig(admin, "dashboard", tmp_path / "dashboard")
    if settings is BY_TOKEN:
        token = await token_of(scenario.client, "viewer", namespace)
        headers, subject = {"Authorization": f"Bearer {token}"}, account("viewer", namespace)
    else:
        headers = {"X-Remote-User": "ann"}
        subject = {"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}
    await bind_in(scenario.client, namespace, "viewer", READ, subject)
    async with (
        ApiClient(load_config(str(config))) as client,
        dashboard(client, settings) as base,
        aiohttp.ClientSession() as session,
    ):
        viewer = Visitor(session, base, page, **headers)

        async def is_seen() -> bool:
            return await viewer.state() == "RUNNING"

        await eventually(is_seen, "the viewer sees the job run")
        assert [row["name"] for row in (await viewer.json("/jobs"))[1]["rows"]] == ["seen"]
        assert (await viewer.json(hidden))[0] == 404
        assert (await viewer.json("/nodes"))[0] == 403
        assert "verb get on pods/log" in (await viewer.html(f"{page}/logs"))[1]
        assert f"{page}/actions/" not in (await viewer.html(page))[1]
        assert await viewer.act("suspend") == 403
        async with session.get(f"{base}{hidden}/stream", headers=headers) as refused:
            assert refused.status == 404
        async with session.get(f"{base}{page}/stream", headers=headers) as stream:
            async with asyncio.timeout(PATIENCE_S):
                async for line in stream.content:
                    if b": Running, 2/2" in line:
                        await scenario.client.delete(PODS, "seen-worker-0", namespace)
                    elif b": Running, 1/2" in line or b": Restarting" in line:
                        break
