"""exec and attach for clients that use SPDY, bridged to the kubelet's WebSocket."""

import asyncio
import contextlib

import aiohttp
from aiohttp import web

from gangline.local.apiserver.errors import bad_request
from gangline.local.apiserver.hijack import TakenOver
from gangline.local.apiserver.kubelet_link import KubeletLink
from gangline.local.apiserver.request import Call
from gangline.local.apiserver.spdy import Session, SpdyError, Stream
from gangline.local.apiserver.streams import CLOSED, exec_options, open_kubelet

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
"""Supported stream protocol versions. Older ones report no status at the end."""
STDIN, STDOUT, STDERR, OUTCOME, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
NAMES = {STDOUT: "stdout", STDERR: "stderr", OUTCOME: "error"}
STREAMS_WITHIN_S = 30.0


class SpdyStreams:
    """Handles exec and attach over SPDY."""

    def __init__(self, link: KubeletLink) -> None:
        self._link = link

    async def __call__(self, request: web.BaseRequest, api_request: Call) -> web.StreamResponse:
        """Connect a client to a command in a container.

        Raises:
            StatusError: the request is refused before the protocol is switched.
        """
        # First, as in Kubernetes, so that a retry without an upgrade gets the error as HTTP.
        target = self._link.target(api_request, api_request.params.get("container", ""))
        check_upgrade(request)
        offered = request.headers.getall("X-Stream-Protocol-Version", [])
        chosen = next((name for name in PROTOCOLS if name in offered), None)
        if chosen is None:
            raise bad_request(f"none of the stream protocols {offered} is supported")
        options = exec_options(api_request)
        kubelet = await open_kubelet(self._link, target.url(api_request.subresource), options)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(kubelet.close)
            connection = _Connection(request, expected_streams(options))
            stack.callback(connection.taken.close)
            connection.taken.begin({
                "Connection": "Upgrade",
                "Upgrade": "SPDY/3.1",
                "X-Stream-Protocol-Version": chosen,
            })  # fmt: skip
            # After the upgrade no HTTP error can be sent: without streams, just disconnect.
            with contextlib.suppress(TimeoutError):
                streams = await asyncio.wait_for(connection.ready, STREAMS_WITHIN_S)
                await _run(connection, streams, kubelet)
        return web.Response()


def check_upgrade(request: web.BaseRequest) -> None:
    """Refuse a stream request without an upgrade to a protocol with streams.

    Raises:
        StatusError: 400.
    """
    if not request.headers.get("Upgrade", "").lower().startswith("spdy/3.1"):
        raise bad_request("Upgrade request required: use a WebSocket or SPDY/3.1")


def expected_streams(options: list[tuple[str, str]]) -> set[str]:
    asked = {name for name, _ in options}
    names = {"error"} | (asked & {"stdin", "stdout", "stderr"})
    if "tty" in asked:
        names = (names - {"stderr"}) | {"resize"}
    return names


class _Connection:
    """A SPDY connection that waits until the client has opened its streams."""

    def __init__(self, request: web.BaseRequest, expected: set[str]) -> None:
        self.taken = TakenOver(request, self._received)
        self.session = Session(self.taken.write, self._opened, self.taken.limit)
        self.ready: asyncio.Future[dict[str, Stream]] = asyncio.get_running_loop().create_future()
        self._expected = expected
        self._streams: dict[str, Stream] = {}

    def _received(self, content: bytes) -> None:
        try:
            self.session.feed(content)
        except SpdyError:
            self.taken.close()

    def _opened(self, stream: Stream) -> None:
        self._streams[stream.headers.get("streamtype", "")] = stream
        if self._expected <= self._streams.keys() and not self.ready.done():
            self.ready.set_result(self._streams)


async def _run(
    connection: _Connection,
    streams: dict[str, Stream],
    kubelet: aiohttp.ClientWebSocketResponse,
) -> None:
    async with asyncio.TaskGroup() as group:
        pumps = [
            group.create_task(pump(streams[name], kubelet, channel))
            for name, channel in (("stdin", STDIN), ("resize", RESIZE))
            if name in streams
        ]
        await _down(connection, streams, kubelet)
        for pumping in pumps:
            pumping.cancel()
    for stream in streams.values():
        stream.close()
    await connection.taken.drain()


async def pump(stream: Stream, kubelet: aiohttp.ClientWebSocketResponse, channel: int) -> None:
    with contextlib.suppress(ConnectionError):
        while content := await stream.read():
            await kubelet.send_bytes(bytes([channel]) + content)
        await kubelet.send_bytes(bytes([CLOSE, channel]))


async def _down(
    connection: _Connection,
    streams: dict[str, Stream],
    kubelet: aiohttp.ClientWebSocketResponse,
) -> None:
    async for message in kubelet:
        if message.type in CLOSED or connection.taken.closed.is_set():
            return
        stream = streams.get(NAMES.get(message.data[0], ""))
        if stream is not None:
            stream.write(message.data[1:])
            await connection.taken.drain()
