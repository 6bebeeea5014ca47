"""Starts processes by vfork and connects them to the event loop.

An event loop's fork copies the page tables of this large process; ``subprocess`` uses vfork, which
takes a tenth of the time at a few hundred megabytes. Pipes get the loop's own transports, the end
is reported by a pidfd. The protocol is called as by ``loop.subprocess_exec``.
"""

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol, cast


class _Pipe(asyncio.Protocol):
    def __init__(self, process: "SpawnedProcess", fd: int) -> None:
        self._process = process
        self._fd = fd

    def data_received(self, data: bytes) -> None:
        self._process.protocol.pipe_data_received(self._fd, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._process.pipe_closed(self._fd, exc)


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
    """What a transport needs of a process: a part of the interface of ``Popen``."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None
    returncode: int | None

    @property
    def pid(self) -> int: ...

    def wait(self) -> int:
        """The exit code of a process that has ended."""

    def kill(self) -> None: ...


class SpawnedProcess(asyncio.SubprocessTransport):
    """A running process: the transport that its protocol gets.

    ``ended_fd`` becomes readable when the process ends, and is closed then; None opens a pidfd.
    """

    def __init__(
        self,
        process: "ProcessHandle | subprocess.Popen[bytes]",
        protocol: asyncio.SubprocessProtocol,
        ended_fd: int | None = None,
    ) -> None:
        super().__init__()
        self.protocol = protocol
        self._process = process
        self._ended_fd = ended_fd
        self._pipes: dict[int, asyncio.BaseTransport] = {}
        self._open = {fd for fd, pipe in enumerate(self._outputs, start=1) if pipe is not None}
        self._input = _Input()
        self._ended = False

    async def join(self) -> None:
        loop = asyncio.get_running_loop()
        self.protocol.connection_made(self)
        ended_fd = self._ended_fd
        self._pidfd = os.pidfd_open(self._process.pid) if ended_fd is None else ended_fd
        loop.add_reader(self._pidfd, self._exited)
        if self._process.stdin is not None:
            end = _PipeEnd(self._process.stdin, loop)
            transport, self._input = await loop.connect_write_pipe(_Input, end)
            self._pipes[0] = transport
        for fd, pipe in enumerate(self._outputs, start=1):
            if pipe is not None:
                self._pipes[fd] = await self._read(loop, fd, pipe)

    def get_pid(self) -> int:
        return self._process.pid

    def get_returncode(self) -> int | None:
        """The exit code; minus the number of the signal that killed it; None while it runs."""
        return self._process.returncode

    def get_pipe_transport(self, fd: int) -> asyncio.BaseTransport | None:
        return self._pipes.get(fd)

    async def drain(self) -> None:
        """Wait until the process has read most of its input."""
        await self._input.writable.wait()

    def close(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        for fd, pipe in enumerate((self._process.stdin, *self._outputs)):
            if (transport := self._pipes.get(fd)) is not None:
                transport.close()
            elif pipe is not None:
                pipe.close()
                self._open.discard(fd)

    def give_up(self, joining: "asyncio.Task[None]") -> None:
        """Close an abandoned process after it has been joined."""
        if not joining.cancelled():
            joining.exception()
        self.close()

    def pipe_closed(self, fd: int, exc: Exception | None) -> None:
        """Record that one output has ended."""
        self._open.discard(fd)
        self.protocol.pipe_connection_lost(fd, exc)
        self._finish()

    @property
    def _outputs(self) -> tuple[IO[bytes] | None, IO[bytes] | None]:
        return self._process.stdout, self._process.stderr

    async def _read(
        self, loop: asyncio.AbstractEventLoop, fd: int, pipe: IO[bytes]
    ) -> asyncio.BaseTransport:
        transport, _ = await loop.connect_read_pipe(lambda: _Pipe(self, fd), _PipeEnd(pipe, loop))
        return cast(asyncio.BaseTransport, transport)

    def _exited(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self._process.wait()  # It has ended: this only reads the exit code.
        os.close(self._pidfd)
        self._ended = True
        self.protocol.process_exited()
        self._finish()

    def _finish(self) -> None:
        if self._ended and not self._open:
            self.protocol.connection_lost(None)


async def spawn_process(  # noqa: PLR0913 - one for each property of a process
    protocol: asyncio.SubprocessProtocol,
    argv: Sequence[str],
    *,
    stdin: int,
    stdout: int,
    stderr: int,
    env: Mapping[str, str],
    cwd: Path | None = None,
    start_new_session: bool = False,
    pass_fds: Sequence[int] = (),
) -> SpawnedProcess:
    """Start a program; ``protocol`` gets its output and exit.

    Call it in a thread that lives as long as the process: the kernel takes a thread's end for the
    parent's death (PR_SET_PDEATHSIG). Raises OSError: it cannot be started.
    """
    process = subprocess.Popen(  # noqa: ASYNC220 - a vfork takes a millisecond, a fork fifty
        argv,
        bufsize=0,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=env,
        cwd=cwd,
        start_new_session=start_new_session,
        pass_fds=pass_fds,
    )
    return await join_process(SpawnedProcess(process, protocol))


async def join_process(spawned: SpawnedProcess) -> SpawnedProcess:
    """Connect a started process to the event loop; close it if this is cancelled."""
    joining = asyncio.create_task(spawned.join())
    try:
        await asyncio.shield(joining)
    except BaseException:
        # No caller has the process yet: its pipes are joined completely, and closed then.
        joining.add_done_callback(spawned.give_up)
        raise
    return spawned
