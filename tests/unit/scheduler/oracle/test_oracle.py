"""The oracle notices and names each rule that a result may violate."""

from dataclasses import replace

import pytest

from gangline.api.meta.selectors import Requirement, Selector
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.plugins.volumes import ClaimInfo, VolumeInfo
from gangline.scheduler.types.types import (
    CycleResult,
    DisruptionBudgetInfo,
    GroupKey,
    HyperNodeInfo,
    HyperNodeMemberInfo,
    InterPodRules,
    LabelExpression,
    NetworkTopologyRule,
    NodeName,
    NodeTerm,
    PlacementConstraints,
    PodBinding,
    PodEviction,
    PodGroupInfo,
    PodInfo,
    PodKey,
    PodTerm,
    QueueInfo,
    RequiredNodeTerms,
    Reservation,
    SpreadTerm,
    SubgroupRule,
    TaintInfo,
    TolerationInfo,
)
from unit.scheduler.builders import (
    ANYWHERE,
    cluster,
    decide,
    gang,
    group,
    node,
    on_label,
    pod,
    request,
)
from unit.scheduler.oracle.check import Violation, check_result, violations
from unit.scheduler.oracle.queues import QueueOracle

WEB = Selector((Requirement("app", "=", ("web",)),))
NEAR_WEB = PodTerm(WEB, "zone")
LABELS = (("app", "web"),)


def bind(*placed: tuple[str, str], group: str | None = None) -> CycleResult:
    return CycleResult(
        bindings=tuple(
            PodBinding(
                PodKey(f"d/{name}"),
                f"uid-{name}",
                NodeName(on),
                GroupKey(f"d/{group}") if group else None,
            )
            for name, on in placed
        )
    )


def evict(*names: str, for_whom: str = "high", group: str | None = "low") -> CycleResult:
    return CycleResult(
        evictions=tuple(
            PodEviction(
                PodKey(f"d/{name}"),
                f"uid-{name}",
                NodeName("n"),
                GroupKey(f"d/{group}") if group else None,
                f"d/{for_whom}",
                "",
            )
            for name in names
        ),
        reservations={
            f"d/{for_whom}": Reservation(((PodKey(f"d/{for_whom}-0"), NodeName("n")),), True)
        },
    )


def related(**relations: object) -> PlacementConstraints:
    return PlacementConstraints(inter_pod=InterPodRules(**relations))  # type: ignore[arg-type]


def zones() -> list[object]:
    return [node("n", labels={"zone": "a"}), node("m", labels={"zone": "b"})]


def waiting(where: PlacementConstraints = ANYWHERE, **facts: object) -> PodInfo:
    return pod("p", constraints=where, labels=LABELS, **facts)  # type: ignore[arg-type]


PLACES = [
    pytest.param([node("n")], waiting(cpu=9), "n has 8000 cpu, 9000 are used", id="cpu"),
    pytest.param([node("n")], waiting(gpu=1), "n has 0 nvidia", id="a device it lacks"),
    pytest.param([node("n", unschedulable=True)], waiting(), "unschedulable", id="cordoned"),
    pytest.param([node("n", ready=False)], waiting(), "not-ready", id="not ready"),
    pytest.param(
        [node("n", taints=(TaintInfo("full", "", "NoExecute"),))],
        waiting(),
        "tolerate",
        id="tainted",
    ),
    pytest.param([node("n")], waiting(on_label(pool="a")), "selects nodes", id="selector"),
    pytest.param(
        [node("n", labels={"gpus": "3"})],
        waiting(
            PlacementConstraints(required=(NodeTerm((LabelExpression("gpus", "Gt", ("4",)),)),))
        ),
        "affinity",
        id="node affinity",
    ),
    pytest.param([], waiting(), "does not exist", id="no such node"),
    pytest.param(
        [*zones(), pod("w", on="m", labels=LABELS)],
        waiting(related(affinity=(NEAR_WEB,))),
        "its affinity",
        id="affinity",
    ),
    pytest.param(
        [*zones(), pod("w", on="n", labels=LABELS)],
        waiting(related(anti_affinity=(NEAR_WEB,))),
        "its anti-affinity",
        id="anti-affinity",
    ),
    pytest.param(
        [*zones(), pod("w", on="n", constraints=related(anti_affinity=(NEAR_WEB,)))],
        waiting(),
        "d/w excludes it",
        id="anti-affinity of the other",
    ),
    pytest.param(
        [*zones(), pod("w", on="n", labels=LABELS)],
        waiting(related(spread=(SpreadTerm(NEAR_WEB),))),
        "topology spread",
        id="spread",
    ),
]


@pytest.mark.parametrize(("world", "put", "message"), PLACES)
def test_forbidden_placement_is_a_violation(
    world: list[object], put: PodInfo, message: str
) -> None:
    state = cluster(*world, put)  # type: ignore[arg-type]
    assert any(message in fault for fault in violations(state, bind(("p", "n"))))


def test_port_bound_twice_is_a_violation() -> None:
    state = cluster(node("n"), pod("p", port=80), pod("q", port=80))
    assert "are used" in next(violations(state, bind(("p", "n"), ("q", "n"))))


def test_binding_of_a_placed_pod_or_twice_is_a_violation() -> None:
    state = cluster(node("n"), pod("p", on="n"), pod("q"))
    faults = list(violations(state, bind(("p", "n"), ("q", "n"), ("q", "n"))))
    assert "a pod is bound twice" in faults
    assert "d/p is bound and does not wait" in faults


def test_incomplete_gang_is_a_violation() -> None:
    state = cluster(node("n"), *gang("g", 2))
    with pytest.raises(Violation, match="d/g has 1 of 2 pods"):
        check_result(state, bind(("g-worker-0", "n"), group="g"), 0)


def test_missing_role_is_a_violation() -> None:
    facts = group("g", 1, min_task_member=(("ps", 1),))
    state = cluster(node("n"), facts, pod("w", group="g", role="worker"))
    assert "0 of 1 pods of role ps" in next(violations(state, bind(("w", "n"), group="g")))


def test_violated_network_rule_is_a_violation() -> None:
    facts = group("g", 2, network=NetworkTopologyRule(tier=1))
    state = cluster(node("n"), node("m"), facts, pod("a", group="g"), pod("b", group="g"))
    for name in ("n", "m"):
        domain = HyperNodeInfo(f"s-{name}", 1, members=(HyperNodeMemberInfo(False, exact=name),))
        state.nodes.set_hypernode(domain)
    assert any(
        "no network domain" in f for f in violations(state, bind(("a", "n"), ("b", "m"), group="g"))
    )
    assert not list(violations(state, bind(("a", "n"), ("b", "n"), group="g")))


QUEUES = [
    pytest.param([QueueInfo("q", capability=request(cpu=1, pods=0))], "q may use", id="its own"),
    pytest.param(
        [QueueInfo("q", parent="top"), QueueInfo("top", capability=request(cpu=1, pods=0))],
        "top may use",
        id="of the queue above",
    ),
    pytest.param(
        [QueueInfo("q"), QueueInfo("r", guarantee=request(cpu=7, pods=0))],
        "q may use 1000 cpu",
        id="what another is guaranteed",
    ),
    pytest.param([QueueInfo("q", open=False)], "q is closed", id="closed"),
    pytest.param([], "charged to no queue", id="missing"),
]


@pytest.mark.parametrize(("queues", "message"), QUEUES)
def test_queue_above_its_limit_is_a_violation(queues: list[QueueInfo], message: str) -> None:
    state = cluster(node("n"), *queues, group("g", 1, queue="q"), pod("p", cpu=2, group="g"))
    assert any(message in fault for fault in violations(state, bind(("p", "n"), group="g")))


def evicting(
    low: dict[str, object] | None = None,
    high: dict[str, object] | None = None,
    victims: dict[str, object] | None = None,
    claimers: dict[str, object] | None = None,
    *queues: QueueInfo,
) -> SchedulerCache:
    """A full node: two pods of one gang run, one of another waits."""
    return cluster(
        node("n", cpu=2),
        *queues,
        group("low", **{"minimum": 1, **(low or {})}),  # type: ignore[arg-type]
        group("high", **{"minimum": 1, "priority": 5, **(high or {})}),  # type: ignore[arg-type]
        *(pod(f"low-{i}", group="low", on="n", **(victims or {})) for i in range(2)),  # type: ignore[arg-type]
        pod("high-0", group="high", **(claimers or {})),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("claimers", [{}, {"port": 80}], ids=["room", "room and a port"])
def test_justified_eviction_is_no_violation(claimers: dict[str, object]) -> None:
    state = evicting(claimers=claimers)
    assert not list(violations(state, decide(state)))
    assert not list(violations(state, evict("low-1")))


A, B = QueueInfo("a"), QueueInfo("b")
EVICTIONS = [
    pytest.param(evicting(victims={"preemptable": False}), "may not be", id="protected pod"),
    pytest.param(evicting(low={"preemptable": False}), "may not be", id="protected gang"),
    pytest.param(
        evicting(victims={"priority": 2 * 10**9}), "another scheduler", id="system priority"
    ),
    pytest.param(evicting(victims={"is_terminating": True}), "is terminating", id="terminating"),
    pytest.param(evicting(high={"priority": 0}), "no higher priority", id="an equal"),
    pytest.param(evicting(claimers={"may_preempt": False}), "may not preempt", id="never"),
    pytest.param(evicting(low={"minimum": 2}), "is broken", id="half of a gang"),
    pytest.param(
        evicting(low={"min_task_member": (("w", 2),)}, victims={"role": "w"}),
        "is broken",
        id="half of a role",
    ),
    pytest.param(evicting(claimers={"cpu": 2}), "does not fit", id="too few"),
    pytest.param(
        evicting(victims={"port": 80}, claimers={"port": 80}),
        "does not fit",
        id="a port taken still",
    ),
    pytest.param(
        evicting({"queue": "a"}, {"queue": "b"}, None, None, replace(A, reclaimable=False), B),
        "is not reclaimable",
        id="a queue that is not reclaimable",
    ),
    pytest.param(
        evicting(
            {"queue": "a"},
            {"queue": "b"},
            None,
            None,
            replace(A, deserved=request(cpu=2, pods=0)),
            B,
        ),
        "is within its fair share",
        id="a queue within its part",
    ),
    pytest.param(
        evicting(
            {"queue": "a"},
            {"queue": "b"},
            None,
            None,
            A,
            replace(B, deserved=(("cpu", 0),)),
        ),
        "has its fair share",
        id="a queue that deserves nothing",
    ),
]


@pytest.mark.parametrize(("state", "message"), EVICTIONS)
def test_forbidden_eviction_is_a_violation(state: SchedulerCache, message: str) -> None:
    assert any(message in fault for fault in violations(state, evict("low-0")))


def test_exceeded_disruption_budget_is_a_violation() -> None:
    state = evicting(victims={"labels": LABELS})
    state.budgets["d/web"] = DisruptionBudgetInfo("d/web", "d", WEB, allowed=0)
    assert any("0 may be" in fault for fault in violations(state, evict("low-0")))


def test_eviction_without_reservation_is_a_violation() -> None:
    state = evicting()
    wrong = replace(evict("low-0"), reservations={})
    assert any("no reservation" in fault for fault in violations(state, wrong))


def test_groups_of_one_name_in_two_namespaces_are_distinct() -> None:
    other: PodGroupInfo = replace(group("g", 1), key=GroupKey("e/g"))
    state = cluster(node("n"), other, group("g", 1), pod("p", group="g"))
    assert not list(violations(state, bind(("p", "n"), group="g")))


POOLED = QueueInfo(
    "q",
    required_node_terms=(
        RequiredNodeTerms((NodeTerm((LabelExpression("pool", "In", ("a",)),)),), "outside"),
    ),
)


def test_pod_outside_its_node_groups_is_a_violation() -> None:
    nodes = (node("n"), node("m", labels={"pool": "a"}))
    below = QueueInfo("below", parent="q")
    state = cluster(*nodes, POOLED, below, group("g", 1, queue="below"), pod("p", group="g"))
    assert "outside the node groups" in next(violations(state, bind(("p", "n"), group="g")))
    assert not list(violations(state, bind(("p", "m"), group="g")))


def test_missing_or_excess_volume_is_a_violation() -> None:
    state = cluster(node("n"), pod("p", claims=("d/c",)), pod("q", claims=("d/e",)))
    state.storage.synced = True
    state.storage.claims["d/c"] = ClaimInfo("d/c", volume="v")
    assert "has no volume" in next(violations(state, bind(("p", "n"))))
    elsewhere = NodeTerm((LabelExpression("zone", "In", ("z",)),))
    state.storage.volumes["v"] = VolumeInfo("v", terms=(elsewhere,), driver="disk")
    assert "does not reach v" in next(violations(state, bind(("p", "n"))))
    state.storage.volumes["v"] = VolumeInfo("v", driver="disk")
    state.storage.claims["d/e"] = ClaimInfo("d/e", volume="v2")
    state.storage.volumes["v2"] = VolumeInfo("v2", driver="disk")
    state.storage.limits[NodeName("n")] = {"disk": 1}
    assert not list(violations(state, bind(("p", "n"))))
    assert "attaches 1 volumes" in next(violations(state, bind(("p", "n"), ("q", "n"))))


def test_incomplete_subgroup_is_a_violation() -> None:
    rule = SubgroupRule(
        "s", Selector(), size=2, min_subgroups=1, keys=("k",), network=NetworkTopologyRule(tier=1)
    )
    members = [pod(f"{k}{i}", group="g", labels=(("k", k),)) for k in "ab" for i in range(2)]
    state = cluster(node("n"), node("m"), group("g", subgroups=(rule,)), *members)
    for name in ("n", "m"):
        domain = HyperNodeInfo(f"s-{name}", 1, members=(HyperNodeMemberInfo(False, exact=name),))
        state.nodes.set_hypernode(domain)

    def faults(*put: tuple[str, str]) -> str:
        return " ".join(violations(state, bind(*put, group="g")))

    assert "1 of 2 pods of s ('a',)" in faults(("a0", "n"))
    assert "0 of 1 subgroups" in faults(("a0", "n"), ("b0", "n"))
    assert "no allowed domain holds" in faults(("a0", "n"), ("a1", "m"))
    assert not faults(("a0", "n"), ("a1", "n"), ("b0", "m"), ("b1", "m"))


def test_unusable_node_groups_add_no_fair_share() -> None:
    """Of eight processors, four are behind a taint: half of the rest is two, which q2 uses."""
    tainted = node("t", cpu=4, taints=(TaintInfo("team", "x", "NoSchedule"),))
    queues = (QueueInfo("q1"), QueueInfo("q2"))
    state = cluster(
        node("n", cpu=4),
        tainted,
        *queues,
        group("has", 1, queue="q2"),
        *(pod(f"has-{i}", group="has", on="n") for i in range(4)),
        group("wants", 3, queue="q1"),
        *(pod(f"wants-{i}", group="wants") for i in range(3)),
    )
    assert QueueOracle(state).figures["q1"].fair_share["cpu"] == pytest.approx(2000)
    tolerating = PlacementConstraints(tolerations=(TolerationInfo("team", "Exists"),))
    state.set_pod(pod("guest", constraints=tolerating))
    assert QueueOracle(state).figures["q1"].fair_share["cpu"] == pytest.approx(3000)
