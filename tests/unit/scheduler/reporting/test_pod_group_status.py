"""Phase, counts and conditions of a PodGroup."""

from datetime import UTC, datetime, timedelta

import pytest

from gangline.api.volcano.scheduling import PodGroupStatus
from gangline.scheduler.queueing import messages
from gangline.scheduler.reporting.pod_group_status import phase_of, pod_group_status
from gangline.scheduler.types.types import GroupKey, PendingReason, PodGroupInfo, PodInfo
from unit.scheduler.builders import group, pod

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
KEY = GroupKey("d/job")
SHORT = PendingReason(messages.NOT_ENOUGH_RESOURCES, "2 more cpu", (), KEY)
LIMIT = PendingReason(messages.QUEUE_LIMIT, "at its limit", (), KEY)
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
