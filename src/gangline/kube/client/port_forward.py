"""Forwarding of local ports to a pod, over WebSockets.

Each connection has its own WebSocket. The first byte of a message is its channel: 0 carries the
data of the connection, 1 error messages. The first message of each channel repeats the port, in two
bytes.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp

from gangline.kube.errors import ApiError, Unreachable
from gangline.kube.http.request import Request, pod_path, query_parameters
from gangline.kube.http.transport import Transport

PROTOCOLS = ("v4.channel.k8s.io",)
DATA, ERROR = 0, 1
_CHUNK = 1 << 16
_PORT_BYTES = 2

TargetResolver = Callable[[], Awaitable[tuple[str, int]]]
"""Returns pod and port for a new connection: the pods behind a service change."""
ErrorCallback = Callable[[str], None]


@asynccontextmanager
async def forward_port(
    transport: Transport,
    namespace: str,
    resolve_target: TargetResolver,
    *,
    local_port: int = 0,
    host: str = "127.0.0.1",
    on_error: ErrorCallback = lambda _: None,
) -> AsyncIterator[int]:
    """Listen on a port (0: any free one) and forward connections to a pod; yields the port.

    Raises:
        OSError: the port is not available.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            pod, port = await resolve_target()
            await _connect(transport, namespace, pod, port, reader, writer)
        except (ApiError, ConnectionError) as error:
            on_error(str(error))
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    connections: set[asyncio.Task[None]] = set()

    async def tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await serve(reader, writer)
        finally:
            connections.discard(task)

    server = await asyncio.start_server(tracked, host, local_port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _connect(
    transport: Transport,
    namespace: str,
    pod: str,
    port: int,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Copy bytes in both directions until one side closes.

    Raises:
        ApiError: the server refused, or nothing listens on the port in the pod.
    """
    request = Request("GET", pod_path(namespace, pod, "portforward"), query_parameters(ports=port))
    async with transport.websocket(request, PROTOCOLS) as socket:
        sending = asyncio.create_task(_send(reader, socket))
        try:
            await _receive(socket, writer)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


async def _send(reader: asyncio.StreamReader, socket: aiohttp.ClientWebSocketResponse) -> None:
    while content := await reader.read(_CHUNK):
        await socket.send_bytes(bytes([DATA]) + content)
    await socket.close()


async def _receive(socket: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
    headers = {DATA, ERROR}
    async for message in socket:
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            continue
        channel, content = message.data[0], message.data[1:]
        if channel in headers and len(content) == _PORT_BYTES:
            headers.discard(channel)
        elif channel == DATA:
            writer.write(content)
            await writer.drain()
        elif content:
            raise Unreachable(content.decode(errors="replace").strip())
