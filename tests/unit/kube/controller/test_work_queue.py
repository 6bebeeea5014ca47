"""The work queue, in virtual time."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.kube.controller.controller import QueueStopped, WorkQueue
from unit.kube.virtual_clock import run_jumping, virtual_time


def now():
    return asyncio.get_running_loop().time()


async def drain(queue):
    """Take what waits now, without waiting for more."""
    taken = []
    while len(queue):
        key = await queue.get()
        taken.append(key)
        queue.done(key)
    return taken


@virtual_time
async def test_a_key_waits_once():
    queue = WorkQueue()
    for key in ("a", "b", "a", "c", "a"):
        queue.add(key)
    assert await drain(queue) == ["a", "b", "c"]


@virtual_time
async def test_adding_now_takes_the_place_of_adding_later():
    queue = WorkQueue()
    queue.add_after("a", 30)
    queue.add("a")
    assert await drain(queue) == ["a"]
    assert queue.idle
    queue.add_after("b", 0)
    queue.add_after("c", -5)
    assert await drain(queue) == ["b", "c"]


@virtual_time
async def test_failures_wait_longer_each_time_up_to_a_limit():
    queue = WorkQueue(base_delay=1, max_delay=10, jitter=0)
    assert [queue.add_rate_limited("a") for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    assert queue.add_rate_limited("b") == 1
    queue.forget("a")
    assert queue.add_rate_limited("a") == 1
    for _ in range(2000):
        queue.add_rate_limited("c")
    assert queue.add_rate_limited("c") == 10


@virtual_time
async def test_waits_are_spread_out():
    queue = WorkQueue(base_delay=1, max_delay=10, jitter=0.5)
    waits = {queue.add_rate_limited(key) for key in range(50)}
    assert len(waits) > 40
    assert all(1 <= wait <= 1.5 for wait in waits)


@virtual_time
async def test_higher_priorities_leave_first_and_equals_in_order():
    queue = WorkQueue()
    queue.add("low", priority=-1)
    queue.add("a")
    queue.add("b")
    queue.add("high", priority=5)
    queue.add("low-raised", priority=-1)
    queue.add("low-raised", priority=3)
    queue.add("high", priority=0)
    assert await drain(queue) == ["high", "low-raised", "a", "b", "low"]


@virtual_time
async def test_many_workers_never_hold_the_same_key():
    queue = WorkQueue()
    held, worked = set(), 0

    async def work():
        nonlocal worked
        while True:
            key = await queue.get()
            assert key not in held
            held.add(key)
            await asyncio.sleep(0.1)
            held.discard(key)
            worked += 1
            queue.done(key)

    workers = [asyncio.create_task(work()) for _ in range(8)]
    for round_ in range(20):
        for key in range(5):
            queue.add(key)
        await asyncio.sleep(0.03 * (round_ % 3))
    await asyncio.sleep(100)
    assert queue.idle
    assert worked >= 10
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)


@virtual_time
async def test_a_worker_that_is_cancelled_while_waiting_loses_no_key():
    queue = WorkQueue()
    first = asyncio.create_task(queue.get())
    second = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()
    assert await asyncio.wait_for(second, 5) == "a"


@virtual_time
async def test_a_stopped_queue_lets_its_workers_go():
    queue = WorkQueue()
    waiters = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.add_after("later", 5)
    queue.stop()
    queue.add("a")
    queue.add_after("b", 1)
    for waiter in waiters:
        with pytest.raises(QueueStopped):
            await asyncio.wait_for(waiter, 5)
    assert queue.idle


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "after", "fail", "get", "done", "sleep"]),
        st.integers(0, 3),
        st.integers(0, 20),
    ),
    max_size=40,
)


@given(STEPS)
def test_every_key_that_was_added_is_handed_out_afterwards(steps):
    """Whatever the order of calls: after its last add, a key is handed out at least once more."""

    async def scenario():
        queue = WorkQueue(base_delay=0.5, max_delay=5)
        owed, held = set(), []
        for step, key, number in steps:
            match step:
                case "add":
                    queue.add(key, priority=number % 3)
                    owed.add(key)
                case "after":
                    queue.add_after(key, number)
                    owed.add(key)
                case "fail":
                    queue.add_rate_limited(key)
                    owed.add(key)
                case "get" if len(queue):
                    taken = await queue.get()
                    assert taken not in held
                    held.append(taken)
                    owed.discard(taken)
                case "done" if held:
                    queue.done(held.pop(0))
                case "sleep":
                    await asyncio.sleep(number)
        for key in held:
            queue.done(key)
        while owed:
            key = await asyncio.wait_for(queue.get(), 100)
            owed.discard(key)
            queue.done(key)
        await asyncio.sleep(100)
        await drain(queue)
        assert queue.idle

    run_jumping(scenario())
