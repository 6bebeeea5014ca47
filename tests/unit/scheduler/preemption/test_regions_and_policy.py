"""Where victims are searched, what the policy allows, and what one cycle decides together."""

import pytest

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cycle.cycle import run_cycle
from gangline.scheduler.preemption.preempt import EvictionPolicy
from gangline.scheduler.types import (
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
