"""Seats and queues: who is served next, and who is rejected."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gangline.local.apiserver.core.errors import StatusError
from gangline.local.apiserver.core.request import ANONYMOUS, RequestUser
from gangline.local.apiserver.flowcontrol import (
    CATCH_ALL,
    EXEMPT,
    GLOBAL_DEFAULT,
    SYSTEM,
    WORKLOAD_LOW,
    ComputeThreads,
    FairQueues,
    PriorityLevel,
    UserLimits,
    priority_level,
)

LEVEL = PriorityLevel("test", seats=2, user_seats=1, user_queue=3)
AUTHENTICATED = "system:authenticated"


class Requests:
    """Requests that stay in execution until they are ended."""

    def __init__(self, queues: FairQueues) -> None:
        self._queues = queues
        self.executing: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, name: str, user: str = "", width: int = 1) -> None:
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._execute(name, user or name[0], width))
        await self._settle()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self.tasks[name]
        await self._settle()

    async def _execute(self, name: str, user: str, width: int) -> None:
        async with self._queues.seat(user, width):
            self.executing.append(name)
            await self._ends[name].wait()
            self.executing.remove(name)

    async def _settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("user", "level"),
    [
        (RequestUser("root", ("system:masters", AUTHENTICATED)), EXEMPT),
        (RequestUser("system:node:n", ("system:nodes", AUTHENTICATED)), SYSTEM),
        (RequestUser("system:kube-scheduler", (AUTHENTICATED,)), SYSTEM),
        (
            RequestUser(
                "system:serviceaccount:kube-system:a",
                ("system:serviceaccounts", "system:serviceaccounts:kube-system", AUTHENTICATED),
            ),
            SYSTEM,
        ),
        (
            RequestUser("system:serviceaccount:a:b", ("system:serviceaccounts", AUTHENTICATED)),
            WORKLOAD_LOW,
        ),
        (RequestUser("alice", (AUTHENTICATED,)), GLOBAL_DEFAULT),
        (ANONYMOUS, CATCH_ALL),
    ],
)
def test_level_follows_from_user_and_groups(user: RequestUser, level: PriorityLevel) -> None:
    assert priority_level(user) is level


async def test_free_seats_are_given_to_users_in_turn() -> None:
    requests = Requests(FairQueues(replace(LEVEL, seats=1)))
    for name in ("a1", "a2", "a3", "b1"):
        await requests.start(name)
    order = []
    for _ in range(4):
        (name,) = requests.executing
        order.append(name)
        await requests.end(name)
    assert order == ["a1", "a2", "b1", "a3"]


async def test_one_user_does_not_occupy_all_seats() -> None:
    requests = Requests(FairQueues(LEVEL))
    await requests.start("a1")
    await requests.start("a2")
    await requests.start("b1")
    assert requests.executing == ["a1", "b1"]
    await requests.end("a1")
    assert requests.executing == ["b1", "a2"]


async def test_wide_request_occupies_several_seats() -> None:
    requests = Requests(FairQueues(replace(LEVEL, seats=3, user_seats=2)))
    await requests.start("a1", width=2)
    await requests.start("b1", width=2)
    await requests.start("c1")
    assert requests.executing == ["a1", "c1"]
    await requests.end("a1")
    assert requests.executing == ["c1", "b1"]


async def test_full_queue_is_answered_with_429_and_retry_after() -> None:
    queues = FairQueues(LEVEL)
    requests = Requests(queues)
    for name in ("a1", "a2", "a3", "a4"):
        await requests.start(name)
    with pytest.raises(StatusError) as refused:
        async with queues.seat("a"):
            pass
    assert refused.value.status.code == 429
    assert refused.value.headers["Retry-After"] == "1"
    async with queues.seat("b"):
        assert requests.executing == ["a1"]


async def test_long_wait_is_answered_with_429() -> None:
    queues = FairQueues(LEVEL, max_wait_s=0.01)
    requests = Requests(queues)
    await requests.start("a1")
    with pytest.raises(StatusError, match="no seat was free"):
        async with queues.seat("a"):
            pass
    assert (queues.in_use, queues.waiting) == (1, 0)


async def test_cancelled_requests_return_their_seats() -> None:
    queues = FairQueues(LEVEL)
    requests = Requests(queues)
    await requests.start("a1")
    await requests.start("a2")
    await requests.start("a3")
    for name in ("a2", "a1"):
        requests.tasks[name].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await requests.tasks[name]
    await requests.end("a3")
    assert (queues.in_use, queues.waiting) == (0, 0)


async def test_exempt_level_has_no_limit() -> None:
    requests = Requests(FairQueues(EXEMPT))
    for number in range(100):
        await requests.start(f"a{number}")
    assert len(requests.executing) == 100


def test_limit_of_one_user_does_not_concern_another() -> None:
    limits = UserLimits()
    with limits.reserve("a", 2, 3, "too much"):
        with pytest.raises(StatusError, match="too much"), limits.reserve("a", 2, 3, "too much"):
            pass
        with limits.reserve("b", 2, 3, "too much"):
            pass
    with limits.reserve("a", 5, 3, "too much"):  # alone, also above the limit
        pass


@pytest.fixture
async def lane() -> AsyncIterator[ComputeThreads]:
    lane = ComputeThreads("test")

    yield lane
    lane.close()


async def test_users_take_turns() -> None:
    lane = ComputeThreads("test", threads=1)
    order: list[str] = []
    released = threading.Event()
    first = asyncio.create_task(lane.run("a", released.wait, 60.0))
    await asyncio.sleep(0)
    names = ("a1", "a2", "a3", "b1")
    rest = [asyncio.create_task(lane.run(name[0], order.append, name)) for name in names]
    await asyncio.sleep(0)
    released.set()
    await asyncio.gather(first, *rest)
    assert order == ["a1", "b1", "a2", "a3"]
    lane.close()


async def test_error_of_a_computation_reaches_its_request_only(lane: ComputeThreads) -> None:
    with pytest.raises(ZeroDivisionError):
        await lane.run("a", lambda: 1 // 0)
    assert await lane.run("a", lambda: 1) == 1


async def test_computation_of_a_cancelled_request_is_not_started(lane: ComputeThreads) -> None:
    started: list[str] = []
    released = threading.Event()
    first = asyncio.create_task(lane.run("a", released.wait, 60.0))
    second = asyncio.create_task(lane.run("a", started.append, "second"))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    released.set()
    await first
    assert await lane.run("a", lambda: 1) == 1
    assert not started


async def test_long_computation_of_one_user_does_not_delay_another_one(
    lane: ComputeThreads,
) -> None:
    released = threading.Event()
    first = asyncio.create_task(lane.run("a", released.wait, 60.0))
    second = asyncio.create_task(lane.run("a", released.is_set))
    await asyncio.sleep(0)
    assert await lane.run("b", lambda: "done") == "done"
    assert not second.done()
    released.set()
    assert await first
    assert await second  # computations of one user run one after the other
