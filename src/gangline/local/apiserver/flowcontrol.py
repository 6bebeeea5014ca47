"""Flow control of all requests: streams, bodies, seats, and threads for long computations.

The model is Kubernetes' API Priority and Fairness, with fixed levels. Administrators
(``system:masters``) are exempt; nodes and components of the system do not compete with service
accounts, nor these with other users. A request occupies one seat or more while it is executed. If
none is free, it waits in the queue of its user. Free seats are given to the queues in turn, so that
a user with many waiting requests does not delay a user with one. A full queue, or a wait of
``MAX_WAIT_S``, ends with 429.

Requests of more than some milliseconds of processor time (large bodies, tables of long lists) would
delay all others, so ``ComputeThreads`` runs them beside the event loop. Python code of a thread
gives up the interpreter lock after ``SWITCH_INTERVAL_S``. The threads are few, because they compete
with the event loop for that lock, and one user occupies one of them. A computation that holds the
lock (one call of a C function) is not shortened by this; such inputs are limited in size. After a
computation its thread rests, so that the event loop catches up. Administrators and components of
the system have threads of their own, so that they never wait for those of users.
"""

import asyncio
import contextlib
import sys
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from gangline.local.apiserver.auth.pki import ADMIN_GROUP
from gangline.local.apiserver.core.errors import StatusError, too_many
from gangline.local.apiserver.core.request import RequestUser

NODES_GROUP = "system:nodes"
SERVICE_ACCOUNTS_GROUP = "system:serviceaccounts"
SYSTEM_SERVICE_ACCOUNTS_GROUP = "system:serviceaccounts:kube-system"
AUTHENTICATED_GROUP = "system:authenticated"
SYSTEM_USER_PREFIX = "system:"
"""Reserved names; service accounts and the anonymous user have the prefix too."""


@dataclass(frozen=True, slots=True)
class PriorityLevel:
    """The seats of one class of requests."""

    name: str
    seats: int = 0
    """Requests in execution; 0 means no limit."""
    user_seats: int = 0
    """Seats of one user, so that a few slow requests of one user do not occupy all of them."""
    user_queue: int = 0
    """Requests of one user that wait for a seat; further ones are answered with 429."""
    user_streams: int = 0
    """Watches, logs, exec and port forwardings of one user at a time; 0 means no limit."""
    user_body_bytes: int = 0
    """Bytes of request bodies of one user at a time; 0 means no limit."""
    user_connections: int = 0
    """Open connections of one user; 0 means no limit."""


EXEMPT = PriorityLevel("exempt")
SYSTEM = PriorityLevel("system", 100, 50, 500, 2000, 128 << 20, 4000)
WORKLOAD_LOW = PriorityLevel("workload-low", 60, 20, 200, 500, 32 << 20, 1000)
GLOBAL_DEFAULT = PriorityLevel("global-default", 60, 20, 200, 500, 32 << 20, 1000)
CATCH_ALL = PriorityLevel("catch-all", 10, 5, 20, 10, 4 << 20)
"""Users without authentication."""


def priority_level(user: RequestUser) -> PriorityLevel:
    """Return the level of a user's requests."""
    groups = user.groups
    if ADMIN_GROUP in groups:
        return EXEMPT
    if NODES_GROUP in groups or SYSTEM_SERVICE_ACCOUNTS_GROUP in groups:
        return SYSTEM
    if SERVICE_ACCOUNTS_GROUP in groups:
        return WORKLOAD_LOW
    if AUTHENTICATED_GROUP not in groups:
        return CATCH_ALL
    return SYSTEM if user.name.startswith(SYSTEM_USER_PREFIX) else GLOBAL_DEFAULT


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

    def __init__(self, level: PriorityLevel, max_wait_s: float | None = MAX_WAIT_S) -> None:
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
        """Occupy ``width`` seats, after the requests before this one. Raises StatusError: 429, the
        queue of the user is full, or no seat was free in time.
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


SWITCH_INTERVAL_S = 0.001
"""Each wait of the event loop for the lock takes this long at most; Python's default is 5 ms."""

REST_FACTOR, MAX_REST_S = 0.5, 0.25
"""After a computation of duration t its thread rests for this times t, and at most this long."""

P = ParamSpec("P")
T = TypeVar("T")


class ComputeThreads:
    """Some threads. They are seats, of which a user has one at a time."""

    def __init__(self, name: str, threads: int = 2) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        level = PriorityLevel(name, seats=threads, user_seats=1, user_queue=sys.maxsize)
        self._queues = FairQueues(level, max_wait_s=None)
        self._tasks: set[asyncio.Task[None]] = set()
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))

    async def run(
        self, user: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return the result of a function that does not use the event loop.

        The function runs to its end even if its request is cancelled meanwhile.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        task = loop.create_task(self._run(user, lambda: function(*args, **kwargs), done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await done

    async def _run(self, user: str, call: Callable[[], T], done: "asyncio.Future[T]") -> None:
        async with self._queues.seat(user):
            if done.done():
                return  # its request was cancelled
            started = time.monotonic()
            running = asyncio.get_running_loop().run_in_executor(self._executor, call)
            await asyncio.wait([running])
            took = time.monotonic() - started
            if done.done():
                pass  # its request was cancelled meanwhile
            elif (error := running.exception()) is not None:
                done.set_exception(error)
            else:
                done.set_result(running.result())
            await asyncio.sleep(min(took * REST_FACTOR, MAX_REST_S))

    def close(self) -> None:
        """Wait for the running computations and end the threads."""
        for task in self._tasks:
            task.cancel()
        self._executor.shutdown(wait=True, cancel_futures=True)


class UserLimits:
    """Counts per user. A limit of 0 means none."""

    def __init__(self) -> None:
        self._used: Counter[str] = Counter()

    @contextlib.contextmanager
    def reserve(self, user: str, amount: int, limit: int, what: str) -> Iterator[None]:
        """Reserve ``amount`` for the duration of a request. Raises StatusError: 429, the user would
        exceed the limit.
        """
        # The first request is always admitted: a single body may be larger than the limit.
        if limit and self._used[user] and self._used[user] + amount > limit:
            raise rejection(f"this user has {what}, the limit is {limit}")
        self._used[user] += amount
        try:
            yield
        finally:
            self._used[user] -= amount
            if not self._used[user]:
                del self._used[user]


LONG_COMPUTATION_BYTES = 32 << 10
"""JSON from which on defaults, validation and other Python code take some milliseconds."""
LONG_PARSE_BYTES = 8 << 10
"""The same for parsing YAML and protobuf, and for formatting tables."""
LONG_SELECTION = 500
"""Comparisons of objects with selectors from which on they take a millisecond."""


def is_long(size: int) -> bool:
    """Return True if the JSON of an object is long enough to be processed in a thread."""
    return size > LONG_COMPUTATION_BYTES


class FlowController:
    """The flow control of one server."""

    def __init__(self) -> None:
        self._queues: dict[str, FairQueues] = {}
        self._streams = UserLimits()
        self._bodies = UserLimits()
        self._responses = UserLimits()
        self._system_threads = ComputeThreads("system-requests")
        self._user_threads = ComputeThreads("user-requests")

    def seat(self, user: RequestUser, width: int = 1) -> AbstractAsyncContextManager[None]:
        """Wait for a seat and occupy it. Raises StatusError: 429."""
        level = priority_level(user)
        queues = self._queues.get(level.name)
        if queues is None:
            queues = self._queues[level.name] = FairQueues(level)
        return queues.seat(user.name, width)

    def connection(self, user: RequestUser, count: int) -> None:
        """Refuse a new connection of a user that has ``count`` of them. Raises StatusError: 429.
        The connection is closed after it.
        """
        limit = priority_level(user).user_connections
        if limit and count > limit:
            error = rejection(f"this user has too many open connections, the limit is {limit}")
            error.headers["Connection"] = "close"
            raise error

    def stream(self, user: RequestUser) -> AbstractContextManager[None]:
        """Count a watch or another stream of a user. Raises StatusError: 429."""
        limit = priority_level(user).user_streams
        return self._streams.reserve(user.name, 1, limit, "too many open watches and streams")

    def body(self, user: RequestUser, size: int) -> AbstractContextManager[None]:
        """Count a body that is read or processed. Raises StatusError: 429."""
        limit = priority_level(user).user_body_bytes
        return self._bodies.reserve(user.name, size, limit, "too many bytes of bodies in flight")

    def response(self, user: RequestUser, size: int) -> AbstractContextManager[None]:
        """Count the body of a response until it is sent. Raises StatusError: 429."""
        limit = priority_level(user).user_body_bytes
        return self._responses.reserve(user.name, size, limit, "too many bytes of unread responses")

    async def compute(
        self, user: RequestUser, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return the result of a long computation."""
        in_system = priority_level(user) in (EXEMPT, SYSTEM)
        threads = self._system_threads if in_system else self._user_threads
        return await threads.run(user.name, function, *args, **kwargs)

    async def compute_by_size(
        self,
        user: RequestUser,
        size: int,
        function: Callable[P, T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call a function: for ``size`` bytes of JSON that take long in a thread, else directly.

        A direct call switches no task.
        """
        if is_long(size):
            return await self.compute(user, function, *args, **kwargs)
        return function(*args, **kwargs)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return the occupied seats and the waiting requests of each level."""
        return {name: (level.in_use, level.waiting) for name, level in self._queues.items()}

    def close(self) -> None:
        self._system_threads.close()
        self._user_threads.close()
