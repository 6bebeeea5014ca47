"""Long computations run in a thread beside the event loop, those of several users in turn.

Requests of more than some milliseconds of processor time (large bodies, tables of long lists) would
delay all other requests. Python code of a thread gives up the interpreter lock after
``SWITCH_INTERVAL_S``, so that the event loop continues. There is one thread per lane: more of them
would compete with the event loop for the same lock, and finish no earlier. A computation that holds
the lock (one call of a C function) is not shortened by this; such inputs are limited in size. After
each computation the lane rests, so that the event loop catches up between two of them.
"""

import asyncio
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

SWITCH_INTERVAL_S = 0.001
"""Each wait of the event loop for the lock takes this long at most; Python's default is 5 ms."""

REST_FACTOR, MAX_REST_S = 0.5, 0.25
"""After a computation of duration t the lane rests for this times t, and at most this long."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class _Computation:
    call: Callable[[], Any]
    done: "asyncio.Future[Any]"


class ComputeLane:
    """One thread, and one queue per user."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._queues: OrderedDict[str, deque[_Computation]] = OrderedDict()
        self._running = False
        self._rest: asyncio.TimerHandle | None = None
        self._started = 0.0
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))

    async def run(
        self, user: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return the result of a function that does not use the event loop.

        The function runs to its end even if its request is cancelled meanwhile.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        call = _Computation(lambda: function(*args, **kwargs), done)
        self._queues.setdefault(user, deque()).append(call)
        if not self._running:
            self._start_next()
        return await done

    def close(self) -> None:
        """Wait for the running computation and end the thread."""
        self._queues.clear()
        if self._rest is not None:
            self._rest.cancel()
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _start_next(self) -> None:
        """Start the first computation of the next user."""
        self._running = False
        while self._queues:
            user, queue = self._queues.popitem(last=False)
            computation = queue.popleft()
            if queue:
                self._queues[user] = queue  # at the end: the other users come first
            if not computation.done.done():  # else its request was cancelled
                self._running = True
                self._started = time.monotonic()
                started = asyncio.get_running_loop().run_in_executor(
                    self._executor, computation.call
                )
                started.add_done_callback(partial(self._finish, computation))
                return

    def _finish(self, computation: _Computation, result: "asyncio.Future[Any]") -> None:
        done = computation.done
        if result.cancelled():
            done.cancel()
        elif (error := result.exception()) is not None:
            if not done.done():
                done.set_exception(error)
        elif not done.done():
            done.set_result(result.result())
        took = time.monotonic() - self._started
        rest = min(took * REST_FACTOR, MAX_REST_S)
        self._rest = asyncio.get_running_loop().call_later(rest, self._start_next)
