"""Scheduled events wait for bindings in flight, up to a limit."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from gangline.kube.controller.event_recorder import EventRecorder
from gangline.scheduler.reporting.reporter import MAX_EVENT_DELAY_S, ScheduledEventSender
from gangline.scheduler.types.types import NodeName, PodBinding, PodKey
from unit.kube.fake_server import FakeServer, connected

BINDING = PodBinding(PodKey("d/p"), "uid-p", NodeName("a"))
PATIENCE_S = 60.0


@asynccontextmanager
async def announcing(
    resting: asyncio.Event, passed_s: float
) -> AsyncIterator[tuple[FakeServer, asyncio.Event]]:
    """Announce one binding; give the server, and what is set when it has heard of it."""
    heard = asyncio.Event()

    async def hear(request: web.Request) -> web.Response:
        heard.set()
        return web.json_response(await request.json(), status=201)

    times = iter([0.0])
    async with connected() as (server, client), EventRecorder(client, "test") as events:
        server.routes["POST", "/api/v1/namespaces/d/events"] = hear
        announcer = ScheduledEventSender(events, resting, lambda: next(times, passed_s))
        announcer.add_binding(BINDING)
        task = asyncio.create_task(announcer.run())
        async with asyncio.timeout(PATIENCE_S):
            yield server, heard
        task.cancel()


async def test_an_event_waits_until_no_binding_is_under_way() -> None:
    resting = asyncio.Event()
    async with announcing(resting, passed_s=0.0) as (server, heard):
        assert not heard.is_set()
        resting.set()
        await heard.wait()
        posted = server.seen[-1].json()
        assert (posted["reason"], posted["message"]) == (
            "Scheduled",
            "Successfully assigned d/p to a",
        )


async def test_an_event_does_not_wait_for_ever_where_pods_keep_coming() -> None:
    async with announcing(asyncio.Event(), passed_s=MAX_EVENT_DELAY_S) as (_, heard):
        await heard.wait()
