"""A spawned command: its output, input, terminal and exit code.

An event loop's fork copies the page tables of this large process; ``subprocess`` uses vfork, which
takes a tenth of the time at a few hundred megabytes. Pipes get the loop's own transports, the end
is reported by a pidfd.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Protocol

from gangline.local.kubelet.files.beneath import open_beneath, opened_folder
from gangline.local.kubelet.runtime.interface import OutputCallback
from gangline.local.kubelet.runtime.process_tree import walk_process_tree

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


_READ_BYTES = 65536
_LINGER_S = 1.0
"""Seconds to wait for output after the end: a process that escaped may still have a pipe open."""


class _Output(asyncio.Protocol):
    """One output of a process."""

    def __init__(self, child: "ChildProcess", stream: str) -> None:
        self._child = child
        self._stream = stream

    def data_received(self, data: bytes) -> None:
        self._child.output(self._stream, bytes(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self._child.end_output(self._stream)


class _Input(asyncio.Protocol):
    """Tracks whether a process accepts more input."""

    def __init__(self) -> None:
        self.writable = asyncio.Event()
        self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.writable.set()


class _PipeEnd:
    """This side of a pipe, for an event loop to close.

    uvloop closes its descriptor and then calls ``close`` too. A Python pipe would close the
    descriptor a second time, which may by then belong to a file that another thread has opened.
    """

    def __init__(self, pipe: IO[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self._fd = os.dup(pipe.fileno())
        self._closes = isinstance(loop, asyncio.BaseEventLoop)
        pipe.close()

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._closes:
            os.close(self._fd)


class ProcessHandle(Protocol):
    """A started process: a part of the interface of ``Popen``."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None
    returncode: int | None

    @property
    def pid(self) -> int: ...

    def wait(self) -> int:
        """The exit code of a process that has ended; negative if a signal killed it."""

    def kill(self) -> None: ...


class ChildProcess:
    """One running command; `join_process` creates it."""

    def __init__(
        self,
        process: "ProcessHandle | subprocess.Popen[bytes]",
        output: OutputCallback,
        ended_fd: int | None,
        terminal: int | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.output = output
        self.exited: asyncio.Future[int] = loop.create_future()
        self._process = process
        self._drained: asyncio.Future[None] = loop.create_future()
        pipes = {"stdout": process.stdout, "stderr": process.stderr}
        self._pipes = {stream: pipe for stream, pipe in pipes.items() if pipe is not None}
        """The outputs that have no transport yet."""
        self._readers: dict[str, asyncio.ReadTransport] = {}
        self._open = set(self._pipes)
        self._stdin: asyncio.WriteTransport | None = None
        self._input = _Input()
        self._ended_fd = os.pidfd_open(process.pid) if ended_fd is None else ended_fd
        loop.add_reader(self._ended_fd, self._record_exit)
        self._terminal = terminal
        if terminal is not None:
            loop.add_reader(terminal, self._read_terminal)
        self._paused = False

    async def join(self) -> None:
        """Connect the pipes to the event loop."""
        loop = asyncio.get_running_loop()
        if self._process.stdin is not None:
            end = _PipeEnd(self._process.stdin, loop)
            self._stdin, self._input = await loop.connect_write_pipe(_Input, end)
        for stream in list(self._pipes):
            end = _PipeEnd(self._pipes.pop(stream), loop)
            reader, _ = await loop.connect_read_pipe(partial(_Output, self, stream), end)
            self._readers[stream] = reader

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """The exit code (128 + the signal's number), after its output was delivered."""
        code = await asyncio.shield(self.exited)
        while True:
            drained, _ = await asyncio.wait({self._drained}, timeout=_LINGER_S)
            if drained or not self._paused:
                break
        self.close()
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
        elif self._stdin is not None:
            self._stdin.write(data)

    async def drain(self) -> None:
        """Wait until the process has read most of its input."""
        await self._input.writable.wait()

    def pause_output(self, held: bool) -> None:
        """Pause or resume reading output; the command blocks when its pipes are full."""
        if held == self._paused:
            return
        self._paused = held
        if self._terminal is not None:
            loop = asyncio.get_running_loop()
            if held:
                loop.remove_reader(self._terminal)
            else:
                loop.add_reader(self._terminal, self._read_terminal)
        for reader in self._readers.values():
            if not reader.is_closing():
                if held:
                    reader.pause_reading()
                else:
                    reader.resume_reading()

    def close_stdin(self) -> None:
        """Close standard input; a terminal gets the end-of-file character."""
        if self._terminal is not None:
            self.write(b"\x04")
        elif self._stdin is not None:
            self._stdin.close()

    def resize(self, columns: int, rows: int) -> None:
        if self._terminal is not None:
            size = struct.pack("HHHH", rows, columns, 0, 0)
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    def end_output(self, stream: str) -> None:
        """Record that one output has ended."""
        self._open.discard(stream)
        self._check_drained()

    def give_up(self, joining: "asyncio.Task[None]") -> None:
        """End a process that nobody has got, after it has been joined."""
        if not joining.cancelled():
            joining.exception()
        if self._process.returncode is None:
            self._process.kill()
        self.close()

    def close(self) -> None:
        """Close what is connected to the process."""
        self._close_terminal()
        for transport in (self._stdin, *self._readers.values()):
            if transport is not None:
                transport.close()
        for pipe in self._pipes.values():
            pipe.close()

    def _record_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._ended_fd)
        code = self._process.wait()  # It has ended: this only reads the exit code.
        os.close(self._ended_fd)
        self.exited.set_result(128 - code if code < 0 else code)
        self._check_drained()

    def _check_drained(self) -> None:
        is_complete = self.exited.done() and not self._open and self._terminal is None
        if is_complete and not self._drained.done():
            self._drained.set_result(None)

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
            self._check_drained()

    def _close_terminal(self) -> None:
        if self._terminal is not None:
            asyncio.get_running_loop().remove_reader(self._terminal)
            os.close(self._terminal)
            self._terminal = None


async def join_process(
    process: "ProcessHandle | subprocess.Popen[bytes]",
    output: OutputCallback,
    *,
    ended_fd: int | None = None,
    terminal: int | None = None,
) -> ChildProcess:
    """Connect a started process to the event loop; end it if this is cancelled.

    Start it in a thread that lives as long as it does: the kernel takes a thread's end for the
    parent's death (PR_SET_PDEATHSIG).

    Args:
        ended_fd: becomes readable when the process ends, and is closed then; None opens a pidfd.
        terminal: our side of the terminal that is its output.
    """
    child = ChildProcess(process, output, ended_fd, terminal)
    joining = asyncio.create_task(child.join())
    try:
        await asyncio.shield(joining)
    except BaseException:
        # No caller has the process yet: its pipes are joined completely, and closed then.
        joining.add_done_callback(child.give_up)
        raise
    return child


MINIMAL_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C",
}


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
    streams = [subprocess.PIPE if stdin else subprocess.DEVNULL, subprocess.PIPE, subprocess.PIPE]
    prefix: Sequence[str] = ()
    if terminal is not None:
        streams = [terminal.tty_fd] * 3
        # setsid(1) creates the session here, since it can also make the terminal the controlling
        # one.
        prefix = ("setsid", "--") if terminal.taken_inside else TAKE_TERMINAL
    try:
        process = subprocess.Popen(  # noqa: ASYNC220 - a vfork takes a millisecond, a fork fifty
            [*prefix, *argv],
            bufsize=0,
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            env={**MINIMAL_ENVIRONMENT, **(env or {})},
            cwd=cwd,
            start_new_session=terminal is None,
        )
    except OSError:
        if terminal is not None:
            os.close(terminal.control_fd)
        raise
    finally:
        if terminal is not None:
            os.close(terminal.tty_fd)
    if terminal is None:
        return await join_process(process, output)
    os.set_blocking(terminal.control_fd, False)
    return await join_process(process, output, terminal=terminal.control_fd)
