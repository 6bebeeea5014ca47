"""Commands in a container (``exec``) over a WebSocket.

The first byte of each message is its channel: 0 stdin, 1 stdout, 2 stderr, 3 the final Status,
4 the size of the terminal, 255 the end of a channel.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from gangline.api.meta.objects import Status
from gangline.kube.errors import ApiError, Unreachable, error_from_status
from gangline.kube.http.request import Request, pod_path, query_parameters
from gangline.kube.http.transport import Transport

if TYPE_CHECKING:
    from aiohttp import ClientWebSocketResponse

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255


@dataclass(frozen=True, slots=True)
class ExecResult:
    """Output and exit code of a command."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class RemoteCommand:
    """A command that runs in a container. Iterate over its output, then read ``exit_code``."""

    def __init__(self, socket: "ClientWebSocketResponse") -> None:
        self._socket = socket
        self.exit_code: int | None = None

    async def write(self, typed: bytes) -> None:
        """Send input."""
        await self._socket.send_bytes(bytes([STDIN]) + typed)

    async def close_input(self) -> None:
        """Signal the end of the input; the v4 protocol has no message for it."""
        if self._socket.protocol == PROTOCOLS[0]:
            await self._socket.send_bytes(bytes([CLOSE, STDIN]))

    async def resize(self, columns: int, rows: int) -> None:
        """Send the size of the terminal."""
        size = msgspec.json.encode({"Width": columns, "Height": rows})
        await self._socket.send_bytes(bytes([RESIZE]) + size)

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield the output of the command as (STDOUT or STDERR, bytes), until it ends.

        Raises:
            ApiError: the command could not be run, or the connection broke.
        """
        from aiohttp import WSMsgType

        async for message in self._socket:
            if message.type is not WSMsgType.BINARY or not message.data:
                continue
            channel, content = message.data[0], message.data[1:]
            if channel == STATUS:
                self.exit_code = exit_code_of(msgspec.json.decode(content, type=Status))
            elif channel in {STDOUT, STDERR} and content:
                yield channel, content
        if self.exit_code is None:
            raise Unreachable("the connection to the container was lost while a command ran")


def exit_code_of(status: Status) -> int:
    """Return the exit code in the final Status of a command.

    Raises:
        ApiError: the command was not run.
    """
    if status.status == "Success":
        return 0
    for cause in status.details.causes if status.details else []:
        if cause.reason == "ExitCode" and cause.message.isdecimal():
            return int(cause.message)
    raise error_from_status(status)


@asynccontextmanager
async def open_remote_command(
    transport: Transport,
    pod: str,
    namespace: str,
    command: Sequence[str],
    *,
    container: str = "",
    stdin: bool = False,
    tty: bool = False,
) -> AsyncIterator[RemoteCommand]:
    """Start a command in a container.

    Raises:
        ApiError: the server refused it.
    """
    params = query_parameters(
        command=list(command),
        container=container,
        stdin=stdin,
        stdout=True,
        stderr=not tty,
        tty=tty,
    )
    request = Request("GET", pod_path(namespace, pod, "exec"), params)
    async with transport.websocket(request, PROTOCOLS) as socket:
        yield RemoteCommand(socket)


async def run_in_container(
    transport: Transport,
    pod: str,
    namespace: str,
    command: Sequence[str],
    *,
    container: str = "",
    stdin: bytes | None = None,
    timeout_s: float = 60.0,
) -> ExecResult:
    """Run a command in a container and wait for its end.

    Raises:
        ApiError: it could not be run, or did not end in time (``Unreachable``).
    """
    output: dict[int, bytearray] = {STDOUT: bytearray(), STDERR: bytearray()}
    try:
        async with (
            asyncio.timeout(timeout_s),
            open_remote_command(
                transport, pod, namespace, command, container=container, stdin=stdin is not None
            ) as session,
        ):
            if stdin is not None:
                await session.write(stdin)
                await session.close_input()
            async for channel, content in session.output():
                output[channel] += content
    except TimeoutError as error:
        raise Unreachable(f"the command {command[0]!r} did not end in {timeout_s:.0f} s") from error
    if session.exit_code is None:
        raise ApiError(Status(message="the command ended without an exit code"))
    return ExecResult(session.exit_code, bytes(output[STDOUT]), bytes(output[STDERR]))
