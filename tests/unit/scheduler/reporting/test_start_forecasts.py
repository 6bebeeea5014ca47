"""Which gangs are forecast, and what is reported."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from gangline.api.volcano.scheduling import PodGroupStatus
from gangline.scheduler.apply.throttle import BindingsInFlight
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cycle.cycle import DEFAULT_POLICY
from gangline.scheduler.queueing import messages
from gangline.scheduler.reporting import start_forecasts
from gangline.scheduler.reporting.forecast_process import (
    Forecasts,
    StatedStart,
    stated_starts,
    updated_starts,
)
from gangline.scheduler.reporting.reporter import START_EXPECTED, pod_group_status
from gangline.scheduler.reporting.start_forecasts import ForecastError, StartForecasts
from gangline.scheduler.types import GroupKey, PendingReason
from unit.scheduler.builders import cluster, gang, group, node, pod

A, B = GroupKey("d/a"), GroupKey("d/b")
START = StatedStart("default", 1, (), 1e9, 2e9)


@dataclass
class Reporter:
    """The gangs that wait, and what was reported."""

    waiting: dict[GroupKey, str] = field(default_factory=dict)
    """Reasons of the pending gangs."""
    reported: Mapping[GroupKey, str] = field(default_factory=dict)

    def pending_groups(self) -> Mapping[GroupKey, PendingReason]:
        return {
            key: PendingReason(reason, "a message", (), key) for key, reason in self.waiting.items()
        }

    def set_expected_starts(self, expected: Mapping[GroupKey, str]) -> None:
        self.reported = expected


@dataclass
class Oracle:
    """Forecasts one start for each gang, or fails."""

    fails: bool = False
    asked: list[list[str]] = field(default_factory=list)

    async def __call__(self, groups: list[str]) -> Forecasts:
        if self.fails:
            raise ForecastError("no")
        self.asked.append(groups)
        return dict.fromkeys(groups, START)


def forecasts(
    reporter: Reporter, oracle: Oracle, state: SchedulerCache | None = None
) -> StartForecasts:
    return StartForecasts(state or cluster(), reporter, BindingsInFlight(), oracle, 60.0)


async def test_gangs_are_forecast_once_they_have_waited_for_an_interval() -> None:
    reporter, oracle = Reporter({A: messages.NOT_ENOUGH_RESOURCES}), Oracle()
    tested = forecasts(reporter, oracle)
    await tested.update()
    assert oracle.asked == []
    reporter.waiting[B] = messages.QUEUE_LIMIT
    await tested.update()
    assert oracle.asked == [["d/a"]]
    assert reporter.reported == {A: START.text()}
    await tested.update()
    assert oracle.asked[-1] == ["d/a", "d/b"]


async def test_gangs_that_do_not_wait_for_their_turn_are_not_forecast() -> None:
    reporter, oracle = Reporter({A: messages.QUEUE_CLOSED}), Oracle()
    tested = forecasts(reporter, oracle)
    for _ in range(2):
        await tested.update()
    assert oracle.asked == []


async def test_started_gang_has_no_expected_start() -> None:
    reporter, oracle = Reporter({A: messages.NOT_ENOUGH_RESOURCES}), Oracle()
    tested = forecasts(reporter, oracle)
    for _ in range(2):
        await tested.update()
    reporter.waiting.clear()
    await tested.update()
    assert reporter.reported == {}
    assert len(oracle.asked) == 1


async def test_earlier_forecasts_stay_if_one_fails() -> None:
    reporter, oracle = Reporter({A: messages.NOT_ENOUGH_RESOURCES}), Oracle()
    tested = forecasts(reporter, oracle)
    for _ in range(2):
        await tested.update()
    oracle.fails = True
    with pytest.raises(ForecastError):
        await tested.update()
    assert reporter.reported == {A: START.text()}


async def test_large_clusters_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_forecasts, "MAX_PODS", 1)
    state = cluster(node("n"), pod("x", on="n"), pod("y", on="n"))
    reporter, oracle = Reporter({A: messages.NOT_ENOUGH_RESOURCES}), Oracle()
    tested = forecasts(reporter, oracle, state)
    for _ in range(2):
        await tested.update()
    assert oracle.asked == []


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
