"""The client of gRPC's health service: one unary call over HTTP/2 without TLS, as probes need it.

Only the answered message counts, so headers are sent literally and never decoded: nothing is kept
of HPACK's state. The server may be any program of a user, so what it sends is bounded.
"""

import asyncio
import struct
from collections.abc import AsyncIterator

__all__ = ["GrpcHealthError", "check_grpc_health"]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GO_AWAY = 0, 1, 3, 4, 6, 7
ACK = END_STREAM = 1
END_HEADERS, PADDED = 4, 8
MAX_FRAME_BYTES = 1 << 14
"""What a server may send while the client announces nothing else."""
MAX_MESSAGE_BYTES = 1 << 10
STATES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")


class GrpcHealthError(Exception):
    """The service is not healthy, or its server does not speak gRPC."""


async def check_grpc_health(host: str, port: int, service: str, user_agent: str) -> None:
    """Ask a server for the health of a service. Raises GrpcHealthError: it does not serve; OSError,
    EOFError: there is no server, or it closes the connection.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        name = service.encode()
        message = b"\x0a" + _varint(len(name)) + name if name else b""
        body = struct.pack(">BI", 0, len(message)) + message
        writer.write(PREFACE + _frame(SETTINGS, 0, 0, b""))
        writer.write(_frame(HEADERS, END_HEADERS, 1, _headers(f"{host}:{port}", user_agent)))
        writer.write(_frame(DATA, END_STREAM, 1, body))
        answer = b""
        async for part in _answer(reader, writer):
            answer += part
            if len(answer) > MAX_MESSAGE_BYTES:
                raise GrpcHealthError("the answer is too long")
    finally:
        writer.close()
    status = answer[6:7] if answer[5:6] == b"\x08" else b""
    if not answer:
        raise GrpcHealthError("the server has no health service, or does not know the service")
    if status != b"\x01":
        state = STATES[status[0]] if status and status[0] < len(STATES) else STATES[0]
        raise GrpcHealthError(f"service unhealthy (responded with {state!r})")


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> AsyncIterator[bytes]:
    """Yield the data of the stream until its end, and answer what the protocol asks for."""
    while True:
        head = await reader.readexactly(9)
        size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        if size > MAX_FRAME_BYTES:
            raise GrpcHealthError("the server does not speak HTTP/2")
        payload = await reader.readexactly(size)
        if kind in (SETTINGS, PING) and not flags & ACK:
            writer.write(_frame(kind, ACK, 0, payload if kind == PING else b""))
        elif kind in (RESET, GO_AWAY):
            raise GrpcHealthError("the server refused the call")
        elif kind == DATA:
            yield payload[1 : len(payload) - payload[0]] if flags & PADDED else payload
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            return


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _headers(authority: str, user_agent: str) -> bytes:
    """Encode the headers: POST and http by their index, the others as literals that no table gets.

    A name with an index (RFC 7541, appendix A) has a prefix of four bits.
    """
    return b"".join(
        (
            b"\x83\x86",
            b"\x04" + _text("/grpc.health.v1.Health/Check"),
            b"\x01" + _text(authority),
            b"\x0f\x10" + _text("application/grpc"),
            b"\x0f\x2b" + _text(user_agent),
            b"\x00" + _text("te") + _text("trailers"),
        )
    )


def _text(text: str) -> bytes:
    encoded = text.encode()
    size = len(encoded)
    return (bytes([size]) if size < 0x7F else b"\x7f" + _varint(size - 0x7F)) + encoded


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])
