"""Logs, exec, port-forward and top through the server, with a fake kubelet."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import WSMsgType, web

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
    """A fake kubelet: echoes its requests; commands are ``exit N`` after echoing their input."""

    def __init__(self, server: ApiServer) -> None:
        self._tls = node_tls(server)
        app = web.Application()
        app.add_routes(
            [
                web.get("/containerLogs/default/p/c", self.logs),
                web.get("/exec/default/p/c", self.execute),
                web.get("/portForward/default/p", self.forward),
                web.get("/stats/summary", self.summary),
            ]
        )
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

    async def logs(self, request: web.Request) -> web.StreamResponse:
        self._check(request)
        if request.query.get("previous"):
            raise web.HTTPBadRequest(text='previous terminated container "c" not found')
        return web.Response(text="".join(f"{k}={v}\n" for k, v in sorted(request.query.items())))

    async def execute(self, request: web.Request) -> web.StreamResponse:
        self._check(request)
        answer = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await answer.prepare(request)
        code = int(request.query.getall("command")[-1])
        if request.query.get("stdin"):
            async for message in answer:
                if message.type is not WSMsgType.BINARY or message.data == b"\xff\x00":
                    break
                if message.data[0] == 0:
                    await answer.send_bytes(b"\x01" + message.data[1:].upper())
        await answer.send_bytes(b"\x02complaint\n")
        status: dict[str, Any] = {"status": "Success"}
        if code:
            causes = [{"reason": "ExitCode", "message": str(code)}]
            status = {"status": "Failure", "reason": "NonZeroExitCode", "message": "ended",
                      "details": {"causes": causes}}  # fmt: skip
        await answer.send_bytes(b"\x03" + json.dumps(status).encode())
        await answer.close()
        return answer

    async def forward(self, request: web.Request) -> web.StreamResponse:
        self._check(request)
        answer = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await answer.prepare(request)
        async for message in answer:
            if message.type is WSMsgType.BINARY and message.data[0] == 0:
                await answer.send_bytes(b"\x00" + message.data[1:].upper())
                if message.data.endswith(b"\n"):
                    break
        await answer.close()
        return answer

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
async def test_logs_are_passed_on_with_their_options(kubectl: Any):
    output = await kubectl("logs p --tail=5 --timestamps --since=10s")
    assert output.split() == ["sinceSeconds=10", "tailLines=5", "timestamps=true"]
    code, output = await kubectl.run("logs", "p", "--previous")
    assert code == 1
    assert 'previous terminated container "c" not found' in output
    code, output = await kubectl.run("logs", "p", "-c", "none")
    assert code == 1
    assert "container none is not valid for pod p" in output


@pytest.mark.usefixtures("kubelet")
async def test_exec_brings_output_errors_and_the_exit_code(kubectl: Any):
    code, output = await kubectl.run("exec", "p", "--", "exit", "7")
    assert code == 7
    assert "complaint" in output
    code, output = await kubectl.run("exec", "-i", "p", "--", "exit", "0", text="texts\n")
    assert code == 0
    assert "TEXTS" in output


@pytest.mark.usefixtures("kubelet")
async def test_large_input_passes_through_exec_completely(kubectl: Any):
    text = "all of it " * 50_000
    code, output = await kubectl.run("exec", "-i", "p", "--", "exit", "0", text=text)
    assert code == 0
    assert output.replace("complaint\n", "") == text.upper()


@pytest.mark.usefixtures("kubelet")
async def test_ports_are_forwarded_for_several_connections_at_once(kubectl: Any):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    forwarding = asyncio.create_task(kubectl.run("port-forward", "pod/p", f"{port}:80"))
    async with asyncio.timeout(20):
        answers = await asyncio.gather(*(ask(port, f"hello {n}\n") for n in range(4)))
    assert answers == [f"HELLO {n}\n".encode() for n in range(4)]
    forwarding.cancel()
    await asyncio.gather(forwarding, return_exceptions=True)


async def ask(port: int, text: str) -> bytes:
    """Send a line and read until the end, as soon as the port is open."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            break
        except ConnectionRefusedError:
            await asyncio.sleep(0.05)
    writer.write(text.encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


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
