"""Sizes of all elastic jobs together: spare devices, waiting gangs, prices."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from brain_records import not_none
from gangline.api.meta.objects import ObjectMeta
from gangline.api.volcano.scheduling import PodGroup, PodGroupSpec, PodGroupStatus
from gangline.brain.advisers.advice import Advice, Choice, Reason, What
from gangline.brain.allocation import (
    AllocationJob,
    ClusterRound,
    PriceState,
    allocation_job,
    cluster_round,
    queue_entitlements,
    with_allocation,
)
from gangline.brain.facts.records import NodeCapacity, PodRun, RecordedJob, RoleSize, Run
from gangline.brain.guard.policy import GuardJobState

GPU = "nvidia.com/gpu"
ENTITLED = {"q": 16.0}


def make_member(
    uid: str,
    size: int,
    serial: float,
    high: int = 8,
    gpus: int = 1,
    *,
    sizes: bool = True,
    **state: Any,
) -> AllocationJob | None:
    job = RecordedJob(
        cluster="c", uid=uid, namespace="n", name=uid, stem=uid, kind="ElasticJob", queue="q",
        submitted_ms=0, workers_min=1, workers_max=high,
        roles=(RoleSize(role="worker", since_ms=0, replicas=size, gpus=gpus),),
    )  # fmt: skip

    def goodput(n: int) -> float:
        return n / (1 + serial * (n - 1))

    ratios = {n: goodput(n) / goodput(size) for n in range(1, high + 1)}
    choices = tuple(
        Choice(value=n, goodput=1.0 if n == size else r, low=r, high=r) for n, r in ratios.items()
    )
    pods = tuple(
        PodRun(role="worker", rank=rank, number=0, node="a", started_ms=0) for rank in range(size)
    )
    guard = GuardJobState(uid=uid, family="f", started_ms=0, remaining_s=36_000.0, **state)
    return allocation_job(Run(job=job, pods=pods), choices if sizes else (), guard)


def node(free: int) -> NodeCapacity:
    return NodeCapacity(name="a", gpus=16, gpus_free=free)


def gang(phase: str, pods: int, gpus: int) -> PodGroup:
    return PodGroup(
        metadata=ObjectMeta(name="gang", namespace="team"),
        spec=PodGroupSpec(min_member=pods, min_resources={GPU: str(gpus)}),
        status=PodGroupStatus(phase=phase),
    )


def run_round(members: list[AllocationJob | None], free: int, *groups: PodGroup) -> ClusterRound:
    jobs = [not_none(member) for member in members]
    return cluster_round(jobs, [node(free)], groups, ENTITLED, PriceState(), 0)


def test_spare_devices_go_to_the_job_that_gains_most() -> None:
    result = run_round([make_member("good", 2, 0.0), make_member("bad", 2, 0.6)], 4)
    assert result.advice["good"].value == 6
    assert "bad" not in result.advice
    assert result.considered == {"good", "bad"}


def test_idle_devices_are_not_given_to_workers_that_gain_next_to_nothing() -> None:
    assert run_round([make_member("bad", 2, 0.9)], 12).advice == {}


def test_c2_a_gang_with_a_right_to_start_gets_devices_back() -> None:
    members = [make_member("good", 6, 0.0), make_member("bad", 6, 0.6)]
    result = run_round(members, 1, gang("Inqueue", 4, 4))
    assert {uid: item.value for uid, item in result.advice.items()} == {"bad": 3}
    assert result.advice["bad"].urgent
    assert result.price.price == 1.0
    assert run_round(members, 1, gang("Inqueue", 16, 16)).advice == {}


def test_c3_no_device_is_given_away_while_a_gang_waits() -> None:
    for phase, grows in (("Pending", False), ("Inqueue", False), ("Running", True)):
        result = run_round([make_member("good", 2, 0.0)], 4, gang(phase, 8, 8))
        assert ("good" in result.advice) == grows


@pytest.mark.parametrize("state", [{"plan_open": True}, {"failing": True}])
def test_a_job_that_cannot_change_now_keeps_its_size(state: dict[str, bool]) -> None:
    assert run_round([make_member("good", 2, 0.0, **state)], 4).advice == {}


def test_jobs_without_devices_or_sizes_are_left_to_their_own_adviser() -> None:
    assert make_member("cpu", 2, 0.0, gpus=0) is None
    assert make_member("u", 2, 0.0, sizes=False) is None


def test_the_round_replaces_advice_on_workers_but_not_a_trial_to_learn() -> None:
    own = Advice(what=What.WORKERS, role="worker", value=9, reason=Reason(code="MoreWorkersGain"))
    probe = Advice(
        what=What.WORKERS, role="worker", value=4, probe=True, reason=Reason(code="NeverTried")
    )
    other = Advice(what=What.CPU, role="worker", value=1, reason=Reason(code="CpuUse"))
    given = Advice(what=What.WORKERS, role="worker", value=6, reason=Reason(code="SpareDevices"))
    result = ClusterRound(advice={"u": given}, considered=frozenset({"u", "v"}))
    assert with_allocation(result, "x", [own, other]) == [own, other]
    assert with_allocation(result, "v", [own, other]) == [other]
    assert with_allocation(result, "u", [own, other]) == [other, given]
    assert with_allocation(result, "u", [probe, other]) == [other, probe]


def test_queues_share_by_weight_what_other_jobs_leave() -> None:
    assert queue_entitlements({"a": 3, "b": 1}, 16, {"a": 4.0, "b": 9.0}) == {"a": 8.0, "b": 0.0}
    assert queue_entitlements({}, 16, {}) == {}


def test_price_rises_for_gangs_that_wait_for_devices_only() -> None:
    gpus = gang("Pending", 4, 4)
    fresh = msgspec.structs.replace(
        gpus,
        metadata=ObjectMeta(
            name="fresh", namespace="team", creation_timestamp=datetime.fromtimestamp(990, UTC)
        ),
    )
    without = msgspec.structs.replace(
        gpus, spec=PodGroupSpec(min_member=4, min_resources={"cpu": "4"})
    )
    prices = [
        cluster_round([], [node(0)], [group], ENTITLED, PriceState(), 1_000_000).price.price
        for group in (gpus, fresh, without)
    ]
    assert prices == [1.0, 0.0, 0.0]
