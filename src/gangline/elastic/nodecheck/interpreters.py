"""The interpreters in which a node is checked: one for each device, with PyTorch imported.

Tests run in forks of them, so a failed process is replaced without a new import. An interpreter
itself computes nothing, so it can become a worker after the check: one import of PyTorch serves
both. The script must not notice, so an interpreter becomes a worker only if the first thing that
the script does is to import PyTorch.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Self

from gangline.elastic.agent.process import bind_to_processors
from gangline.elastic.agent.settings import AgentSettings, WorkerCommand
from gangline.elastic.agent.spare_interpreter import (
    SpareInterpreter,
    end_spares,
    imports_torch_first,
)
from gangline.elastic.agent.spare_pool import has_memory_for_spares
from gangline.elastic.agent.worker_group import spare_environment, worker_arguments

_MODULES = ("torch",)
_IDLE_COMMAND = (sys.executable, "-c", "'gangline node check'")
"""Command line, as process lists show it, of an interpreter that never becomes a worker."""

InterpreterFactory = Callable[[int], Awaitable[SpareInterpreter]]
_TORCH = "torch"


class CheckInterpreters:
    """The interpreters of one node. They start on entry, and are warmed in the background."""

    def __init__(self, begin: InterpreterFactory, size: int, *, may_train: bool) -> None:
        self._begin, self._size, self._may_train = begin, size, may_train
        self._warming: dict[int, asyncio.Task[SpareInterpreter]] = {}
        self._started: dict[int, SpareInterpreter] = {}

    async def __aenter__(self) -> Self:
        try:
            for local_rank in range(self._size):
                await self._start(local_rank)
        except BaseException:
            await self.__aexit__()
            raise
        await asyncio.sleep(0)  # lets each warming task send its order before anything else is done
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._warming.values():
            task.cancel()
        await asyncio.gather(*self._warming.values(), return_exceptions=True)
        await end_spares(self._started.values())
        self._started.clear()

    async def warm(self, local_rank: int) -> SpareInterpreter:
        """Return the interpreter of a local rank after warming, successful or not."""
        return await asyncio.shield(self._warming[local_rank])

    async def replace(self, local_rank: int) -> None:
        """Replace the interpreter of a local rank unless it is usable.

        Raises StartError: it cannot be started.
        """
        if not self._warming[local_rank].done():
            return
        spare = await self._warming[local_rank]
        if _is_usable(spare):
            return
        await end_spares([spare])
        await self._start(local_rank)

    async def release(self) -> dict[int, SpareInterpreter]:
        """Return the interpreters that can become workers; end the others."""
        usable = {rank: spare for rank, spare in self._started.items() if _is_usable(spare)}
        first = usable if self._may_train else {}
        await end_spares([spare for rank, spare in self._started.items() if rank not in first])
        self._started.clear()
        return first

    async def _start(self, local_rank: int) -> None:
        spare = self._started[local_rank] = await self._begin(local_rank)
        self._warming[local_rank] = asyncio.create_task(_warm_up(spare))


async def _warm_up(spare: SpareInterpreter) -> SpareInterpreter:
    await spare.warm(_MODULES)
    return spare


def _is_usable(spare: SpareInterpreter) -> bool:
    return spare.has_all_modules and not spare.process.ended.done()


def idle_interpreters(size: int) -> CheckInterpreters:
    """Return interpreters that are used for the check only."""
    return CheckInterpreters(
        lambda _: SpareInterpreter.start(_IDLE_COMMAND, os.environ), size, may_train=False
    )


def prewarmed_interpreters(settings: AgentSettings, base: Mapping[str, str]) -> CheckInterpreters:
    size = settings.local_world_size
    if not _can_become_workers(settings):
        return idle_interpreters(size)
    return CheckInterpreters(
        partial(_start_interpreter, settings, dict(base)), size, may_train=True
    )


async def _start_interpreter(
    settings: AgentSettings, base: Mapping[str, str], local_rank: int
) -> SpareInterpreter:
    near = settings.affinity[local_rank] if settings.affinity else frozenset()
    return await SpareInterpreter.start(
        worker_arguments(settings, local_rank),
        spare_environment(settings, local_rank, base),
        partial(_prepare_process, near, settings.signals),
    )


def _prepare_process(near: frozenset[int], handled: tuple[signal.Signals, ...]) -> None:
    """Reset signals as a new program has them. The agent handles these signals later.

    A signal that was ignored when the launcher started would stay ignored in the worker.
    """
    for number in handled:
        signal.signal(number, signal.SIG_DFL)
    bind_to_processors(near)


def _can_become_workers(settings: AgentSettings) -> bool:
    command, standby = settings.command, settings.spares
    if not standby.enabled or not command.is_python or command.arguments[0] != sys.executable:
        return False
    if not has_memory_for_spares(settings.local_world_size, standby.reserve_bytes):
        return False
    return _TORCH in standby.preload or _imports_torch_first(command)


def _imports_torch_first(command: WorkerCommand) -> bool:
    """Read the script. A module is not searched: that might import its parent packages."""
    _, _, script, *_ = command.arguments
    if script == "-m":
        return False
    try:
        return imports_torch_first(Path(script).read_bytes())
    except OSError:
        return False
