"""One fork server: the process, its imports, and the containers that are forked from it."""

import asyncio
import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

import gangline
from gangline.forkserver import PLACEHOLDER, VARYING_VARIABLES, ContainerSpec, ForkServerClient
from gangline.local.kubelet.runtime.child_process import ChildProcess, join_process
from gangline.local.kubelet.runtime.interface import OutputCallback
from gangline.local.kubelet.runtime.warm_start.command import ServerKey

_READ_BYTES = 64


class ForkedProcess:
    """The supervisor of a container: its end of a pipe tells when it ends, and the exit code.

    It is a child of the fork server, so its exit status is not available here. It kills the
    container when this process ends, because the pipe has no reader then.
    """

    def __init__(self, pid: int, stdout: int, stderr: int, exit_code: int) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = io.FileIO(stdout)
        self.stderr: IO[bytes] | None = io.FileIO(stderr)
        self.returncode: int | None = None
        self._exit_code = exit_code

    def wait(self) -> int:
        """The exit code, negative for a signal; call it when the pipe is readable."""
        if self.returncode is None:
            text = os.read(self._exit_code, _READ_BYTES)
            # A supervisor that was killed has reported nothing, and the container died with it.
            self.returncode = int(text) if text else -signal.SIGKILL
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


HOOK_FOLDER = Path(gangline.__file__).parent / "elastic" / "forkserver" / "hook"
"""The folder of the program: it is run by the environment's interpreter, never imported here."""

_IMPORT_TIMEOUT_S = 120.0
_FORK_TIMEOUT_S = 5.0
_FIRST_MODULES = ("ctypes", "signal", "warnings")
"""Modules that enter a container: they must be known to the server before it is forked."""
_TRAINING_MODULES = {"torch": ("torch._dynamo",)}
"""Modules that a library imports when training begins."""
_MAX_ERROR_BYTES = 4096


class ServerFailedError(Exception):
    """A fork server cannot be used; the message has the reason."""


class DependentModulesError(ServerFailedError):
    """Modules depend on the process that imports them."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name} {reason}" for name, reason in reasons.items()))
        self.packages = frozenset(reasons)


@dataclass(eq=False, slots=True)
class ContainerForkServer:
    """A running fork server whose imports are done."""

    process: ChildProcess
    client: ForkServerClient
    files: Mapping[str, Sequence[int]] = field(default_factory=dict)
    import_s: float = 0.0
    """Seconds from its start until its imports were done: what a forked container saves."""

    @classmethod
    async def start(cls, key: ServerKey, excluded: frozenset[str]) -> Self:
        """Start one and wait for its imports, without those of the excluded packages. Raises
        ServerFailedError: it cannot be used.
        """
        errors, began = bytearray(), time.monotonic()

        def note(stream: str, data: bytes) -> None:
            if stream == "stderr":
                errors.extend(data[: _MAX_ERROR_BYTES - len(errors)])

        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await _spawn(key, theirs.fileno(), note)
        except OSError as error:
            ours.close()
            raise ServerFailedError(f"it cannot be started: {error}") from error
        server = cls(process, ForkServerClient(ours))
        try:
            await server._import(key.modules, excluded)
            server.import_s = time.monotonic() - began
        except (ConnectionError, TimeoutError) as error:
            await server.end()
            text = errors.decode(errors="replace").strip().rpartition("\n")[2]
            raise ServerFailedError(text or str(error) or "its imports take too long") from error
        except BaseException:
            await server.end()
            raise
        return server

    def has_changed_files(self) -> bool:
        """Return whether the imported modules have been replaced since, as by an upgrade."""
        return any(_file_identity(path) != tuple(identity) for path, identity in self.files.items())

    async def fork(self, spec: ContainerSpec, output: OutputCallback) -> ChildProcess:
        """Fork a container; its setup has only begun when this returns. Raises RefusedError, or
        OSError: the server has ended or does not answer, and nothing is started later either.
        """
        with contextlib.ExitStack() as stack:
            description = _memory_file(json.dumps(spec).encode(), stack)
            pipes = [_pipe(stack) for _ in range(3)]
            descriptors = [description, *(writing for _, writing in pipes)]
            request = self.client.fork({"container": True}, descriptors)
            # If this gives up, the reading ends are closed, and a late fork ends itself.
            pid = await asyncio.wait_for(request, _FORK_TIMEOUT_S)
            reading = [os.dup(end) for end, _ in pipes]
        forked = ForkedProcess(pid, *reading)
        return await join_process(forked, output, ended_fd=reading[2])

    def disconnect(self) -> None:
        self.client.close()

    async def end(self) -> None:
        self.client.close()
        # Not its descendants: those are the containers.
        self.process.send(signal.SIGKILL)
        await self.process.wait()

    async def _import(self, modules: Sequence[str], excluded: frozenset[str]) -> None:
        names = [
            name
            for module in modules
            for name in (module, *_TRAINING_MODULES.get(module, ()))
            if name.partition(".")[0] not in excluded
        ]
        request = self.client.import_modules(
            {
                "modules": [(name, -1) for name in (*_FIRST_MODULES, *names)],
                "changes": [],
                "varying": list(VARYING_VARIABLES),
                "containers": True,
            }
        )
        reply = await asyncio.wait_for(request, _IMPORT_TIMEOUT_S)
        if reply["dependent"]:
            raise DependentModulesError(reply["dependent"])
        if reply["refuses_containers"]:
            raise ServerFailedError(reply["refuses_containers"])
        self.files = reply["files"]


async def _spawn(key: ServerKey, channel: int, output: OutputCallback) -> ChildProcess:
    env = dict(key.variables)
    paths = [str(HOOK_FOLDER), *filter(None, [env.get("PYTHONPATH")])]
    env["PYTHONPATH"] = os.pathsep.join(paths)
    env["GANGLINE_WORKER_HOOK"] = f"containers:{channel}"
    process = subprocess.Popen(  # noqa: ASYNC220 - a vfork takes a millisecond
        [*key.interpreter, PLACEHOLDER],
        bufsize=0,
        # Streams of the same kinds as those of a container: the interpreter adapts to them.
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        cwd="/",
        start_new_session=True,
        pass_fds=[channel],
    )
    return await join_process(process, output)


def _file_identity(path: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _memory_file(data: bytes, stack: contextlib.ExitStack) -> int:
    descriptor = os.memfd_create("container")
    stack.callback(os.close, descriptor)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    return descriptor


def _pipe(stack: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        stack.callback(os.close, end)
    return ends
