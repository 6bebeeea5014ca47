"""Task topology and network topology of gangs."""

from collections import Counter, defaultdict

import msgspec
import pytest

from gangline.api.volcano.scheduling import PodGroup
from gangline.api.volcano.topology import HyperNode
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import group_info, hypernode_info
from gangline.scheduler.cache.node_table import topology_domains
from gangline.scheduler.plugins.task_topology import parse_role_affinity
from gangline.scheduler.types import (
    CycleResult,
    HyperNodeInfo,
    HyperNodeMemberInfo,
    NetworkTopologyRule,
    NodeInfo,
    PodGroupInfo,
    PodInfo,
    RoleAffinity,
)
from unit.scheduler.builders import checked_cycle as decide
from unit.scheduler.builders import cluster, group, node, pod


def roles_by_node(decision: CycleResult) -> dict[str, Counter[str]]:
    """Return the number of pods of each role on each node."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for binding in decision.bindings:
        found[binding.node][binding.pod.removeprefix("d/").rstrip("0123456789-")] += 1
    return dict(found)


def ps_job(servers: int = 2, workers: int = 4, **facts: object) -> list[PodGroupInfo | PodInfo]:
    pods = [pod(f"ps-{i}", group="job", role="ps") for i in range(servers)]
    pods += [pod(f"worker-{i}", group="job", role="worker") for i in range(workers)]
    return [group("job", servers + workers, **facts), *pods]


PAIR = Counter(ps=1, worker=2)


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((3, 3), id="two nodes just large enough"),
        pytest.param((4, 4), id="two nodes with room to spare"),
        pytest.param((8, 8, 8), id="nodes that would take all"),
        pytest.param((3, 6, 2), id="nodes of all sizes"),
    ],
)
def test_two_servers_and_four_workers_share_nodes_evenly(sizes: tuple[int, ...]) -> None:
    nodes = [node(f"n{index}", cpu=cpu) for index, cpu in enumerate(sizes)]
    found = roles_by_node(decide(cluster(*nodes, *ps_job())))
    assert sorted(found.values(), key=str) == [PAIR, PAIR]


def test_the_wish_to_share_is_no_reason_to_wait() -> None:
    nodes = [node(f"n{index}", cpu=2) for index in range(3)]
    assert len(decide(cluster(*nodes, *ps_job())).bindings) == 6


def test_a_wish_that_only_a_part_can_have_leaves_nothing_half_done() -> None:
    # One server finds a node for itself and two workers, the other one does not.
    nodes = [node(f"n{index}", cpu=cpu) for index, cpu in enumerate((3, 2, 1))]
    decision = decide(cluster(*nodes, *ps_job()))
    assert len({binding.pod for binding in decision.bindings}) == len(decision.bindings) == 6


def test_workers_that_wish_to_be_together_share_a_node() -> None:
    wished = RoleAffinity(affinity=(("worker",),))
    # Packing alone would fill the half-used node first.
    state = cluster(
        node("a", cpu=4),
        node("b", cpu=4),
        pod("there", cpu=1, on="a"),
        *ps_job(0, 4, role_affinity=wished),
    )
    assert roles_by_node(decide(state)) == {"b": Counter(worker=4)}


def test_pods_that_wish_to_be_apart_are_spread() -> None:
    wished = RoleAffinity(anti_affinity=(("ps",),))
    state = cluster(*(node(f"n{i}") for i in range(3)), *ps_job(3, 0, role_affinity=wished))
    assert len(roles_by_node(decide(state))) == 3


def test_roles_that_avoid_each_other_get_different_nodes() -> None:
    wished = RoleAffinity(affinity=(("ps",), ("worker",)), anti_affinity=(("ps", "worker"),))
    state = cluster(node("a"), node("b"), *ps_job(2, 4, role_affinity=wished))
    assert sorted(roles_by_node(decide(state)).values(), key=str) == [
        Counter(ps=2),
        Counter(worker=4),
    ]


def test_annotations_are_read() -> None:
    assert parse_role_affinity("ps,worker; chief ,", "ps") == RoleAffinity(
        (("ps", "worker"), ("chief",)), (("ps",),)
    )
    assert parse_role_affinity("", " ; ,") is None
    raw = {
        "metadata": {
            "name": "g",
            "namespace": "d",
            "annotations": {"volcano.sh/task-topology-affinity": "ps,worker"},
        },
        "spec": {"networkTopology": {"mode": "soft", "highestTierAllowed": 2}},
    }
    facts = group_info(msgspec.convert(raw, PodGroup), {})
    assert facts.role_affinity == RoleAffinity((("ps", "worker"),))
    assert facts.network == NetworkTopologyRule(hard=False, tier=2)


def leaf(name: str, *nodes: str) -> HyperNodeInfo:
    return HyperNodeInfo(name, 1, "rack", tuple(HyperNodeMemberInfo(False, exact=n) for n in nodes))


def above(name: str, tier: int, *below: str) -> HyperNodeInfo:
    return HyperNodeInfo(name, tier, "", tuple(HyperNodeMemberInfo(True, exact=n) for n in below))


TREE = [
    leaf("s0", "n0", "n1"),
    leaf("s1", "n2", "n3"),
    leaf("s2", "n4", "n5"),
    leaf("s3", "n6", "n7"),
    above("s4", 2, "s0", "s1"),
    above("s5", 2, "s2", "s3"),
    above("s6", 3, "s4", "s5"),
]


def racks(*things: NodeInfo | PodInfo | PodGroupInfo) -> SchedulerCache:
    """Eight nodes of 8 cpu in four racks, two of which share a switch each."""
    state = cluster(*(node(f"n{index}", cpu=8) for index in range(8)), *things)
    for hypernode in TREE:
        state.nodes.set_hypernode(hypernode)
    return state


def near(size: int, cpu: float, **rule: object) -> list[PodGroupInfo | PodInfo]:
    rule_of = NetworkTopologyRule(**rule)  # type: ignore[arg-type]
    pods = [pod(f"j-{i}", cpu=cpu, group="job", age=9) for i in range(size)]
    return [group("job", size, age=9, network=rule_of), *pods]


def nodes_of(decision: CycleResult) -> set[str]:
    return {str(binding.node) for binding in decision.bindings}


def test_pods_beyond_the_minimum_stay_near_the_others() -> None:
    state = racks(*near(6, 5, tier=1))
    state.set_group(group("job", 1, age=9, network=NetworkTopologyRule(tier=1)))
    decision = decide(state)
    assert nodes_of(decision) == {"n0", "n1"}
    assert len(decision.bindings) == 2


def test_a_tier_may_be_given_by_name() -> None:
    assert not decide(racks(*near(3, 5, tier_name="rack"))).bindings


def test_domains_are_read_and_may_even_go_round_in_circles() -> None:
    raw = {
        "metadata": {"name": "s0"},
        "spec": {
            "tier": 1,
            "members": [
                {"type": "Node", "selector": {"regexMatch": {"pattern": "^n[01]$"}}},
                {"type": "Node", "selector": {"labelMatch": {"matchLabels": {"rack": "r"}}}},
                {"type": "HyperNode", "selector": {"exactMatch": {"name": "s1"}}},
                {"type": "Node", "selector": {"regexMatch": {"pattern": "("}}},
            ],
        },
    }
    first = hypernode_info(msgspec.convert(raw, HyperNode))
    circle = {"s0": first, "s1": above("s1", 2, "s0")}
    nodes = [node("n0"), node("n5"), node("other", labels={"rack": "r"}), None]
    found = topology_domains(circle, nodes)
    assert [domain.name for domain in found] == ["s0", "s1"]
    assert found[0].rows.tolist() == [True, False, True, False]


def test_servers_and_their_workers_share_a_rack_where_no_node_takes_them_together() -> None:
    state = cluster(*(node(f"n{i}", cpu=2) for i in range(4)), group("job", 6))
    for name, members in (("r1", ("n0", "n2")), ("r2", ("n1", "n3"))):
        state.nodes.set_hypernode(leaf(name, *members))
    for role, count in (("ps", 2), ("worker", 4)):
        for index in range(count):
            state.set_pod(pod(f"{role}-{index}", group="job", role=role))
    racks = {"n0": "r1", "n2": "r1", "n1": "r2", "n3": "r2"}
    where = {binding.pod: racks[binding.node] for binding in decide(state).bindings}
    assert where["d/ps-0"] != where["d/ps-1"]
    for server, workers in (("d/ps-0", (0, 2)), ("d/ps-1", (1, 3))):
        assert {where[f"d/worker-{index}"] for index in workers} == {where[server]}  # type: ignore[index]


def test_servers_and_their_workers_stay_in_the_domain_of_the_running_member() -> None:
    """No node takes them together, and the other rack would be the first to be tried."""
    chief = pod("chief", cpu=0, group="job", role="chief", on="n3")
    near = NetworkTopologyRule(tier=1)
    nodes = [node(f"n{i}", cpu=2) for i in range(4)]
    state = cluster(*nodes, *ps_job(1, 2), group("job", 4, network=near), chief)
    for name, members in (("r1", ("n0", "n1")), ("r2", ("n2", "n3"))):
        state.nodes.set_hypernode(leaf(name, *members))
    assert nodes_of(decide(state)) == {"n2", "n3"}
