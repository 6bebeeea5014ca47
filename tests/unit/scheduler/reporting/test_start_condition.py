"""What the status of a pending gang says about its start, and when it changes."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from gangline.api.volcano.scheduling import PodGroupStatus
from gangline.scheduler.cycle.cycle import DEFAULT_POLICY
from gangline.scheduler.queueing import messages
from gangline.scheduler.reporting.pod_group_status import START_EXPECTED, pod_group_status
from gangline.scheduler.reporting.start_condition import (
    StatedStart,
    stated_starts,
    updated_starts,
)
from gangline.scheduler.types.types import GroupKey, PendingReason
from unit.scheduler.builders import cluster, gang, group, node, pod

NOW = 1_700_000_000.0
"""2023-11-14 22:13:20 UTC."""
HOUR = 3600.0
STATED = StatedStart("default", 3, ("d/a", "d/b"), NOW + HOUR, NOW + 2 * HOUR)
SHORT = PendingReason(messages.NOT_ENOUGH_RESOURCES, "2 more cpu", (), GroupKey("d/job"))


def test_message_names_place_gangs_ahead_and_interval() -> None:
    assert STATED.text() == (
        "Place 3 in queue 'default', after d/a, d/b. Expected to start between "
        "2023-11-14 23:13 UTC and 2023-11-15 00:13 UTC (80 % of the simulations)."
    )


@pytest.mark.parametrize(
    ("start", "text"),
    [
        pytest.param(replace(STATED, place=1, ahead=()), "Place 1 in queue 'default'. ", id="1st"),
        pytest.param(replace(STATED, place=9), "after d/a, d/b and 6 more. ", id="far behind"),
        pytest.param(replace(STATED, earliest=None, latest=None), "No start is exp", id="never"),
        pytest.param(replace(STATED, latest=None), "the latest time is unknown", id="no end"),
        pytest.param(
            replace(STATED, latest=NOW + HOUR), "to start at 2023-11-14 23:13 UTC.", id="exact"
        ),
    ],
)
def test_message_of_a_start_without_interval(start: StatedStart, text: str) -> None:
    assert text in start.text()


@pytest.mark.parametrize(
    ("forecast", "is_new"),
    [
        pytest.param(replace(STATED, latest=NOW + 2.4 * HOUR), False, id="a little later"),
        pytest.param(replace(STATED, latest=NOW + 4 * HOUR), True, id="twice as late"),
        pytest.param(replace(STATED, earliest=NOW), True, id="much earlier"),
        pytest.param(replace(STATED, place=2, ahead=("d/a",)), True, id="one place further"),
        pytest.param(replace(STATED, ahead=("d/a", "d/c")), True, id="another gang is ahead"),
        pytest.param(replace(STATED, latest=None), True, id="the end is unknown now"),
        pytest.param(
            StatedStart("default", 3, ("d/a", "d/b"), NOW + HOUR - 59, NOW + 2 * HOUR),
            False,
            id="a minute",
        ),
    ],
)
def test_earlier_statement_stays_while_forecasts_agree(forecast: StatedStart, is_new: bool) -> None:
    found = updated_starts({"d/job": STATED}, {"d/job": forecast}, NOW)
    assert found == {"d/job": forecast if is_new else STATED}


def test_small_differences_do_not_add_up() -> None:
    stated = {"d/job": STATED}
    for step in range(1, 20):
        later = replace(STATED, latest=NOW + 2 * HOUR + step * 600)
        stated = updated_starts(stated, {"d/job": later}, NOW)
        latest = stated["d/job"].latest
        assert latest is not None
        assert abs(latest - (NOW + 2 * HOUR + step * 600)) <= 0.25 * (2 * HOUR + step * 600)


def test_near_start_is_stated_to_the_minute() -> None:
    near = replace(STATED, earliest=NOW + 10, latest=NOW + 100)
    for shift, is_new in ((50, False), (70, True)):
        found = updated_starts(
            {"d/job": near}, {"d/job": replace(near, latest=NOW + 100 + shift)}, NOW
        )
        assert (found["d/job"] != near) is is_new


def test_gang_that_is_not_forecast_any_more_is_forgotten() -> None:
    assert updated_starts({"d/job": STATED}, {}, NOW) == {}


def test_forecasts_are_made_of_waiting_gangs_only() -> None:
    state = cluster(
        node("a", cpu=2),
        group("x", 1, max_run_time_s=600.0),
        pod("x-0", cpu=2, group="x", on="a", started_at=NOW - 100),
        *gang("first", 1, age=1, cpu=2),
        *gang("second", 1, age=2, cpu=2),
    )
    found = stated_starts(
        state, ["d/second", "d/first", "d/x", "d/unknown"], NOW, DEFAULT_POLICY, budget_s=0.0
    )
    assert {name: (each.place, each.ahead) for name, each in found.items()} == {
        "d/first": (1, ()),
        "d/second": (2, ("d/first",)),
    }
    first = found["d/first"]
    assert first.earliest is not None
    assert first.latest is not None
    assert NOW < first.earliest <= first.latest <= NOW + 500


def test_status_has_the_expected_start_only_while_the_gang_is_pending() -> None:
    moment = datetime.fromtimestamp(NOW, UTC)
    waits, runs = pod("w", group="job"), pod("r", group="job", on="a")
    pending = pod_group_status(
        PodGroupStatus(), group("job", 1), [waits], SHORT, moment, STATED.text()
    )
    (condition,) = [each for each in pending.conditions if each.type == START_EXPECTED]
    assert (condition.status, condition.reason) == ("True", "Forecast")
    assert condition.message == STATED.text()
    for members in ([runs], []):
        later = pod_group_status(pending, group("job", 1), members, None, moment, STATED.text())
        assert START_EXPECTED not in {each.type for each in later.conditions}
