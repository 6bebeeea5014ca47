"""The interpreters in which a node is checked: one for each device, with PyTorch imported.

Tests run in forks of them, so a failed process is replaced without a new import. An interpreter
itself computes nothing, so it can become a worker after the check.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Self

from gangline.elastic.agent.process import end_all
from gangline.elastic.agent.spare import Spare

_MODULES = ("torch",)
_IDLE = (sys.executable, "-c", "'gangline node check'")
"""Command line, as process lists show it, of an interpreter that never becomes a worker."""

Begin = Callable[[int], Awaitable[Spare]]
"""Starts the interpreter of a local rank."""


class Interpreters:
    """The interpreters of one node. They start on entry, and are warmed in the background."""

    def __init__(self, begin: Begin, size: int, *, may_train: bool) -> None:
        self._begin, self._size, self._may_train = begin, size, may_train
        self._warming: dict[int, asyncio.Task[Spare]] = {}
        self._started: dict[int, Spare] = {}

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
        await self._end(*self._started.values())
        self._started.clear()

    async def warm(self, local_rank: int) -> Spare:
        """Return the interpreter of a local rank after warming, successful or not."""
        return await asyncio.shield(self._warming[local_rank])

    async def renew(self, local_rank: int) -> None:
        """Replace the interpreter of a local rank unless it is usable.

        Raises:
            StartError: it cannot be started.
        """
        if not self._warming[local_rank].done():
            return
        spare = await self._warming[local_rank]
        if _is_usable(spare):
            return
        await self._end(spare)
        await self._start(local_rank)

    async def released(self) -> dict[int, Spare]:
        """Return the interpreters that can become workers; end the others."""
        usable = {rank: spare for rank, spare in self._started.items() if _is_usable(spare)}
        first = usable if self._may_train else {}
        await self._end(*(spare for rank, spare in self._started.items() if rank not in first))
        self._started.clear()
        return first

    async def _start(self, local_rank: int) -> None:
        spare = self._started[local_rank] = await self._begin(local_rank)
        self._warming[local_rank] = asyncio.create_task(_warmed(spare))

    @staticmethod
    async def _end(*spares: Spare) -> None:
        for spare in spares:
            spare.writer.close()
        await end_all([spare.process for spare in spares], signal.SIGKILL, 0)


async def _warmed(spare: Spare) -> Spare:
    await spare.warm(_MODULES, nice=os.getpriority(os.PRIO_PROCESS, 0), quiet=False)
    return spare


def _is_usable(spare: Spare) -> bool:
    return spare.is_whole and not spare.process.ended.done()


def idle_interpreters(size: int) -> Interpreters:
    """Return interpreters that are used for the check only."""
    return Interpreters(lambda _: Spare.started(_IDLE, os.environ), size, may_train=False)
