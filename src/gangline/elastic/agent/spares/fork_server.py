"""The process of one fork server, as the agent uses it: its forks become children of the agent."""

import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gangline.elastic.agent.logs import WorkerFiles
from gangline.elastic.agent.process import (
    Process,
    adopt_process,
    as_subreaper,
    end_processes,
    hook_environment,
    start_process,
)
from gangline.forkserver.client import ForkServerClient
from gangline.forkserver.protocol import VARYING_VARIABLES, ForkRequest


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """What a forked worker needs."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    files: WorkerFiles
    processors: frozenset[int]
    nice: int
    notes: Path
    """File in which the worker writes why it starts again without preloaded modules."""


@dataclass(eq=False, slots=True)
class ForkServer:
    """A running fork server."""

    process: Process
    client: ForkServerClient

    @classmethod
    def start(
        cls,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        prepare: Callable[[], None] | None = None,
    ) -> Self:
        """Start one with the command line of the workers.

        Raises:
            StartError: the command cannot be started.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            hook = hook_environment(environment, "server", theirs)
            process = start_process(arguments, hook, channel=theirs, prepare=prepare)
        return cls(process, ForkServerClient(ours))

    @property
    def is_alive(self) -> bool:
        """False if the process or the connection has ended."""
        return not self.process.ended.done() and not self.client.closed.done()

    async def import_modules(
        self, modules: Sequence[tuple[str, int]], changes: Sequence[Mapping[str, str | None]]
    ) -> dict[str, str]:
        """Import modules; return the packages that depend on the process, with reasons.

        A server that has imported one of those refuses all forks.

        Raises:
            ConnectionError: the server has ended.
        """
        reply = await self.client.import_modules(
            {
                "modules": list(modules),
                "changes": [dict(change) for change in changes],
                "varying": list(VARYING_VARIABLES),
            }
        )
        dependent: dict[str, str] = reply["dependent"]
        return dependent

    async def fork(
        self, start: WorkerStart, *, reports_imports: bool
    ) -> tuple[Process, socket.socket | None]:
        """Fork a worker. Also returns the channel on which it reports its imports.

        Raises:
            RefusedError: a forked worker would differ from a new process.
            ConnectionError: the server has ended.
        """
        with ExitStack() as stack:
            descriptors: list[int] = []
            stdio: list[int | None] = [None]
            for path in (start.files.stdout, start.files.stderr):
                stdio.append(len(descriptors) if path else None)
                if path:
                    descriptors.append(stack.enter_context(path.open("wb")).fileno())
            request: ForkRequest = {
                "argv": list(start.arguments),
                "env": dict(start.environment),
                "stdio": stdio,
                "adopt": True,
                "parent": os.getpid(),
                "processors": sorted(start.processors or os.sched_getaffinity(0)),
                "nice": start.nice,
                "notes": str(start.notes),
            }
            ours: socket.socket | None = None
            if reports_imports:
                ours, theirs = socket.socketpair()
                stack.enter_context(theirs)
                request["channel"] = len(descriptors)
                descriptors.append(theirs.fileno())
            try:
                with as_subreaper():
                    pid = await self.client.fork(request, descriptors)
            except BaseException:
                if ours:
                    ours.close()
                raise
        return adopt_process(pid), ours

    async def end(self) -> None:
        """End the server; its workers continue."""
        self.client.close()
        await end_processes([self.process], signal.SIGKILL, 0)
