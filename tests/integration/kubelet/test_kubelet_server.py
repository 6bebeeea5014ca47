"""The kubelet's HTTP server: its certificates, errors of logs, and slow clients.

Streams are tested by their clients: tests/integration/kubectl/test_kubectl_streams.py.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gangline.api.core.pod import Pod
from gangline.local.apiserver.auth.node_authorizer import prepare_node_certificates
from gangline.local.apiserver.kubelet_proxy.client import make_kubelet_tls
from gangline.local.apiserver.server import ApiServer
from gangline.local.kubelet.server import KubeletServer, NodeTls

STDOUT = 1


class Front:
    """Speaks to the kubelet server as the API server does."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def text(self, path: str, status: int = 200, **params: str) -> str:
        async with self.session.get(self.url + path, params=params, server_hostname="n1") as answer:
            assert answer.status == status, await answer.text()
            return await answer.text()


@pytest.fixture
async def front(node: Any, api_server: ApiServer, tmp_path: Path) -> AsyncIterator[Front]:
    authority = api_server.authority
    pair = prepare_node_certificates(authority, tmp_path / "n1", "n1", ["127.0.0.1"]).server
    tls = NodeTls(
        api_server.ca_path,
        lambda name: (pair.certificate, pair.key) if name == "n1" else None,
    )
    server = KubeletServer([node.kubelet], tls)
    port = await server.start()
    connector = aiohttp.TCPConnector(ssl=make_kubelet_tls(api_server.certificates))
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Front(session, f"https://127.0.0.1:{port}")
    await server.stop()


async def a_running_pod(node: Any, script: str, **more: Any) -> Pod:
    command = ["sh", "-c", script]
    container = {"name": "c", "image": "i", "command": command, **more}
    await node.run(containers=[container])
    pod: Pod = await node.until_phase("Running")
    return pod


async def test_a_server_has_certificates_for_its_own_nodes_only(front: Front) -> None:
    for name in ("n2", "localhost", "127.0.0.1"):
        with pytest.raises(aiohttp.ClientError):
            await front.session.get(front.url + "/stats/summary", server_hostname=name)


async def test_logs_that_cannot_be_read_have_a_reason(node: Any, front: Front) -> None:
    await a_running_pod(node, "sleep 60")
    assert "not on this node" in await front.text("/containerLogs/default/none/c", 404)
    assert "is not in pod" in await front.text("/containerLogs/default/p/none", 404)
    assert "cannot be read" in await front.text("/containerLogs/default/p/c", 400, tailLines="x")


async def test_a_slow_client_makes_the_command_wait(node: Any, front: Front) -> None:
    await a_running_pod(node, "sleep 60")
    params = [("command", "head"), ("command", "-c"), ("command", "60000000")]
    params += [("command", "/dev/zero"), ("stdout", "true")]
    received = 0
    async with front.session.ws_connect(
        front.url + "/exec/default/p/c", params=params, max_msg_size=0, server_hostname="n1"
    ) as socket:
        await asyncio.sleep(0.3)
        async for message in socket:
            if message.data[0] == STDOUT:
                received += len(message.data) - 1
    assert received == 60_000_000
