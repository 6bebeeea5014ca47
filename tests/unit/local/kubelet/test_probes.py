"""Probes: their results in a row, their ports, and those that cannot even be sent."""

import asyncio
from typing import cast

import msgspec
import pytest

from gangline.api.core.container import Container
from gangline.api.core.pod import Pod
from gangline.api.core.probe import (
    GRPCAction,
    HTTPGetAction,
    HTTPHeader,
    Probe,
    TCPSocketAction,
)
from gangline.local.kubelet.probes import (
    ProbeState,
    ProbeTarget,
    next_probe_state,
    resolve_port,
    run_probe,
)
from gangline.local.kubelet.runtime.interface import RunningContainer

LONG_LABEL = "a" * 70 + ".example"
TARGET = ProbeTarget(Container(name="c"), cast("RunningContainer", None), "127.0.0.1")


@pytest.mark.parametrize(
    "probe",
    [
        Probe(http_get=HTTPGetAction(port=1, host=LONG_LABEL)),
        Probe(http_get=HTTPGetAction(port=1, host="[::1")),
        Probe(http_get=HTTPGetAction(port=1, http_headers=[HTTPHeader("a\nb", "c")])),
        Probe(tcp_socket=TCPSocketAction(port=1, host=LONG_LABEL)),
    ],
    ids=["long label", "half an address", "header of two lines", "long label of TCP"],
)
async def test_hosts_and_headers_that_cannot_be_sent_fail_the_probe(probe: Probe) -> None:
    assert await run_probe(probe, TARGET, 5)


@pytest.mark.parametrize(
    ("target", "succeeds"),
    [
        pytest.param("/fails", False, id="the same host is followed"),
        pytest.param("http://other.example/", True, id="leaving the host succeeds"),
        pytest.param("/start", False, id="a circle ends"),
        pytest.param("", True, id="no location"),
    ],
)
async def test_redirects_are_followed_to_the_same_host_only(target: str, succeeds: bool) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        status = "302 Found" if path == b"/start" else "500 Broken"
        location = f"Location: {target}\r\n" if target else ""
        writer.write(f"HTTP/1.1 {status}\r\n{location}Content-Length: 0\r\n\r\n".encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    problem = await run_probe(Probe(http_get=HTTPGetAction(port=port, path="/start")), TARGET, 5)
    server.close()
    assert (problem is None) is succeeds


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        pytest.param(b"\x08\x01", "", id="serving"),
        pytest.param(b"\x08\x02", "NOT_SERVING", id="not serving"),
        pytest.param(b"", "UNKNOWN", id="unknown"),
        pytest.param(None, "no health service", id="an error without a message"),
        pytest.param(b"a" * 2000, "too long", id="an answer that does not end"),
    ],
)
async def test_grpc_probe_calls_the_health_service(message: bytes | None, problem: str) -> None:
    received = asyncio.Queue[bytes]()

    def frame(kind: int, flags: int, payload: bytes, stream: int = 1) -> bytes:
        return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ping = frame(6, 0, b"12345678", 0)
        writer.write(frame(4, 0, b"", 0) + ping + frame(1, 4, b"\x88"))
        # The request, and the acknowledgements of settings and of the ping.
        received.put_nowait(await reader.readuntil(frame(6, 1, b"12345678", 0)))
        if message is not None:
            data = b"\0" + len(message).to_bytes(4) + message
            for part in (data[:3], data[3:]):  # with two bytes of padding
                writer.write(frame(0, 8, b"\2" + part + b"\0\0"))
        writer.write(frame(1, 5, b""))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    probe = Probe(grpc=GRPCAction(port=port, service="training"))
    found = await run_probe(probe, TARGET, 5)
    request = await received.get()
    server.close()
    assert problem in (found or "")
    assert (found is None) is (problem == "")
    assert b"/grpc.health.v1.Health/Check" in request
    assert request.count(b"\0\0\0\0\x0a\x0a\x08training") == 1


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
async def test_grpc_probe_fails_where_nothing_speaks_it(answer: bytes) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert await run_probe(Probe(grpc=GRPCAction(port=port)), TARGET, 5)
    server.close()


def test_a_probe_turns_after_enough_results_in_a_row() -> None:
    probe = Probe(success_threshold=2, failure_threshold=3)
    state, results = ProbeState(successful=False), []
    for result in (True, False, True, True, False, False, True, False, False, False):
        state = next_probe_state(probe, state, result)
        results.append(state.successful)
    assert results == [False, False, False, True, True, True, True, True, True, False]


def test_ports_have_numbers_and_names() -> None:
    body = {"containers": [{"name": "c", "ports": [{"name": "web", "containerPort": 80}]}]}
    container = msgspec.convert({"spec": body}, Pod).spec.containers[0]
    assert [resolve_port(port, container) for port in (8, "8", "web", "none")] == [8, 8, 80, None]
