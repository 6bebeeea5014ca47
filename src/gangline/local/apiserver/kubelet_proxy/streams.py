"""exec and attach: messages forwarded between client and kubelet.

Current clients use WebSockets. Both sides then have the channel framing of Kubernetes (the first
byte of a message is its channel), so a message is forwarded unchanged. Clients of the older SPDY
protocol have a stream for each channel, over a connection that is taken over from the HTTP server
(``SpdyConnection``); the kubelet still gets a WebSocket.
"""

import asyncio
import base64
import contextlib
from collections.abc import Callable, Sequence

import aiohttp
from aiohttp import WSMsgType, web

from gangline.local import limits
from gangline.local.apiserver.core.errors import (
    bad_request,
    reason_for_code,
    status_error,
    unavailable,
)
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.kubelet_proxy.client import KubeletEndpoint, KubeletProxyClient
from gangline.local.apiserver.kubelet_proxy.spdy import SpdyError, SpdySession, SpdyStream
from gangline.local.kubelet.settings import REFUSAL_HEADER

HIGH_WATER = 1 << 20


class SpdyConnection(asyncio.Protocol):
    """A connection of a SPDY client after its upgrade. The HTTP server is notified only of its
    end.
    """

    def __init__(
        self,
        request: web.BaseRequest,
        protocol: str,
        opened: Callable[[SpdyStream], None],
    ) -> None:
        if request.transport is None:
            raise ConnectionResetError("the client has disconnected")
        self.closed = asyncio.Event()
        self.session = SpdySession(self.write, opened, self.limit_reading)
        self._protocol = protocol
        self._transport = request.transport
        self._http_protocol = request.protocol
        self._writable = asyncio.Event()
        self._writable.set()
        self._reading = True

    def switch_protocol(self) -> None:
        """Switch the protocol, then send 101: the client may send data once it has that."""
        self._transport.set_protocol(self)
        self._transport.write(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
            b"X-Stream-Protocol-Version: %b\r\n\r\n" % self._protocol.encode()
        )

    def write(self, content: bytes) -> None:
        """Send. A client that only sends, and never reads the replies, is disconnected."""
        if self._transport.is_closing():
            return
        self._transport.write(content)
        if self._transport.get_write_buffer_size() > limits.MAX_UNSENT_BYTES:
            self._transport.abort()

    async def drain(self) -> None:
        """Wait until the client has read most of the sent data."""
        await self._writable.wait()

    def limit_reading(self, unread: int) -> None:
        """Pause reading while too many received bytes are unprocessed."""
        readable = unread < HIGH_WATER
        if readable != self._reading and not self._transport.is_closing():
            self._reading = readable
            if readable:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        """asyncio: data was received."""
        try:
            self.session.feed(data)
        except SpdyError:
            self.close()

    def pause_writing(self) -> None:
        """asyncio: the client reads too slowly."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """asyncio: the client has caught up."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection was closed."""
        self._writable.set()
        self.closed.set()
        self._http_protocol.connection_lost(exc)


KUBELET_PROTOCOL = "v5.channel.k8s.io"
CHANNELS = ("v5.channel.k8s.io", "v4.channel.k8s.io", "channel.k8s.io")
BASE64_CHANNELS = ("base64.channel.k8s.io", "v4.base64.channel.k8s.io")
CLOSED_TYPES = (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR)
STREAM_OPTIONS = ("stdin", "stdout", "stderr", "tty")


def is_websocket(request: web.BaseRequest) -> bool:
    """Return True if the client requests a WebSocket."""
    return request.headers.get("Upgrade", "").lower() == "websocket"


def exec_options(api_request: ApiRequest) -> list[tuple[str, str]]:
    """Return the options of exec and attach for the kubelet. Raises StatusError: 400, no stream is
    requested, or no command is given.
    """
    options = [("command", part) for part in api_request.all_params.get("command", [])]
    if api_request.subresource == "exec" and not options:
        raise bad_request("you must specify at least one command to run")
    requested = [name for name in STREAM_OPTIONS if api_request.bool_param(name)]
    if not {*requested} - {"tty"}:
        raise bad_request("you must specify at least one of stdin, stdout, stderr")
    return options + [(name, "true") for name in requested]


async def open_kubelet_websocket(
    link: KubeletProxyClient, endpoint: KubeletEndpoint, options: list[tuple[str, str]]
) -> aiohttp.ClientWebSocketResponse:
    """Open a WebSocket to a kubelet. Raises StatusError: the kubelet refuses or is unreachable."""
    try:
        return await link.open_websocket(
            endpoint, options, KUBELET_PROTOCOL, limits.MAX_MESSAGE_BYTES
        )
    except aiohttp.WSServerHandshakeError as error:
        why = error.headers.get(REFUSAL_HEADER) if error.headers else None
        raise status_error(
            error.status, reason_for_code(error.status), why or error.message
        ) from None
    except (aiohttp.ClientError, TimeoutError) as error:
        raise unavailable(f"the kubelet is unreachable: {error}") from None


class ExecHandler:
    """Handles exec and attach."""

    def __init__(self, link: KubeletProxyClient) -> None:
        self._link = link

    async def __call__(
        self, request: web.BaseRequest, api_request: ApiRequest
    ) -> web.StreamResponse:
        """Connect a client to a command in a container. Raises StatusError: the request is refused
        before the protocol is switched.
        """
        # First, as in Kubernetes, so that a retry without an upgrade gets the error as HTTP.
        target = self._link.find_target(api_request, api_request.params.get("container", ""))
        spdy = "" if is_websocket(request) else choose_protocol(request, SPDY_PROTOCOLS)
        options = exec_options(api_request)
        kubelet = await open_kubelet_websocket(
            self._link, target.endpoint(api_request.subresource), options
        )
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(kubelet.close)
            if spdy:
                await _serve_spdy(request, spdy, expected_streams(options), kubelet)
                return web.Response()
            socket = web.WebSocketResponse(
                protocols=(*CHANNELS, *BASE64_CHANNELS), max_msg_size=limits.MAX_MESSAGE_BYTES
            )
            await socket.prepare(request)
            await bridge_websockets(socket, kubelet, encoded=socket.ws_protocol in BASE64_CHANNELS)
        return socket


async def bridge_websockets(
    client: web.WebSocketResponse, kubelet: aiohttp.ClientWebSocketResponse, *, encoded: bool
) -> None:
    """Forward messages in both directions until one side closes."""
    up = asyncio.create_task(_client_to_kubelet(client, kubelet, encoded))
    try:
        await _kubelet_to_client(kubelet, client, encoded)
    finally:
        up.cancel()
        await asyncio.wait([up])
        await client.close()


async def _kubelet_to_client(
    kubelet: aiohttp.ClientWebSocketResponse, client: web.WebSocketResponse, encoded: bool
) -> None:
    with contextlib.suppress(ConnectionError):
        async for message in kubelet:
            if message.type in CLOSED_TYPES:
                return
            if encoded:
                text = base64.b64encode(message.data[1:]).decode()
                await client.send_str(f"{message.data[0]}{text}")
            else:
                await client.send_bytes(message.data)


def decode_channel_message(content: str | bytes, *, encoded: bool) -> bytes:
    """Return the bytes of a message: its channel, then its data.

    With ``encoded`` the channel is a digit and the data is in base64. Raises ValueError: the
    message is not in this encoding.
    """
    raw = content.encode() if isinstance(content, str) else content
    if not encoded or not raw:
        return raw
    if not raw[:1].isdigit():
        raise ValueError("the channel of a message is not a digit")
    return bytes([raw[0] - ord("0")]) + base64.b64decode(raw[1:])


async def _client_to_kubelet(
    client: web.WebSocketResponse, kubelet: aiohttp.ClientWebSocketResponse, encoded: bool
) -> None:
    with contextlib.suppress(ConnectionError):
        async for message in client:
            if message.type in CLOSED_TYPES:
                break
            try:
                raw = decode_channel_message(message.data, encoded=encoded)
            except ValueError:
                break
            if raw:
                await kubelet.send_bytes(raw)
        await kubelet.close()


SPDY_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
"""Supported stream protocol versions. Older ones report no status at the end."""
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
NAMES = {STDOUT: "stdout", STDERR: "stderr", ERROR: "error"}
OPEN_STREAMS_TIMEOUT_S = 30.0


async def _serve_spdy(
    request: web.BaseRequest,
    protocol: str,
    expected: set[str],
    kubelet: aiohttp.ClientWebSocketResponse,
) -> None:
    streams: dict[str, SpdyStream] = {}
    complete = asyncio.Event()

    def opened(stream: SpdyStream) -> None:
        if (name := stream.headers.get("streamtype", "")) in expected:
            streams[name] = stream
        if expected <= streams.keys():
            complete.set()

    connection = SpdyConnection(request, protocol, opened)
    try:
        connection.switch_protocol()
        # After the upgrade no HTTP error can be sent: without streams, just disconnect.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(complete.wait(), OPEN_STREAMS_TIMEOUT_S)
            await _bridge(connection, streams, kubelet)
    finally:
        connection.close()


def choose_protocol(request: web.BaseRequest, known: Sequence[str]) -> str:
    """Return the first of the known stream protocols that a client offers. Raises StatusError: 400,
    it offers none, or does not request an upgrade to a protocol with streams.
    """
    if not request.headers.get("Upgrade", "").lower().startswith("spdy/3.1"):
        raise bad_request("Upgrade request required: use a WebSocket or SPDY/3.1")
    offered = request.headers.getall("X-Stream-Protocol-Version", [])
    for name in known:
        if name in offered:
            return name
    raise bad_request(f"none of the stream protocols {offered} is supported")


def expected_streams(options: list[tuple[str, str]]) -> set[str]:
    names_given = {name for name, _ in options}
    names = {"error"} | (names_given & {"stdin", "stdout", "stderr"})
    if "tty" in names_given:
        names = (names - {"stderr"}) | {"resize"}
    return names


async def _bridge(
    connection: SpdyConnection,
    streams: dict[str, SpdyStream],
    kubelet: aiohttp.ClientWebSocketResponse,
) -> None:
    async with asyncio.TaskGroup() as group:
        pumps = [
            group.create_task(forward_stream(streams[name], kubelet, channel))
            for name, channel in (("stdin", STDIN), ("resize", RESIZE))
            if name in streams
        ]
        await _forward_output(connection, streams, kubelet)
        for pumping in pumps:
            pumping.cancel()
    for stream in streams.values():
        stream.close()
    await connection.drain()


async def forward_stream(
    stream: SpdyStream, kubelet: aiohttp.ClientWebSocketResponse, channel: int
) -> None:
    with contextlib.suppress(ConnectionError):
        while content := await stream.read():
            await kubelet.send_bytes(bytes([channel]) + content)
        await kubelet.send_bytes(bytes([CLOSE, channel]))


async def _forward_output(
    connection: SpdyConnection,
    streams: dict[str, SpdyStream],
    kubelet: aiohttp.ClientWebSocketResponse,
) -> None:
    async for message in kubelet:
        if message.type in CLOSED_TYPES or connection.closed.is_set():
            return
        stream = streams.get(NAMES.get(message.data[0], ""))
        if stream is not None:
            stream.write(message.data[1:])
            await connection.drain()
