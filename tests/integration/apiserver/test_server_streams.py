"""What the server asks of kubelets: use for ``kubectl top``, and errors of streams."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from gangline.api import resources
from gangline.kube import errors
from gangline.kube.client.client import ApiClient
from gangline.local.apiserver.server import ApiServer
from integration.node_server import node_tls

POD: dict[str, Any] = {
    "metadata": {"name": "p"},
    "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
}


ADDRESS: dict[str, Any] = {
    "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
    "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}},
}


class FakeKubelet:
    """A fake kubelet that reports use to the API server alone."""

    def __init__(self, server: ApiServer) -> None:
        self._tls = node_tls(server)
        app = web.Application()
        app.add_routes([web.get("/stats/summary", self.summary)])
        self.runner = web.AppRunner(app, shutdown_timeout=0.2)

    async def start(self) -> int:
        await self.runner.setup()
        tls = self._tls.context
        await web.TCPSite(self.runner, "127.0.0.1", 0, ssl_context=tls).start()
        return int(self.runner.addresses[0][1])

    def _check(self, request: web.Request) -> None:
        assert request.transport is not None
        subject = request.transport.get_extra_info("peercert")["subject"]
        assert subject == ((("commonName", "kube-apiserver-kubelet-client"),),)
        assert "Authorization" not in request.headers

    async def summary(self, request: web.Request) -> web.StreamResponse:
        self._check(request)
        used = {
            "cpu": {"usageNanoCores": 250_000_000},
            "memory": {"workingSetBytes": 64 << 20},
        }
        pod = {"podRef": {"name": "p", "namespace": "default"},
               "containers": [{"name": "c", **used}]}  # fmt: skip
        return web.json_response({"nodes": [{"nodeName": "n", **used}], "pods": [pod]})


@pytest.fixture
async def kubelet(api_server: ApiServer, client: ApiClient) -> AsyncIterator[FakeKubelet]:
    pretended = FakeKubelet(api_server)
    port = await pretended.start()
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "allocatable": {"cpu": "1", "memory": "128Mi"},
        "capacity": {"cpu": "1", "memory": "128Mi"},
    }
    await client.create(resources.NODES, {"metadata": {"name": "n"}, "status": status})
    await client.create(resources.PODS, POD, "default")
    running = {"status": {"phase": "Running"}}
    await client.patch(resources.PODS, "p", running, "default", subresource="status")
    yield pretended
    await pretended.runner.cleanup()


@pytest.mark.usefixtures("kubelet")
async def test_top_shows_what_nodes_and_pods_use(kubectl: Any):
    assert (await kubectl("top pod --no-headers")).split() == ["p", "250m", "64Mi"]
    assert (await kubectl("top node --no-headers")).split() == ["n", "250m", "25%", "64Mi", "50%"]


async def test_a_kubelet_that_is_away_is_named(kubectl: Any, client: ApiClient):
    await client.create(resources.NODES, {"metadata": {"name": "n"}})
    await client.create(resources.PODS, POD, "default")
    code, output = await kubectl.run("logs", "p")
    assert code == 1
    assert 'node "n" has not published its address' in output
    code, output = await kubectl.run("exec", "p", "--", "exit", "0")
    assert code == 1


async def test_streams_need_a_protocol_that_has_them(client: ApiClient):
    await client.create(resources.NODES, {"metadata": {"name": "n"}, "status": ADDRESS})
    await client.create(resources.PODS, POD, "default")
    path = "/api/v1/namespaces/default/pods/p/exec"
    with pytest.raises(errors.ApiError, match="Upgrade request required"):
        await client.request_json("POST", path, params={"command": "x", "stdout": "true"})
