"""Scheduled events wait for bindings in flight, up to a limit."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from gangline.api.volcano.scheduling import PodGroupStatus
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.scheduler.queueing import messages
from gangline.scheduler.reporting.reporter import (
    MAX_EVENT_DELAY_S,
    ScheduledEventSender,
    phase_of,
    pod_group_status,
)
from gangline.scheduler.types import (
    GroupKey,
    NodeName,
    PendingReason,
    PodBinding,
    PodGroupInfo,
    PodInfo,
    PodKey,
)
from unit.kube.fake_server import FakeServer, connected
from unit.scheduler.builders import group, pod

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


NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
KEY = GroupKey("d/job")
SHORT = PendingReason(messages.NOT_ENOUGH_RESOURCES, "2 more cpu", (), KEY)
LIMIT = PendingReason(messages.QUEUE_LIMIT, "at its limit", (), KEY)
FULL = PendingReason(messages.OVERCOMMITTED, "the cluster is full", (), KEY)
CLOSED = PendingReason(messages.QUEUE_CLOSED, "closed", (), KEY)
RUNS = pod("r", group="job", on="a")
ENDED = pod("e", group="job", on="a", phase="Succeeded")
FAILED = pod("f", group="job", on="a", phase="Failed")
WAITS = pod("w", group="job")


@pytest.mark.parametrize(
    ("current", "facts", "members", "verdict", "phase"),
    [
        pytest.param("", group("job", 2), [], None, "Inqueue", id="before its pods are made"),
        pytest.param("", group("job", 2), [], CLOSED, "Pending", id="its queue is closed"),
        pytest.param("Pending", group("job", 2), [], FULL, "Pending", id="not admitted"),
        pytest.param(
            "Inqueue", group("job", 2), [WAITS], CLOSED, "Inqueue", id="closed after it was let in"
        ),
        pytest.param("", group("job", 2), [WAITS, WAITS], LIMIT, "Pending", id="over the limit"),
        pytest.param(
            "Inqueue", group("job", 2), [WAITS, WAITS], LIMIT, "Pending", id="over the limit now"
        ),
        pytest.param("Inqueue", group("job", 2), [WAITS, WAITS], SHORT, "Inqueue", id="no room"),
        pytest.param("Inqueue", group("job", 2), [RUNS, RUNS], None, "Running", id="placed"),
        pytest.param("Running", group("job", 2), [RUNS, ENDED], None, "Running", id="one ended"),
        pytest.param("Running", group("job", 2), [ENDED, ENDED], None, "Completed", id="all ended"),
        pytest.param("Running", group("job", 2), [ENDED, FAILED], None, "Completed", id="failed"),
        pytest.param(
            "Running", group("job", 1), [ENDED, WAITS], None, "Running", id="one is still to come"
        ),
        pytest.param("Running", group("job", 2), [RUNS, WAITS], SHORT, "Unknown", id="broken"),
        pytest.param("Running", group("job", 2), [RUNS], None, "Unknown", id="lost a member"),
        pytest.param("Running", group("job", 2), [], None, "Inqueue", id="lost all members"),
        pytest.param("", group("job", 0), [], None, "Inqueue", id="nothing asked, nothing there"),
        pytest.param("", group("job", 0), [RUNS], None, "Running", id="no minimum"),
    ],
)
def test_the_phase_follows_from_the_members(
    current: str,
    facts: PodGroupInfo,
    members: list[PodInfo],
    verdict: PendingReason | None,
    phase: str,
) -> None:
    assert phase_of(current, facts, members, verdict) == phase


def conditions(status: PodGroupStatus) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, each.reason) for each in status.conditions}


def test_members_are_counted_by_phase() -> None:
    status = pod_group_status(
        PodGroupStatus(), group("job", 1), [RUNS, ENDED, FAILED, FAILED], None, NOW
    )
    assert (status.running, status.succeeded, status.failed) == (1, 1, 2)


def test_pending_gang_has_a_reason() -> None:
    status = pod_group_status(PodGroupStatus(), group("job", 2), [WAITS], SHORT, NOW)
    assert conditions(status) == {
        "Unschedulable": ("True", "NotEnoughResources"),
        "Scheduled": ("False", "NotEnoughResources"),
    }
    assert status.conditions[0].message == "2 more cpu"
    assert status.conditions[0].last_transition_time == NOW


def test_placed_gang_resets_its_conditions() -> None:
    waiting = pod_group_status(PodGroupStatus(), group("job", 1), [WAITS], SHORT, NOW)
    placed = pod_group_status(waiting, group("job", 1), [RUNS], None, LATER)
    assert conditions(placed)["Unschedulable"][0] == "False"
    assert conditions(placed)["Scheduled"][0] == "True"
    assert placed.conditions[0].last_transition_time == LATER


def test_new_numbers_do_not_change_since_when_it_waits() -> None:
    first = pod_group_status(PodGroupStatus(), group("job", 2), [WAITS], SHORT, NOW)
    other = PendingReason(SHORT.reason, "1 more cpu", (), KEY)
    second = pod_group_status(first, group("job", 2), [WAITS], other, LATER)
    assert second.conditions[0].message == "1 more cpu"
    assert second.conditions[0].last_transition_time == NOW


def test_nothing_is_to_be_written_when_nothing_has_changed() -> None:
    first = pod_group_status(PodGroupStatus(), group("job", 2), [WAITS], SHORT, NOW)
    assert pod_group_status(first, group("job", 2), [WAITS], SHORT, LATER) == first


def test_a_gang_that_lost_its_pods_is_not_called_scheduled_any_more() -> None:
    placed = pod_group_status(PodGroupStatus(), group("job", 1), [RUNS], None, NOW)
    lost = pod_group_status(placed, group("job", 1), [], None, LATER)
    assert conditions(lost)["Scheduled"] == ("False", "NotEnoughTasks")
