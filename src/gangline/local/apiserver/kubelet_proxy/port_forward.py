"""Port-forward: TCP connections into a pod, several over one client connection.

Clients use SPDY directly (old kubectl), SPDY inside a WebSocket (current kubectl), or a WebSocket
with two channels for each port (the official Python client). Each forwarded connection is one
WebSocket to the kubelet: channel 0 carries data, channel 1 an error text.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import WSMsgType, web

from gangline.local import limits
from gangline.local.apiserver.core.errors import StatusError, bad_request
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.kubelet_proxy.client import KubeletEndpoint, KubeletProxyClient
from gangline.local.apiserver.kubelet_proxy.spdy import SpdyError, SpdySession, SpdyStream
from gangline.local.apiserver.kubelet_proxy.streams import (
    CHANNELS,
    CLOSED_TYPES,
    HIGH_WATER,
    SpdyConnection,
    choose_protocol,
    is_websocket,
    open_kubelet_websocket,
)

PROTOCOL = "portforward.k8s.io"
TUNNEL_PROTOCOL = "SPDY/3.1+portforward.k8s.io"
DATA, ERROR = 0, 1
MAX_PORTS = 127
"""A channel is one byte, and each port has two. The last one of them stays unused."""

DrainFunction = Callable[[], Awaitable[None]]
"""Waits until the client has read most of the data that was sent to it."""


class PortForwardHandler:
    """Handles port-forward requests."""

    def __init__(self, link: KubeletProxyClient) -> None:
        self._link = link

    async def __call__(
        self, request: web.BaseRequest, api_request: ApiRequest
    ) -> web.StreamResponse:
        """Forward connections until the client disconnects. Raises StatusError: the request is
        refused before the protocol is switched.
        """
        target = self._link.find_target(api_request, any_container=True)
        forwarder = PortForwarder(self._link, target.endpoint("portForward", with_container=False))
        if not is_websocket(request):
            return await _over_spdy(request, forwarder)
        socket = web.WebSocketResponse(
            protocols=(TUNNEL_PROTOCOL, *CHANNELS), max_msg_size=limits.MAX_MESSAGE_BYTES
        )
        ports = _ports(api_request)
        await socket.prepare(request)
        if socket.ws_protocol == TUNNEL_PROTOCOL:
            await _over_tunnel(socket, forwarder)
        else:
            await _over_channels(socket, forwarder, ports)
        await socket.close()
        return socket


class PortForwarder:
    """Connects the streams of a client to ports of a pod."""

    def __init__(self, link: KubeletProxyClient, endpoint: KubeletEndpoint) -> None:
        self._link = link
        self._endpoint = endpoint

    async def open(self, port: str) -> aiohttp.ClientWebSocketResponse:
        """Open a connection to a port of the pod. Raises StatusError: it is no port, or the kubelet
        is unreachable, or does not know the pod.
        """
        check_port(port)
        return await open_kubelet_websocket(self._link, self._endpoint, [("port", port)])

    async def serve(self, data: SpdyStream, error: SpdyStream, drain: DrainFunction) -> None:
        try:
            kubelet = await self.open(data.headers.get("port", ""))
        except StatusError as refused:
            error.write(str(refused).encode())
        else:
            async with kubelet:
                await _bridge(kubelet, data, error, drain)
        data.close()
        error.close()


async def _bridge(
    kubelet: aiohttp.ClientWebSocketResponse,
    data: SpdyStream,
    error: SpdyStream,
    drain: DrainFunction,
) -> None:
    async def inward() -> None:
        with contextlib.suppress(ConnectionError):
            while content := await data.read():
                await kubelet.send_bytes(bytes([DATA]) + content)

    sending = asyncio.create_task(inward())
    async for message in kubelet:
        if message.type in CLOSED_TYPES:
            break
        (error if message.data[0] == ERROR else data).write(message.data[1:])
        await drain()
    sending.cancel()
    await asyncio.wait([sending])


class _StreamPairs:
    """Combines the data and error streams of each forwarded connection."""

    def __init__(
        self, forwarder: PortForwarder, group: asyncio.TaskGroup, drain: DrainFunction
    ) -> None:
        self._forwarder = forwarder
        self._group = group
        self._drain = drain
        self._waiting: dict[str, dict[str, SpdyStream]] = {}

    def on_stream(self, stream: SpdyStream) -> None:
        identity = stream.headers.get("requestid") or stream.headers.get("port", "")
        if len(self._waiting) > limits.MAX_SPDY_STREAMS:
            raise SpdyError("too many streams without their counterpart")
        pair = self._waiting.setdefault(identity, {})
        name = stream.headers.get("streamtype", "")
        if name in ("data", "error"):
            pair[name] = stream
        if pair.keys() >= {"data", "error"}:
            del self._waiting[identity]
            self._group.create_task(self._forwarder.serve(pair["data"], pair["error"], self._drain))


async def _over_spdy(request: web.BaseRequest, forwarder: PortForwarder) -> web.StreamResponse:
    chosen = choose_protocol(request, (PROTOCOL,))

    def opened(stream: SpdyStream) -> None:
        pairs.on_stream(stream)

    connection = SpdyConnection(request, chosen, opened)
    async with asyncio.TaskGroup() as group:
        pairs = _StreamPairs(forwarder, group, connection.drain)
        connection.switch_protocol()
        try:
            await connection.closed.wait()
        finally:
            connection.session.end_streams()
            connection.close()
    return web.Response()


async def _over_tunnel(socket: web.WebSocketResponse, forwarder: PortForwarder) -> None:
    outgoing = _SendQueue(socket)
    readable = asyncio.Event()
    readable.set()

    def limit_reading(unread: int) -> None:
        (readable.set if unread < HIGH_WATER else readable.clear)()

    async with asyncio.TaskGroup() as group:
        writing = group.create_task(outgoing.deliver())
        pairs = _StreamPairs(forwarder, group, outgoing.drain)
        session = SpdySession(outgoing.put, pairs.on_stream, limit_reading)
        with contextlib.suppress(SpdyError):
            async for message in socket:
                if message.type is WSMsgType.BINARY:
                    session.feed(message.data)
                    await readable.wait()
        session.end_streams()
        writing.cancel()


class _SendQueue:
    """Messages that wait to be sent over a WebSocket, limited by their size."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self._messages: asyncio.Queue[bytes] = asyncio.Queue()
        self._bytes = 0
        self._short = asyncio.Event()
        self._short.set()

    def put(self, message: bytes) -> None:
        """Add a message. Raises SpdyError: the client sends without reading the replies."""
        self._messages.put_nowait(message)
        self._bytes += len(message)
        if self._bytes > limits.MAX_UNSENT_BYTES:
            raise SpdyError("the client does not read")
        if self._bytes > HIGH_WATER:
            self._short.clear()

    async def drain(self) -> None:
        """Wait until most messages are sent."""
        await self._short.wait()

    async def deliver(self) -> None:
        """Send messages until the client disconnects."""
        with contextlib.suppress(ConnectionError):
            while True:
                message = await self._messages.get()
                await self._socket.send_bytes(message)
                self._bytes -= len(message)
                if self._bytes <= HIGH_WATER:
                    self._short.set()
        self._short.set()


def _ports(api_request: ApiRequest) -> list[str]:
    listed = ",".join(
        api_request.all_params.get("ports", []) + api_request.all_params.get("port", [])
    )
    ports = [port.strip() for port in listed.split(",") if port.strip()]
    if len(ports) > MAX_PORTS:
        raise bad_request(f"{len(ports)} ports are too many: at most {MAX_PORTS} have a channel")
    for port in ports:
        check_port(port)
    return ports


def check_port(port: str) -> None:
    """Refuse text that is not a port number. Raises StatusError: 400."""
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 1 << 16):
        raise bad_request(f"{port[:80]!r} is not a port")


async def _over_channels(
    socket: web.WebSocketResponse, forwarder: PortForwarder, ports: list[str]
) -> None:
    """Forward ports over two channels each. A channel starts with its port, as two bytes."""
    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        kubelets = []
        for index, port in enumerate(ports):
            number = int(port).to_bytes(2, "little")
            for channel in (2 * index, 2 * index + 1):
                await socket.send_bytes(bytes([channel]) + number)
            kubelet = await forwarder.open(port)
            stack.push_async_callback(kubelet.close)
            kubelets.append(kubelet)
            group.create_task(_forward_output(kubelet, socket, 2 * index))
        with contextlib.suppress(ConnectionError):
            async for message in socket:
                if message.type is not WSMsgType.BINARY or not message.data:
                    continue
                if message.data[0] // 2 < len(kubelets):
                    await kubelets[message.data[0] // 2].send_bytes(b"\x00" + message.data[1:])
        for kubelet in kubelets:
            await kubelet.close()


async def _forward_output(
    kubelet: aiohttp.ClientWebSocketResponse, socket: web.WebSocketResponse, channel: int
) -> None:
    with contextlib.suppress(ConnectionError):
        async for message in kubelet:
            if message.type in CLOSED_TYPES:
                break
            target = channel + (message.data[0] == ERROR)
            await socket.send_bytes(bytes([target]) + message.data[1:])
    await socket.close()
