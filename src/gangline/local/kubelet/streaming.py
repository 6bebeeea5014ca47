"""exec, attach and port-forward over a WebSocket, in Kubernetes' channel framing.

The first byte of each message is its channel: 0 standard input, 1 output, 2 errors, 3 the final
Status as JSON, 4 the size of the terminal as JSON; 255 announces the end of the channel that its
second byte names (v5). For port-forward 0 is the data and 1 an error text.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable

import msgspec
from aiohttp import WSMsgType, web

from gangline.api.container import Container
from gangline.api.meta import Status, StatusCause, StatusDetails
from gangline.local.kubelet.runtime.contract import (
    ByteStream,
    ExecSession,
    RunningContainer,
    Runtime,
    StartFailed,
)

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_CHANNELS = {"stdout": STDOUT, "stderr": STDERR}
_LARGEST_MESSAGE = 1 << 24


class _Socket:
    """A WebSocket that takes messages in order from code that cannot wait."""

    def __init__(self) -> None:
        self.web = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=_LARGEST_MESSAGE)
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()

    def send(self, channel: int, data: bytes) -> None:
        """Send a message after those before it."""
        self._waiting.put_nowait(bytes([channel]) + data)

    def finish(self) -> None:
        """Nothing more will be sent."""
        self._waiting.put_nowait(None)

    async def deliver(self) -> None:
        """Send what waits, until the end or until nobody listens."""
        with contextlib.suppress(ConnectionError):
            while (message := await self._waiting.get()) is not None:
                await self.web.send_bytes(message)


def _asked(request: web.Request, option: str) -> bool:
    return request.query.get(option, "") in ("true", "1")


async def exec_session(request: web.Request, container: RunningContainer) -> web.StreamResponse:
    """Run a command in a container for a client."""
    argv = request.query.getall("command", [])
    if not argv:
        raise web.HTTPBadRequest(text="no command is given")
    socket = _Socket()
    await socket.web.prepare(request)
    delivering = asyncio.create_task(socket.deliver())
    try:
        session = await container.exec(
            argv,
            lambda stream, data: socket.send(_CHANNELS[stream], data),
            stdin=_asked(request, "stdin"),
            tty=_asked(request, "tty"),
        )
        code = await _until_end(socket, session)
        socket.send(ERROR, _exit_status(code))
    except StartFailed as error:
        socket.send(ERROR, _failure(error.message))
    socket.finish()
    await delivering
    await socket.web.close()
    return socket.web


async def attach_session(
    request: web.Request, spec: Container, container: RunningContainer
) -> web.StreamResponse:
    """Connect a client with the main process of a container."""
    socket = _Socket()
    await socket.web.prepare(request)
    delivering = asyncio.create_task(socket.deliver())
    detach = container.attach(lambda stream, data: socket.send(_CHANNELS[stream], data))
    reading = asyncio.create_task(
        _read(socket.web, container.write, container.close_stdin, container.resize)
    )
    ending = asyncio.create_task(container.wait())
    await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
    detach()
    if ending.done():
        # The exit code is the pod's to tell: a stream that came to its end is a success.
        socket.send(ERROR, _exit_status(0))
    if spec.stdin_once:
        container.close_stdin()
    ending.cancel()
    reading.cancel()
    socket.finish()
    await delivering
    await socket.web.close()
    return socket.web


async def forward_session(
    request: web.Request, runtime: Runtime, netns: str | None, address: str
) -> web.StreamResponse:
    """Connect a client with a port inside a pod."""
    try:
        port = int(request.query.get("port", ""))
    except ValueError:
        raise web.HTTPBadRequest(text="no port is given") from None
    socket = _Socket()
    await socket.web.prepare(request)
    delivering = asyncio.create_task(socket.deliver())
    try:
        stream = await runtime.forward(netns, address, port)
    except OSError as error:
        problem = error.strerror or str(error)
        socket.send(STDOUT, f"nothing answers on port {port} of the pod: {problem}".encode())
    else:
        await _splice(socket, stream)
    socket.finish()
    await delivering
    await socket.web.close()
    return socket.web


async def _until_end(socket: _Socket, session: ExecSession) -> int:
    """The exit code; a client that hangs up ends the command."""
    reading = asyncio.create_task(
        _read(socket.web, session.write, session.close_stdin, session.resize)
    )
    ending = asyncio.create_task(session.wait())
    try:
        await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            session.kill()
        return await ending
    finally:
        reading.cancel()
        if not ending.done():
            session.kill()
            await asyncio.wait({ending})


async def _read(
    socket: web.WebSocketResponse,
    write: Callable[[bytes], None],
    close_stdin: Callable[[], None],
    resize: Callable[[int, int], None],
) -> None:
    """Pass on what a client sends; ends when it hangs up."""
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel == STDIN and data:
            write(data)
        elif channel == CLOSE and data == bytes([STDIN]):
            close_stdin()
        elif channel == RESIZE:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                size = json.loads(data)
                resize(int(size["Width"]), int(size["Height"]))


async def _splice(socket: _Socket, stream: ByteStream) -> None:
    """Pass bytes both ways until one side ends."""

    async def inward() -> None:
        async for message in socket.web:
            if message.type is WSMsgType.BINARY and message.data[:1] == b"\0":
                await stream.write(message.data[1:])

    async def outward() -> None:
        while data := await stream.read():
            socket.send(STDIN, data)

    ways = {asyncio.create_task(inward()), asyncio.create_task(outward())}
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        await stream.close()


def _exit_status(code: int) -> bytes:
    if code == 0:
        return msgspec.json.encode(Status(status="Success"))
    cause = StatusCause(reason="ExitCode", message=str(code))
    status = Status(
        status="Failure",
        reason="NonZeroExitCode",
        message=f"command terminated with non-zero exit code: exit status {code}",
        details=StatusDetails(causes=[cause]),
    )
    return msgspec.json.encode(status)


def _failure(message: str) -> bytes:
    status = Status(status="Failure", reason="InternalError", message=message, code=500)
    return msgspec.json.encode(status)
