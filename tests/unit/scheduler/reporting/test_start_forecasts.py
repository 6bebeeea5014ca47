"""Which gangs are forecast, and what is reported."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from gangline.scheduler.apply.throttle import BindingsInFlight
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.queueing import messages
from gangline.scheduler.reporting import start_forecasts
from gangline.scheduler.reporting.forecast_process import Forecasts
from gangline.scheduler.reporting.start_condition import StatedStart
from gangline.scheduler.reporting.start_forecasts import ForecastError, StartForecasts
from gangline.scheduler.types.types import GroupKey, PendingReason
from unit.scheduler.builders import cluster, node, pod

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
