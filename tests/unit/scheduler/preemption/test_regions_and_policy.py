"""Where victims are searched, what the policy allows, and what one cycle decides together."""

import pytest

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cycle.cycle import run_cycle
from gangline.scheduler.preemption.preempt import EvictionPolicy
from gangline.scheduler.types import (
    HyperNodeInfo,
    HyperNodeMemberInfo,
    NetworkTopologyRule,
    NodeInfo,
    NodeName,
    PodGroupInfo,
    PodInfo,
    PodKey,
    QueueInfo,
    Reservation,
)
from unit.scheduler.builders import cluster, group, node, pod, request
from unit.scheduler.oracle.check import check_result

NOW = 10_000.0
Facts = NodeInfo | PodInfo | PodGroupInfo | QueueInfo


def runs(
    name: str, *on: str, priority: int = 0, queue: str = "default", cost: float = 0, **facts: object
) -> list[Facts]:
    return [
        group(name, len(on), priority=priority, queue=queue),
        *(
            pod(f"{name}-{n}", group=name, on=host, started_at=NOW - cost, **facts)  # type: ignore[arg-type]
            for n, host in enumerate(on)
        ),
    ]


def waits(
    name: str, size: int, priority: int = 9, queue: str = "default", age: int = 0, **facts: object
) -> list[Facts]:
    members = [pod(f"{name}-{n}", group=name) for n in range(size)]
    return [group(name, size, age, priority=priority, queue=queue, **facts), *members]


def evictions(state: SchedulerCache, policy: EvictionPolicy | None = None) -> dict[str, str]:
    """Return the reason of the eviction of each gang, and of each pod without a gang."""
    decision = run_cycle(state, NOW, policy or EvictionPolicy())
    check_result(state, decision, NOW)
    found = {str(each.group or each.pod): each.reason for each in decision.evictions}
    return {name.removeprefix("d/"): why for name, why in sorted(found.items())}


def racks(*things: Facts | list[Facts]) -> SchedulerCache:
    """Four nodes of one processor, two to a switch, below one common one."""
    listed = [each for part in things for each in (part if isinstance(part, list) else [part])]
    state = cluster(*(node(f"n{n}", cpu=1) for n in range(4)), *listed)
    for name, tier, members in (("s0", 1, "n0 n1"), ("s1", 1, "n2 n3"), ("top", 2, "s0 s1")):
        inside = tuple(HyperNodeMemberInfo(tier == 2, exact=each) for each in members.split())
        state.nodes.set_hypernode(HyperNodeInfo(name, tier, members=inside))
    return state


@pytest.mark.parametrize(
    ("rule", "size", "expected"),
    [
        pytest.param(None, 2, {"a", "c"}, id="without a rule: the cheapest of all"),
        pytest.param(NetworkTopologyRule(True, 1), 2, {"a", "b"}, id="the cheapest domain"),
        pytest.param(NetworkTopologyRule(True, 2), 2, {"a", "b"}, id="the closest tier first"),
        pytest.param(NetworkTopologyRule(True, 2), 3, {"a", "b", "c"}, id="a higher tier"),
        pytest.param(NetworkTopologyRule(True, 1), 3, set(), id="no domain is large enough"),
        pytest.param(NetworkTopologyRule(False, 1), 3, {"a", "b", "c"}, id="a rule that may yield"),
        pytest.param(NetworkTopologyRule(False, 1), 2, {"a", "b"}, id="and does not have to"),
    ],
)
def test_victims_are_searched_in_the_closest_domains(
    rule: NetworkTopologyRule | None, size: int, expected: set[str]
) -> None:
    """a and c cost least, b and d most; a and b are below one switch."""
    state = racks(
        runs("a", "n0", cost=1),
        runs("b", "n1", cost=50),
        runs("c", "n2", cost=2),
        runs("d", "n3", cost=60),
        waits("wants", size, network=rule),
    )
    assert set(evictions(state)) == expected


QUEUES = QueueInfo("q", deserved=request(cpu=2, pods=0)), QueueInfo("r")


def two_queues() -> SchedulerCache:
    """Queue q is owed a processor by r, and has a gang of low priority itself."""
    return cluster(
        node("n0", cpu=3),
        *QUEUES,
        *runs("own", "n0", priority=5, queue="q", cost=50),
        *runs("first", "n0", priority=0, queue="r", cost=1),
        *runs("second", "n0", priority=0, queue="r", cost=2),
        *waits("wants", 1, queue="q"),
    )


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        pytest.param(EvictionPolicy(), "first", id="both"),
        pytest.param(EvictionPolicy(preempt=False), "first", id="reclaim only"),
        pytest.param(EvictionPolicy(reclaim=False), "own", id="preemption only"),
        pytest.param(EvictionPolicy(preempt=False, reclaim=False), "", id="neither"),
    ],
)
def test_policy_says_which_evictions_are_allowed(policy: EvictionPolicy, expected: str) -> None:
    assert list(evictions(two_queues(), policy)) == ([expected] if expected else [])


def test_reason_says_whether_priority_or_the_share_of_a_queue_has_decided() -> None:
    reclaimed = evictions(two_queues())["first"]
    preempted = evictions(two_queues(), EvictionPolicy(reclaim=False))["own"]
    assert reclaimed == "reclaimed for d/wants: its queue is above its fair share"
    assert preempted == "preempted by d/wants of higher priority"


def test_room_that_one_preemptor_leaves_is_used_by_the_next_one_of_the_cycle() -> None:
    state = cluster(
        *(node(f"n{n}", cpu=1) for n in range(3)),
        *runs("pair", "n0", "n1", cost=1),
        *runs("other", "n2", cost=50),
        *waits("first", 1, age=1),
        *waits("second", 1, age=2),
    )
    decision = run_cycle(state, NOW)
    check_result(state, decision, NOW)
    assert {str(each.group) for each in decision.evictions} == {"d/pair"}
    places = {name: each.nodes[0][1] for name, each in decision.reservations.items()}
    assert set(places) == {"d/first", "d/second"}
    assert set(places.values()) == {"n0", "n1"}
    assert all(each.preempting for each in decision.reservations.values())


@pytest.mark.parametrize(("waited", "victims"), [(0, set()), (599, set()), (600, {"low"})])
def test_pods_that_do_not_end_within_ten_minutes_are_not_waited_for(
    waited: int, victims: set[str]
) -> None:
    stuck = pod("stuck-0", group="stuck", on="n0", is_terminating=True)
    state = cluster(
        node("n0", cpu=1),
        node("n1", cpu=1),
        group("stuck", 1),
        stuck,
        *runs("low", "n1"),
        *waits("wants", 1),
    )
    state.reservations["d/wants"] = Reservation(
        ((PodKey("d/wants-0"), NodeName("n0")),), created_at=NOW - waited, preempting=True
    )
    assert set(evictions(state)) == victims


def test_pod_without_a_gang_has_its_own_priority() -> None:
    def full(priority: int) -> SchedulerCache:
        alone = pod("alone", on="n0", priority=priority)
        return cluster(node("n0", cpu=1), alone, *waits("wants", 1, priority=5))

    assert set(evictions(full(4))) == {"alone"}
    assert not evictions(full(5))
