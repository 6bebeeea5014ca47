"""exec and attach over WebSockets: messages forwarded between client and kubelet.

Both sides use the channel framing of Kubernetes (the first byte of a message is its channel), so a
message is forwarded unchanged. ``spdy_streams`` serves clients of the older SPDY protocol.
"""

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import WSMsgType, web

from gangline.local.apiserver.errors import bad_request, reason_of, refusal, unavailable
from gangline.local.apiserver.kubelet_link import KubeletLink
from gangline.local.apiserver.request import Call
from gangline.local.kubelet.settings import REFUSAL_HEADER

KUBELET_PROTOCOL = "v5.channel.k8s.io"
CHANNELS = ("v5.channel.k8s.io", "v4.channel.k8s.io", "channel.k8s.io")
BASE64_CHANNELS = ("base64.channel.k8s.io", "v4.base64.channel.k8s.io")
LARGEST_MESSAGE = 4 << 20
CLOSED = (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR)
STREAM_OPTIONS = ("stdin", "stdout", "stderr", "tty")

Upgrade = Callable[[web.BaseRequest, Call], Awaitable[web.StreamResponse]]


def is_websocket(request: web.BaseRequest) -> bool:
    """Return True if the client requests a WebSocket."""
    return request.headers.get("Upgrade", "").lower() == "websocket"


def exec_options(api_request: Call) -> list[tuple[str, str]]:
    """Return the options of exec and attach for the kubelet.

    Raises:
        StatusError: 400, no stream is requested, or no command is given.
    """
    options = [("command", part) for part in api_request.repeated.get("command", [])]
    if api_request.subresource == "exec" and not options:
        raise bad_request("you must specify at least one command to run")
    requested = [name for name in STREAM_OPTIONS if api_request.flag(name)]
    if not {*requested} - {"tty"}:
        raise bad_request("you must specify at least one of stdin, stdout, stderr")
    return options + [(name, "true") for name in requested]


async def open_kubelet(
    link: KubeletLink, url: str, options: list[tuple[str, str]]
) -> aiohttp.ClientWebSocketResponse:
    """Open a WebSocket to a kubelet.

    Raises:
        StatusError: the kubelet refuses or is unreachable.
    """
    try:
        return await link.session.ws_connect(
            url, params=options, protocols=(KUBELET_PROTOCOL,), max_msg_size=LARGEST_MESSAGE
        )
    except aiohttp.WSServerHandshakeError as error:
        why = error.headers.get(REFUSAL_HEADER) if error.headers else None
        raise refusal(error.status, reason_of(error.status), why or error.message) from None
    except (aiohttp.ClientError, TimeoutError) as error:
        raise unavailable(f"the kubelet is unreachable: {error}") from None


class Streams:
    """Handles exec and attach."""

    def __init__(self, link: KubeletLink, spdy: Upgrade) -> None:
        self._link = link
        self._spdy = spdy

    async def __call__(self, request: web.BaseRequest, api_request: Call) -> web.StreamResponse:
        """Connect a client to a command in a container."""
        if not is_websocket(request):
            return await self._spdy(request, api_request)
        options = exec_options(api_request)
        target = self._link.target(api_request, api_request.params.get("container", ""))
        async with contextlib.AsyncExitStack() as stack:
            kubelet = await open_kubelet(self._link, target.url(api_request.subresource), options)
            stack.push_async_callback(kubelet.close)
            socket = web.WebSocketResponse(
                protocols=(*CHANNELS, *BASE64_CHANNELS), max_msg_size=LARGEST_MESSAGE
            )
            await socket.prepare(request)
            await bridge(socket, kubelet, encoded=socket.ws_protocol in BASE64_CHANNELS)
        return socket


async def bridge(
    client: web.WebSocketResponse, kubelet: aiohttp.ClientWebSocketResponse, *, encoded: bool
) -> None:
    """Forward messages in both directions until one side closes."""
    up = asyncio.create_task(_up(client, kubelet, encoded))
    try:
        await _down(kubelet, client, encoded)
    finally:
        up.cancel()
        await asyncio.wait([up])
        await client.close()


async def _down(
    kubelet: aiohttp.ClientWebSocketResponse, client: web.WebSocketResponse, encoded: bool
) -> None:
    with contextlib.suppress(ConnectionError):
        async for message in kubelet:
            if message.type in CLOSED:
                return
            if encoded:
                text = base64.b64encode(message.data[1:]).decode()
                await client.send_str(f"{message.data[0]}{text}")
            else:
                await client.send_bytes(message.data)


async def _up(
    client: web.WebSocketResponse, kubelet: aiohttp.ClientWebSocketResponse, encoded: bool
) -> None:
    with contextlib.suppress(ConnectionError):
        async for message in client:
            if message.type in CLOSED:
                break
            raw = message.data.encode() if isinstance(message.data, str) else message.data
            if encoded and raw:
                raw = bytes([raw[0] - ord("0")]) + base64.b64decode(raw[1:])
            if raw:
                await kubelet.send_bytes(raw)
        await kubelet.close()
