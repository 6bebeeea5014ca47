"""Connections that are held open without credentials keep nobody out.

Takes 30 s: 1,010 connections are opened and held.
"""

import asyncio
import json
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from gangline.local import limits
from security.conftest import AttackedServer

SURPLUS = 40


@pytest.fixture(autouse=True)
def descriptors() -> None:
    """Allow this process as many open files as the attacks need."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


async def abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


async def open_plain(stack: AsyncExitStack, at: tuple[str, int]) -> socket.socket:
    """Open a connection on which nothing is sent."""
    opened = stack.enter_context(socket.socket())
    opened.setblocking(False)
    await asyncio.get_running_loop().sock_connect(opened, at)
    return opened


async def is_closed(opened: socket.socket) -> bool:
    with suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(0.01):
            return await asyncio.get_running_loop().sock_recv(opened, 1) == b""
        return False
    return False


async def hold_open(stack: AsyncExitStack, at: tuple[str, int]) -> list[socket.socket]:
    """Open more connections than one peer may; returns them when the oldest were closed."""
    count = limits.MAX_UNAUTHENTICATED_PER_PEER + SURPLUS
    opened = [await open_plain(stack, at) for _ in range(count)]
    async with asyncio.timeout(limits.TLS_HANDSHAKE_TIMEOUT_S / 2):  # those end for another reason
        for oldest in opened[:SURPLUS]:
            assert await asyncio.get_running_loop().sock_recv(oldest, 1) == b""
    return opened


async def test_connections_without_a_handshake_keep_nobody_out(
    attacked: AttackedServer, stack: AsyncExitStack
) -> None:
    async with attacked.stream("/api/v1/namespaces?watch=true") as watch:
        event = json.loads(await watch.readline())
        assert event["type"] == "ADDED"
        opened = await hold_open(stack, address(attacked.url))
        assert not await is_closed(opened[-1])
        for _ in range(3):
            status, _ = await attacked.request("GET", "/api/v1/namespaces/default")
            assert status == 200
        made = {"metadata": {"name": "later"}}
        status, _ = await attacked.request("POST", "/api/v1/namespaces", json=made)
        assert status == 201
        # The watch was opened before all of them, and is not among those that were closed.
        while event["object"]["metadata"]["name"] != "later":
            event = json.loads(await watch.readline())


async def test_connections_without_credentials_keep_nobody_out(
    attacked: AttackedServer, stack: AsyncExitStack
) -> None:
    """These complete the handshake, and some send requests that get 401."""
    first_reader, first = await attacked.connect()
    stack.push_async_callback(abort, first)
    first.write(b"GET /api/v1/namespaces HTTP/1.1\r\nHost: server\r\n\r\n")
    assert (await first_reader.readline()).split()[1] == b"401"
    await hold_open(stack, address(attacked.url))
    async with asyncio.timeout(5):
        await first_reader.read()  # to the end: it is one of the oldest
    status, _ = await attacked.request("GET", "/api/v1/namespaces/default")
    assert status == 200


async def test_connections_of_one_user_are_limited(attacked: AttackedServer) -> None:
    """A user with credentials has a bound of its own."""
    account = "/api/v1/namespaces/default/serviceaccounts"
    await attacked.request("POST", account, json={"metadata": {"name": "mallory"}})
    status, answer = await attacked.request("POST", f"{account}/mallory/token", json={})
    assert status == 201, answer
    token = answer["status"]["token"]
    request = f"GET /version HTTP/1.1\r\nHost: server\r\nAuthorization: Bearer {token}\r\n\r\n"

    async def code() -> tuple[bytes, asyncio.StreamWriter]:
        reader, writer = await attacked.connect()
        writer.write(request.encode())
        return (await reader.readline()).split()[1], writer

    async with AsyncExitStack() as stack:
        codes = []
        for _ in range(1010):
            got, writer = await code()
            stack.push_async_callback(abort, writer)
            codes.append(got)
        assert codes[:1000] == [b"200"] * 1000
        assert codes[1000:] == [b"429"] * 10
        status, _ = await attacked.request("GET", "/api/v1/namespaces/default")
        assert status == 200


StartedPod = Callable[..., Awaitable[dict[str, Any]]]


def kubelet_context(server: AttackedServer) -> ssl.SSLContext:
    """TLS with the API server's certificate for kubelets."""
    pki = server.data / "pki"
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    context.load_cert_chain(
        pki / "apiserver-kubelet-client.crt", pki / "apiserver-kubelet-client.key"
    )
    return context


async def test_the_port_of_the_kubelets_has_the_same_bounds(
    attacked_cluster: AttackedServer, started_pod: StartedPod, stack: AsyncExitStack
) -> None:
    await started_pod("default", "p", ["sh", "-c", "echo written; sleep 600"])
    _, nodes = await attacked_cluster.request("GET", "/api/v1/nodes")
    node = nodes["items"][0]
    port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    host = next(a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP")
    await hold_open(stack, (host, port))
    status, log = await attacked_cluster.request("GET", "/api/v1/namespaces/default/pods/p/log")
    assert (status, log) == (200, "written\n")
    name = node["metadata"]["name"]
    reader, writer = await asyncio.open_connection(
        host, port, ssl=kubelet_context(attacked_cluster), server_hostname=name
    )
    stack.push_async_callback(abort, writer)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: kub")  # and never the rest
    async with asyncio.timeout(limits.HEADER_TIMEOUT_S + 10):
        assert await reader.read() == b""
