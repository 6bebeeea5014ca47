"""Runs a command in a container, connected to the local terminal or pipe."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gangline.cli.output import terminal_size

if TYPE_CHECKING:
    from gangline.kube.execute import RemoteCommand
    from gangline.kube.transport import Transport

_CHUNK = 1 << 16


async def run_interactive(
    transport: "Transport",
    pod: str,
    namespace: str,
    command: tuple[str, ...],
    *,
    container: str = "",
    stdin: bool = False,
    tty: bool = False,
) -> int:
    """Run a command to its end, and return its exit code.

    Raises:
        ApiError: the command could not be run, or the connection broke.
    """
    from gangline.kube.execute import STDERR, open_remote_command  # noqa: PLC0415

    opened = open_remote_command(
        transport, pod, namespace, command, container=container, stdin=stdin, tty=tty
    )
    async with opened as session:
        typing = asyncio.create_task(_forward_input(session)) if stdin else None
        try:
            with _raw_terminal(session) if tty else _cooked_terminal():
                async for channel, content in session.output():
                    stream = sys.stderr if channel == STDERR else sys.stdout
                    stream.buffer.write(content)
                    stream.flush()
        finally:
            if typing is not None:
                typing.cancel()
                await asyncio.gather(typing, return_exceptions=True)
    return session.exit_code or 0


async def _forward_input(session: "RemoteCommand") -> None:
    """Send terminal input, or the content of a pipe until its end."""
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()
    while True:
        ready = asyncio.Event()
        try:
            loop.add_reader(descriptor, ready.set)
        except PermissionError:  # epoll refuses regular files, which are always readable
            content = await asyncio.to_thread(os.read, descriptor, _CHUNK)
        else:
            try:
                await ready.wait()
            finally:
                loop.remove_reader(descriptor)
            content = os.read(descriptor, _CHUNK)
        if not content:
            await session.close_input()
            return
        await session.write(content)


@contextmanager
def _cooked_terminal() -> Iterator[None]:
    yield


@contextmanager
def _raw_terminal(session: "RemoteCommand") -> Iterator[None]:
    """Send every key immediately, and the size of the window when it changes."""
    import termios  # noqa: PLC0415
    import tty  # noqa: PLC0415

    loop = asyncio.get_running_loop()
    sizes: set[asyncio.Task[None]] = set()

    def send_size() -> None:
        columns, rows = terminal_size()
        task = loop.create_task(session.resize(columns, rows))
        sizes.add(task)
        task.add_done_callback(sizes.discard)

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop.add_signal_handler(signal.SIGWINCH, send_size)
    send_size()
    try:
        tty.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        loop.remove_signal_handler(signal.SIGWINCH)
