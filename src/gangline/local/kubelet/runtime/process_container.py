"""A container that runs as processes of this machine, and the commands executed in it.

`OutputThrottle` limits the kubelet's own CPU time for the output of one container to a fifth.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from gangline.local.kubelet.runtime.cgroups import ControlGroup
from gangline.local.kubelet.runtime.child_process import (
    TAKE_TERMINAL,
    ChildProcess,
    Terminal,
    open_terminal,
    open_terminal_inside,
    spawn_child,
)
from gangline.local.kubelet.runtime.command_check import parse_launch_failure
from gangline.local.kubelet.runtime.interface import (
    EXIT_START_FAILED,
    REASON_START_ERROR,
    ContainerExit,
    ContainerPlan,
    ContainerStartError,
    ContainerUsage,
    OutputCallback,
)
from gangline.local.kubelet.runtime.isolation import ContainerEntry, Isolation, IsolationLevel
from gangline.local.kubelet.runtime.mount_namespace import container_root
from gangline.local.kubelet.runtime.process_tree import child_pids, process_tree_usage

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
            if usage is not None and usage.memory_bytes > limit:
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
