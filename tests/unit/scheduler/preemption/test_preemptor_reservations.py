"""Room that was freed for a gang stays reserved for it, while it can still use it."""

import pytest

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.preemption.reservations import (
    PREEMPTOR_RESERVATION_S,
    PreemptorReservations,
    has_expired,
    valid_reservations,
)
from gangline.scheduler.queueing.gangs import pending_gangs
from gangline.scheduler.types.types import NodeName, PodKey, Reservation
from unit.scheduler.builders import cluster, gang, node, pod

MADE = 1000.0


def reserved(*places: tuple[str, str], preempting: bool = True, at: float = MADE) -> Reservation:
    return Reservation(
        tuple((PodKey(f"d/{name}"), NodeName(host)) for name, host in places),
        created_at=at,
        preempting=preempting,
    )


def valid(state: SchedulerCache, now: float = MADE) -> PreemptorReservations:
    gangs, _ = pending_gangs(state, now)
    return valid_reservations(state, gangs, now)


def two_waiting(*more: object) -> SchedulerCache:
    """Two nodes of one processor, with pods that end, and two gangs of two that wait."""
    return cluster(
        node("n0", cpu=1),
        node("n1", cpu=1),
        *more,  # type: ignore[arg-type]
        *gang("old", 2, age=1),
        *gang("new", 2, age=2),
    )


BOTH = (("{}-worker-0", "n0"), ("{}-worker-1", "n1"))


def both(name: str, **facts: object) -> Reservation:
    return reserved(*((pod.format(name), host) for pod, host in BOTH), **facts)  # type: ignore[arg-type]


def test_reservation_lasts_ten_minutes() -> None:
    made = reserved()
    assert not has_expired(made, MADE + PREEMPTOR_RESERVATION_S - 1)
    assert has_expired(made, MADE + PREEMPTOR_RESERVATION_S)


@pytest.mark.parametrize(
    ("facts", "now", "is_valid"),
    [
        pytest.param({}, MADE, True, id="fresh"),
        pytest.param({}, MADE + PREEMPTOR_RESERVATION_S, False, id="expired"),
        pytest.param({"preempting": False}, MADE, False, id="of a gang that evicts nobody"),
    ],
)
def test_valid_reservations_name_the_placements(
    facts: dict[str, object], now: float, is_valid: bool
) -> None:
    state = two_waiting()
    state.reservations["d/new"] = both("new", **facts)
    found = valid(state, now)
    assert set(found.placements) == ({"d/new"} if is_valid else set())
    gangs, _ = pending_gangs(state, now)
    by_name = {each.name: each for each in gangs}
    kept = found.with_nominated_nodes(by_name["d/new"]).nominated_nodes
    assert kept == (state.reservations["d/new"].nodes if is_valid else ())
    assert found.with_nominated_nodes(by_name["d/old"]) is by_name["d/old"]
    for placement in found.placements.get("d/new", []):
        assert placement.pods[0].key.startswith("d/new-worker-")


@pytest.mark.parametrize("ends", [True, False])
def test_pods_on_the_nodes_must_be_ending(ends: bool) -> None:
    running = [pod(f"r{n}", on=f"n{n}", is_terminating=ends) for n in range(2)]
    state = two_waiting(*running)
    state.reservations["d/new"] = both("new")
    assert bool(valid(state).placements) == ends


def test_gang_that_is_served_first_keeps_its_nodes() -> None:
    state = two_waiting()
    state.reservations["d/new"] = both("new")
    state.reservations["d/old"] = both("old")
    assert set(valid(state).placements) == {"d/old"}


def test_room_of_a_reservation_that_is_no_more_valid_is_free_for_later_ones() -> None:
    """The first gang has lost one of its nodes: it gives back the other one."""
    state = two_waiting()
    state.reservations["d/old"] = reserved(("old-worker-0", "n0"), ("old-worker-1", "gone"))
    state.reservations["d/new"] = both("new")
    assert set(valid(state).placements) == {"d/new"}


def test_gang_that_does_not_wait_any_more_reserves_nothing() -> None:
    state = two_waiting()
    state.reservations["d/gone"] = both("gone")
    assert valid(state).placements == {}
