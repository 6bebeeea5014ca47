"""Seats of one priority level, and one queue per user for the requests that wait for them.

A request occupies one seat or more while it is executed. If none is free, it waits in the queue of
its user. Free seats are given to the queues in turn, so that a user with many waiting requests does
not delay a user with one. A full queue, or a wait of ``MAX_WAIT_S``, ends with 429.
"""

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from gangline.local.apiserver.core.errors import StatusError, too_many
from gangline.local.apiserver.flowcontrol.priority_levels import PriorityLevel

MAX_WAIT_S = 15.0
"""A quarter of the request timeout, as in Kubernetes."""
RETRY_AFTER_S = 1
REJECTED_MESSAGE = "too many requests, please try again later"


def rejection(why: str) -> StatusError:
    """429 with the time after which the client may try again."""
    return too_many(f"{REJECTED_MESSAGE}: {why}", [], retry_after=RETRY_AFTER_S)


@dataclass(slots=True)
class _Waiter:
    width: int
    admitted: "asyncio.Future[None]"


@dataclass(slots=True)
class _Flow:
    """The requests of one user."""

    in_use: int = 0
    waiting: deque[_Waiter] = field(default_factory=deque)


class FairQueues:
    """The seats and the queues of one level."""

    def __init__(self, level: PriorityLevel, max_wait_s: float = MAX_WAIT_S) -> None:
        self.level = level
        self.in_use = 0
        self._max_wait_s = max_wait_s
        self._flows: OrderedDict[str, _Flow] = OrderedDict()
        """The flows with requests; the order is that in which free seats are given."""

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a seat."""
        return sum(len(flow.waiting) for flow in self._flows.values())

    @contextlib.asynccontextmanager
    async def seat(self, user: str, width: int = 1) -> AsyncIterator[None]:
        """Occupy ``width`` seats, after the requests before this one.

        Raises:
            StatusError: 429, the queue of the user is full, or no seat was free in time.
        """
        if not self.level.seats:
            yield
            return
        width = min(width, self.level.user_seats)
        flow = self._flows.setdefault(user, _Flow())
        try:
            if flow.waiting or not self._fits(flow, width):
                await self._wait(flow, width)
            else:
                self._take(flow, width)
            try:
                yield
            finally:
                flow.in_use -= width
                self.in_use -= width
        finally:
            if not flow.in_use and not flow.waiting:
                self._flows.pop(user, None)
            self._dispatch()

    def _fits(self, flow: _Flow, width: int) -> bool:
        level = self.level
        return self.in_use + width <= level.seats and flow.in_use + width <= level.user_seats

    def _take(self, flow: _Flow, width: int) -> None:
        flow.in_use += width
        self.in_use += width

    async def _wait(self, flow: _Flow, width: int) -> None:
        if len(flow.waiting) >= self.level.user_queue:
            raise rejection("the queue of this user is full")
        waiter = _Waiter(width, asyncio.get_running_loop().create_future())
        flow.waiting.append(waiter)
        try:
            async with asyncio.timeout(self._max_wait_s):
                await waiter.admitted
        except BaseException as error:
            if waiter.admitted.done() and not waiter.admitted.cancelled():
                # Admitted in the same step as the timeout or the client's disconnection.
                flow.in_use -= width
                self.in_use -= width
            else:
                flow.waiting.remove(waiter)
            if isinstance(error, TimeoutError):
                raise rejection(f"no seat was free within {self._max_wait_s:.0f} s") from None
            raise

    def _dispatch(self) -> None:
        """Give free seats to waiting requests, one per flow and turn."""
        admitted = True
        while admitted and self.in_use < self.level.seats:
            admitted = False
            for user, flow in list(self._flows.items()):
                if flow.waiting and self._fits(flow, flow.waiting[0].width):
                    waiter = flow.waiting.popleft()
                    self._take(flow, waiter.width)
                    waiter.admitted.set_result(None)
                    self._flows.move_to_end(user)
                    admitted = True
