"""Backfill: reserved nodes are used by gangs that certainly end before the reservation starts."""

import msgspec
import pytest

from gangline.api.volcano.scheduling import PodGroup
from gangline.scheduler.cache.convert import group_info, pod_info
from gangline.scheduler.placement.scratch import Placement, ScratchAllocation
from gangline.scheduler.preemption.reservations import BackfillWindow, earliest_start, latest_end
from gangline.scheduler.queueing.gangs import pending_gangs
from gangline.scheduler.wire import LeanPod
from unit.scheduler.builders import cluster, group, node, pod

NOW = 1000.0


def test_run_times_are_read_from_pods_and_groups() -> None:
    raw = {
        "metadata": {"name": "p", "namespace": "d"},
        "spec": {"activeDeadlineSeconds": 60},
        "status": {"startTime": "1970-01-01T00:16:40Z"},
    }
    facts = pod_info(msgspec.convert(raw, LeanPod), {}, frozenset())
    assert (facts.max_run_time_s, facts.started_at) == (60, NOW)
    for written, read in (("90", 90.0), ("soon", 0.0), ("-1", 0.0), ("nan", 0.0), ("inf", 0.0)):
        annotations = {"gangline.dev/run-time-seconds": written}
        noted = {"metadata": {"name": "g", "namespace": "d", "annotations": annotations}}
        assert group_info(msgspec.convert(noted, PodGroup), {}).max_run_time_s == read


@pytest.mark.parametrize(
    ("of_pod", "of_group", "facts", "end"),
    [
        pytest.param(60.0, 0.0, {}, NOW + 10, id="its own deadline"),
        pytest.param(0.0, 60.0, {}, NOW + 10, id="the run time of its group"),
        pytest.param(1.0, 0.0, {}, NOW - 49, id="a deadline of a second"),
        pytest.param(90.0, 60.0, {}, NOW + 10, id="the group ends first"),
        pytest.param(60.0, 90.0, {}, NOW + 10, id="the pod ends first"),
        pytest.param(0.0, 0.0, {}, float("inf"), id="unknown"),
        pytest.param(60.0, 0.0, {"started_at": 0.0}, NOW + 60, id="not started yet"),
        pytest.param(0.0, 0.0, {"is_terminating": True}, NOW, id="ending already"),
    ],
)
def test_a_pod_has_ended_at_its_first_limit(
    of_pod: float, of_group: float, facts: dict[str, object], end: float
) -> None:
    started = {"started_at": NOW - 50, **facts}
    runs = pod("r", group="g", on="n", max_run_time_s=of_pod, **started)  # type: ignore[arg-type]
    state = cluster(node("n"), group("g", 1, max_run_time_s=of_group), runs)
    assert latest_end(state, runs, NOW) == end


@pytest.mark.parametrize(
    ("cpu", "start"),
    [
        pytest.param(2, NOW, id="free now"),
        pytest.param(3, NOW + 10, id="after the first end"),
        pytest.param(5, NOW + 20, id="after both ends"),
        pytest.param(6, 0.0, id="a pod that may run for ever is in the way"),
    ],
)
def test_reservation_starts_when_enough_pods_have_ended(cpu: int, start: float) -> None:
    state = cluster(
        node("n", cpu=8),
        pod("late", cpu=2, on="n", started_at=NOW, max_run_time_s=20.0),
        pod("early", cpu=1, on="n", started_at=NOW, max_run_time_s=10.0),
        pod("endless", cpu=3, on="n"),
    )
    claimant = pod("c", cpu=cpu)
    state.set_pod(claimant)
    plan = [Placement((claimant,), 0, state.nodes.demand(claimant.shape.request))]
    scratch = ScratchAllocation(state.nodes)
    scratch.reserve(plan)
    assert earliest_start(state, scratch, plan, NOW) == start


@pytest.mark.parametrize(
    ("run_time_s", "fits"), [(0.0, False), (0.5, True), (10.0, True), (10.5, False)]
)
def test_gang_backfills_if_it_certainly_ends_before_the_reservation_starts(
    run_time_s: float, fits: bool
) -> None:
    state = cluster(node("n"), group("g", 1, max_run_time_s=run_time_s), pod("g-0", group="g"))
    (pending,), _ = pending_gangs(state, NOW)
    assert BackfillWindow((), NOW + 10).fits_before_start(pending, NOW) == fits


def test_nodes_that_may_never_be_free_have_no_start() -> None:
    endless = pod("endless", cpu=3, on="n0")
    ends = pod("ends", cpu=3, on="n1", started_at=NOW - 50, max_run_time_s=60.0)
    state = cluster(node("n0", cpu=4), node("n1", cpu=4), endless, ends)
    scratch = ScratchAllocation(state.nodes)
    new = pod("new", cpu=4)
    demand = state.nodes.demand(new.shape.request)
    plans = {name: Placement((new,), row, demand) for name, row in state.nodes.rows.items()}
    scratch.reserve(plans.values())
    first, second = (plans[name] for name in sorted(plans))
    assert earliest_start(state, scratch, [second], NOW) == NOW + 10
    assert earliest_start(state, scratch, [first, second], NOW) == 0
    assert earliest_start(state, scratch, [], NOW) == NOW
    scratch.release([second])
    assert earliest_start(state, scratch, [second], NOW) == NOW
