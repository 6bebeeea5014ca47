"""The connection pool: idle connections are reused while they are usable."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from gangline.kube import errors
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import ClusterConfig
from gangline.kube.config.credentials import Credential, StaticCredential
from gangline.kube.http.connections import MAX_IDLE_S, ServerAddress, parse_server_address
from gangline.kube.http.request import Request
from unit.kube.fake_server import connected
from unit.kube.virtual_clock import virtual_time

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
POST = Request("POST", "/things", (("a", "b c"), ("d", "e/f")), b"{}")

Conversation = Callable[["Peer"], Awaitable[None]]


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def heard(self) -> bytes:
        """The next request: its head."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = [line for line in head.split(b"\r\n") if line.startswith(b"Content-Length: ")]
        await self.reader.readexactly(int(length[0].split()[1]) if length else 0)
        return head

    def say(self, answer: bytes) -> None:
        self.writer.write(answer)


@asynccontextmanager
async def serving(talk: Conversation) -> AsyncIterator[tuple[ApiClient, list[Peer]]]:
    """A server that talks so on each connection, and a client of it."""
    peers: list[Peer] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(Peer(reader, writer))
        try:
            await talk(peers[-1])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, ApiClient(ClusterConfig(f"http://127.0.0.1:{port}/base/")) as client:
        yield client, peers


async def obliging(peer: Peer) -> None:
    while True:
        await peer.heard()
        peer.say(OK)


async def test_one_connection_serves_request_after_request():
    async with serving(obliging) as (client, peers):
        for _ in range(5):
            assert await client.transport.send(POST) == b"ok"
        assert len(peers) == 1


async def test_requests_at_one_time_have_a_connection_each():
    arrived = asyncio.Event()
    count = 0

    async def patient(peer: Peer) -> None:
        nonlocal count
        await peer.heard()
        count += 1
        if count == 3:
            arrived.set()
        await arrived.wait()
        peer.say(OK)
        await obliging(peer)

    async with serving(patient) as (client, peers):
        await asyncio.gather(*(client.transport.send(POST) for _ in range(3)))
        await asyncio.gather(*(client.transport.send(POST) for _ in range(3)))
        assert len(peers) == 3


async def test_request_has_its_line_and_headers():
    heads: list[bytes] = []

    async def noting(peer: Peer) -> None:
        heads.append(await peer.heard())
        peer.say(OK)

    async with serving(noting) as (client, _):
        await client.transport.send(POST)
        lines = heads[0].decode().split("\r\n")
        assert lines[0] == "POST /base/things?a=b%20c&d=e%2Ff HTTP/1.1"
        assert "Content-Type: application/json" in lines
        assert f"Host: {client.config.server.split('/')[2]}" in lines


async def test_a_connection_that_the_server_closes_is_not_used_again():
    async def once(peer: Peer) -> None:
        await peer.heard()
        peer.say(CLOSING)

    async with serving(once) as (client, peers):
        for _ in range(3):
            assert await client.transport.send(POST) == b"ok"
        assert len(peers) == 3


@virtual_time
async def test_a_connection_that_rested_too_long_is_not_used_again():
    async with serving(obliging) as (client, peers):
        await client.transport.send(POST)
        await asyncio.sleep(MAX_IDLE_S + 1)
        await client.transport.send(POST)
        assert len(peers) == 2


async def test_what_was_not_asked_for_ends_a_connection():
    async def chatty(peer: Peer) -> None:
        await peer.heard()
        peer.say(OK)
        await peer.writer.drain()
        peer.say(OK)
        await obliging(peer)

    async with serving(chatty) as (client, peers):
        await client.transport.send(POST)
        connections = client.transport._connections
        assert connections is not None
        async with asyncio.timeout(60):
            await asyncio.wait([connection.closed for connection in connections._open])
        await client.transport.send(POST)
        assert len(peers) == 2


async def test_a_request_that_is_given_up_takes_its_connection_with_it():
    heard = asyncio.Event()

    async def silent_at_first(peer: Peer) -> None:
        await peer.heard()
        if not heard.is_set():
            heard.set()
            await peer.heard()  # until the connection ends
        peer.say(OK)

    async with serving(silent_at_first) as (client, peers):
        asking = asyncio.create_task(client.transport.send(POST))
        await heard.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await client.transport.send(POST) == b"ok"
        assert len(peers) == 2


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n\r\n", b"HTTP/1.1 200 O", OK[:-1]])
async def test_an_answer_that_is_none_is_an_error(answer):
    async def confused(peer: Peer) -> None:
        await peer.heard()
        peer.say(answer)

    async with serving(confused) as (client, peers):
        with pytest.raises(errors.Unreachable, match="closed the connection"):
            await client.transport.send(POST)
        assert len(peers) == 1


async def test_a_body_without_length_ends_with_the_connection():
    async def endless(peer: Peer) -> None:
        await peer.heard()
        peer.say(b"HTTP/1.1 200 OK\r\n\r\nall that there is")

    async with serving(endless) as (client, _):
        assert await client.transport.send(POST) == b"all that there is"


async def test_closing_the_client_ends_requests_that_are_under_way():
    heard = asyncio.Event()

    async def silent(peer: Peer) -> None:
        await peer.heard()
        heard.set()
        await peer.heard()

    async with serving(silent) as (client, _):
        asking = asyncio.create_task(client.transport.send(POST))
        await heard.wait()
        await client.__aexit__(None, None, None)
        with pytest.raises(errors.Unreachable):
            await asking


async def test_a_stream_may_be_left_after_its_client_is_closed():
    async def silent_after_the_head(peer: Peer) -> None:
        await peer.heard()
        peer.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
        await peer.heard()

    async with (
        serving(silent_after_the_head) as (client, _),
        client.transport.stream(Request("GET", "/things")) as chunks,
    ):
        assert await anext(chunks) == b"ok"
        await client.__aexit__(None, None, None)


async def test_a_connection_given_up_while_it_comes_about_is_closed():
    accepted, ended = asyncio.Event(), asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        while await reader.read(1 << 16):
            pass  # a greeting of TLS, which is never returned
        ended.set()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        async with ApiClient(ClusterConfig(f"https://127.0.0.1:{port}")) as client:
            asking = asyncio.create_task(client.transport.send(POST))
            await accepted.wait()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        gc.collect()  # would report open connections
        async with asyncio.timeout(60):
            await ended.wait()


async def test_unresolvable_host_name_is_reported():
    async with ApiClient(ClusterConfig("http://no-such-host.invalid:1")) as client:
        with pytest.raises(errors.Unreachable, match=r"cannot be reached: .*(name|Name|address)"):
            await client.transport.send(POST)


async def test_configured_proxy_is_used():
    async with connected() as (proxy, client):
        await proxy.put("a")
        through = replace(
            client.config, server="http://far-away.invalid:1", proxy_url=client.config.server
        )
        async with ApiClient(through) as other:
            listing = await other.request_json("GET", "/api/v1/things")
    assert [thing["metadata"]["name"] for thing in listing["items"]] == ["a"]


async def test_a_line_break_in_a_header_is_refused_before_anything_is_sent():
    async with connected() as (server, client):
        source = StaticCredential(Credential("Bearer a\r\nX-Other: b", None, None))
        async with ApiClient(replace(client.config, credentials=source)) as other:
            with pytest.raises(errors.ConfigError, match="Authorization"):
                await other.transport.send(POST)
        assert not server.seen


@pytest.mark.parametrize(
    ("address", "name", "server"),
    [
        ("https://k.example.org", "", ServerAddress("k.example.org", 443, "k.example.org")),
        ("http://[::1]:8080/x", "", ServerAddress("::1", 8080, "::1")),
        ("http://10.0.0.1", "", ServerAddress("10.0.0.1", 80, "10.0.0.1")),
        ("https://10.0.0.1:6443", "kubernetes", ServerAddress("10.0.0.1", 6443, "kubernetes")),
        ("https://user:secret@k.example.org", "", None),
    ],
)
def test_an_address_names_a_server(address, name, server):
    assert parse_server_address(address, name) == server
