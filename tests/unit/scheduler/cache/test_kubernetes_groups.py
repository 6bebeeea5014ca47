"""PodGroups of Kubernetes are gangs: what they ask for, what is evicted with them, their queue."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gangline.api.cluster.workload import KubernetesPodGroup
from gangline.api.volcano.scheduling import QUEUE_NAME_ANNOTATION
from gangline.scheduler.cache.convert import pod_info
from gangline.scheduler.cache.kubernetes_groups import kubernetes_group_info
from gangline.scheduler.queueing import messages
from gangline.scheduler.types import (
    EvictionMode,
    GroupKey,
    ImpliedGroup,
    PodGroupInfo,
    PodInfo,
    QueueInfo,
    kubernetes_group_key,
)
from gangline.scheduler.wire import LeanPod, slim_pod
from unit.scheduler.builders import checked_cycle, cluster, gang, node, pod

KEY = kubernetes_group_key("d", "g")
RACK = "example.com/rack"


def read(annotations: dict[str, str] | None = None, **spec: Any) -> PodGroupInfo:
    metadata = {"name": "g", "namespace": "d", "annotations": annotations or {}}
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}} | spec
    raw = {"metadata": metadata, "spec": spec}
    return kubernetes_group_info(msgspec.convert(raw, KubernetesPodGroup), {"": 1, "high": 9})


def members(count: int, **facts: Any) -> list[PodInfo]:
    pods = [pod(f"g-{index}", **facts) for index in range(count)]
    return [msgspec.structs.replace(member, group=KEY) for member in pods]


def test_pod_belongs_to_the_group_of_its_spec_and_waits_for_it() -> None:
    raw = {
        "metadata": {"name": "g-0", "namespace": "d"},
        "spec": {"containers": [{}], "schedulingGroup": {"podGroupName": "g"}},
    }
    member = pod_info(slim_pod(msgspec.convert(raw, LeanPod)), {}, frozenset({"default-scheduler"}))
    assert member.group == KEY != GroupKey("d/g")
    result = checked_cycle(cluster(node("a"), member))
    (verdict,) = result.pending_reasons
    assert not result.bindings
    assert verdict.reason == messages.NO_SUCH_GROUP
    assert "'d/g' of scheduling.k8s.io does not exist" in verdict.message


def test_gang_starts_with_min_count_pods_and_a_basic_group_with_any() -> None:
    small = cluster(node("a", cpu=1), read(), *members(2))
    assert not checked_cycle(small).bindings
    enough = cluster(node("a", cpu=2), read(), *members(2))
    assert len(checked_cycle(enough).bindings) == 2
    basic = read(schedulingPolicy={"basic": {}})
    assert len(checked_cycle(cluster(node("a", cpu=1), basic, *members(2))).bindings) == 1


def test_group_and_one_of_volcano_with_the_same_name_are_two_gangs() -> None:
    state = cluster(node("a", cpu=4), read(), *members(2), *gang("g", 2))
    assert checked_cycle(state).placed == {KEY, GroupKey("d/g")}


def test_all_pods_are_placed_in_one_domain_of_the_label() -> None:
    nodes = [node(f"{rack}{n}", cpu=c, labels={RACK: rack}) for rack, n, c in (
        ("x", 0, 2), ("y", 0, 1), ("y", 1, 1), ("y", 2, 1),
    )]  # fmt: skip
    rule = {"topology": [{"key": RACK}]}
    group = read(schedulingPolicy={"gang": {"minCount": 3}}, schedulingConstraints=rule)
    result = checked_cycle(cluster(*nodes, node("z", cpu=9), group, *members(3)))
    assert {str(binding.node) for binding in result.bindings} == {"y0", "y1", "y2"}
    many = replace(group, min_member=4)
    (verdict,) = checked_cycle(cluster(*nodes, node("z", cpu=9), many, *members(4))).pending_reasons
    assert f"the same value of the label {RACK}" in verdict.message


def test_priority_of_the_group_is_its_own_or_that_of_its_class() -> None:
    assert [
        read(**spec).priority
        for spec in (
            {},
            {"priorityClassName": "high"},
            {"priorityClassName": "high", "priority": 3},
        )
    ] == [1, 9, 3]


@pytest.mark.parametrize(
    ("mode", "evicted"), [({"single": {}}, 1), ({"all": {}}, 3), (None, 1)], ids=str
)
def test_preemption_evicts_single_pods_or_the_group(mode: Any, evicted: int) -> None:
    group = read(**({"disruptionMode": mode} if mode else {}))
    urgent = pod("urgent", priority=5)
    state = cluster(node("a", cpu=3), group, *members(3, on="a"), urgent)
    assert len(checked_cycle(state).evictions) == evicted
    # Below the minimum, too: the others of a group of single pods go on.
    pair = replace(group, min_member=3)
    state = cluster(node("a", cpu=3), pair, *members(3, on="a"), urgent)
    assert len(checked_cycle(state).evictions) == evicted
    assert group.evicted is (EvictionMode.ALL if evicted == 3 else EvictionMode.SINGLE)


def test_queue_is_that_of_the_group_else_of_its_pods_else_the_default() -> None:
    named = [
        msgspec.structs.replace(member, implied_group=ImpliedGroup("team")) for member in members(2)
    ]
    queues = [QueueInfo("team"), QueueInfo("other")]
    for first, second in ((named, [read()]), ([read()], named)):
        state = cluster(*queues, *first, *second)
        assert state.groups[KEY].queue == "team"
        state.remove_group(KEY)
        assert KEY not in state.groups
    own = read({QUEUE_NAME_ANNOTATION: "other"})
    assert cluster(*queues, *named, own).groups[KEY].queue == "other"
    assert cluster(*queues, *members(2), read()).groups[KEY].queue == "default"
