"""The controller loop: what happens to a key after each result."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from gangline.api.meta.objects import Status
from gangline.kube.controller.controller import (
    Controller,
    ReconcileDone,
    RequeueAfter,
    TerminalError,
    WorkQueue,
)
from gangline.kube.errors import Conflict, Forbidden
from unit.kube.virtual_clock import run_jumping, virtual_time


class Script:
    """Reconciles by a script: the next outcome for each key, then Done."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.times = []
        self.running = 0

    async def __call__(self, key):
        self.times.append(round(asyncio.get_running_loop().time() - self.began, 1))
        outcome = self.outcomes.pop(0) if self.outcomes else ReconcileDone()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


@asynccontextmanager
async def running(reconcile, **options):
    reconcile.began = asyncio.get_running_loop().time()
    controller = Controller("test", reconcile, queue=WorkQueue(jitter=0), **options)
    task = asyncio.create_task(controller.run())
    try:
        yield controller
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def settled(controller):
    await asyncio.sleep(1000)
    assert controller.queue.idle


@pytest.mark.parametrize(
    ("outcomes", "times"),
    [
        pytest.param([ReconcileDone()], [0], id="done is left alone"),
        pytest.param(
            [RequeueAfter(30), RequeueAfter(10)], [0, 30, 40], id="after is looked at again in time"
        ),
        pytest.param(
            [KeyError("x")] * 7, [0, 0.1, 0.2, 0.3, 0.8, 1.6, 3.2, 6.4], id="failures wait longer"
        ),
        pytest.param(
            [KeyError("x"), RequeueAfter(5), KeyError("x")],
            [0, 0.1, 5.1, 5.1],
            id="success resets the failures",
        ),
        pytest.param([TerminalError("no use")], [0], id="a terminal error is not tried again"),
    ],
)
@virtual_time
async def test_an_outcome_decides_when_a_key_is_looked_at_again(outcomes, times):
    script = Script(*outcomes)
    async with running(script) as controller:
        controller.queue.add("a")
        await settled(controller)
    assert script.times == pytest.approx(times, abs=0.11)


@virtual_time
async def test_one_key_that_always_fails_does_not_hold_up_others():
    good = []

    async def reconcile(key):
        if key == "bad":
            raise RuntimeError("always")
        good.append(key)
        return ReconcileDone()

    controller = Controller("test", reconcile, workers=1)
    task = asyncio.create_task(controller.run())
    controller.queue.add("bad")
    for number in range(100):
        controller.queue.add(number)
    await asyncio.sleep(1)
    assert good == list(range(100))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@virtual_time
async def test_a_reconcile_that_hangs_is_cut_off_and_tried_again():
    calls = []

    async def reconcile(key):
        calls.append(key)
        if len(calls) == 1:
            await asyncio.get_running_loop().create_future()
        return ReconcileDone()

    controller = Controller("test", reconcile, workers=1, timeout_s=60)
    task = asyncio.create_task(controller.run())
    controller.queue.add("a")
    await settled(controller)
    assert calls == ["a", "a"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@virtual_time
async def test_terminal_error_is_reported_once_and_a_failed_report_is_retried():
    reported = []

    async def report(key, error):
        reported.append(str(error))
        if len(reported) == 1:
            raise ConnectionError

    script = Script(TerminalError("bad job"), TerminalError("bad job"))
    async with running(script, on_error=report) as controller:
        controller.queue.add("a")
        await settled(controller)
    assert reported == ["bad job", "bad job"]


@virtual_time
@pytest.mark.parametrize(
    ("error", "count"),
    [
        (ZeroDivisionError("bug"), 6),
        (Forbidden(Status(message="no right")), 2),
        (Conflict(Status(message="changed")), 0),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_errors_that_last_are_reported(error: Exception, count: int) -> None:
    reported = []

    async def report(key, error):
        reported.append(error)

    async with running(Script(*[error] * 6), on_error=report) as controller:
        controller.queue.add("a")
        await settled(controller)
    assert reported == [error] * count


def test_conflict_is_not_logged_and_a_programming_error_is(caplog):
    async def scenario():
        script = Script(Conflict(Status(message="changed")), ZeroDivisionError("bug"))
        async with running(script) as controller:
            controller.queue.add("a")
            await settled(controller)

    run_jumping(scenario())
    assert [record.levelname for record in caplog.records if record.levelno >= 30] == ["ERROR"]


@virtual_time
async def test_a_stopped_queue_ends_the_controller():
    controller = Controller("test", Script())
    task = asyncio.create_task(controller.run())
    await asyncio.sleep(0)
    controller.queue.stop()
    await asyncio.wait_for(task, 5)
