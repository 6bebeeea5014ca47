"""The traffic of a job: who lacks its secret neither joins, nor reads, nor keeps others out."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.elastic.protocol.client import BlockingClient, ClientIdentity
from gangline.elastic.protocol.messages import KeyValueGet, KeyValueReply
from gangline.elastic.protocol.server import MAX_UNAUTHENTICATED
from integration.elastic.master.master_process import MasterProcess

PREAMBLE = b"GNGL\x02"


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MasterProcess]:
    """A master as a process of its own."""
    started = MasterProcess(tmp_path).start()
    try:
        yield started
    finally:
        assert started.stop() == 0


def connect(master: MasterProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", master.port), timeout=30)


def receive_all(connection: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            received += piece
    return received


def serves(master: MasterProcess) -> bool:
    with BlockingClient(master.address, master.secret, ClientIdentity("train")) as client:
        client.ask(KeyValueGet(keys=()), KeyValueReply)
    return True


def anonymous_client() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def test_a_client_of_plain_tls_gets_the_servers_certificate_and_nothing_else(
    master: MasterProcess,
) -> None:
    connection = connect(master)
    connection.sendall(PREAMBLE)
    assert connection.recv(5, socket.MSG_WAITALL) == PREAMBLE
    with anonymous_client().wrap_socket(connection) as attacker:
        assert attacker.version() == "TLSv1.3"
        attacker.sendall(b"\0\0\0\x04stop")
        with pytest.raises(ssl.SSLError, match="ALERT"):
            attacker.recv(1)
    assert serves(master)


def test_older_tls_is_refused(master: MasterProcess) -> None:
    connection = connect(master)
    connection.sendall(PREAMBLE)
    assert connection.recv(5, socket.MSG_WAITALL) == PREAMBLE
    context = anonymous_client()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):
        context.wrap_socket(connection)
    assert serves(master)


def test_another_version_of_the_channel_gets_the_masters_version(master: MasterProcess) -> None:
    for version in (1, 3):
        with connect(master) as connection:
            connection.sendall(b"GNGL" + bytes([version]) + bytes(32))
            assert receive_all(connection)[:5] == PREAMBLE
        assert serves(master)


def test_connections_that_prove_nothing_keep_nobody_out(master: MasterProcess) -> None:
    for sent in (b"", b"GN", PREAMBLE, PREAMBLE + b"\x16\x03\x01", b"GET / HTTP/1.1\r\n"):
        with contextlib.ExitStack() as attackers:
            mute = []
            for _ in range(MAX_UNAUTHENTICATED + 50):
                connection = attackers.enter_context(connect(master))
                with contextlib.suppress(ConnectionError):
                    connection.sendall(sent)
                mute.append(connection)
            assert serves(master)
            # The oldest ones were cut for the newer ones.
            receive_all(mute[0])


def test_the_secret_and_the_messages_do_not_cross_the_network(master: MasterProcess) -> None:
    seen = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()

        with (
            BlockingClient(f"{host}:{port}", master.secret, ClientIdentity("train")) as client,
            relay(listener, master.port, seen),
        ):
            client.ask(KeyValueGet(keys=("a-telling-name",)), KeyValueReply)
    assert len(seen) > 1000
    assert b"a-telling-name" not in seen
    assert master.secret.key not in seen
    assert master.secret_text.encode() not in seen


@contextlib.contextmanager
def relay(listener: socket.socket, port: int, seen: bytearray) -> Iterator[None]:
    """Pass one connection on to ``port``, and record its bytes."""

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                seen.extend(piece)
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        near, _ = listener.accept()
        with near, socket.create_connection(("127.0.0.1", port)) as far:
            back = threading.Thread(target=copy, args=(far, near))
            back.start()
            copy(near, far)
            back.join()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield
