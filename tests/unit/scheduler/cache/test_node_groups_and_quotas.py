"""Node groups of queues, tainted pools, quotas of namespaces, and namespace selectors."""

import msgspec
import pytest

from gangline.api.volcano.scheduling import Queue
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import pod_info, queue_info
from gangline.scheduler.cache.convert_placement import NODE_GROUP_MISMATCH, quota_info
from gangline.scheduler.cache.quota import QuotaInfo
from gangline.scheduler.queueing.queue_tree import QueueTree
from gangline.scheduler.types.types import (
    CycleResult,
    NodeName,
    PlacementConstraints,
    QueueInfo,
    TaintInfo,
    TolerationInfo,
)
from gangline.scheduler.types.wire import LeanPod, ResourceQuota
from unit.scheduler.builders import checked_cycle as decide
from unit.scheduler.builders import cluster, gang, group, node, pod

POOL = "volcano.sh/nodegroup-name"


def queue(name: str, parent: str = "", **affinity: object) -> QueueInfo:
    written = {"metadata": {"name": name}, "spec": {"parent": parent, "affinity": affinity}}
    return queue_info(msgspec.convert(written, Queue))


def required(*groups: str) -> dict[str, list[str]]:
    return {"requiredDuringSchedulingIgnoredDuringExecution": list(groups)}


def placed(decision: CycleResult) -> dict[str, NodeName]:
    return {binding.pod: binding.node for binding in decision.bindings}


def in_queue(name: str, queue_name: str) -> list[object]:
    return [group(name, 1, queue=queue_name), pod(f"{name}-0", group=name)]


NODES = (
    node("a1", labels={POOL: "a"}, cpu=4),
    node("b1", labels={POOL: "b"}, cpu=4),
    node("z", cpu=4),
)


def test_jobs_of_a_queue_are_kept_to_its_node_groups() -> None:
    only_b = queue("q", nodeGroupAffinity=required("b"))
    assert placed(decide(cluster(*NODES, only_b, *in_queue("job", "q")))) == {"d/job-0": "b1"}  # type: ignore[arg-type]


def test_jobs_of_a_queue_avoid_node_groups_and_a_queue_below_does_so_too() -> None:
    top = queue("top", nodeGroupAntiAffinity=required("a", "b"))
    state = cluster(*NODES, top, queue("below", "top"), *in_queue("job", "below"))  # type: ignore[arg-type]
    assert placed(decide(state)) == {"d/job-0": "z"}


def test_missing_group_is_the_reason() -> None:
    state = cluster(*NODES, queue("q", nodeGroupAffinity=required("c")), *in_queue("job", "q"))  # type: ignore[arg-type]
    assert f"3 {NODE_GROUP_MISMATCH}" in decide(state).pending_reasons[0].message


def test_a_liked_node_group_is_taken_first_and_others_when_it_is_full() -> None:
    liked = {"preferredDuringSchedulingIgnoredDuringExecution": ["b"]}
    state = cluster(*NODES, queue("q", nodeGroupAffinity=liked), *in_queue("job", "q"))  # type: ignore[arg-type]
    assert placed(decide(state)) == {"d/job-0": "b1"}
    state.set_pod(pod("x", cpu=4, on="b1"))
    assert placed(decide(state))["d/job-0"] != "b1"  # type: ignore[index]


def entitled(state: SchedulerCache, name: str) -> float:
    tree = QueueTree(
        state.queues, state.nodes, state.usage, state.pending_usage, state.schedulable_capacity()
    )
    return float(tree.queues[name].fair_share[tree.columns["cpu"]]) / 1000


def test_a_queue_is_not_entitled_to_more_than_its_node_groups_have() -> None:
    state = cluster(*NODES, queue("q", nodeGroupAffinity=required("b")), QueueInfo("other"))
    for name, of in (("wide", "q"), ("free", "other")):
        state.set_group(group(name, 1, queue=of))
        state.set_pod(pod(f"{name}-0", cpu=12, group=name))
    assert (entitled(state, "q"), entitled(state, "other")) == (4, 8)


def test_node_groups_closed_to_this_scheduler_add_no_capacity() -> None:
    taint = TaintInfo("team", "x", "NoSchedule")
    state = cluster(node("mine", cpu=4), node("theirs", cpu=4, taints=(taint,)))
    for name in ("a", "b"):
        state.queues[name] = QueueInfo(name)
        state.set_group(group(name, 1, queue=name))
        state.set_pod(pod(f"{name}-0", cpu=9, group=name))
    assert entitled(state, "a") == 2
    tolerant = PlacementConstraints(tolerations=(TolerationInfo(operator="Exists"),))
    state.set_pod(pod("c", cpu=1, constraints=tolerant))
    assert entitled(state, "a") == pytest.approx(3.5)


def test_gang_above_the_quota_is_not_admitted() -> None:
    quota = QuotaInfo(
        "d/q", (("pods", 3), ("requests.cpu", 4000)), (("pods", 2), ("requests.cpu", 2000))
    )
    state = cluster(node("n", cpu=9), *gang("job", 2))
    state.set_group(group("job", 4))
    state.quotas["d"] = {"q": quota}
    verdict = decide(state).pending_reasons[0]
    assert verdict.reason == "QuotaExceeded"
    assert "quota 'd/q' has pods 1 left of pods 3, and pods 2 more is needed" in verdict.message
    state.quotas["d"] = {
        "q": QuotaInfo("d/q", (("requests.cpu", 4000),), (("requests.cpu", 2000),))
    }
    assert decide(state).pending_reasons[0].reason == "NotEnoughTasks"


def test_a_gang_whose_pods_exist_has_nothing_to_fear_from_quotas() -> None:
    state = cluster(node("n", cpu=9), *gang("job", 2))
    state.quotas["d"] = {"q": QuotaInfo("d/q", (("pods", 2),), (("pods", 2),))}
    assert len(decide(state).bindings) == 2


def test_quotas_are_read() -> None:
    written = {
        "metadata": {"name": "q", "namespace": "d"},
        "spec": {"hard": {"requests.cpu": "4", "pods": "3", "requests.memory": "1Gi"}},
        "status": {"used": {"requests.cpu": "500m"}},
    }
    facts = quota_info(msgspec.convert(written, ResourceQuota))
    hard = (("pods", 3), ("requests.cpu", 4000), ("requests.memory", 2**30))
    assert facts == QuotaInfo("d/q", hard, (("requests.cpu", 500),))


@pytest.mark.parametrize(
    ("labels", "listed", "meant"),
    [
        ({"team": "x"}, [], ("one",)),
        ({"team": "x"}, ["three"], ("one", "three")),
        ({"team": "nobody"}, [], ("",)),
        ({}, [], None),
    ],
)
def test_namespaces_are_chosen_by_their_labels(
    labels: dict[str, str], listed: list[str], meant: tuple[str, ...] | None
) -> None:
    term = {
        "topologyKey": "zone",
        "labelSelector": {},
        "namespaces": listed,
        "namespaceSelector": {"matchLabels": labels},
    }
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    raw = {"metadata": {"name": "p", "namespace": "d"}, "spec": {"affinity": affinity}}
    namespaces = {"one": {"team": "x"}, "two": {"team": "y"}, "three": {}}
    facts = pod_info(msgspec.convert(raw, LeanPod), {}, frozenset(), namespaces)
    relations = facts.shape.constraints.inter_pod
    assert relations is not None
    assert relations.anti_affinity[0].namespaces == meant
    unknown = pod_info(msgspec.convert(raw, LeanPod), {}, frozenset()).shape.constraints.inter_pod
    assert unknown is not None
    assert unknown.anti_affinity[0].namespaces is None
