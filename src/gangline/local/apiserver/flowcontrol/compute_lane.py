"""Long computations run in a thread beside the event loop, those of several users in turn.

Requests of more than some milliseconds of processor time (large bodies, tables of long lists) would
delay all other requests. Python code of a thread gives up the interpreter lock after
``SWITCH_INTERVAL_S``, so that the event loop continues. A lane has few threads, because they
compete with the event loop for the same lock, and one user occupies one of them: a computation of
seconds does not delay those of the next user. A computation that holds the lock (one call of a C
function) is not shortened by this; such inputs are limited in size. After each computation its
thread rests, so that the event loop catches up between two of them.
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
    """Some threads, and one queue per user."""

    def __init__(self, name: str, threads: int = 2) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._queues: OrderedDict[str, deque[_Computation]] = OrderedDict()
        self._free = threads
        self._served: set[str] = set()
        """Users whose computation runs, or who wait until its thread has rested."""
        self._rests: set[asyncio.TimerHandle] = set()
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
        self._start_next()
        return await done

    def close(self) -> None:
        """Wait for the running computations and end the threads."""
        self._queues.clear()
        for rest in self._rests:
            rest.cancel()
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _start_next(self) -> None:
        """Start the first computation of each next user, while threads are free."""
        waiting = [user for user in self._queues if user not in self._served]
        for user in waiting:
            while self._free and user in self._queues and user not in self._served:
                self._start(user)

    def _start(self, user: str) -> None:
        queue = self._queues.pop(user)
        computation = queue.popleft()
        if queue:
            self._queues[user] = queue  # at the end: the other users come first
        if computation.done.done():
            return  # its request was cancelled
        self._free -= 1
        self._served.add(user)
        started = time.monotonic()
        running = asyncio.get_running_loop().run_in_executor(self._executor, computation.call)
        running.add_done_callback(partial(self._finish, user, started, computation))

    def _finish(
        self,
        user: str,
        started: float,
        computation: _Computation,
        result: "asyncio.Future[Any]",
    ) -> None:
        done = computation.done
        if result.cancelled():
            done.cancel()
        elif (error := result.exception()) is not None:
            if not done.done():
                done.set_exception(error)
        elif not done.done():
            done.set_result(result.result())
        took = time.monotonic() - started

        def rested() -> None:
            self._rests.discard(rest)
            self._free += 1
            self._served.discard(user)
            self._start_next()

        pause = min(took * REST_FACTOR, MAX_REST_S)
        rest = asyncio.get_running_loop().call_later(pause, rested)
        self._rests.add(rest)
