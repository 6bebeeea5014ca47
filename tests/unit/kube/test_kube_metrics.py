"""Metrics of controllers, requests and watches, under the standard names."""

import asyncio
import time

import pytest
from prometheus_client import REGISTRY, generate_latest

from gangline.kube.controller.controller import (
    Controller,
    ReconcileDone,
    RequeueAfter,
    TerminalError,
    WorkQueue,
)
from gangline.kube.errors import NotFound
from gangline.kube.informers.informer import Informer
from gangline.kube.log_fields import current_log_fields, log_fields
from gangline.kube.metrics import QueueMetrics
from unit.kube.fake_server import THINGS, connected, failing, streaming
from unit.kube.virtual_clock import run_jumping


def value(metric, /, **labels):
    return REGISTRY.get_sample_value(metric, labels) or 0.0


async def run_one(controller, *, until):
    task = asyncio.create_task(controller.run())
    controller.queue.add("a")
    async with asyncio.timeout(5):
        await until.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("outcome", "result", "errors", "terminal"),
    [
        pytest.param(ReconcileDone(), "success", 0, 0, id="done"),
        pytest.param(RequeueAfter(60), "requeue_after", 0, 0, id="after"),
        pytest.param(KeyError("x"), "error", 1, 0, id="an error"),
        pytest.param(TerminalError("x"), "error", 1, 1, id="a terminal error"),
    ],
)
async def test_a_reconcile_is_counted_by_its_end(outcome, result, errors, terminal):
    name, ended = f"counted-{type(outcome).__name__}", asyncio.Event()

    async def reconcile(_):
        asyncio.get_running_loop().call_soon(ended.set)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    queue = WorkQueue(base_delay=60.0, observer=QueueMetrics(name))  # no retry within this test
    await run_one(Controller(name, reconcile, workers=2, queue=queue), until=ended)
    assert value("controller_runtime_reconcile_total", controller=name, result=result) == 1
    assert value("controller_runtime_reconcile_errors_total", controller=name) == errors
    assert value("controller_runtime_terminal_reconcile_errors_total", controller=name) == terminal
    assert value("controller_runtime_reconcile_time_seconds_count", controller=name) == 1
    assert value("controller_runtime_max_concurrent_reconciles", controller=name) == 2
    assert value("controller_runtime_active_workers", controller=name) == 0
    assert value("workqueue_adds_total", name=name) == 1
    assert value("workqueue_work_duration_seconds_count", name=name) == 1
    assert value("workqueue_retries_total", name=name) == errors - terminal


async def test_work_that_does_not_end_shows():
    begun = asyncio.Event()

    async def reconcile(_):
        begun.set()
        await asyncio.Event().wait()
        return ReconcileDone()

    controller = Controller("endless", reconcile)
    task = asyncio.create_task(controller.run())
    controller.queue.add("a")
    async with asyncio.timeout(5):
        await begun.wait()
    assert value("workqueue_unfinished_work_seconds", name="endless") > 0
    assert value("workqueue_longest_running_processor_seconds", name="endless") > 0
    assert value("controller_runtime_active_workers", controller="endless") == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_requests_are_counted_by_verb_and_code():
    async with connected() as (server, client):
        host = client.config.server.removeprefix("http://")

        def counted():
            return [
                value("rest_client_requests_total", code="200", method="GET", host=host),
                value("rest_client_requests_total", code="404", method="GET", host=host),
                value("rest_client_request_duration_seconds_count", verb="GET", host=host),
            ]

        await server.put("a")
        before = counted()  # the port may have been that of another test's server
        await client.get(THINGS, "a", "default")
        server.faults.append(failing(404, "NotFound"))
        with pytest.raises(NotFound):
            await client.get(THINGS, "b", "default")
        assert [now - then for now, then in zip(counted(), before, strict=True)] == [1, 1, 2]


def test_restarted_watches_are_counted_by_cause():
    def counted():
        return {
            cause: value("gangline_watch_restarts_total", kind=THINGS.kind, cause=cause)
            for cause in ("ended", "expired", "failed")
        }

    async def scenario():
        async with connected() as (server, client):
            reached = asyncio.Event()

            async def last_fault(request):
                reached.set()
                return await failing(500, "Broken")(request)

            before = counted()
            server.watch_faults += [streaming(), failing(410, "Expired"), last_fault]
            informer, shown = Informer(client, THINGS), asyncio.Event()
            informer.add_listener(lambda old, new: shown.set())
            task = asyncio.create_task(informer.run())
            async with asyncio.timeout(5_000):
                await reached.wait()
                await server.put("a")
                await shown.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return before, counted()

    before, after = run_jumping(scenario())
    assert {cause: after[cause] > before[cause] for cause in after} == dict.fromkeys(after, True)


async def test_age_of_a_cache_is_exported_while_it_is_watched(monkeypatch):
    async with connected() as (server, client):
        informer = Informer(client, THINGS)
        task = asyncio.create_task(informer.run())
        async with asyncio.timeout(5):
            await informer.wait_for_sync()
        age = value("gangline_cache_age_seconds", kind=THINGS.kind)
        assert 0 < age < 5
        later = time.monotonic() + 100
        monkeypatch.setattr("gangline.kube.metrics._now", lambda: later)
        assert value("gangline_cache_age_seconds", kind=THINGS.kind) > 90
        shown = asyncio.Event()
        informer.add_listener(lambda old, new: shown.set())
        await server.put("a")
        async with asyncio.timeout(5):
            await shown.wait()
        assert value("gangline_cache_age_seconds", kind=THINGS.kind) == 0
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert "gangline_cache_age_seconds{" not in generate_latest().decode()


async def test_log_fields_belong_to_the_work_that_sets_them_and_to_what_it_starts():
    async def started():
        return dict(current_log_fields())

    async def work(job):
        with log_fields({"job": job}):
            await asyncio.sleep(0)
            with log_fields({"step": 1}):
                return await asyncio.create_task(started())

    first, second = await asyncio.gather(work("a"), work("b"))
    assert (first, second) == ({"job": "a", "step": 1}, {"job": "b", "step": 1})
    assert current_log_fields() == {}
