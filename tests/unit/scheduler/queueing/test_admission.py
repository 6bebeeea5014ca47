"""Admission by limits of queues, node groups and quotas."""

import msgspec
import pytest

from gangline.api.cluster.quota import ResourceQuota
from gangline.api.volcano.scheduling import Queue
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import pod_info, queue_info
from gangline.scheduler.cache.convert_placement import (
    NODE_GROUP_MISMATCH,
    pod_quota_attributes,
    quota_info,
)
from gangline.scheduler.queueing.admission import check_admission, check_queue_limit
from gangline.scheduler.queueing.messages import QUEUE_LIMIT
from gangline.scheduler.queueing.queue_tree import QueueTree
from gangline.scheduler.types import (
    CycleResult,
    NodeName,
    PlacementConstraints,
    PodInfo,
    QueueInfo,
    QuotaAttributes,
    QuotaInfo,
    Request,
    TaintInfo,
    TolerationInfo,
    all_in_scopes,
)
from gangline.scheduler.wire import LeanPod, LeanPodSpec
from unit.scheduler.builders import checked_cycle, cluster, gang, group, node, pod, request

LIMITED = QueueInfo("q", capability=request(cpu=4, pods=0))


@pytest.mark.parametrize(("used", "admitted"), [(0, True), (2, True), (3, False)])
def test_a_gang_without_pods_is_judged_by_its_minimal_resources(used: int, admitted: bool) -> None:
    runs = [pod(f"r{index}", group="runs", on="n1") for index in range(used)]
    new = group("new", 2, queue="q", min_resources=request(cpu=2, pods=0))
    state = cluster(node("n1"), LIMITED, group("runs", 1, queue="q"), *runs, new)
    verdict = check_queue_limit(state, new)
    assert (verdict is None) == admitted
    assert verdict is None or (verdict.reason, "'q'" in verdict.message) == (QUEUE_LIMIT, True)


@pytest.mark.parametrize(
    ("parents", "way"),
    [({"q": "q"}, "q -> q"), ({"q": "a", "a": "q"}, "q -> a -> q")],
)
def test_a_queue_below_itself_is_named_with_the_way(parents: dict[str, str], way: str) -> None:
    new = group("new", 1, queue="q")
    queues = [QueueInfo(name, parent=parent) for name, parent in parents.items()]
    verdict = check_admission(cluster(node("n1"), *queues, new), new)
    assert verdict is not None
    assert f"is below itself ({way})" in verdict.message


def test_a_gang_that_states_no_resources_is_admitted() -> None:
    new = group("new", 2, queue="q")
    runs = [pod(f"r{index}", group="runs", on="n1") for index in range(4)]
    state = cluster(node("n1"), LIMITED, group("runs", 1, queue="q"), *runs, new)
    assert check_queue_limit(state, new) is None


@pytest.mark.parametrize(
    ("created", "admitted"),
    [
        pytest.param(0, False, id="none of its pods exists"),
        pytest.param(1, True, id="one exists and is judged by the cycle"),
        pytest.param(2, True, id="all exist"),
    ],
)
def test_only_missing_pods_are_judged(created: int, admitted: bool) -> None:
    new = group("new", 2, queue="q", min_resources=request(cpu=4, pods=0))
    runs = pod("r", group="runs", on="n1")
    waiting = [pod(f"new-{index}", cpu=2, group="new") for index in range(created)]
    state = cluster(node("n1"), LIMITED, group("runs", 1, queue="q"), runs, new, *waiting)
    assert (check_queue_limit(state, new) is None) == admitted


@pytest.mark.parametrize(
    "queue",
    [
        pytest.param(QueueInfo("q", capability=request(cpu=1, pods=0)), id="its own limit"),
        pytest.param(QueueInfo("q", parent="top"), id="the limit of its parent"),
        pytest.param(QueueInfo("q"), id="a guarantee of another queue"),
    ],
)
def test_every_limit_counts(queue: QueueInfo) -> None:
    top = QueueInfo("top", capability=request(cpu=1, pods=0))
    owner = QueueInfo("owner", guarantee=request(cpu=7, pods=0))
    new = group("new", 2, queue="q", min_resources=request(cpu=2, pods=0))
    verdict = check_queue_limit(cluster(node("n1"), queue, top, owner, new), new)
    assert verdict.reason == QUEUE_LIMIT


def test_a_gang_of_an_unknown_queue_has_no_limit() -> None:
    new = group("new", 2, queue="elsewhere", min_resources=request(cpu=99, pods=0))
    assert check_queue_limit(cluster(node("n1"), LIMITED, new), new) is None


def test_limit_is_judged_by_the_current_queues() -> None:
    """The structure of the queues that a cycle has cached may be outdated."""
    new = group("new", 2, queue="q", min_resources=request(cpu=2, pods=0))
    state = cluster(node("n1"), LIMITED, new, pod("any"))
    checked_cycle(state)
    assert check_queue_limit(state, new) is None
    state.queues["q"] = QueueInfo("q", capability=request(cpu=1, pods=0))
    assert check_queue_limit(state, new) is not None


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
    assert placed(checked_cycle(cluster(*NODES, only_b, *in_queue("job", "q")))) == {
        "d/job-0": "b1"
    }  # type: ignore[arg-type]


def test_jobs_of_a_queue_avoid_node_groups_and_a_queue_below_does_so_too() -> None:
    top = queue("top", nodeGroupAntiAffinity=required("a", "b"))
    state = cluster(*NODES, top, queue("below", "top"), *in_queue("job", "below"))  # type: ignore[arg-type]
    assert placed(checked_cycle(state)) == {"d/job-0": "z"}


def test_missing_group_is_the_reason() -> None:
    state = cluster(*NODES, queue("q", nodeGroupAffinity=required("c")), *in_queue("job", "q"))  # type: ignore[arg-type]
    assert f"3 {NODE_GROUP_MISMATCH}" in checked_cycle(state).pending_reasons[0].message


def test_a_liked_node_group_is_taken_first_and_others_when_it_is_full() -> None:
    liked = {"preferredDuringSchedulingIgnoredDuringExecution": ["b"]}
    state = cluster(*NODES, queue("q", nodeGroupAffinity=liked), *in_queue("job", "q"))  # type: ignore[arg-type]
    assert placed(checked_cycle(state)) == {"d/job-0": "b1"}
    state.set_pod(pod("x", cpu=4, on="b1"))
    assert placed(checked_cycle(state))["d/job-0"] != "b1"  # type: ignore[index]


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


def test_a_gang_whose_pods_exist_has_nothing_to_fear_from_quotas() -> None:
    state = cluster(node("n", cpu=9), *gang("job", 2))
    state.quotas["d"] = {"q": QuotaInfo("d/q", (("pods", 2),), (("pods", 2),))}
    assert len(checked_cycle(state).bindings) == 2


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
    assert relations.anti_affinity[0].namespaces == meant
    unknown = pod_info(msgspec.convert(raw, LeanPod), {}, frozenset()).shape.constraints.inter_pod
    assert unknown.anti_affinity[0].namespaces is None


HIGH: dict[str, object] = {
    "scopeName": "PriorityClass",
    "operator": "In",
    "values": ["high", "top"],
}
NOT_HIGH: dict[str, object] = {**HIGH, "operator": "NotIn"}
SOME_CLASS: dict[str, object] = {"scopeName": "PriorityClass", "operator": "Exists"}
NO_CLASS: dict[str, object] = {"scopeName": "PriorityClass", "operator": "DoesNotExist"}


def quota(*scopes: str, selector: tuple[dict[str, object], ...] = ()) -> QuotaInfo:
    """A quota of two pods in these scopes, of which one exists."""
    spec = {
        "hard": {"pods": "2"},
        "scopes": scopes,
        "scopeSelector": {"matchExpressions": selector} if selector else None,
    }
    written = {
        "metadata": {"name": "q", "namespace": "d"},
        "spec": spec,
        "status": {"used": {"pods": "1"}},
    }
    return quota_info(msgspec.convert(written, ResourceQuota))


def traits(**spec: object) -> QuotaAttributes:
    return pod_quota_attributes(msgspec.convert({"containers": [{}], **spec}, LeanPodSpec))


def container(kind: str, **amounts: str) -> dict[str, object]:
    return {"resources": {kind: amounts}}


def affinity(kind: str, **term: object) -> dict[str, object]:
    needed = "requiredDuringSchedulingIgnoredDuringExecution"
    return {kind: {needed: [{"topologyKey": "zone", **term}]}}


@pytest.mark.parametrize(
    ("spec", "scope", "meant"),
    [
        ({"activeDeadlineSeconds": 9}, "Terminating", True),
        ({}, "Terminating", False),
        ({"activeDeadlineSeconds": 9}, "NotTerminating", False),
        ({}, "NotTerminating", True),
        ({}, "BestEffort", True),
        ({"containers": [container("requests", **{"nvidia.com/gpu": "1"})]}, "BestEffort", True),
        ({"containers": [container("requests", cpu="0")]}, "BestEffort", True),
        ({"containers": [{}, container("limits", memory="1Gi")]}, "BestEffort", False),
        ({"initContainers": [container("requests", cpu="1m")]}, "NotBestEffort", True),
        ({"resources": {"requests": {"cpu": "1"}}}, "NotBestEffort", True),
        ({"overhead": {"cpu": "1"}}, "NotBestEffort", False),
        ({"affinity": affinity("podAffinity")}, "CrossNamespacePodAffinity", False),
        (
            {"affinity": affinity("podAffinity", namespaces=["x"])},
            "CrossNamespacePodAffinity",
            True,
        ),
        (
            {"affinity": affinity("podAntiAffinity", namespaceSelector={})},
            "CrossNamespacePodAffinity",
            True,
        ),
        ({}, "VolumeAttributesClass", False),
    ],
)
def test_pods_are_in_scope_as_in_kubernetes(
    spec: dict[str, object], scope: str, meant: bool
) -> None:
    assert all_in_scopes(quota(scope).scopes, [traits(**spec)]) is meant


@pytest.mark.parametrize(
    ("condition", "named", "meant"),
    [
        (HIGH, "top", True),
        (HIGH, "low", False),
        (HIGH, "", False),
        (NOT_HIGH, "high", False),
        (NOT_HIGH, "low", True),
        (NOT_HIGH, "", True),
        (SOME_CLASS, "low", True),
        (SOME_CLASS, "", False),
        (NO_CLASS, "low", False),
        (NO_CLASS, "", True),
        ({**HIGH, "operator": "Like"}, "high", False),
    ],
)
def test_priority_classes_are_chosen_as_in_kubernetes(
    condition: dict[str, object], named: str, meant: bool
) -> None:
    scopes = quota(selector=(condition,)).scopes
    assert all_in_scopes(scopes, [traits(priorityClassName=named)]) is meant


def test_all_scopes_of_a_quota_must_hold() -> None:
    scopes = quota("Terminating", selector=(HIGH,)).scopes
    both = traits(activeDeadlineSeconds=1, priorityClassName="high")
    assert all_in_scopes(scopes, [both])
    assert not all_in_scopes(scopes, [traits(priorityClassName="high")])
    assert not all_in_scopes(scopes, [both, traits(activeDeadlineSeconds=1)])


def member(name: str, priority_class: str) -> PodInfo:
    return pod(name, group="job", quota_attributes=QuotaAttributes(priority_class=priority_class))


def reason(limits: QuotaInfo, *members: PodInfo) -> tuple[str, str]:
    state = cluster(node("n", cpu=9), group("job", 4), *members)
    state.quotas["d"] = {"q": limits}
    verdict = checked_cycle(state).pending_reasons[0]
    return verdict.reason, verdict.message


def test_gang_in_scope_is_not_admitted_and_the_scope_is_named() -> None:
    limits = quota("NotBestEffort", selector=(HIGH,))
    why, message = reason(limits, member("a", "high"), member("b", "top"))
    assert why == "QuotaExceeded"
    assert (
        "quota 'd/q' (for pods in scope NotBestEffort, PriorityClass in (high,top)) "
        "has pods 1 left of pods 2, and pods 2 more is needed"
    ) in message


def test_a_gang_with_pods_out_of_scope_is_left_to_the_api_server() -> None:
    assert reason(quota(selector=(HIGH,)), member("a", "low"))[0] == "NotEnoughTasks"
    mixed = member("a", "high"), member("b", "low")
    assert reason(quota(selector=(HIGH,)), *mixed)[0] == "NotEnoughTasks"


@pytest.mark.parametrize(
    ("limits", "asked", "priority_class", "held"),
    [
        (quota(selector=(HIGH,)), (), "high", True),
        (quota(selector=(HIGH,)), (), "low", False),
        (quota(selector=(NO_CLASS,)), (), "", False),
        (quota("NotBestEffort"), request(cpu=1), "", True),
        (quota("NotBestEffort"), request(gpu=1), "", False),
        (quota("BestEffort"), request(gpu=1), "", False),
        (quota("Terminating"), request(cpu=1), "", False),
        (quota("NotTerminating"), request(cpu=1), "", False),
        (quota(), (), "", True),
    ],
)
def test_gang_without_pods_is_described_by_its_group(
    limits: QuotaInfo, asked: Request, priority_class: str, held: bool
) -> None:
    facts = group("job", 2, min_resources=asked, priority_class=priority_class)
    state = cluster(node("n"), facts)
    state.quotas["d"] = {"q": limits}
    assert (check_admission(state, facts) is not None) is held


def test_a_closed_queue_stops_new_gangs_only() -> None:
    shut, facts = QueueInfo("shut", open=False), group("job", 2, queue="shut")
    lost = pod("job-0", group="job", on="n")
    state = cluster(node("n"), shut, facts, lost)
    assert check_admission(state, facts) is None
    state.remove_pod(lost.key)
    assert check_admission(state, facts) is None
    state = cluster(node("n"), shut, facts, pod("job-0", group="job"))
    refused = check_admission(state, facts)
    assert refused.reason == "QueueClosed"


@pytest.mark.parametrize("queues", [[], [QueueInfo("q"), QueueInfo("child", parent="q")]])
def test_a_running_gang_replaces_its_pods_when_its_queue_is_deleted_or_gets_children(
    queues: list[QueueInfo],
) -> None:
    runs = [group("job", 2, queue="q"), pod("job-0", group="job", on="n")]
    state = cluster(node("n"), *queues, *runs, pod("job-1", group="job"))
    assert placed(checked_cycle(state)) == {"d/job-1": "n"}
    new = cluster(node("n"), *queues, group("job", 1, queue="q"), pod("job-0", group="job"))
    (refused,) = checked_cycle(new).pending_reasons
    assert refused.reason == ("QueueNotLeaf" if queues else "QueueNotFound")
