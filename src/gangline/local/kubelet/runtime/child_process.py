"""A spawned command: its output, input, terminal and exit code."""

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from gangline.local.kubelet.files.beneath import open_beneath, opened_folder
from gangline.local.kubelet.runtime.interface import OutputCallback
from gangline.local.kubelet.runtime.process_tree import walk_process_tree
from gangline.local.kubelet.runtime.spawning import SpawnedProcess, spawn_process

_PTMX = os.makedev(5, 2)
_TIOCSPTLCK = 0x40045431
_TIOCGPTPEER = 0x5441

TAKE_TERMINAL = ("setsid", "--ctty", "--")
"""Before a command: makes it the leader of a session whose terminal is its standard input."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """Both sides of a terminal; the function that spawns a command on it closes them."""

    control_fd: int
    tty_fd: int
    taken_inside: bool = False
    """The command takes the terminal itself (`TAKE_TERMINAL`), in the process namespace that it
    enters. A shell needs its session leader to be visible there: job control uses the leader's
    process id.
    """


def open_terminal(*, taken_inside: bool = False) -> Terminal:
    return Terminal(*os.openpty(), taken_inside=taken_inside)


def open_terminal_inside(pid: int, root: str) -> Terminal:
    """Open a terminal of a container, so that it has a name in the container's /dev/pts. ``root``
    is the folder that is its root. Raises OSError: it has ended, or has no terminals.
    """
    flags = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
    with opened_folder(f"/proc/{pid}/root{root}") as folder:
        control = open_beneath(folder, "dev/pts/ptmx", flags, follow_links=False)
    try:
        # A container with the rights to mount may have put any file there.
        if os.fstat(control).st_rdev != _PTMX:
            raise OSError(errno.ENOTTY, "is not a terminal multiplexer", "/dev/pts/ptmx")
        os.set_blocking(control, True)
        fcntl.ioctl(control, _TIOCSPTLCK, struct.pack("i", 0))
        # The other side by descriptor: its name only means something inside the container.
        side = fcntl.ioctl(control, _TIOCGPTPEER, flags & ~os.O_NONBLOCK)
    except OSError:
        os.close(control)
        raise
    return Terminal(control, side, taken_inside=True)


_STREAMS = {1: "stdout", 2: "stderr"}
_READ_BYTES = 65536
_LINGER_S = 1.0
"""Seconds to wait for output after the end: a process that escaped may still have a pipe open."""


class ChildProcess(asyncio.SubprocessProtocol):
    """One running command; `spawn_child` creates it."""

    def __init__(self, output: OutputCallback) -> None:
        loop = asyncio.get_running_loop()
        self.output = output
        self.exited: asyncio.Future[int] = loop.create_future()
        self._drained: asyncio.Future[None] = loop.create_future()
        self._transport: asyncio.SubprocessTransport | None = None
        self._terminal: int | None = None
        self._paused = False

    @property
    def pid(self) -> int:
        assert self._transport is not None, "spawn sets the transport"
        return self._transport.get_pid()

    async def wait(self) -> int:
        """The exit code (128 + the signal's number), after its output was delivered."""
        code = await asyncio.shield(self.exited)
        while True:
            drained, _ = await asyncio.wait({self._drained}, timeout=_LINGER_S)
            if drained or not self._paused:
                break
        self._close()
        return code

    def send(self, number: signal.Signals) -> None:
        if not self.exited.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        if self.exited.done():
            return
        for pid in list(walk_process_tree(self.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def write(self, data: bytes) -> None:
        """Write to standard input, or to the terminal."""
        if self._terminal is not None:
            with contextlib.suppress(OSError):
                os.write(self._terminal, data)
        elif stdin := self._stdin():
            stdin.write(data)

    async def drain(self) -> None:
        if isinstance(self._transport, SpawnedProcess):
            await self._transport.drain()

    def pause_output(self, held: bool) -> None:
        """Pause or resume reading output; the command blocks when its pipes are full."""
        if held == self._paused:
            return
        self._paused = held
        if self._terminal is not None:
            self._watch_terminal(not held)
        for fd in _STREAMS:
            pipe = self._transport.get_pipe_transport(fd) if self._transport else None
            if pipe is not None and not pipe.is_closing():
                reader = cast(asyncio.ReadTransport, pipe)
                if held:
                    reader.pause_reading()
                else:
                    reader.resume_reading()

    def close_stdin(self) -> None:
        """Close standard input; a terminal gets the end-of-file character."""
        if self._terminal is not None:
            self.write(b"\x04")
        elif stdin := self._stdin():
            stdin.close()

    def resize(self, columns: int, rows: int) -> None:
        if self._terminal is not None:
            size = struct.pack("HHHH", rows, columns, 0, 0)
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not derived from asyncio's classes.
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.output(_STREAMS[fd], bytes(data))

    def process_exited(self) -> None:
        assert self._transport is not None, "a process exits after connection_made"
        code = self._transport.get_returncode()
        if not self.exited.done():
            self.exited.set_result(128 - code if code is not None and code < 0 else code or 0)

    def connection_lost(self, exc: Exception | None) -> None:
        """All pipes are closed and the process has ended (called by the event loop)."""
        if self._terminal is None:
            self._finish()

    def use_terminal(self, terminal: int) -> None:
        self._terminal = terminal
        self._watch_terminal(True)

    def _watch_terminal(self, watched: bool) -> None:
        assert self._terminal is not None, "only terminals are watched"
        loop = asyncio.get_running_loop()
        if watched:
            loop.add_reader(self._terminal, self._read_terminal)
        else:
            loop.remove_reader(self._terminal)

    def _read_terminal(self) -> None:
        assert self._terminal is not None, "the reader is removed with the terminal"
        try:
            data = os.read(self._terminal, _READ_BYTES)
        except OSError as error:
            # Linux returns EIO after the last process has closed its side.
            if error.errno != errno.EIO:
                raise
            data = b""
        if data:
            self.output("stdout", data)
        else:
            self._close_terminal()
            self._finish()

    def _stdin(self) -> asyncio.WriteTransport | None:
        if self._transport is None:
            return None
        return cast(asyncio.WriteTransport | None, self._transport.get_pipe_transport(0))

    def _close_terminal(self) -> None:
        if self._terminal is not None:
            asyncio.get_running_loop().remove_reader(self._terminal)
            os.close(self._terminal)
            self._terminal = None

    def _finish(self) -> None:
        if not self._drained.done():
            self._drained.set_result(None)

    def _close(self) -> None:
        self._close_terminal()
        if self._transport is not None:
            self._transport.close()


async def spawn_child(
    argv: Sequence[str],
    output: OutputCallback,
    *,
    stdin: bool = False,
    terminal: Terminal | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> ChildProcess:
    """Start a command in a session of its own, with a minimal environment and ``env``.

    A ``terminal`` becomes its standard input, output and error; it is closed with the command.
    Raises OSError: it cannot be started.
    """
    if terminal is not None:
        return await _spawn_on_terminal(argv, output, terminal, cwd, env or {})
    child = ChildProcess(output)
    await spawn_process(
        child,
        argv,
        stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        cwd=cwd,
        env={**MINIMAL_ENVIRONMENT, **(env or {})},
    )
    return child


MINIMAL_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C",
}


async def _spawn_on_terminal(
    argv: Sequence[str],
    output: OutputCallback,
    terminal: Terminal,
    cwd: Path | None,
    env: Mapping[str, str],
) -> ChildProcess:
    try:
        # A session of its own as for other commands. setsid(1) creates it here, since it can also
        # make the terminal the controlling one.
        child = ChildProcess(output)
        await spawn_process(
            child,
            [*(["setsid", "--"] if terminal.taken_inside else TAKE_TERMINAL), *argv],
            stdin=terminal.tty_fd,
            stdout=terminal.tty_fd,
            stderr=terminal.tty_fd,
            cwd=cwd,
            env={**MINIMAL_ENVIRONMENT, **env},
        )
    except OSError:
        os.close(terminal.control_fd)
        raise
    finally:
        os.close(terminal.tty_fd)
    os.set_blocking(terminal.control_fd, False)
    child.use_terminal(terminal.control_fd)
    return child
