"""The kubelet's HTTP server: logs, exec, port-forward, usage."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gangline.api.core.pod import Pod
from gangline.local.apiserver.auth.node_authorizer import prepare_node_certificates
from gangline.local.apiserver.kubelet_proxy.client import make_kubelet_tls
from gangline.local.apiserver.server import ApiServer
from gangline.local.kubelet.server.server import KubeletServer, NodeTls, ServingFiles

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255


class Front:
    """Speaks to the kubelet server as the API server does."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def text(self, path: str, status: int = 200, **params: str) -> str:
        async with self.session.get(self.url + path, params=params, server_hostname="n1") as answer:
            assert answer.status == status, await answer.text()
            return await answer.text()

    async def stream(
        self, path: str, params: list[tuple[str, str]], *messages: bytes
    ) -> dict[int, bytes]:
        """Send messages, and collect the replies by channel until the end."""
        collected: dict[int, bytes] = {}
        async with self.session.ws_connect(
            self.url + path,
            params=params,
            protocols=["v5.channel.k8s.io"],
            server_hostname="n1",
        ) as socket:
            for message in messages:
                await socket.send_bytes(message)
            async for message in socket:
                channel = message.data[0]
                collected[channel] = collected.get(channel, b"") + message.data[1:]
        return collected


@pytest.fixture
async def front(node: Any, api_server: ApiServer, tmp_path: Path) -> AsyncIterator[Front]:
    authority = api_server.authority
    pair = prepare_node_certificates(authority, tmp_path / "n1", "n1", ["127.0.0.1"]).server
    tls = NodeTls(
        api_server.ca_path,
        lambda name: ServingFiles(pair.certificate, pair.key) if name == "n1" else None,
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


async def test_only_the_api_server_is_served(front: Front, api_server: ApiServer) -> None:
    """Another certificate of the same authority, none, and one of another authority."""
    tls = ssl.create_default_context(cafile=api_server.ca_path)
    connector = aiohttp.TCPConnector(ssl=tls)
    url = front.url + "/stats/summary"
    async with aiohttp.ClientSession(connector=connector) as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(url, server_hostname="n1")
    admin = api_server.certificates.admin
    tls = ssl.create_default_context(cafile=api_server.ca_path)
    tls.load_cert_chain(admin.certificate, admin.key)
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session,
        session.get(url, server_hostname="n1") as answer,
    ):
        assert answer.status == 403


async def test_a_server_has_certificates_for_its_own_nodes_only(front: Front) -> None:
    for name in ("n2", "localhost", "127.0.0.1"):
        with pytest.raises(aiohttp.ClientError):
            await front.session.get(front.url + "/stats/summary", server_hostname=name)


async def test_logs_are_followed_to_the_end_of_the_container(node: Any, front: Front) -> None:
    await a_running_pod(node, "for i in 1 2 3; do echo $i; sleep 0.2; done; exec sleep 0.2")
    assert await front.text("/containerLogs/default/p/c", follow="true") == "1\n2\n3\n"


async def test_logs_of_the_run_before_and_of_none(node: Any, front: Front) -> None:
    await a_running_pod(node, "echo run; sleep 0.3; exit 1")
    refused = await front.text("/containerLogs/default/p/c", 400, previous="true")
    assert 'previous terminated container "c" in pod "p" not found' in refused
    await node.until(
        lambda pod: (
            pod.status.container_statuses[0].restart_count == 1
            and pod.status.container_statuses[0].state.running
        )
    )
    assert await front.text("/containerLogs/default/p/c", previous="true") == "run\n"
    assert "not on this node" in await front.text("/containerLogs/default/none/c", 404)
    assert "is not in pod" in await front.text("/containerLogs/default/p/none", 404)
    assert "cannot be read" in await front.text("/containerLogs/default/p/c", 400, tailLines="x")


async def test_exec_returns_output_and_exit_code(node: Any, front: Front) -> None:
    await a_running_pod(node, "sleep 60")
    params = [("command", "sh"), ("command", "-c"), ("command", "cat; echo err >&2; exit 7")]
    params += [("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
    answer = await front.stream(
        "/exec/default/p/c", params, bytes([STDIN]) + b"typed", bytes([CLOSE, STDIN])
    )
    assert (answer[STDOUT], answer[STDERR]) == (b"typed", b"err\n")
    status = json.loads(answer[ERROR])
    assert status["reason"] == "NonZeroExitCode"
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "7"}]


async def test_exec_of_a_binary_stream_is_exact(node: Any, front: Front) -> None:
    await a_running_pod(node, "sleep 60")
    blob = bytes(range(256)) * 4096
    params = [("command", "cat"), ("stdin", "true"), ("stdout", "true")]
    pieces = [bytes([STDIN]) + blob[at : at + 65536] for at in range(0, len(blob), 65536)]
    answer = await front.stream("/exec/default/p/c", params, *pieces, bytes([CLOSE, STDIN]))
    assert answer[STDOUT] == blob
    assert json.loads(answer[ERROR])["status"] == "Success"


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


async def test_exec_of_a_missing_command_says_so(node: Any, front: Front) -> None:
    await a_running_pod(node, "sleep 60")
    answer = await front.stream(
        "/exec/default/p/c", [("command", "no-such-command"), ("stderr", "true")]
    )
    status = json.loads(answer[ERROR])
    assert "no-such-command" in (status["message"] + answer.get(STDERR, b"").decode())


async def test_exec_on_a_terminal(node: Any, front: Front) -> None:
    await a_running_pod(node, "sleep 60")
    size = bytes([RESIZE]) + b'{"Width": 91, "Height": 33}'
    params = [("command", "sh"), ("command", "-c"), ("command", "read x; stty size")]
    params += [("stdin", "true"), ("stdout", "true"), ("tty", "true")]
    answer = await front.stream("/exec/default/p/c", params, size, bytes([STDIN]) + b"\n")
    assert b"33 91" in answer[STDOUT]


async def test_attach_reaches_the_main_process(node: Any, front: Front) -> None:
    await a_running_pod(node, "read line; echo got $line; exit 2", stdin=True)
    answer = await front.stream(
        "/attach/default/p/c", [("stdin", "true"), ("stdout", "true")], bytes([STDIN]) + b"word\n"
    )
    assert answer[STDOUT] == b"got word\n"
    assert json.loads(answer[ERROR])["status"] == "Success", "the pod's status has the exit code"


async def test_a_port_is_forwarded_both_ways(node: Any, front: Front) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()

    pod = await a_running_pod(node, "sleep 60")
    # Without root pods share the machine's network: a listener at the pod's address is the pod's.
    listener = await asyncio.start_server(echo, pod.status.pod_ip, 0)
    port = listener.sockets[0].getsockname()[1]
    path = "/portForward/default/p"
    answer = await front.stream(path, [("port", str(port))], bytes([STDIN]) + b"hello\n")
    assert answer[STDIN] == b"HELLO\n"
    listener.close()
    await listener.wait_closed()
    answer = await front.stream(path, [("port", str(port))])
    assert b"answers on port" in answer[1]


async def test_usage_is_measured(node: Any, front: Front) -> None:
    await a_running_pod(node, "while :; do :; done")

    async def busy() -> bool:
        summary = json.loads(await front.text("/stats/summary"))
        return any(pod["cpu"]["usageNanoCores"] > 50_000_000 for pod in summary["pods"])

    while not await busy():
        await asyncio.sleep(0.3)
    summary = json.loads(await front.text("/stats/summary", node="n1"))
    (pod,) = summary["pods"]
    assert pod["podRef"]["name"] == "p"
    assert pod["containers"][0]["memory"]["workingSetBytes"] > 0
    assert summary["node"]["nodeName"] == "n1"
