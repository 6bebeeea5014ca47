"""Scheduled events wait for bindings in flight, up to a limit."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web

from gangline.api.meta.objects import ObjectMeta
from gangline.api.volcano.scheduling import PodGroup, PodGroupStatus
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
from unit.kube.fake_server import connected
from unit.scheduler.builders import group, pod

BINDING = PodBinding(PodKey("d/p"), "uid-p", NodeName("a"))
GANG = GroupKey("d/g")
GANG_BINDINGS = [
    PodBinding(PodKey(f"d/g-{index}"), f"uid-{index}", NodeName("a"), GANG) for index in range(10)
]
POD_GROUP = PodGroup(metadata=ObjectMeta(name="g", namespace="d", uid="uid-g"))
PATIENCE_S = 60.0


@asynccontextmanager
async def announcing(
    resting: asyncio.Event, passed_s: float, *bindings: PodBinding
) -> AsyncIterator["asyncio.Queue[dict[str, Any]]"]:
    """Announce bindings; give the events that the server gets."""
    heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def hear(request: web.Request) -> web.Response:
        event = await request.json()
        heard.put_nowait(event)
        return web.json_response(event, status=201)

    times = iter([0.0])
    async with connected() as (server, client), EventRecorder(client, "test") as events:
        server.routes["POST", "/api/v1/namespaces/d/events"] = hear
        announcer = ScheduledEventSender(
            events,
            resting,
            lambda: next(times, passed_s),
            lambda key: POD_GROUP if key == GANG else None,
        )
        for binding in bindings:
            announcer.add_binding(binding)
        task = asyncio.create_task(announcer.run())
        async with asyncio.timeout(PATIENCE_S):
            yield heard
        task.cancel()


async def test_each_pod_has_its_event_once_no_binding_is_under_way() -> None:
    resting = asyncio.Event()
    async with announcing(resting, 0.0, BINDING, *GANG_BINDINGS[:2]) as heard:
        assert heard.empty()
        resting.set()
        events = [await heard.get() for _ in range(3)]
    assert [(event["reason"], event["message"]) for event in events] == [
        ("Scheduled", f"Successfully assigned d/{pod} to a") for pod in ("p", "g-0", "g-1")
    ]


async def test_the_pods_of_a_gang_share_an_event_where_pods_keep_coming() -> None:
    announced = (*GANG_BINDINGS, BINDING)
    async with announcing(asyncio.Event(), MAX_EVENT_DELAY_S, *announced) as heard:
        of_gang, of_pod = await heard.get(), await heard.get()
    assert of_gang["involvedObject"]["kind"] == "PodGroup"
    assert of_gang["involvedObject"]["uid"] == "uid-g"
    assert of_gang["message"].startswith("Successfully assigned 10 pods: d/g-0 to a, d/g-1 to a")
    assert of_gang["message"].endswith("d/g-7 to a and 2 more")
    assert of_pod["involvedObject"]["name"] == "p"


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
