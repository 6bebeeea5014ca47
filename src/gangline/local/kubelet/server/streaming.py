"""exec, attach and port-forward over a WebSocket, in Kubernetes' channel framing.

The first byte of each message is its channel: 0 standard input, 1 output, 2 errors, 3 the final
Status as JSON, 4 the size of the terminal as JSON; 255 closes the channel in its second byte (v5).
For port-forward 0 is the data and 1 an error text.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable

import msgspec
from aiohttp import WSMsgType, web

from gangline.api.core.container import Container
from gangline.api.meta.objects import Status, StatusCause, StatusDetails
from gangline.local.kubelet.runtime.interface import (
    ContainerRuntime,
    ContainerStartError,
    ExecSession,
    ProcessInput,
    RunningContainer,
)
from gangline.local.query_options import boolean_option

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_CHANNELS = {"stdout": STDOUT, "stderr": STDERR}
_LARGEST_MESSAGE = 1 << 24
_READ_BYTES = 1 << 16
_MAX_TERMINAL_SIZE = 65535
"""The kernel stores sizes of terminals in 16 bits."""
_MAX_QUEUED_BYTES = 4 << 20
"""Bytes that may be queued for a slow client before the source is paused."""


class _Socket:
    """A WebSocket with a queue, so that callbacks can send without waiting.

    When a client reads slowly, ``pause_source`` is called to pause the source, and to resume it.
    """

    def __init__(self) -> None:
        self.web = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=_LARGEST_MESSAGE)
        self.pause_source: Callable[[bool], None] | None = None
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._waiting_bytes = 0
        self._has_capacity = asyncio.Event()
        self._has_capacity.set()

    @property
    def is_full(self) -> bool:
        return not self._has_capacity.is_set()

    def send(self, channel: int, data: bytes) -> None:
        self._waiting.put_nowait(bytes([channel]) + data)
        self._waiting_bytes += len(data) + 1
        if self._waiting_bytes > _MAX_QUEUED_BYTES:
            self._has_capacity.clear()
            self._set_source_paused(True)

    async def wait_capacity(self) -> None:
        await self._has_capacity.wait()

    def finish(self) -> None:
        self._waiting.put_nowait(None)

    async def deliver(self) -> None:
        """Send queued messages until the end, or until the client disconnects."""
        with contextlib.suppress(ConnectionError):
            while (message := await self._waiting.get()) is not None:
                await self.web.send_bytes(message)
                self._waiting_bytes -= len(message)
                if self._waiting_bytes < _MAX_QUEUED_BYTES // 4:
                    self._has_capacity.set()
                    self._set_source_paused(False)
        # The reader of the socket ends the session; until then the source must not block.
        self._has_capacity.set()
        self._set_source_paused(False)
        self.pause_source = None

    def _set_source_paused(self, held: bool) -> None:
        if self.pause_source is not None:
            self.pause_source(held)


@contextlib.asynccontextmanager
async def _opened(request: web.Request) -> AsyncIterator[_Socket]:
    """Accept the client; at the end deliver what is queued, and close the socket."""
    socket = _Socket()
    await socket.web.prepare(request)
    delivering = asyncio.create_task(socket.deliver())
    yield socket
    socket.finish()
    await delivering
    await socket.web.close()


def _is_requested(request: web.Request, option: str) -> bool:
    return bool(boolean_option(request.query, option))


def _output_channels(request: web.Request) -> dict[str, int]:
    """Return the channel of each output stream that the client requests."""
    return {name: number for name, number in _CHANNELS.items() if _is_requested(request, name)}


async def exec_session(request: web.Request, container: RunningContainer) -> web.StreamResponse:
    argv = request.query.getall("command", [])
    if not argv:
        raise web.HTTPBadRequest(text="no command is given")
    async with _opened(request) as socket:
        with_stdin, channels = _is_requested(request, "stdin"), _output_channels(request)

        def show(stream: str, data: bytes) -> None:
            if stream in channels:
                socket.send(channels[stream], data)

        try:
            tty = _is_requested(request, "tty")
            session = await container.exec(argv, show, stdin=with_stdin, tty=tty)
            socket.pause_source = session.pause_output
            code = await _until_end(socket, session, with_stdin=with_stdin)
            socket.send(ERROR, _exit_status(code))
        except ContainerStartError as error:
            socket.send(ERROR, _failure(error.message))
    return socket.web


async def attach_session(
    request: web.Request, spec: Container, container: RunningContainer
) -> web.StreamResponse:
    async with _opened(request) as socket:
        channels = _output_channels(request)

        def show(stream: str, data: bytes) -> None:
            # A container never waits for attached clients: a slow one can read the log instead.
            if stream in channels and not socket.is_full:
                socket.send(channels[stream], data)

        detach = container.attach(show)
        with_stdin = _is_requested(request, "stdin")
        reading = asyncio.create_task(_pass_input(socket.web, container, with_stdin=with_stdin))
        ending = asyncio.create_task(container.wait())
        await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
        detach()
        if ending.done():
            # The pod's status has the exit code: for the stream, reaching its end is a success.
            socket.send(ERROR, _exit_status(0))
        if spec.stdin_once and with_stdin:
            container.close_stdin()
        ending.cancel()
        reading.cancel()
    return socket.web


async def forward_session(
    request: web.Request, runtime: ContainerRuntime, netns: str | None, address: str
) -> web.StreamResponse:
    try:
        port = int(request.query.get("port", ""))
    except ValueError:
        raise web.HTTPBadRequest(text="no port is given") from None
    if not 0 < port < 1 << 16:
        raise web.HTTPBadRequest(text=f"{port} is not a port")
    async with _opened(request) as socket:
        try:
            streams = await runtime.forward(netns, address, port)
        except OSError as error:
            problem = error.strerror or str(error)
            socket.send(STDOUT, f"no process answers on port {port} of the pod: {problem}".encode())
        else:
            await _copy_both_ways(socket, *streams)
    return socket.web


async def _until_end(socket: _Socket, session: ExecSession, *, with_stdin: bool) -> int:
    """The exit code; the command is killed if the client disconnects."""
    reading = asyncio.create_task(_pass_input(socket.web, session, with_stdin=with_stdin))
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


async def _pass_input(socket: web.WebSocketResponse, to: ProcessInput, *, with_stdin: bool) -> None:
    """Pass on the client's input; returns when it disconnects."""
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel in (STDIN, CLOSE) and not with_stdin:
            continue
        if channel == STDIN and data:
            to.write(data)
            await to.drain()
        elif channel == CLOSE and data == bytes([STDIN]):
            to.close_stdin()
        elif channel == RESIZE and (size := parse_terminal_size(data)) is not None:
            to.resize(*size)


def parse_terminal_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a resize message, or None if it is invalid."""
    try:
        size = json.loads(data)
        width, height = int(size["Width"]), int(size["Height"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    fits = 0 <= width <= _MAX_TERMINAL_SIZE and 0 <= height <= _MAX_TERMINAL_SIZE
    return (width, height) if fits else None


async def _copy_both_ways(
    socket: _Socket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Copy bytes in both directions until one side ends."""

    async def inward() -> None:
        async for message in socket.web:
            if message.type is WSMsgType.BINARY and message.data[:1] == b"\0":
                writer.write(message.data[1:])
                await writer.drain()

    async def outward() -> None:
        while data := await reader.read(_READ_BYTES):
            socket.send(STDIN, data)
            await socket.wait_capacity()

    ways = {asyncio.create_task(inward()), asyncio.create_task(outward())}
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        writer.close()


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
