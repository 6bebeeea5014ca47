"""Warm starts of one node's workers: from its fork server, without imports.

The first workers come from the server if their script begins with imports that it can do in
advance. Then the server follows the imports that the workers report: installed libraries, but never
the user's own code. It works while enough memory is free, at the priority of the workers: on a busy
node it would otherwise not be ready when the first one fails. A package that depends on the process
is imported by the workers. A node that joins a running job gets the list of
modules from the master and imports them before it joins. The server's forks become children of the
agent.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gangline.elastic.agent.learned_modules import LearnedFile
from gangline.elastic.agent.logs import WorkerFiles
from gangline.elastic.agent.process import (
    Process,
    StartError,
    adopt_process,
    as_subreaper,
    end_processes,
    hook_environment,
    start_process,
)
from gangline.elastic.agent.settings import SpareSettings
from gangline.elastic.agent.spare_interpreter import SpareInterpreter, end_spares
from gangline.elastic.memory import memory_status, resident_bytes
from gangline.forkserver import (
    VARYING_VARIABLES,
    ForkRequest,
    ForkServerClient,
    RefusedError,
)

log = logging.getLogger(__name__)

_LIBRARY_FOLDERS = ("site-packages", "dist-packages")
_INITIAL_ESTIMATE_BYTES = 400 << 20
"""Estimated memory of a server until one has been measured."""
_LINE_LIMIT = 1 << 24
_WARM_BEFORE_JOIN_S = 60.0
"""Maximum time by which a node delays its join, or its first workers, to import modules."""
_SETTLED_S = 1.0
"""The list of modules is complete when no module was imported for this time."""
_MAX_SERVERS = 6
"""Servers that are started until no package depends on the process; then there is none."""
_NOTES = "started_again.json"


@dataclass(eq=False, slots=True)
class ForkServer:
    process: Process
    client: ForkServerClient

    @classmethod
    def start(
        cls,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        prepare: Callable[[], None] | None = None,
    ) -> Self:
        """Start one with the command line of the workers."""
        ours, theirs = socket.socketpair()
        with theirs:
            hook = hook_environment(environment, "server", theirs)
            process = start_process(arguments, hook, channel=theirs, prepare=prepare)
        return cls(process, ForkServerClient(ours))

    @property
    def is_alive(self) -> bool:
        return not self.process.ended.done() and not self.client.closed.done()

    async def import_modules(
        self, modules: Sequence[tuple[str, int]], changes: Sequence[Mapping[str, str | None]]
    ) -> dict[str, str]:
        """Import modules; return the packages that depend on the process, with reasons.

        A server that has imported one of those refuses all forks.
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
        self, request: ForkRequest, files: WorkerFiles, *, reports_imports: bool
    ) -> tuple[Process, socket.socket | None]:
        """Fork a worker with this output. Also returns the channel on which it reports its imports.

        Raises:
            RefusedError: a forked worker would differ from a new process.
            ConnectionError: the server has ended.
        """
        with ExitStack() as stack:
            descriptors: list[int] = []
            stdio: list[int | None] = [None]
            for path in (files.stdout, files.stderr):
                stdio.append(len(descriptors) if path else None)
                if path:
                    descriptors.append(stack.enter_context(path.open("wb")).fileno())
            request["stdio"] = stdio
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


class SparePool:
    """The fork server of one node, and the interpreters of its node check."""

    def __init__(
        self,
        settings: SpareSettings,
        arguments: Callable[[int], Sequence[str]],
        size: int,
        affinity: tuple[frozenset[int], ...] = (),
        learned: Callable[[Sequence[str]], None] = lambda _: None,
        first_spares: Mapping[int, SpareInterpreter] | None = None,
        kept: LearnedFile | None = None,
    ) -> None:
        """Prepare for ``size`` workers.

        Args:
            learned: called with the imported modules once they are known.
            kept: what earlier starts of the script have imported.
        """
        self._settings, self._arguments, self._size = settings, arguments, size
        self._affinity, self._on_learned = affinity, learned
        self._kept = kept
        self._modules: dict[str, int] = dict.fromkeys(settings.preload, -1)
        self._changes: list[dict[str, str | None]] = []
        self._imported: set[str] = set()
        self._excluded: dict[str, str] = {}
        if kept:
            self._modules |= kept.content.modules
            self._changes += kept.content.changes
            self._excluded |= kept.content.excluded
        self._environment: Mapping[str, str] | None = None
        self._server: ForkServer | None = None
        self._servers_started = 0
        self._is_awaited = False
        self.ready: dict[int, SpareInterpreter] = dict(first_spares or {})
        """Interpreters that can become workers, by local rank."""
        self.has_learned = False
        """True if the imports are known; a worker may end before it has reported them."""
        self._cold_ranks: set[int] = set()
        self._notes: dict[int, Path] = {}
        self._work = asyncio.Event()
        self._warm = asyncio.Event()
        self._first_try = asyncio.Event()
        """Set when the imports for the first workers are done, or have failed."""
        self._follow_task: asyncio.Task[None] | None = None
        self._learn_task: asyncio.Task[None] | None = None
        self._bytes_each = _INITIAL_ESTIMATE_BYTES
        self._has_warned = False
        self._is_announced = False

    @property
    def is_warm(self) -> bool:
        alive = self._server is not None and self._server.is_alive
        return alive and self._warm.is_set() and not self._cold_ranks

    @property
    def knows_modules(self) -> bool:
        """Return whether there is anything to import before the workers report it."""
        return bool(self._modules)

    def begin(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        """Import modules for the first workers, which wait for them."""
        self._environment, self._is_awaited = environment, True
        self._modules = dict.fromkeys(modules, -1) | self._modules
        self._follow()

    def learn_from(self, channel: socket.socket) -> None:
        if self._learn_task:
            self._learn_task.cancel()
        self._learn_task = asyncio.create_task(self._learn(channel))

    def take(self, local_rank: int) -> SpareInterpreter | None:
        """Return the interpreter of the node check that becomes a worker, if it is alive."""
        spare = self.ready.pop(local_rank, None)
        return spare if spare and not spare.process.ended.done() else None

    async def fork(
        self,
        local_rank: int,
        environment: Mapping[str, str],
        files: WorkerFiles,
        *,
        reports_imports: bool,
    ) -> Process | None:
        """Start a worker from the server; None if it must start as a new process."""
        self._read_notes(local_rank)
        if self._is_awaited:
            await self._wait_for(self._first_try)
        server = self._server
        if server is None or not server.is_alive or local_rank in self._cold_ranks:
            return None
        notes = self._notes[local_rank] = files.stacks_file.with_name(_NOTES)
        near = self._affinity[local_rank] if self._affinity else None
        request: ForkRequest = {
            "argv": [*self._arguments(local_rank)],
            "env": dict(environment),
            "adopt": True,
            "parent": os.getpid(),
            "processors": sorted(near or os.sched_getaffinity(0)),
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "notes": str(notes),  # why the worker starts again without preloaded modules
        }
        try:
            process, channel = await server.fork(request, files, reports_imports=reports_imports)
        except RefusedError as error:
            log.debug("a worker starts as a new process: %s", error)
            return None
        except ConnectionError:
            log.warning("the fork server has ended; a worker starts as a new process")
            return None
        if channel:
            self.learn_from(channel)
        return process

    def fill(self, environments: Mapping[int, dict[str, str]] | None = None) -> None:
        """Start the server in the background if there is none, with the workers' environment."""
        if self._environment is None and environments:
            self._environment = environments[min(environments)]
        self._is_awaited = False
        if self._modules or self.has_learned:
            self._follow()

    async def warm(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        """Import modules now, and wait for them, because no workers run here yet."""
        self.begin(modules, environment)
        self.has_learned = True
        await self._wait_for(self._warm)
        self._is_awaited = False

    def _keep(self) -> None:
        if self._kept is None:
            return
        if self._cold_ranks or any(note.exists() for note in self._notes.values()):
            self._kept.keep_none()
        else:
            modules = {name: n for name, n in self._modules.items() if name in self._imported}
            self._kept.keep(modules, self._changes, self._excluded)

    async def close(self) -> None:
        if self._is_announced:
            self._keep()
        for task in filter(None, (self._follow_task, self._learn_task)):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await end_spares([*self.ready.values()])
        self.ready.clear()
        await self._end_server()

    def release_if_short(self) -> None:
        """End the server if free memory is below the reserve. The workers continue."""
        has_any = self.ready or (self._server and self._server.is_alive)
        if has_any and not has_memory_for_spares(0, self._settings.reserve_bytes):
            log.warning("memory is short now: ending the spare interpreters")
            for spare in self.ready.values():
                spare.writer.close()
            self.ready.clear()
            if self._server:
                self._server.client.close()

    async def _wait_for(self, event: asyncio.Event) -> None:
        waiting = asyncio.create_task(event.wait())
        tasks = {waiting, self._follow_task} if self._follow_task else {waiting}
        try:
            done, _ = await asyncio.wait(
                tasks, timeout=_WARM_BEFORE_JOIN_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waiting.cancel()
        if not done:
            log.warning("spare interpreters are not warm after %g s", _WARM_BEFORE_JOIN_S)

    # What workers report.

    async def _learn(self, channel: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=channel, limit=_LINE_LIMIT)
        with contextlib.closing(writer):
            while line := await self._next_report(reader):
                self._add_report(json.loads(line))

    async def _next_report(self, reader: asyncio.StreamReader) -> bytes:
        report = asyncio.ensure_future(reader.readline())
        try:
            await asyncio.wait({report}, timeout=_SETTLED_S)
            if not report.done():
                self._settle()
            return await report
        except (ConnectionError, ValueError):
            return b""
        finally:
            report.cancel()

    def _add_report(self, report: dict[str, list[tuple[str, str | None, int]]]) -> None:
        changes: list[dict[str, str | None]] = report["changes"]  # type: ignore[assignment]
        first = len(self._changes)
        if changes != [{}]:
            self._changes += changes
        index = {name: number for name, _, number in report["modules"]}
        files = [(name, file) for name, file, _ in report["modules"]]
        for name in preloadable_modules(files, [os.getcwd()]):
            number = first + index[name] if index[name] >= 0 and changes != [{}] else -1
            self._modules.setdefault(name, number)
        self._follow()

    def _settle(self) -> None:
        if not self.has_learned:
            self.has_learned = True
            log.debug("modules learned", extra={"modules": len(self._modules)})
            self._follow()

    def _read_notes(self, local_rank: int) -> None:
        """Start a worker as a new process from now on if its imports depended on its variables."""
        notes = self._notes.pop(local_rank, None)
        if notes is None:
            return
        with contextlib.suppress(OSError, ValueError):
            note = json.loads(notes.read_bytes())
            self._cold_ranks.add(local_rank)
            log.info(
                "local rank %d starts without preloaded modules: the script sets %s differently "
                "before it imports %s", local_rank, note["variable"], note["module"],
            )  # fmt: skip

    # The server.

    def _follow(self) -> None:
        """Make the server import what is new."""
        if not self._settings.enabled or self._environment is None:
            return
        self._work.set()
        if self._follow_task is None or self._follow_task.done():
            self._follow_task = asyncio.create_task(self._follow_imports())

    async def _follow_imports(self) -> None:
        while self._work.is_set():
            self._work.clear()
            try:
                if not await self._start_server():
                    return
                await self._import_missing()
            except (ConnectionError, StartError) as error:
                log.warning("the fork server has ended: %s", error)
                return
            finally:
                self._first_try.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._work.wait(), _SETTLED_S)

    async def _start_server(self) -> bool:
        """Start the server if there is none. Returns False if there can be none."""
        if self._server and self._server.is_alive:
            return True
        await self._end_server()
        if self._servers_started >= _MAX_SERVERS or self._environment is None:
            return False
        if not has_memory_for_spares(1, self._settings.reserve_bytes, self._bytes_each):
            if not self._has_warned:
                log.warning("memory is short: no spare interpreters")
            self._has_warned = True
            return False
        self._servers_started += 1
        self._server = ForkServer.start(self._arguments(0), self._environment)
        return True

    async def _import_missing(self) -> None:
        server = self._server
        assert server is not None
        missing = [
            (name, number)
            for name, number in self._modules.items()
            if name not in self._imported and name.partition(".")[0] not in self._excluded
        ]
        if missing:
            dependent = await server.import_modules(missing, self._changes)
            self._first_try.set()
            if dependent:
                for package, reason in dependent.items():
                    log.info("workers import %s after their start: it %s", package, reason)
                self._excluded |= dependent
                await self._end_server()
                self._work.set()
                return
            self._imported.update(name for name, _ in missing)
            self._bytes_each = max(resident_bytes(server.process.pid), _INITIAL_ESTIMATE_BYTES // 4)
        if not self._work.is_set():
            self._warm.set()
        if self._warm.is_set() and self.has_learned and (missing or not self._is_announced):
            if not self._is_announced:
                log.info("spare interpreters are warm: %d", self._size)
            self._is_announced = True
            self._on_learned(tuple(self._imported))
            self._keep()

    async def _end_server(self) -> None:
        server, self._server = self._server, None
        self._warm.clear()
        self._is_announced = False
        self._imported.clear()
        if server:
            await server.end()


def preloadable_modules(
    modules: Iterable[tuple[str, str | None]], own_folders: Sequence[str]
) -> tuple[str, ...]:
    """Return the modules to import, in the order of the first start.

    The user's own code is left out: importing it may have effects, and it may be edited between two
    starts. Built-in modules need no import.

    Args:
        own_folders: folders of the user's code, except for installed libraries below them.
    """
    return tuple(name for name, file in modules if _is_library(name, file, own_folders))


def _is_library(name: str, file: str | None, own_folders: Sequence[str]) -> bool:
    if name == "__main__" or file is None or not file.startswith("/"):
        return False
    path = Path(file)
    if any(part in _LIBRARY_FOLDERS for part in path.parts):
        return True
    if any(path.is_relative_to(folder) for folder in own_folders):
        return False
    return "lib" in path.parts and any(part.startswith("python3") for part in path.parts)


def has_memory_for_spares(
    count: int, reserve_bytes: int, bytes_each: int = _INITIAL_ESTIMATE_BYTES
) -> bool:
    return memory_status().available_bytes > count * bytes_each + reserve_bytes
