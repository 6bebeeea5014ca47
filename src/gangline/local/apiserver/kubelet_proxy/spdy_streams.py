"""exec and attach for clients that use SPDY, bridged to the kubelet's WebSocket."""

import asyncio
import contextlib

import aiohttp
from aiohttp import web

from gangline.local.apiserver.core.errors import bad_request
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.kubelet_proxy.client import KubeletProxyClient
from gangline.local.apiserver.kubelet_proxy.spdy import SpdyError, SpdySession, SpdyStream
from gangline.local.apiserver.kubelet_proxy.streams import (
    CLOSED_TYPES,
    HijackedConnection,
    exec_options,
    open_kubelet_websocket,
)

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
"""Supported stream protocol versions. Older ones report no status at the end."""
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
NAMES = {STDOUT: "stdout", STDERR: "stderr", ERROR: "error"}
OPEN_STREAMS_TIMEOUT_S = 30.0


class SpdyExecHandler:
    """Handles exec and attach over SPDY."""

    def __init__(self, link: KubeletProxyClient) -> None:
        self._link = link

    async def __call__(
        self, request: web.BaseRequest, api_request: ApiRequest
    ) -> web.StreamResponse:
        """Connect a client to a command in a container.

        Raises:
            StatusError: the request is refused before the protocol is switched.
        """
        # First, as in Kubernetes, so that a retry without an upgrade gets the error as HTTP.
        target = self._link.find_target(api_request, api_request.params.get("container", ""))
        check_upgrade(request)
        offered = request.headers.getall("X-Stream-Protocol-Version", [])
        chosen = next((name for name in PROTOCOLS if name in offered), None)
        if chosen is None:
            raise bad_request(f"none of the stream protocols {offered} is supported")
        options = exec_options(api_request)
        kubelet = await open_kubelet_websocket(
            self._link, target.endpoint(api_request.subresource), options
        )
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(kubelet.close)
            connection = _ExecConnection(request, expected_streams(options))
            stack.callback(connection.hijacked.close)
            connection.hijacked.switch_protocol({
                "Connection": "Upgrade",
                "Upgrade": "SPDY/3.1",
                "X-Stream-Protocol-Version": chosen,
            })  # fmt: skip
            # After the upgrade no HTTP error can be sent: without streams, just disconnect.
            with contextlib.suppress(TimeoutError):
                streams = await asyncio.wait_for(connection.ready, OPEN_STREAMS_TIMEOUT_S)
                await _bridge(connection, streams, kubelet)
        return web.Response()


def check_upgrade(request: web.BaseRequest) -> None:
    """Refuse a stream request without an upgrade to a protocol with streams.

    Raises:
        StatusError: 400.
    """
    if not request.headers.get("Upgrade", "").lower().startswith("spdy/3.1"):
        raise bad_request("Upgrade request required: use a WebSocket or SPDY/3.1")


def expected_streams(options: list[tuple[str, str]]) -> set[str]:
    names_given = {name for name, _ in options}
    names = {"error"} | (names_given & {"stdin", "stdout", "stderr"})
    if "tty" in names_given:
        names = (names - {"stderr"}) | {"resize"}
    return names


class _ExecConnection:
    """A SPDY connection that waits until the client has opened its streams."""

    def __init__(self, request: web.BaseRequest, expected: set[str]) -> None:
        self.hijacked = HijackedConnection(request, self._received)
        self.session = SpdySession(self.hijacked.write, self._opened, self.hijacked.limit_reading)
        self.ready: asyncio.Future[dict[str, SpdyStream]] = (
            asyncio.get_running_loop().create_future()
        )
        self._expected = expected
        self._streams: dict[str, SpdyStream] = {}

    def _received(self, content: bytes) -> None:
        try:
            self.session.feed(content)
        except SpdyError:
            self.hijacked.close()

    def _opened(self, stream: SpdyStream) -> None:
        name = stream.headers.get("streamtype", "")
        if name in self._expected:
            self._streams[name] = stream
        if self._expected <= self._streams.keys() and not self.ready.done():
            self.ready.set_result(self._streams)


async def _bridge(
    connection: _ExecConnection,
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
    await connection.hijacked.drain()


async def forward_stream(
    stream: SpdyStream, kubelet: aiohttp.ClientWebSocketResponse, channel: int
) -> None:
    with contextlib.suppress(ConnectionError):
        while content := await stream.read():
            await kubelet.send_bytes(bytes([channel]) + content)
        await kubelet.send_bytes(bytes([CLOSE, channel]))


async def _forward_output(
    connection: _ExecConnection,
    streams: dict[str, SpdyStream],
    kubelet: aiohttp.ClientWebSocketResponse,
) -> None:
    async for message in kubelet:
        if message.type in CLOSED_TYPES or connection.hijacked.closed.is_set():
            return
        stream = streams.get(NAMES.get(message.data[0], ""))
        if stream is not None:
            stream.write(message.data[1:])
            await connection.hijacked.drain()
