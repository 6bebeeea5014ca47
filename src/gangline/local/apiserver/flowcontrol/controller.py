"""Flow control of all requests: a stream, a body, a seat, and a place in a lane.

Computations of administrators and of components of the system have a lane of their own, so that
they never wait for those of users.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import ParamSpec, TypeVar

from gangline.local.apiserver.core.request import RequestUser
from gangline.local.apiserver.flowcontrol.compute_lane import ComputeLane
from gangline.local.apiserver.flowcontrol.fair_queues import FairQueues, rejection
from gangline.local.apiserver.flowcontrol.priority_levels import EXEMPT, SYSTEM, priority_level
from gangline.local.apiserver.flowcontrol.user_limits import UserLimits

LONG_COMPUTATION_BYTES = 32 << 10
"""JSON from which on defaults, validation and other Python code take some milliseconds."""
LONG_PARSE_BYTES = 8 << 10
"""The same for parsing YAML and protobuf, and for formatting tables."""
LONG_SELECTION = 500
"""Comparisons of objects with selectors from which on they take a millisecond."""

P = ParamSpec("P")
T = TypeVar("T")


def is_long(size: int) -> bool:
    """Return True if the JSON of an object is long enough to be processed in a lane."""
    return size > LONG_COMPUTATION_BYTES


class FlowController:
    """The flow control of one server."""

    def __init__(self) -> None:
        self._queues: dict[str, FairQueues] = {}
        self._streams = UserLimits()
        self._bodies = UserLimits()
        self._responses = UserLimits()
        self._system_lane = ComputeLane("system-requests")
        self._user_lane = ComputeLane("user-requests")

    def seat(self, user: RequestUser, width: int = 1) -> AbstractAsyncContextManager[None]:
        """Wait for a seat and occupy it.

        Raises:
            StatusError: 429.
        """
        level = priority_level(user)
        queues = self._queues.get(level.name)
        if queues is None:
            queues = self._queues[level.name] = FairQueues(level)
        return queues.seat(user.name, width)

    def connection(self, user: RequestUser, count: int) -> None:
        """Refuse a new connection of a user that has ``count`` of them.

        Raises:
            StatusError: 429. The connection is closed after it.
        """
        limit = priority_level(user).user_connections
        if limit and count > limit:
            error = rejection(f"this user has too many open connections, the limit is {limit}")
            error.headers["Connection"] = "close"
            raise error

    def stream(self, user: RequestUser) -> AbstractContextManager[None]:
        """Count a watch or another stream of a user.

        Raises:
            StatusError: 429.
        """
        limit = priority_level(user).user_streams
        return self._streams.reserve(user.name, 1, limit, "too many open watches and streams")

    def body(self, user: RequestUser, size: int) -> AbstractContextManager[None]:
        """Count a body that is read or processed.

        Raises:
            StatusError: 429.
        """
        limit = priority_level(user).user_body_bytes
        return self._bodies.reserve(user.name, size, limit, "too many bytes of bodies in flight")

    def response(self, user: RequestUser, size: int) -> AbstractContextManager[None]:
        """Count the body of a response until it is sent.

        Raises:
            StatusError: 429.
        """
        limit = priority_level(user).user_body_bytes
        return self._responses.reserve(user.name, size, limit, "too many bytes of unread responses")

    async def compute(
        self, user: RequestUser, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return the result of a long computation."""
        in_system = priority_level(user) in (EXEMPT, SYSTEM)
        lane = self._system_lane if in_system else self._user_lane
        return await lane.run(user.name, function, *args, **kwargs)

    async def compute_by_size(
        self,
        user: RequestUser,
        size: int,
        function: Callable[P, T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call a function: for ``size`` bytes of JSON that take long in a lane, else directly.

        A direct call switches no task.
        """
        if is_long(size):
            return await self.compute(user, function, *args, **kwargs)
        return function(*args, **kwargs)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return the occupied seats and the waiting requests of each level."""
        return {name: (level.in_use, level.waiting) for name, level in self._queues.items()}

    def close(self) -> None:
        self._system_lane.close()
        self._user_lane.close()
