"""ReadWriteOncePod: a pod waits for the user of its claim, or preempts it by priority."""

import pytest

from gangline.api.meta.selectors import EVERYTHING
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.placement.reservation_planner import ReservationPlanner
from gangline.scheduler.plugins.volumes import CLAIM_IN_USE, ClaimInfo, VolumeInfo
from gangline.scheduler.queueing.gangs import pending_gangs
from gangline.scheduler.types import CycleResult, DisruptionBudgetInfo, PodInfo, PodKey
from unit.scheduler.builders import checked_cycle as decide
from unit.scheduler.builders import cluster, group, node, placed, pod, using
from unit.scheduler.placement.test_gang import NothingIsEvicted


def with_claim(state: SchedulerCache) -> SchedulerCache:
    state.storage.claims["d/c"] = ClaimInfo(
        "d/c", volume="v", modes=frozenset({"ReadWriteOncePod"})
    )
    state.storage.volumes["v"] = VolumeInfo("v", claim="d/c")
    state.storage.synced = True
    state.storage_changed()
    return state


def user(name: str, priority: int = 0, **facts: object) -> PodInfo:
    return using(name, "c", priority=priority, **facts)


def evicted(decision: CycleResult) -> list[str]:
    return sorted(eviction.pod.removeprefix("d/") for eviction in decision.evictions)


def test_pod_of_higher_priority_preempts_the_holder_alone_and_starts_when_it_has_ended() -> None:
    # More cheaper victims than the search would spare, and no room beside the holder.
    others = [pod(f"other-{i}", cpu=0.1, age=9, on="b") for i in range(40)]
    state = cluster(node("a", cpu=2), node("b"), *others, user("holder", 5, on="a"))
    state = with_claim(state)
    state.set_pod(user("p", 10, cpu=3))
    decision = decide(state)
    assert evicted(decision) == ["holder"]
    state.reservations = dict(decision.reservations)
    state.evict(PodKey("d/holder"), "uid-holder")
    # Ending: nothing more is evicted, and no other pod gets the claim.
    state.set_pod(user("late", 0))
    second = decide(state, 5.0)
    assert not second.evictions
    assert not second.bindings
    assert second.reservations["d/p/pod"] == decision.reservations["d/p/pod"]
    assert set(second.awaited) == {"d/holder"}
    state.reservations = dict(second.reservations)
    state.remove_pod(PodKey("d/holder"))
    assert set(placed(decide(state))) == {"p"}


@pytest.mark.parametrize("priority", [0, 5])
def test_holder_of_the_same_or_higher_priority_stays(priority: int) -> None:
    state = with_claim(
        cluster(
            node("a"), node("b"), user("holder", 5, on="a", max_run_time_s=9.0), user("p", priority)
        )
    )
    decision = decide(state)
    assert not decision.evictions
    assert not any(reserved.nodes for reserved in decision.reservations.values())
    message = decision.pending_reasons[0].message
    assert f"0/2 nodes are available: 2 {CLAIM_IN_USE}." in message
    assert "One pod at a time may use its claim: it waits until d/holder has ended." in message
    assert "would not fit" not in message


def test_gang_runs_on_without_the_member_that_holds_the_claim_if_it_can() -> None:
    holders = [group("g", 1), user("g-0", group="g", on="a"), pod("g-1", group="g", on="b")]
    state = with_claim(cluster(node("a"), node("b"), *holders, user("p", 10)))
    assert evicted(decide(state)) == ["g-0"]


@pytest.mark.parametrize(("facts", "ends"), [({}, False), ({"max_run_time_s": 9.0}, True)])
def test_gang_can_start_some_time_if_the_holder_of_its_claim_ends(
    facts: dict[str, float], ends: bool
) -> None:
    holder = user("holder", on="a", **facts)
    state = with_claim(cluster(node("a"), group("g", 1), user("g-0", group="g"), holder))
    (gang,), _ = pending_gangs(state, 0.0)
    assert ReservationPlanner(state.nodes, NothingIsEvicted()).is_possible(gang) is ends


def test_disruption_budget_protects_the_holder() -> None:
    state = with_claim(cluster(node("a"), user("holder", on="a"), user("p", 10)))
    state.budgets["d/none"] = DisruptionBudgetInfo("d/none", "d", EVERYTHING, allowed=0)
    assert not evicted(decide(state))


def test_gang_of_two_users_of_the_claim_never_starts() -> None:
    members = [group("g", 2), *(user(f"g-{i}", group="g") for i in range(2))]
    decision = decide(with_claim(cluster(node("a"), node("b"), *members)))
    assert not decision.bindings
    assert CLAIM_IN_USE in decision.pending_reasons[0].message
