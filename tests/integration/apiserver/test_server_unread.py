"""Clients that do not read what they requested: they are disconnected, and others are not."""

import asyncio
import socket
import ssl
from typing import Any
from urllib.parse import urlsplit

import pytest

from gangline.kube.client.client import ApiClient
from gangline.local.apiserver import watch
from gangline.local.apiserver.core import request
from gangline.local.apiserver.server import ApiServer

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
OBJECT_BYTES = 500_000


async def create(client: ApiClient, name: str) -> None:
    made: dict[str, Any] = {"metadata": {"name": name}, "data": {"text": "x" * OBJECT_BYTES}}
    await client.request_json("POST", CONFIG_MAPS, body=made)


async def open_unread(
    server: ApiServer, path: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a GET and stop reading."""
    parts = urlsplit(server.url)
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, (parts.hostname, parts.port))
    context = ssl.create_default_context(cafile=server.ca_path)
    reader, writer = await asyncio.open_connection(
        sock=raw, ssl=context, server_hostname=parts.hostname, limit=4096
    )
    head = f"GET {path} HTTP/1.1\r\nHost: s\r\nAuthorization: Bearer {server.admin_token}\r\n\r\n"
    writer.write(head.encode())
    await writer.drain()
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return reader, writer


async def received_after(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """Read until the connection ends; return the number of bytes."""
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    total = 0
    try:
        while piece := await reader.read(1 << 16):
            total += len(piece)
    except OSError:
        pass
    writer.transport.abort()
    return total


@pytest.mark.parametrize("query", ["", "?watch=true"], ids=["list", "initial state of a watch"])
async def test_client_that_does_not_read_a_long_response_is_disconnected(
    api_server: ApiServer, client: ApiClient, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    for number in range(20):
        await create(client, f"cm-{number}")
    monkeypatch.setattr(request, "STALL_TIMEOUT_S", 0.3)
    reader, writer = await open_unread(api_server, CONFIG_MAPS + query)
    async with asyncio.timeout(30):
        while executing(api_server):
            await asyncio.sleep(0.05)
        assert await received_after(reader, writer) < 20 * OBJECT_BYTES


def executing(server: ApiServer) -> list[Any]:
    """The connections that execute a request; those of ``client`` are idle."""
    return [c for c in server._http.connections if c._current_request is not None]


async def test_watch_that_falls_behind_and_is_not_read_is_disconnected(
    api_server: ApiServer, client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "STALL_TIMEOUT_S", 0.3)
    _, unread = await open_unread(api_server, f"{CONFIG_MAPS}?watch=true")
    async with asyncio.timeout(30):
        while api_server.broadcasts.count() != 1:
            await asyncio.sleep(0.05)
        for number in range(20):  # more than the buffers of the system hold
            await create(client, f"cm-{number}")
        while api_server.broadcasts.count() != 0:
            await asyncio.sleep(0.05)
    unread.transport.abort()
