"""The interpreters in which a node is checked: one for each device, which has imported PyTorch.

Tests are run by forks of them. So a process that failed is replaced without importing anything
anew; and since an interpreter itself computes nothing, it can become a worker after the check.
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
"""What is seen of an interpreter that becomes nothing."""

Begin = Callable[[int], Awaitable[Spare]]
"""Starts the interpreter of a local rank."""


class Interpreters:
    """Those of one node; started when this is entered, they get warm in the background."""

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
        await asyncio.sleep(0)  # each has been told what to import before anything else is done
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._warming.values():
            task.cancel()
        await asyncio.gather(*self._warming.values(), return_exceptions=True)
        await self._end(*self._started.values())
        self._started.clear()

    async def warm(self, local_rank: int) -> Spare:
        """Return the interpreter of a local rank when it is warm, or could not be warmed."""
        return await asyncio.shield(self._warming[local_rank])

    async def renew(self, local_rank: int) -> None:
        """Replace that of a local rank unless it is as good as a new one.

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
        """Hand over those that can become workers; end the others."""
        whole = {rank: spare for rank, spare in self._started.items() if _is_usable(spare)}
        first = whole if self._may_train else {}
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
    """Return interpreters that are for the check alone."""
    return Interpreters(lambda _: Spare.started(_IDLE, os.environ), size, may_train=False)
