"""Gangs that annotations of pods describe."""

from typing import Any

import msgspec
import pytest

from gangline.scheduler.cache import convert
from gangline.scheduler.types.types import GroupKey, PodInfo, QueueInfo
from gangline.scheduler.types.wire import LeanPod, slim_pod
from unit.scheduler.builders import checked_cycle, cluster, group, node

OURS = frozenset({"gangline"})
VOLCANO = "scheduling.volcano.sh/"
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job-uid", "controller": True}


def pod(name: str, owned: bool = False, **annotations: str) -> PodInfo:
    stated = {f"{VOLCANO}{key.replace('_', '-')}": value for key, value in annotations.items()}
    kubernetes = {"k8s": "scheduling.k8s.io/group-name"}
    stated = {kubernetes.get(key.removeprefix(VOLCANO), key): v for key, v in stated.items()}
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "d",
        "uid": f"uid-{name}",
        "annotations": stated,
        "ownerReferences": [OWNER] if owned else [],
    }
    cpu = {"resources": {"requests": {"cpu": "1"}}}
    raw = {"metadata": metadata, "spec": {"schedulerName": "gangline", "containers": [cpu]}}
    return convert.pod_info(slim_pod(msgspec.convert(raw, LeanPod)), {}, OURS)


@pytest.mark.parametrize(
    ("annotations", "named"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({"k8s": "g"}, "d/g", id="the key of Kubernetes"),
        pytest.param({"group_name": "g"}, "d/g", id="the key of Volcano"),
        pytest.param({"k8s": "g", "group_name": "h"}, "d/g", id="both"),
        pytest.param({"queue_name": "q"}, "d/podgroup-uid-p", id="a queue"),
    ],
)
def test_a_pod_names_its_group(annotations: dict[str, str], named: str | None) -> None:
    assert pod("p", **annotations).group == named


def test_a_pod_without_a_group_goes_to_its_queue() -> None:
    alone = pod("p", queue_name="q")
    state = cluster(node("n1"), QueueInfo("q"), alone)
    assert [str(each.pod) for each in checked_cycle(state).bindings] == ["d/p"]
    state.assume(alone.key, state.nodes.name_of(0))
    assert state.usage.by_queue["q"]["cpu"] == 1000


def test_a_queue_that_does_not_exist_is_the_reason() -> None:
    (verdict,) = checked_cycle(cluster(node("n1"), pod("p", queue_name="q"))).pending_reasons
    assert verdict.reason == "QueueNotFound"


def test_the_pods_of_one_owner_are_a_gang_of_the_stated_size() -> None:
    first, second = (pod(name, owned=True, group_min_member="2") for name in ("a", "b"))
    state = cluster(node("n1"), first)
    (verdict,) = checked_cycle(state).pending_reasons
    assert (verdict.group, verdict.reason) == ("d/podgroup-job-uid", "NotEnoughTasks")
    state.set_pod(second)
    assert [str(each.pod) for each in checked_cycle(state).bindings] == ["d/a", "d/b"]


def test_the_order_of_arrival_does_not_matter() -> None:
    pods = [pod("a", owned=True, group_min_member="2"), pod("b", owned=True, group_min_member="3")]
    states = [cluster(node("n1"), *pods), cluster(node("n1"), *reversed(pods))]
    assert [list(state.groups.values()) for state in states] == [[states[0].groups[KEY]]] * 2
    assert states[0].groups[KEY].min_member == 2


KEY = GroupKey("d/podgroup-job-uid")


def test_a_gang_ends_with_its_last_pod() -> None:
    only = pod("a", owned=True, group_min_member="2")
    state = cluster(node("n1"), only)
    assert KEY in state.groups
    state.remove_pod(only.key)
    assert not state.groups


def test_a_named_group_without_a_size_must_exist() -> None:
    (verdict,) = checked_cycle(cluster(node("n1"), pod("p", group_name="g"))).pending_reasons
    assert verdict.reason == "PodGroupNotFound"


def test_a_pod_group_takes_precedence_and_its_removal_restores_the_annotations() -> None:
    member = pod("p", group_name="g", group_min_member="1")
    state = cluster(node("n1"), member)
    assert state.groups[GroupKey("d/g")].min_member == 1
    state.set_group(group("g", 5))
    assert state.groups[GroupKey("d/g")].min_member == 5
    state.set_pod(pod("other", group_name="g", group_min_member="2"))
    assert state.groups[GroupKey("d/g")].min_member == 5
    state.remove_group(GroupKey("d/g"))
    assert state.groups[GroupKey("d/g")].min_member == 2


@pytest.mark.parametrize("written", ["many", "-1", "0", "1e9", "999999999"])
def test_an_unreadable_size_is_one(written: str) -> None:
    implied = pod("p", group_min_member=written).implied_group
    assert implied is not None
    assert implied.min_member == 1


@pytest.mark.parametrize(
    ("written", "amounts"),
    [('{"cpu": "2"}', (("cpu", 2000),)), ("{", ()), ('{"cpu": "x"}', ()), ('{"cpu": [1]}', ())],
)
def test_minimal_resources_are_json(written: str, amounts: tuple[tuple[str, int], ...]) -> None:
    implied = pod("p", queue_name="q", group_min_resources=written).implied_group
    assert implied is not None
    assert implied.min_resources == amounts
