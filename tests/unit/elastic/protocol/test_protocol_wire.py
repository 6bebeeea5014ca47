"""Client and server over a real socket: replies, absences, refusals, unauthenticated clients."""

import asyncio
import socket
from collections.abc import AsyncIterator
from http import HTTPStatus

import pytest

from gangline.elastic.protocol import wire
from gangline.elastic.protocol.channel import JobSecret
from gangline.elastic.protocol.client import (
    BlockingClient,
    ClientIdentity,
    MasterClient,
    MasterUnreachableError,
    RequestRefusedError,
)
from gangline.elastic.protocol.messages import (
    Acknowledged,
    Hello,
    KeyValueAdd,
    KeyValueGet,
    KeyValueReply,
    KeyValueSet,
    KeyValueWait,
    Request,
    RequestRefused,
    Welcome,
)
from gangline.elastic.protocol.server import MasterServer, Peer, negotiate_version
from gangline.elastic.variables import join_address, split_address

SECRET = JobSecret(b"s" * 32)
PATIENCE_S = 60


class Parrot:
    """Returns keys as values, and leaves long polls open until released."""

    def __init__(self) -> None:
        self.open: list[tuple[Peer, int]] = []
        self.seen: list[int] = []
        self.lost_one = asyncio.Event()
        self.waits = asyncio.Event()
        self.is_mute = False

    def welcome(self, peer: Peer, hello: Hello) -> Welcome | RequestRefused:
        if hello.job not in ("", "train"):
            return RequestRefused(reason="WrongJob", message="this is train")
        return Welcome(protocol=negotiate_version(hello))

    def handle(self, peer: Peer, number: int, request: Request) -> None:
        self.seen.append(number)
        if self.is_mute:
            self.open.append((peer, number))
            self.waits.set()
            return
        match request:
            case KeyValueGet(keys=keys):
                peer.send(number, KeyValueReply(values=tuple(key.encode() for key in keys)))
            case KeyValueWait():
                self.open.append((peer, number))
                self.waits.set()
            case KeyValueSet():
                for waiting, its_number in self.open:
                    waiting.send(its_number, KeyValueReply(values=(b"there",)))
                peer.send(number, Acknowledged())
            case _:
                peer.send(number, RequestRefused(reason="BadRequest", message="only keys"))

    def disconnected(self, peer: Peer) -> None:
        self.lost_one.set()

    def page(self, path: str) -> tuple[HTTPStatus, bytes]:
        return (HTTPStatus.OK, b"well\n") if path == "/healthz" else (HTTPStatus.NOT_FOUND, b"")


@pytest.fixture
async def parrot() -> Parrot:
    return Parrot()


@pytest.fixture
async def port(parrot: Parrot) -> AsyncIterator[int]:
    server = MasterServer(parrot, SECRET)
    yield await server.start(["127.0.0.1"], 0)
    await server.stop()


async def test_a_long_poll_does_not_block_other_requests(port: int, parrot: Parrot) -> None:
    async with MasterClient(f"127.0.0.1:{port}", SECRET) as client:
        long = asyncio.create_task(client.call(KeyValueWait(keys=("x",))))
        await asyncio.wait_for(parrot.waits.wait(), PATIENCE_S)
        assert await client.call(KeyValueSet(key="x", value=b"")) == Acknowledged()
        assert await asyncio.wait_for(long, PATIENCE_S) == KeyValueReply(values=(b"there",))


async def test_a_request_survives_a_restart_of_the_master_with_its_number(parrot: Parrot) -> None:
    first = MasterServer(parrot, SECRET)
    port = await first.start(["127.0.0.1"], 0)
    async with MasterClient(f"127.0.0.1:{port}", SECRET) as client:
        parrot.is_mute = True
        asked = asyncio.create_task(client.call(KeyValueGet(keys=("a",)), timeout_s=PATIENCE_S))
        await asyncio.wait_for(parrot.waits.wait(), PATIENCE_S)
        await first.stop()
        parrot.is_mute = False
        second = MasterServer(parrot, SECRET)
        await second.start(["127.0.0.1"], port)
        assert await asked == KeyValueReply(values=(b"a",))
        assert parrot.seen[0] == parrot.seen[-1]
        await second.stop()


async def test_an_unreadable_reply_is_requested_again(port: int, parrot: Parrot) -> None:
    parrot.is_mute = True
    async with MasterClient(f"127.0.0.1:{port}", SECRET) as client:
        asked = asyncio.create_task(client.call(KeyValueGet(keys=("a",)), timeout_s=PATIENCE_S))
        await asyncio.wait_for(parrot.waits.wait(), PATIENCE_S)
        parrot.is_mute = False
        peer, number = parrot.open.pop()
        peer.send_body(number, b"from the future")
        assert await asked == KeyValueReply(values=(b"a",))
        assert not peer.is_open
    assert parrot.seen == [number, number]


async def in_trouble(client: MasterClient, trouble: str) -> None:
    """Wait until the client reports this error."""
    async with asyncio.timeout(PATIENCE_S):
        while trouble not in client.last_error:
            await asyncio.sleep(0.01)


async def test_a_refusal_is_an_error_with_a_reason(port: int) -> None:
    async with MasterClient(f"127.0.0.1:{port}", SECRET) as client:
        with pytest.raises(RequestRefusedError) as caught:
            await client.call(KeyValueAdd(key="x"), timeout_s=PATIENCE_S)
    assert caught.value.reason == "BadRequest"


async def test_a_client_of_another_job_is_refused_permanently(port: int) -> None:
    async with MasterClient(f"127.0.0.1:{port}", SECRET, ClientIdentity(job="other")) as client:
        with pytest.raises(RequestRefusedError) as call:
            await client.call(KeyValueGet(keys=()), timeout_s=PATIENCE_S)
        with pytest.raises(RequestRefusedError) as connection:
            await client.wait_connected(PATIENCE_S)
    assert call.value.reason == connection.value.reason == "WrongJob"


async def test_a_client_with_another_secret_is_cut_without_a_reply(
    port: int, parrot: Parrot
) -> None:
    async with MasterClient(f"127.0.0.1:{port}", JobSecret(b"x" * 32)) as client:
        await in_trouble(client, "the secrets differ")
        with pytest.raises(MasterUnreachableError, match=r"GANGLINE_JOB_SECRET, .* same on all"):
            await client.call(KeyValueGet(keys=()), timeout_s=0.1)
    assert parrot.seen == []


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        pytest.param(
            b"", "before the handshake: another program may listen there", id="it hangs up"
        ),
        pytest.param(
            b"HTTP/1.0 400 " * 9, "does not belong to a gangline job", id="it speaks HTTP"
        ),
    ],
)
async def test_another_program_at_the_masters_address_is_reported(
    sent: bytes, problem: str
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(sent)
        writer.close()

    other = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"127.0.0.1:{other.sockets[0].getsockname()[1]}"
    async with other, MasterClient(address, SECRET) as client:
        await in_trouble(client, problem)
        assert not client.is_connected


async def test_a_silent_program_at_the_masters_address_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gangline.elastic.protocol.client.CONNECT_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        async with MasterClient(f"127.0.0.1:{mute.getsockname()[1]}", SECRET) as client:
            await in_trouble(
                client, "no handshake on the connection: another program may listen there"
            )
            assert not client.is_connected


async def test_another_protocol_is_cut(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"\x00\x01\x02\x03 whatever")
    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    writer.close()


async def test_probes_are_answered_in_http(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nwell\n")


async def test_a_lost_connection_is_reported_to_the_service(port: int, parrot: Parrot) -> None:
    async with MasterClient(f"127.0.0.1:{port}", SECRET) as client:
        await client.wait_connected(PATIENCE_S)
        assert not parrot.lost_one.is_set()
    assert await asyncio.wait_for(parrot.lost_one.wait(), PATIENCE_S)


async def test_blocking_client_survives_a_restart_of_the_master(parrot: Parrot) -> None:
    first = MasterServer(parrot, SECRET)
    port = await first.start(["127.0.0.1"], 0)

    with BlockingClient(f"127.0.0.1:{port}", SECRET) as client:

        def ask() -> KeyValueReply:
            return client.ask(KeyValueGet(keys=("k",)), KeyValueReply, timeout_s=PATIENCE_S)

        await asyncio.to_thread(ask)
        await first.stop()
        asked = asyncio.create_task(asyncio.to_thread(ask))
        second = MasterServer(parrot, SECRET)
        await second.start(["127.0.0.1"], port)
        assert (await asked).values == (b"k",)
        await second.stop()


def test_an_unknown_field_is_ignored() -> None:
    body = wire.encode_body(KeyValueGet(keys=("a",))).replace(b"\x82", b"\x83", 1)
    body += b"\xa3new\x01"
    assert wire.decode_request(wire.wrap_body(7, body)) == (7, KeyValueGet(keys=("a",)))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("master", ("master", 50001)),
        ("master:7", ("master", 7)),
        ("[::1]:7", ("::1", 7)),
        ("::1", ("::1", 50001)),
    ],
)
def test_addresses_are_read(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address
    assert split_address(join_address(*address)) == address
