"""The store of a world of a single node."""

import socket

import pytest

from gangline.elastic.agent.rendezvous import (
    STORE_PORTS,
    PortsTakenError,
    SingleNodeRendezvous,
    free_port,
)


async def test_taken_master_port_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortsTakenError, match=f"--master-port {port}: another process listens"):
            await SingleNodeRendezvous(1, "127.0.0.1", port).join()
    assert (await SingleNodeRendezvous(1, "127.0.0.1", port).join()).store_port == port


async def test_lingering_connections_do_not_take_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # this end closes first, and lingers
            assert client.recv(1) == b""
    assert (await SingleNodeRendezvous(1, "127.0.0.1", port).join()).store_port == port


def test_a_fresh_port_is_below_those_of_outgoing_connections() -> None:
    port = free_port()
    assert port in STORE_PORTS
    with socket.create_server(("", port)) as server:
        assert server.getsockname()[1] == port
