"""The process runtime: containers as processes of this machine.

A setup script mounts the container's file system, and reports through a pipe (`SetupReport`).
Connections into a pod are made from inside its network namespace.

Without permission for namespaces nothing can be mounted. The plan is changed (`with_host_paths`):

1. a mount path in the command, the environment or the working folder becomes the volume's own
   folder;
2. the name of a service or pod, with or without a port, becomes its address in variables that are
   named like one (``MASTER_ADDR``, ``PET_RDZV_ENDPOINT``).

Limit: paths and names that a program composes itself are not substituted.

`OutputThrottle` limits the kubelet's own CPU time for the output of one container to a fifth.
"""

import asyncio
import contextlib
import errno
import logging
import os
import re
import shlex
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from gangline.forkserver import RefusedError
from gangline.local.kubelet.runtime.cgroups import ControlGroup, ControlGroups
from gangline.local.kubelet.runtime.child_process import (
    TAKE_TERMINAL,
    ChildProcess,
    Terminal,
    open_terminal,
    open_terminal_inside,
    spawn_child,
)
from gangline.local.kubelet.runtime.command_check import check_command, parse_launch_failure
from gangline.local.kubelet.runtime.interface import (
    EXIT_START_FAILED,
    REASON_START_ERROR,
    ByteStreams,
    ContainerExit,
    ContainerIdentity,
    ContainerPlan,
    ContainerStartError,
    ContainerUsage,
    OutputCallback,
)
from gangline.local.kubelet.runtime.isolation import ContainerEntry, Isolation, IsolationLevel
from gangline.local.kubelet.runtime.mount_namespace import (
    READY_MARK,
    REPORT_FD,
    MountNamespace,
    container_root,
)
from gangline.local.kubelet.runtime.process_tree import (
    child_pids,
    process_tree_usage,
    proportional_memory,
)
from gangline.local.kubelet.runtime.static_worlds import StartRule, StaticWorlds
from gangline.local.kubelet.runtime.warm_start import (
    ContainerForkServer,
    ForkServerPool,
    describe_container,
)
from gangline.local.network.listening import entered_network

OUTPUT_TIME_SHARE = 0.2
BURST_S = 0.02
"""Seconds of processing before a pause is due."""


class OutputThrottle:
    """Counts the processing time for one container; the caller passes in the clock's readings."""

    def __init__(self, now: float) -> None:
        self._debt_s = 0.0
        self._last = now

    def spend(self, began: float, ended: float) -> float:
        """Record processing time; return for how long to pause, 0 for none."""
        self._debt_s = max(0.0, self._debt_s - (began - self._last) * OUTPUT_TIME_SHARE) + (
            ended - began
        )
        self._last = ended
        return self._debt_s / OUTPUT_TIME_SHARE if self._debt_s > BURST_S else 0.0


_MEMORY_WATCH_S = 0.5
_MAX_ERROR_BYTES = 4096


class ProcessContainer:
    """One running container; `ProcessRuntime.start` creates it."""

    def __init__(
        self,
        plan: ContainerPlan,
        isolation: Isolation,
        group: ControlGroup | None,
        entry: ContainerEntry,
        output: OutputCallback,
    ) -> None:
        self.plan = plan
        self.started_at = datetime.now(UTC)
        self.child: ChildProcess | None = None
        self.init_pid = 0
        self.early_errors = b""
        self._consumers = [output]
        self._pace = OutputThrottle(time.monotonic())
        self._isolation = isolation
        self._group = group
        self._entry = entry
        self._oom_killed = False
        self._watch: asyncio.Task[None] | None = None

    @property
    def container_id(self) -> str:
        return self.plan.container_id

    def deliver_output(self, stream: str, data: bytes) -> None:
        """Pass output on to the log and to attached clients; a flooding container is paused."""
        began = time.monotonic()
        if stream == "stderr" and len(self.early_errors) < _MAX_ERROR_BYTES:
            self.early_errors += data
        for taker in list(self._consumers):
            taker(stream, data)
        if (rest_s := self._pace.spend(began, time.monotonic())) and self.child is not None:
            # A container that floods its log is paused, so that other work continues.
            self.child.pause_output(True)
            asyncio.get_running_loop().call_later(rest_s, self.child.pause_output, False)

    def mark_started(self, child: ChildProcess) -> None:
        """The command is about to run: find its process, and watch its memory if no control group
        does.
        """
        self.child = child
        self.started_at = datetime.now(UTC)
        if self._isolation.level is IsolationLevel.NONE:
            self.init_pid = child.pid
        else:
            self.init_pid = next(iter(child_pids(child.pid)), 0)
        limit = self.plan.limits.memory_bytes
        if limit is not None and not (self._group and self._group.limits_memory):
            self._watch = asyncio.create_task(self._watch_memory(limit))

    async def wait(self) -> ContainerExit:
        child = self._running()
        code = await child.wait()
        if self._watch is not None:
            self._watch.cancel()
        oom_killed = self._oom_killed
        if self._group is not None:
            oom_killed = oom_killed or self._group.oom_killed()
            await self._group.remove()
        finished = datetime.now(UTC)
        if failure := parse_launch_failure(self.plan.argv[0], code, self.early_errors):
            return ContainerExit(code, finished, reason=failure.reason, message=failure.message)
        return ContainerExit(code, finished, oom_killed)

    def terminate(self) -> None:
        self._signal_init(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL: the process namespace ends with its first process."""
        self._signal_init(signal.SIGKILL)
        if self._isolation.level is IsolationLevel.NONE or not self.init_pid:
            self._running().kill()

    def usage(self) -> ContainerUsage | None:
        """From the control group where there is one, else summed over the processes."""
        if self._group is not None and (used := self._group.usage()) is not None:
            return used
        return process_tree_usage(self.init_pid) if self.init_pid else None

    def attach(self, output: OutputCallback) -> Callable[[], None]:
        self._consumers.append(output)

        def detach() -> None:
            with contextlib.suppress(ValueError):
                self._consumers.remove(output)

        return detach

    def write(self, data: bytes) -> None:
        self._running().write(data)

    async def drain(self) -> None:
        await self._running().drain()

    def close_stdin(self) -> None:
        self._running().close_stdin()

    def resize(self, columns: int, rows: int) -> None:
        self._running().resize(columns, rows)

    async def exec(
        self, argv: Sequence[str], output: OutputCallback, *, stdin: bool = False, tty: bool = False
    ) -> ChildProcess:
        child = self._running()
        if child.exited.done() or not self.init_pid:
            raise ContainerStartError(
                "the container is not running", REASON_START_ERROR, EXIT_START_FAILED
            )
        bare = self._isolation.level is IsolationLevel.NONE
        lead = TAKE_TERMINAL if tty and not bare else ()
        variables = {"TERM": "xterm"} if tty and "TERM" not in self.plan.env else {}
        commands, env = self._entry.commands(variables)
        procs_files = self._group.procs_files if self._group is not None else []
        command = [
            *self._isolation.join_command(self.init_pid, procs_files),
            *lead,
            *commands,
            *argv,
        ]
        cwd = Path(self.plan.workdir) if bare else None
        try:
            terminal = self._terminal(bare) if tty else None
            return await spawn_child(
                command, output, stdin=stdin, terminal=terminal, cwd=cwd, env=env
            )
        except (OSError, ValueError) as error:  # ValueError: a NUL character in an argument
            raise start_error(f"cannot run a command in the container: {error}") from error

    def _terminal(self, bare: bool) -> Terminal:
        if bare:
            return open_terminal()
        # Via the process outside, which never leaves the machine's root: when the container's
        # process enters its own root is unknown.
        return open_terminal_inside(self._running().pid, container_root(self.plan))

    async def _watch_memory(self, limit: int) -> None:
        while True:
            await asyncio.sleep(_MEMORY_WATCH_S)
            usage = await asyncio.to_thread(process_tree_usage, self.init_pid)
            if usage is None or usage.memory_bytes <= limit:
                continue
            exact = await asyncio.to_thread(proportional_memory, self.init_pid)
            if exact is None or exact > limit:
                self._oom_killed = True
                self.kill()
                return

    def _signal_init(self, number: signal.Signals) -> None:
        if self.init_pid and not self._running().exited.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.init_pid, number)

    def _running(self) -> ChildProcess:
        assert self.child is not None, "start returns only containers that have started"
        return self.child


def start_error(message: str) -> ContainerStartError:
    """The error of a failed setup, which is not an error of the command."""
    return ContainerStartError(message.strip(), REASON_START_ERROR, EXIT_START_FAILED)


log = logging.getLogger(__name__)

HOSTS = "/etc/hosts"
_ADDRESS_VARIABLE = re.compile(r".*(ADDR|ADDRESS|HOST|ENDPOINT)")
_NAME_AND_PORT = re.compile(r"(?P<name>[a-z0-9][a-z0-9.-]*)(?P<port>:\d+)?")


def with_host_paths(plan: ContainerPlan, addresses: Mapping[str, str]) -> ContainerPlan:
    """Return the plan with real paths, and with addresses for names in ``addresses``."""
    folders = {mount.target.rstrip("/"): str(mount.source) for mount in plan.mounts}
    folders.pop(HOSTS, None)
    return replace(
        plan,
        argv=tuple(_with_folders(part, folders) for part in plan.argv),
        env={
            name: _with_address(value, addresses)
            if _ADDRESS_VARIABLE.fullmatch(name)
            else _with_folders(value, folders)
            for name, value in plan.env.items()
        },
        workdir=_with_folders(plan.workdir, folders),
    )


def parse_hosts(hosts: str) -> dict[str, str]:
    addresses: dict[str, str] = {}
    for line in hosts.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        for name in names:
            addresses.setdefault(name, address)
    return addresses


def _with_folders(text: str, folders: Mapping[str, str]) -> str:
    if not folders or "/" not in text:
        return text
    # Longest first, so that a mount inside another one wins. In a single pass, so that a
    # substituted folder is not substituted again.
    targets = "|".join(re.escape(target) for target in sorted(folders, key=len, reverse=True))
    pattern = rf"(?<![\w./-])({targets})(?![\w.-])"
    return re.sub(pattern, lambda match: folders[match[1]], text)


def _with_address(text: str, addresses: Mapping[str, str]) -> str:
    match = _NAME_AND_PORT.fullmatch(text)
    if match is None or match["name"] not in addresses:
        return text
    return addresses[match["name"]] + (match["port"] or "")


_CONNECT_TIMEOUT_S = 10


def _connect(netns: str | None, hosts: list[str], port: int) -> socket.socket:
    with entered_network(netns):
        return _first_answer(hosts, port)


def _first_answer(hosts: list[str], port: int) -> socket.socket:
    refusal: OSError | None = None
    for host in hosts:
        try:
            return socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S)
        except OSError as error:
            refusal = error
    assert refusal is not None, "there is at least one host to try"
    raise refusal


_SET_UP_TIMEOUT_S = 30
_READ_BYTES = 65536


class SetupReport:
    """The pipe on which a setup script reports success or an error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._text = b""

    @property
    def shell_path(self) -> str:
        return shlex.quote(str(self._path))

    def __enter__(self) -> Self:
        self._path.unlink(missing_ok=True)
        os.mkfifo(self._path, 0o600)
        # Open for both: a read-only descriptor gets an end of file when the first writer closes.
        self._fd = os.open(self._path, os.O_RDWR | os.O_NONBLOCK)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        self._path.unlink(missing_ok=True)

    async def wait_ready(self, child: ChildProcess) -> str | None:
        """Return None when the command is about to run, else the error of the setup."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._fd, self._read, ready)
        done = asyncio.create_task(ready.wait())
        either: set[asyncio.Future[Any]] = {done, child.exited}
        try:
            await asyncio.wait(
                either, timeout=_SET_UP_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            loop.remove_reader(self._fd)
            done.cancel()
        if not ready.is_set():
            self._read(ready)
        if ready.is_set():
            return None
        return self._text.decode(errors="replace").strip()

    def _read(self, ready: asyncio.Event) -> None:
        with contextlib.suppress(BlockingIOError):
            self._text += os.read(self._fd, _READ_BYTES)
        if self._text.endswith(READY_MARK):
            ready.set()


_MAX_CONCURRENT_SETUPS = 4 * (os.cpu_count() or 1)
"""More concurrent setups would not finish sooner, and each would take longer."""

_MASTER_LOOKUPS, _MASTER_PAUSE_S = 100, 0.05
"""The number and interval of look-ups of the master's address, where names are not resolved."""


class ProcessRuntime:
    """Starts containers as processes, with as much isolation as the machine allows."""

    def __init__(
        self,
        isolation: Isolation,
        groups: ControlGroups | None,
        shared: tuple[Path, ...] = (),
        fork_servers: ForkServerPool | None = None,
    ) -> None:
        self._fork_servers = fork_servers
        self._worlds = StaticWorlds()
        self._isolation = isolation
        self._groups = groups if isolation.level is IsolationLevel.ROOT else None
        self._shared = shared
        self._setup_slots = asyncio.Semaphore(_MAX_CONCURRENT_SETUPS)

    @property
    def mounts_files(self) -> bool:
        return self._isolation.level is not IsolationLevel.NONE

    def describe_limitations(self) -> str:
        return self._isolation.limitation

    async def forward(self, netns: str | None, address: str, port: int) -> ByteStreams:
        """Connect to a port of a pod, also to one that only listens on 127.0.0.1.

        In a namespace, 127.0.0.1 is tried first, then the pod's address.
        """
        hosts = ["127.0.0.1", address] if netns else [address, "127.0.0.1"]
        connection = await asyncio.to_thread(_connect, netns, hosts, port)
        connection.setblocking(False)
        return await asyncio.open_connection(sock=connection)

    async def start(self, plan: ContainerPlan, output: OutputCallback) -> ProcessContainer:
        bare = self._isolation.level is IsolationLevel.NONE
        if bare:
            plan = await _with_host_paths(plan)
        check_command(plan, self._shared, bare=bare)
        server = None if bare else await self._find_server(plan)
        async with self._setup_slots:
            try:
                if bare:
                    return await self._start_bare(plan, output)
                return await self._start_apart(plan, output, server)
            except OSError as error:
                if error.errno != errno.E2BIG:
                    raise
                text = "the command with its environment is longer than the kernel allows"
                raise start_error(text) from error

    async def _start_bare(self, plan: ContainerPlan, output: OutputCallback) -> ProcessContainer:
        entry = ContainerEntry(plan.env)
        container = ProcessContainer(plan, self._isolation, None, entry, output)
        workdir = Path(plan.workdir)
        try:
            os.makedirs(workdir, exist_ok=True)
        except OSError as error:
            text = f'cannot create workingDir "{workdir}": {error.strerror}'
            raise start_error(text) from error
        commands, env = entry.commands()
        argv = [*self._isolation.enter_command(None), *commands, *plan.argv]
        terminal = open_terminal() if plan.tty else None
        child = await spawn_child(
            argv,
            container.deliver_output,
            stdin=plan.stdin,
            terminal=terminal,
            cwd=workdir,
            env=env,
        )
        container.mark_started(child)
        return container

    async def _find_server(self, plan: ContainerPlan) -> ContainerForkServer | None:
        """Return the fork server of a container, when it may start; None for a cold start."""
        rule = self._worlds.start_rule(plan)
        if self._fork_servers is None or rule is StartRule.COLD:
            return None
        server = await self._fork_servers.find(plan)
        if server is not None and rule is StartRule.AFTER_STORE:
            await self._worlds.wait_for_store(plan, server.import_s)
        return server

    async def _start_apart(
        self, plan: ContainerPlan, output: OutputCallback, server: ContainerForkServer | None
    ) -> ProcessContainer:
        if server is not None:
            try:
                return await self._start_namespaces(plan, output, server)
            except ContainerStartError as error:
                # An error of the container itself occurs again, and is reported then.
                log.warning("container %s starts cold: %s", plan.container_id, error.message)
        return await self._start_namespaces(plan, output, None)

    async def _start_namespaces(
        self, plan: ContainerPlan, output: OutputCallback, server: ContainerForkServer | None
    ) -> ProcessContainer:
        """Start a container in namespaces of its own: by commands, or forked from a server."""
        view = MountNamespace(plan, self._shared)
        script = view.write_script()
        as_root = self._isolation.level is IsolationLevel.ROOT
        identity = plan.identity if as_root else ContainerIdentity()
        entry = ContainerEntry(plan.env, view.root, view.workdir, identity)
        with SetupReport(plan.state_dir / "report") as report:
            group = self._limit(plan)
            container = ProcessContainer(plan, self._isolation, group, entry, output)
            script = f"exec {REPORT_FD}>{report.shell_path}\n{script}"
            procs_files = group.procs_files if group else []
            if server is None:
                child = await self._spawn(plan, container, entry, script, procs_files)
            else:
                spec = describe_container(plan, self._isolation, entry, script, procs_files)
                try:
                    child = await server.fork(spec, container.deliver_output)
                except (RefusedError, OSError) as error:
                    if group is not None:
                        await group.remove()
                    raise start_error(f"the fork server: {error}") from error
            await self._until_ready(report, container, child, group)
        container.mark_started(child)
        if self._fork_servers is not None:
            end_run = self._worlds.begin_run(plan, container.init_pid)
            child.exited.add_done_callback(lambda _: end_run())
        return container

    async def _spawn(
        self,
        plan: ContainerPlan,
        container: ProcessContainer,
        entry: ContainerEntry,
        script: str,
        procs_files: Sequence[str],
    ) -> ChildProcess:
        commands, env = entry.commands()
        argv = [
            *self._isolation.enter_command(plan.netns, procs_files),
            *(TAKE_TERMINAL if plan.tty else ()),
            *["sh", "-c", script, "sh"],
            *[*commands, *plan.argv],
        ]
        terminal = open_terminal(taken_inside=True) if plan.tty else None
        return await spawn_child(
            argv, container.deliver_output, stdin=plan.stdin, terminal=terminal, env=env
        )

    async def _until_ready(
        self,
        report: SetupReport,
        container: ProcessContainer,
        child: ChildProcess,
        group: ControlGroup | None,
    ) -> None:
        """Wait for the setup; if it fails or is cancelled, remove everything of it."""
        complaint: str | None = ""
        try:
            complaint = await report.wait_ready(child)
        finally:
            if complaint is not None:
                child.kill()
                await child.wait()
                if group is not None:
                    await group.remove()
        if complaint is not None:
            raise start_error(complaint or container.early_errors.decode(errors="replace"))

    def _limit(self, plan: ContainerPlan) -> ControlGroup | None:
        if self._groups is None:
            return None
        name = f"{plan.pod_uid}_{plan.container}_{plan.instance}"
        return self._groups.create(name, plan.limits)


async def _with_host_paths(plan: ContainerPlan) -> ContainerPlan:
    """Substitute real paths and addresses in a plan; waits a moment for the master's name."""
    files = [mount.source for mount in plan.mounts if mount.target == HOSTS]
    master = plan.env.get("MASTER_ADDR", "")
    addresses: dict[str, str] = {}
    for _ in range(_MASTER_LOOKUPS):
        for file in files:
            addresses = parse_hosts(file.read_text())
        if not files or not master or master in addresses or master[0].isdigit():
            break
        await asyncio.sleep(_MASTER_PAUSE_S)
    return with_host_paths(plan, addresses)
