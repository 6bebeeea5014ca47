"""Containers as processes of this machine: the runtime behind every pod of the embedded cluster."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gangline.local.kubelet.runtime.cgroups import ControlGroup, ControlGroups
from gangline.local.kubelet.runtime.child import Child, spawn
from gangline.local.kubelet.runtime.command import check_command, failed_launch
from gangline.local.kubelet.runtime.contract import (
    EXIT_START_FAILED,
    REASON_START_ERROR,
    ContainerPlan,
    Exit,
    Output,
    StartFailed,
    Usage,
)
from gangline.local.kubelet.runtime.forward import SocketStream, connect_inside
from gangline.local.kubelet.runtime.isolation import Isolation, Level
from gangline.local.kubelet.runtime.rootview import READY, REPORT_FD, RootView, root_of
from gangline.local.kubelet.runtime.terminal import (
    Terminal,
    open_terminal,
    open_terminal_inside,
)
from gangline.local.kubelet.runtime.usage import children, tree_usage

_SET_UP_TIMEOUT_S = 30
_SET_UPS_AT_ONCE = 4 * (os.cpu_count() or 1)
"""More at once would not be done sooner, and each would take longer."""
_MEMORY_WATCH_S = 0.5
_KEPT_ERRORS = 4096


class ProcessContainer:
    """One running container; made by `ProcessRuntime.start`."""

    def __init__(
        self,
        plan: ContainerPlan,
        isolation: Isolation,
        group: ControlGroup | None,
        tail: list[str],
        output: Output,
    ) -> None:
        self.plan = plan
        self.started_at = datetime.now(UTC)
        self.child: Child | None = None
        self.init_pid = 0
        self.early_errors = b""
        self._takers = [output]
        self._isolation = isolation
        self._group = group
        self._tail = tail
        self._oom_killed = False
        self._watch: asyncio.Task[None] | None = None

    @property
    def container_id(self) -> str:
        """Unique for every instance."""
        return self.plan.container_id

    def take(self, stream: str, data: bytes) -> None:
        """Pass output on to the log and to whoever is attached."""
        if stream == "stderr" and len(self.early_errors) < _KEPT_ERRORS:
            self.early_errors += data
        for taker in list(self._takers):
            taker(stream, data)

    def begun(self, child: Child) -> None:
        """The command is about to run: find its process, watch its memory if nothing else does."""
        self.child = child
        self.started_at = datetime.now(UTC)
        if self._isolation.level is Level.NONE:
            self.init_pid = child.pid
        else:
            self.init_pid = next(iter(children(child.pid)), 0)
        if self.plan.limits.memory_bytes is not None and self._group is None:
            self._watch = asyncio.create_task(self._watch_memory(self.plan.limits.memory_bytes))

    async def wait(self) -> Exit:
        """How it ended, once it has and all of its output was delivered."""
        child = self._running()
        code = await child.wait()
        if self._watch is not None:
            self._watch.cancel()
        oom_killed = self._oom_killed
        if self._group is not None:
            oom_killed = self._group.oom_killed()
            self._group.remove()
        finished = datetime.now(UTC)
        if failure := failed_launch(self.plan.argv[0], code, self.early_errors):
            return Exit(code, finished, reason=failure.reason, message=failure.message)
        return Exit(code, finished, oom_killed)

    def terminate(self) -> None:
        """SIGTERM to the main process, which decides what it means to the others."""
        self._signal_init(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to all: the process namespace ends with its first process."""
        self._signal_init(signal.SIGKILL)
        if self._isolation.level is Level.NONE or not self.init_pid:
            self._running().kill_tree()

    def usage(self) -> Usage | None:
        """From the control group where there is one, else summed over the processes."""
        if self._group is not None:
            return self._group.usage()
        return tree_usage(self.init_pid) if self.init_pid else None

    def attach(self, output: Output) -> Callable[[], None]:
        """Deliver output to one more taker; the returned function ends that."""
        self._takers.append(output)

        def detach() -> None:
            with contextlib.suppress(ValueError):
                self._takers.remove(output)

        return detach

    def write(self, data: bytes) -> None:
        """Feed standard input."""
        self._running().write(data)

    def close_stdin(self) -> None:
        """End standard input."""
        self._running().close_stdin()

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of the container's terminal."""
        self._running().resize(columns, rows)

    async def exec(
        self, argv: Sequence[str], output: Output, *, stdin: bool = False, tty: bool = False
    ) -> "ExecProcess":
        """Run a command inside, with the container's environment and working folder."""
        child = self._running()
        if child.exited.done() or not self.init_pid:
            raise StartFailed("the container is not running", REASON_START_ERROR, EXIT_START_FAILED)
        command = [*self._isolation.join(self.init_pid), *self._tail, *argv]
        bare = self._isolation.level is Level.NONE
        cwd = Path(self.plan.workdir) if bare else None
        try:
            terminal = self._terminal(bare) if tty else None
            session = await spawn(command, output, stdin=stdin, terminal=terminal, cwd=cwd)
        except OSError as error:
            raise _start_error(f"cannot run a command in the container: {error}") from error
        return ExecProcess(session)

    def _terminal(self, bare: bool) -> Terminal:
        if bare:
            return open_terminal()
        # Of the process outside, which never leaves the machine's root: that of the container
        # enters its own root at an instant that nobody tells.
        return open_terminal_inside(self._running().pid, root_of(self.plan))

    async def _watch_memory(self, limit: int) -> None:
        while True:
            await asyncio.sleep(_MEMORY_WATCH_S)
            usage = await asyncio.to_thread(tree_usage, self.init_pid)
            if usage is not None and usage.memory_bytes > limit:
                self._oom_killed = True
                self.kill()
                return

    def _signal_init(self, number: signal.Signals) -> None:
        if self.init_pid and not self._running().exited.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.init_pid, number)

    def _running(self) -> Child:
        assert self.child is not None, "start gives out only containers that have begun"
        return self.child


class ExecProcess:
    """One command beside a container's main process."""

    def __init__(self, child: Child) -> None:
        self._child = child

    async def wait(self) -> int:
        """The exit code, once the output was delivered."""
        return await self._child.wait()

    def write(self, data: bytes) -> None:
        """Feed standard input."""
        self._child.write(data)

    def close_stdin(self) -> None:
        """End standard input."""
        self._child.close_stdin()

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of its terminal."""
        self._child.resize(columns, rows)

    def kill(self) -> None:
        """End the command and what it started."""
        self._child.kill_tree()


class ProcessRuntime:
    """Starts containers as processes, as far apart from the machine as it allows."""

    def __init__(
        self, isolation: Isolation, groups: ControlGroups | None, shared: tuple[Path, ...] = ()
    ) -> None:
        self._isolation = isolation
        self._groups = groups if isolation.level is Level.ROOT else None
        self._shared = shared
        self._turns = asyncio.Semaphore(_SET_UPS_AT_ONCE)

    def describe_gaps(self) -> str:
        """What this machine does not allow."""
        return self._isolation.gap

    async def clean_up(self) -> None:
        """Remove the control groups of a killed kubelet."""
        if self._groups is not None:
            self._groups.clean_up()

    async def forward(self, netns: str | None, address: str, port: int) -> SocketStream:
        """Connect to a port inside a pod, also to one that only listens on 127.0.0.1."""
        return await connect_inside(netns, address, port)

    async def start(self, plan: ContainerPlan, output: Output) -> ProcessContainer:
        """Start one instance; returns when its command is about to run."""
        bare = self._isolation.level is Level.NONE
        check_command(plan, self._shared, bare=bare)
        async with self._turns:
            try:
                start = self._start_bare if bare else self._start_apart
                return await start(plan, output)
            except OSError as error:
                raise _start_error(f"cannot set up the container: {error}") from error

    async def _start_bare(self, plan: ContainerPlan, output: Output) -> ProcessContainer:
        tail = _environment(plan)
        container = ProcessContainer(plan, self._isolation, None, tail, output)
        workdir = Path(plan.workdir)
        os.makedirs(workdir, exist_ok=True)
        argv = [*self._isolation.enter(None), *tail, *plan.argv]
        terminal = open_terminal() if plan.tty else None
        child = await spawn(argv, container.take, stdin=plan.stdin, terminal=terminal, cwd=workdir)
        container.begun(child)
        return container

    async def _start_apart(self, plan: ContainerPlan, output: Output) -> ProcessContainer:
        view = RootView(plan, self._shared)
        script = view.write()
        tail = [*_environment(plan, view.root), *_enter_root(plan, view, self._isolation.level)]
        with _Report(plan.state_dir / "report") as report:
            group = self._limit(plan)
            container = ProcessContainer(plan, self._isolation, group, tail, output)
            argv = [
                *self._isolation.enter(plan.netns, group.doors if group else ()),
                *["sh", "-c", f"exec {REPORT_FD}>{report.shell_path}\n{script}", "sh"],
                *[*tail, *plan.argv],
            ]
            terminal = open_terminal() if plan.tty else None
            child = await spawn(argv, container.take, stdin=plan.stdin, terminal=terminal)
            await self._until_ready(report, container, child, group)
        container.begun(child)
        return container

    async def _until_ready(
        self,
        report: "_Report",
        container: ProcessContainer,
        child: Child,
        group: ControlGroup | None,
    ) -> None:
        """Wait for the set-up; if it fails or is no longer wanted nothing of it stays."""
        complaint: str | None = ""
        try:
            complaint = await report.until_ready(child)
        finally:
            if complaint is not None:
                child.kill_tree()
                await child.wait()
                if group is not None:
                    group.remove()
        if complaint is not None:
            raise _start_error(complaint or container.early_errors.decode(errors="replace"))

    def _limit(self, plan: ContainerPlan) -> ControlGroup | None:
        if self._groups is None:
            return None
        try:
            name = f"{plan.pod_uid}_{plan.container}_{plan.instance}"
            return self._groups.create(name, plan.limits)
        except OSError as error:
            raise _start_error(f"cannot set the container's limits: {error}") from error


class _Report:
    """The pipe on which a set-up script says that it is done, or what went wrong."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._text = b""

    @property
    def shell_path(self) -> str:
        return "'" + str(self._path).replace("'", "'\\''") + "'"

    def __enter__(self) -> "_Report":
        self._path.unlink(missing_ok=True)
        os.mkfifo(self._path, 0o600)
        # Open for both: opening for reading alone would end the moment one writer goes.
        self._fd = os.open(self._path, os.O_RDWR | os.O_NONBLOCK)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        self._path.unlink(missing_ok=True)

    async def until_ready(self, child: Child) -> str | None:
        """None when the command is about to run, else what the set-up complained of."""
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
            self._text += os.read(self._fd, 65536)
        if self._text.endswith(READY):
            ready.set()


def _environment(plan: ContainerPlan, folder: str = "") -> list[str]:
    """The command that replaces the environment by the container's, and goes to a folder."""
    change = [f"--chdir={folder}"] if folder else []
    values = [f"{name}={value}" for name, value in plan.env.items()]
    return ["/usr/bin/env", "-i", *change, "--", *values]


def _enter_root(plan: ContainerPlan, view: RootView, level: Level) -> list[str]:
    """The commands that become the container's user and enter its root.

    The root is the current folder by then: its path may lead through folders that are closed to
    that user.
    """
    enter = ["/usr/bin/unshare", "--root=.", f"--wd={view.workdir}", "--"]
    who = plan.identity
    if level is not Level.ROOT or (who.user is None and who.group is None):
        return enter
    group = who.group if who.group is not None else 0
    groups = ",".join(map(str, dict.fromkeys([group, *who.groups])))
    # Becoming another user forgets the signal for the parent's death, so it is asked for again,
    # and the right to change the root has to be carried along (engines leave it to containers).
    become = ["/usr/bin/setpriv", f"--reuid={who.user or 0}", f"--regid={group}"]
    carry = ["--inh-caps=+sys_chroot", "--ambient-caps=+sys_chroot", "--pdeathsig=KILL"]
    return [*become, f"--groups={groups}", *carry, "--", *enter]


def _start_error(message: str) -> StartFailed:
    return StartFailed(message.strip(), REASON_START_ERROR, EXIT_START_FAILED)
