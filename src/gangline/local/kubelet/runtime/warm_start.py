"""Warm starts: a container's Python is forked from an interpreter that has imported its libraries.

`ForkServerPool` keeps one such interpreter (`ContainerForkServer`) running for each environment of
the image map that asks for one; `server_key` tells from which one a container may start. One whose
command differs in what an interpreter reads at its start (an option, a variable such as
PYTHONUNBUFFERED) starts cold once, and gets a server for the next ones. Doubtful cases start by
commands, as all containers did.
"""

import asyncio
import contextlib
import io
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Self

import gangline
from gangline.forkserver import (
    PLACEHOLDER,
    VARYING_VARIABLES,
    ContainerSpec,
    EnterProgram,
    ForkServerClient,
)
from gangline.local.kubelet.runtime import enter_container
from gangline.local.kubelet.runtime.child_process import (
    MINIMAL_ENVIRONMENT,
    ChildProcess,
    join_process,
)
from gangline.local.kubelet.runtime.interface import ContainerPlan, OutputCallback, WarmEnvironment
from gangline.local.kubelet.runtime.isolation import ContainerEntry, Isolation, IsolationLevel

_INTERPRETER = re.compile(r"python(3(\.\d+)?)?")
_OPTIONS = frozenset({"-u", "-B", "-O", "-OO", "-s"})
"""Options of the interpreter that have no value, and under which a server can be started."""
_PROGRAM_OPTIONS = ("-m", "-c")
_FIXED_PREFIXES = ("PYTHON", "LD_", "GLIBC_", "MALLOC_", "LANG", "LC_", "COVERAGE_", "SETUPTOOLS_")
_FIXED_NAMES = frozenset({"PATH", "HOME", "TZ", "TZDIR"})
_MAX_BYTES = 1 << 20
"""Length of command and environment. The kernel refuses a longer one, with an error of its own."""
_MAX_TEXT_BYTES = 100_000


@dataclass(frozen=True, slots=True)
class ServerKey:
    """What an interpreter reads before its first import: all programs of a server share it."""

    interpreter: tuple[str, ...]
    """The name of the interpreter, and its options."""

    modules: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]
    """Its environment, sorted."""


def default_key(environment: WarmEnvironment) -> ServerKey | None:
    """The key of ``python`` or ``python3`` without options; None if the environment has none."""
    path = environment.variables.get("PATH", "")
    for name in ("python", "python3"):
        if shutil.which(name, path=path):
            return _key((name,), environment, environment.variables)
    return None


def server_key(plan: ContainerPlan) -> ServerKey | None:
    """The key of the server from which a container can be forked; None if it must start cold."""
    environment = plan.warm
    if environment is None or plan.root is not None or plan.tty or plan.stdin:
        return None
    interpreter = _interpreter(plan, environment)
    if interpreter is None or not _is_short(plan):
        return None
    return _key(interpreter, environment, plan.env)


def _key(
    interpreter: tuple[str, ...], environment: WarmEnvironment, variables: Mapping[str, str]
) -> ServerKey:
    own = {name: value for name, value in environment.variables.items() if not _is_fixed(name)}
    own |= {name: value for name, value in variables.items() if _is_fixed(name)}
    return ServerKey(interpreter, environment.modules, tuple(sorted(own.items())))


def _is_fixed(name: str) -> bool:
    return name in _FIXED_NAMES or name.startswith(_FIXED_PREFIXES)


def _interpreter(plan: ContainerPlan, environment: WarmEnvironment) -> tuple[str, ...] | None:
    """The interpreter of the environment and its options, if the command is one with a program."""
    command, *rest = plan.argv
    if not _INTERPRETER.fullmatch(os.path.basename(command)):
        return None
    path = environment.variables.get("PATH", "")
    own = shutil.which(os.path.basename(command), path=path)
    if own is None or ("/" in command and command != own):
        return None
    if plan.env.get("PATH", "") != path:
        return None
    options = []
    while rest and rest[0] in _OPTIONS:
        options.append(rest.pop(0))
    if not rest or (rest[0] in _PROGRAM_OPTIONS and len(rest) == 1):
        return None
    if rest[0].startswith("-") and rest[0] not in _PROGRAM_OPTIONS:
        return None
    return (command, *options)


def _is_short(plan: ContainerPlan) -> bool:
    texts = [*plan.argv, *(f"{name}={value}" for name, value in plan.env.items())]
    sizes = [len(os.fsencode(text)) + 1 for text in texts]
    longest_program = len(PLACEHOLDER) - len(plan.workdir) - 1
    return (
        sum(sizes) < _MAX_BYTES
        and max(sizes) < _MAX_TEXT_BYTES
        and all(len(text) < longest_program for text in plan.argv)
    )


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


log = logging.getLogger(__name__)


def describe_container(
    plan: ContainerPlan,
    isolation: Isolation,
    entry: ContainerEntry,
    script: str,
    procs_files: Sequence[str],
) -> ContainerSpec:
    as_root = isolation.level is IsolationLevel.ROOT
    enter: EnterProgram | None = None
    if not entry.identity.changes_nothing:
        enter = {"source": _enter_source(), "options": entry.enter_options()}
    return {
        "argv": list(plan.argv),
        "env": dict(plan.env),
        "groups": list(procs_files),
        "network": (plan.netns or "") if as_root else "",
        "own_users": not as_root,
        "setup": {"script": script, "env": dict(MINIMAL_ENVIRONMENT)},
        "root": entry.root,
        "workdir": entry.workdir,
        "enter": enter,
    }


@lru_cache(maxsize=1)
def _enter_source() -> str:
    return Path(enter_container.__file__).read_text()


_MAX_SERVERS = 4
"""Servers beside those of the environments: each uses some hundred megabytes."""

_LONGEST_WAIT_S = 30.0
"""Seconds that a container waits at most for the first start of its server."""

_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 1.0, 300.0
_STABLE_S = 60.0
"""Seconds after which a server that ends is restarted without a longer pause."""


class ForkServerPool:
    """The fork servers of one machine; all of its nodes share them."""

    def __init__(self) -> None:
        self._keepers: dict[ServerKey, asyncio.Task[None]] = {}
        self._servers: dict[ServerKey, ContainerForkServer] = {}
        self._first_tries: dict[ServerKey, asyncio.Future[None]] = {}
        """Done when the first start of a server has succeeded or failed."""
        self._reserved = 0

    def start(self, environments: Iterable[WarmEnvironment]) -> None:
        for environment in environments:
            key = default_key(environment)
            if key is None:
                log.warning("no warm starts: there is no python on PATH of the environment")
            else:
                self._keep(key)
        self._reserved = len(self._keepers)

    async def stop(self) -> None:
        keepers = list(self._keepers.values())
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        self._keepers.clear()

    async def find(self, plan: ContainerPlan) -> ContainerForkServer | None:
        """Return the server from which a container can be forked; None if it must start cold.

        Waits for a server that does its imports: the container would do the same ones, and later.
        Without any server, it starts one for the next containers of this kind.
        """
        key = server_key(plan)
        if key is None:
            return None
        if (first_try := self._first_tries.get(key)) is not None:
            await asyncio.wait({first_try}, timeout=_LONGEST_WAIT_S)
        elif len(self._keepers) < self._reserved + _MAX_SERVERS:
            self._keep(key)
        server = self._servers.get(key)
        if server is not None and server.has_changed_files():
            log.info("modules of %s have changed: restart", " ".join(key.modules))
            server.disconnect()
            return None
        return server

    def _keep(self, key: ServerKey) -> None:
        self._first_tries[key] = asyncio.get_running_loop().create_future()
        self._keepers[key] = asyncio.create_task(self._keep_running(key))

    async def _keep_running(self, key: ServerKey) -> None:
        try:
            await self._restart(key)
        finally:
            self._end_first_try(key)

    def _end_first_try(self, key: ServerKey) -> None:
        if not self._first_tries[key].done():
            self._first_tries[key].set_result(None)

    async def _restart(self, key: ServerKey) -> None:
        backoff, excluded = _FIRST_BACKOFF_S, frozenset[str]()
        while True:
            began = time.monotonic()
            try:
                await self._run(key, excluded)
            except DependentModulesError as error:
                log.warning("modules are imported by each container: %s", error)
                if error.packages <= excluded:
                    return
                excluded |= error.packages
                if {name.partition(".")[0] for name in key.modules} <= excluded:
                    return
                continue
            except ServerFailedError as error:
                log.warning("no warm starts with %s: %s", " ".join(key.interpreter), error)
            else:
                log.info("the fork server of %s has ended", " ".join(key.modules))
            self._end_first_try(key)
            if time.monotonic() - began > _STABLE_S:
                backoff = _FIRST_BACKOFF_S
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, _LONGEST_BACKOFF_S)

    async def _run(self, key: ServerKey, excluded: frozenset[str]) -> None:
        server = await ContainerForkServer.start(key, excluded)
        try:
            self._servers[key] = server
            self._end_first_try(key)
            log.info("containers start warm: %s are imported", " ".join(key.modules))
            await asyncio.shield(server.client.closed)
        finally:
            self._servers.pop(key, None)
            await server.end()
