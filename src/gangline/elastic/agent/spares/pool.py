"""The pool of spare interpreters: one for each worker, with the script's modules already imported.

With a spare, a restart costs no imports. Spares are warmed one after another, at low priority, and
only while enough memory is free. The modules are learned from the first start: installed libraries,
but never the user's own code. A failure before that means an ordinary start. A node that joins a
running job gets the list from the master and warms its spares before it joins.
"""

import asyncio
import contextlib
import json
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from gangline.elastic.agent.process import bind_to_processors
from gangline.elastic.agent.settings import SpareSettings
from gangline.elastic.agent.spares.interpreter import SpareInterpreter, end_spares
from gangline.elastic.memory import memory_status, resident_bytes

_LIBRARY_FOLDERS = ("site-packages", "dist-packages")


def preloadable_modules(
    modules: Iterable[tuple[str, str | None]], own_folders: Sequence[str]
) -> tuple[str, ...]:
    """Return the modules to import, in the order of the first start.

    The user's own code is left out: importing it may have effects, and it may be edited between two
    starts. Built-in modules need no import.

    Args:
        modules: names and files.
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


log = logging.getLogger(__name__)

_LOW_PRIORITY = 10
_AUTOGROUP = Path("/proc/self/autogroup")
_CAP_SYS_NICE = 23
_INITIAL_ESTIMATE_BYTES = 400 << 20
"""Estimated memory of a spare until one has been measured."""
_LINE_LIMIT = 1 << 22
_WARM_BEFORE_JOIN_S = 60.0
"""Maximum time by which a node delays its join to warm its spares."""


class SparePool:
    """The spare interpreters of one node."""

    def __init__(
        self,
        settings: SpareSettings,
        arguments: Callable[[int], Sequence[str]],
        size: int,
        affinity: tuple[frozenset[int], ...] = (),
        learned: Callable[[Sequence[str]], None] = lambda _: None,
        first_spares: Mapping[int, SpareInterpreter] | None = None,
    ) -> None:
        """Prepare for ``size`` workers.

        Args:
            settings: whether there are spares, and what they import.
            arguments: returns the command line of a local rank.
            size: number of workers.
            affinity: processors of each worker.
            learned: called with the imported modules once they are known.
            first_spares: spares that wait already, by local rank.
        """
        self._settings, self._arguments, self._size = settings, arguments, size
        self._affinity, self._on_learned = affinity, learned
        self._modules: tuple[str, ...] | None = settings.preload or None
        self._environments: dict[int, dict[str, str]] = {}
        self.ready: dict[int, SpareInterpreter] = dict(first_spares or {})
        """Warm spares by local rank."""
        self.has_learned = False
        """True if the imports are known; a worker may end before it has reported them."""
        self._warming: set[SpareInterpreter] = set()
        self._fill_task: asyncio.Task[None] | None = None
        self._learn_task: asyncio.Task[None] | None = None
        self._bytes_each = _INITIAL_ESTIMATE_BYTES

    def learn_from(self, channel: socket.socket) -> None:
        """Learn the imports of a worker that has just started."""
        if self._learn_task:
            self._learn_task.cancel()
        self._learn_task = asyncio.create_task(self._learn(channel))

    def take(self, local_rank: int) -> SpareInterpreter | None:
        """Return the spare of a worker if it is warm and alive."""
        spare = self.ready.pop(local_rank, None)
        return spare if spare and not spare.process.ended.done() else None

    def fill(self, environments: Mapping[int, dict[str, str]] | None = None) -> None:
        """Warm missing spares in the background, with the environments of the workers."""
        if environments is not None:
            self._environments = dict(environments)
        is_idle = self._fill_task is None or self._fill_task.done()
        if self._settings.enabled and self._modules is not None and is_idle:
            self._fill_task = asyncio.create_task(self._fill())

    async def warm(
        self, modules: Sequence[str], environments: Mapping[int, dict[str, str]]
    ) -> None:
        """Warm all spares now, at normal priority, because no workers run here yet.

        Raises:
            StartError: the command cannot be started.
        """
        self._set_modules(modules)
        self._environments = dict(environments)
        if not self._has_memory_for(self._size):
            return
        try:
            async with asyncio.timeout(_WARM_BEFORE_JOIN_S):
                await asyncio.gather(*(self._warm(rank, calmly=False) for rank in environments))
        except TimeoutError:
            log.warning("spare interpreters are not warm after %g s", _WARM_BEFORE_JOIN_S)
        finally:
            self._kill_warming()

    async def close(self) -> None:
        for task in filter(None, (self._fill_task, self._learn_task)):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await end_spares([*self.ready.values(), *self._warming])
        self.ready.clear()
        self._warming.clear()

    def release_if_short(self) -> None:
        """End all spares if free memory is below the reserve."""
        if self.ready and not has_memory_for_spares(0, self._settings.reserve_bytes):
            log.warning("memory is short now: ending the spare interpreters")
            for spare in self.ready.values():
                spare.writer.close()
            self.ready.clear()

    async def _learn(self, channel: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=channel, limit=_LINE_LIMIT)
        with contextlib.closing(writer):
            line = await reader.readline()
        if not line:
            return  # it ended before its imports were complete
        learned = preloadable_modules(json.loads(line)["modules"], [os.getcwd()])
        self._set_modules(learned)
        log.debug("modules learned", extra={"modules": len(learned)})
        self._on_learned(learned)
        self.fill()

    def _set_modules(self, modules: Sequence[str]) -> None:
        self._modules = tuple(dict.fromkeys((*modules, *self._settings.preload)))
        self.has_learned = True

    async def _fill(self) -> None:
        try:
            await asyncio.sleep(self._settings.start_delay_s)
            for local_rank in range(self._size):
                if local_rank in self.ready or local_rank not in self._environments:
                    continue
                if not self._has_memory_for(1):
                    log.warning("memory is short: no spare interpreters")
                    return
                await self._warm(local_rank, calmly=True)
            log.info("spare interpreters are warm: %d", len(self.ready))
        finally:
            self._kill_warming()

    def _kill_warming(self) -> None:
        for spare in self._warming:
            spare.process.signal_group(signal.SIGKILL)
            spare.writer.close()
        self._warming.clear()

    def _has_memory_for(self, count: int) -> bool:
        return has_memory_for_spares(count, self._settings.reserve_bytes, self._bytes_each)

    async def _warm(self, local_rank: int, *, calmly: bool) -> None:
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        near = self._affinity[local_rank] if self._affinity else frozenset()
        spare = self.take(local_rank) or await SpareInterpreter.start(
            self._arguments(local_rank),
            self._environments[local_rank],
            partial(_prepare, near, calmly=calmly, may_raise=may_raise_priority()),
        )
        self._warming.add(spare)
        modules = self._modules or ()
        if not await spare.warm(modules, tiny_step=self._settings.tiny_step, nice=nice):
            log.warning(
                "a spare interpreter could not be warmed; restarts import all modules again"
            )
            return
        self._warming.discard(spare)
        self.ready[local_rank] = spare
        self._bytes_each = max(resident_bytes(spare.process.pid), _INITIAL_ESTIMATE_BYTES // 4)


def _prepare(processors: frozenset[int], *, calmly: bool, may_raise: bool) -> None:
    bind_to_processors(processors)
    if not calmly:
        return
    # The kernel schedules each session as a group (autogroup), so the nice value has no effect on
    # other sessions. The group's nice value can be raised again without privileges.
    with contextlib.suppress(OSError):
        _AUTOGROUP.write_text(str(_LOW_PRIORITY))
    if may_raise:
        os.setpriority(os.PRIO_PROCESS, 0, _LOW_PRIORITY)


def has_memory_for_spares(
    count: int, reserve_bytes: int, bytes_each: int = _INITIAL_ESTIMATE_BYTES
) -> bool:
    """Return whether memory for ``count`` spares is free beside the reserve."""
    return memory_status().available_bytes > count * bytes_each + reserve_bytes


def may_raise_priority(status: Path = Path("/proc/self/status")) -> bool:
    """Return whether this user may raise a lowered priority again."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NICE)
    if limit == resource.RLIM_INFINITY or limit >= 20:
        return True
    for line in status.read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_NICE & 1)
    return False
