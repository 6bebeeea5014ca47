"""Victims that only a part of the search finds: each way, the prefix, and the choice of nodes."""

import pytest

from gangline.api.meta.selectors import parse_label_selector
from gangline.scheduler.types.types import (
    DisruptionBudgetInfo,
    HyperNodeInfo,
    HyperNodeMemberInfo,
    InterPodRules,
    NetworkTopologyRule,
    NodeInfo,
    PlacementConstraints,
    PodGroupInfo,
    PodInfo,
    PodTerm,
    QueueInfo,
    SubgroupRule,
)
from unit.scheduler.builders import checked_cycle, cluster, group, node, pod, request

NOW = 10_000.0
Facts = NodeInfo | PodInfo | PodGroupInfo | QueueInfo


def runs(
    name: str, *on: str, cost: float = 0, queue: str = "default", minimum: int = 0, **facts: object
) -> list[Facts]:
    """A gang whose pods run on these nodes; ``cost`` are the seconds that its end would lose."""
    asked = {"cpu": 1, **facts}
    return [
        group(name, minimum or len(on), queue=queue),
        *(
            pod(f"{name}-{n}", group=name, on=host, started_at=NOW - cost, **asked)  # type: ignore[arg-type]
            for n, host in enumerate(on)
        ),
    ]


def wants(*cpus: float, queue: str = "default", **facts: object) -> list[Facts]:
    """A gang of high priority with a pod for each of these amounts."""
    of_group = {"subgroups": facts.pop("subgroups", ())}
    members = [
        pod(f"wants-{n}", cpu=cpu, group="wants", **facts)  # type: ignore[arg-type]
        for n, cpu in enumerate(cpus)
    ]
    return [group("wants", len(cpus), priority=9, queue=queue, **of_group), *members]


def evicted(*facts: Facts | list[Facts], budget: str = "") -> dict[str, int]:
    """Return the number of evicted pods of each gang."""
    listed = [each for part in facts for each in (part if isinstance(part, list) else [part])]
    state = cluster(*listed)
    if budget:
        state.budgets["d/b"] = DisruptionBudgetInfo("d/b", "d", parse_label_selector(budget), 1)
    names = [str(each.group).removeprefix("d/") for each in checked_cycle(state, NOW).evictions]
    return {name: names.count(name) for name in sorted(set(names))}


def nodes(cpu: float, *names: str, **facts: object) -> list[Facts]:
    return [node(name, cpu=cpu, **facts) for name in names]  # type: ignore[arg-type]


def test_few_gangs_that_free_much_are_broken_rather_than_many_cheap_ones() -> None:
    assert evicted(
        nodes(2, "n0", "n1"),
        nodes(1, "n2", "n3", "n4", "n5"),
        runs("a", "n0", "n0", cost=90),
        runs("b", "n1", "n1", cost=90),
        *(runs(f"small{n}", f"n{n + 2}", cost=1) for n in range(4)),
        wants(1, 1, 1, 1),
    ) == {"a": 2, "b": 2}


def test_cheap_gangs_are_broken_if_they_are_not_more() -> None:
    assert evicted(
        nodes(2, "n0"),
        nodes(1, "n1", "n2"),
        runs("a", "n0", cost=90, cpu=2),
        *(runs(f"small{n}", f"n{n + 1}", cost=n + 1) for n in range(2)),
        wants(1),
    ) == {"small0": 1}


def test_limit_is_eased_first_where_a_budget_allows_one_victim() -> None:
    """The cheapest victim on a node would use the budget that the queue's own victim needs."""
    covered = (("app", "covered"),)
    assert evicted(
        nodes(4, "n0", "n1", "n2", gpu=1),
        QueueInfo("q", capability=request(cpu=2, pods=0), deserved=request(gpu=2, pods=0)),
        runs("own", "n0", cost=50, queue="q", labels=covered),
        runs("x", "n0", cost=1, gpu=1, labels=covered),
        runs("y", "n1", cost=90, gpu=1),
        runs("z", "n2", cost=95, gpu=1),
        wants(1, 1, gpu=1, queue="q"),
        budget="app=covered",
    ) == {"own": 1, "y": 1, "z": 1}


PARTS = SubgroupRule(
    "parts", parse_label_selector("part"), 2, 1, ("part",), NetworkTopologyRule(True, 1)
)


@pytest.mark.parametrize("near", [("n0", "n1"), ("n2", "n3")])
def test_subgroup_gets_the_cheapest_prefix_that_holds_it_and_no_more(near: tuple[str, str]) -> None:
    """The cheapest victims of all are in several domains, where the subgroup is not complete."""
    state = cluster(
        *nodes(1, "n0", "n1", "n2", "n3"),  # type: ignore[arg-type]
        *(
            each
            for cost, host in enumerate((near[0], *({"n0", "n2"} - set(near)), near[1]))
            for each in runs(host, host, cost=cost + 1)
        ),
        *runs("last", *({"n1", "n3"} - set(near)), cost=99),
        *wants(1, 1, labels=(("part", "0"),), subgroups=(PARTS,)),
    )
    for name, members in (("s0", ("n0", "n1")), ("s1", ("n2", "n3"))):
        exact = tuple(HyperNodeMemberInfo(False, exact=each) for each in members)
        state.nodes.set_hypernode(HyperNodeInfo(name, 1, members=exact))
    found = checked_cycle(state, NOW)
    assert sorted(str(each.group) for each in found.evictions) == [f"d/{each}" for each in near]


def test_node_that_lacks_least_is_searched_among_many_with_cheaper_gangs() -> None:
    """One gang is broken on the last node, two on each of the others."""
    many = [f"n{n:03}" for n in range(140)]
    assert evicted(
        nodes(2, *many, "z"),
        *(runs(f"{host}-{n}", host, cost=1) for host in many for n in range(2)),
        runs("last", "z", cost=99),
        wants(2),
    ) == {"last": 1}


def test_spare_pods_of_a_gang_are_not_counted_twice() -> None:
    """On the first node the two cheap gangs and a third have to end, on the other one two."""
    assert evicted(
        nodes(6, "n0"),
        nodes(5, "n1"),
        runs("elastic", "n0", "n0", "n0", cost=1, minimum=1),
        runs("c", "n0", cost=1),
        runs("d", "n0", cost=1),
        pod("kept", on="n0", preemptable=False),
        runs("large", "n1", cost=99, cpu=3),
        runs("small", "n1", cost=99, cpu=2),
        wants(5),
    ) == {"large": 1, "small": 1}


def test_spare_pods_go_before_their_gang_is_broken() -> None:
    assert evicted(nodes(4, "n0"), runs("elastic", *["n0"] * 4, minimum=3), wants(1)) == {
        "elastic": 1
    }
    assert evicted(nodes(4, "n0"), runs("elastic", *["n0"] * 4, minimum=3), wants(1, 1)) == {
        "elastic": 4
    }


def test_of_spare_pods_that_are_alike_one_of_each_role_is_tried() -> None:
    """The first role is at its minimum once one of its pods has gone."""
    roles = ("ps", "ps", "worker", "worker")
    members = [
        pod(f"e-{n}", group="e", on="n0", role=role, age=9 - n, started_at=NOW - 1)
        for n, role in enumerate(roles)
    ]
    minimum = group("e", 2, min_task_member=(("ps", 1), ("worker", 1)))
    state = cluster(node("n0", cpu=4), minimum, *members, *wants(2))  # type: ignore[arg-type]
    assert sorted(each.pod for each in checked_cycle(state, NOW).evictions) == ["d/e-0", "d/e-2"]


def test_gang_whose_eviction_frees_nothing_that_lacks_is_spared() -> None:
    """Memory suffices: of three gangs on the node the one with the processors ends."""
    assert evicted(
        nodes(4, "n0", memory=8),
        runs("memory0", "n0", cost=0, cpu=0, memory=2),
        runs("memory1", "n0", cost=0, cpu=0, memory=2),
        runs("cpu", "n0", cost=99, cpu=4),
        wants(4),
    ) == {"cpu": 1}


def test_free_room_of_a_node_is_used_beside_its_victims() -> None:
    assert evicted(
        nodes(4, "n0", "n1"),
        runs("a", "n0", cost=9),
        runs("b", "n0", cost=1, cpu=2),
        runs("c", "n1", cost=5, cpu=4),
        wants(3),
    ) == {"b": 1}


def test_pods_of_two_shapes_each_get_their_victims() -> None:
    assert evicted(
        nodes(4, "n0", gpu=2),
        nodes(4, "n1"),
        runs("device", "n0", cost=9, gpu=2),
        runs("processors", "n1", cost=9, cpu=4),
        runs("idle", "n0", cost=1, cpu=1),
        [
            group("wants", 2, priority=9),
            pod("wants-0", cpu=1, gpu=1, group="wants"),
            pod("wants-1", cpu=4, group="wants"),
        ],
    ) == {"device": 1, "processors": 1}


def test_blockers_end_on_the_node_where_they_cost_least() -> None:
    """Anti-affinity to the pods of both nodes, of which one also has too little room."""
    noise = PodTerm(parse_label_selector("app=noisy"), "kubernetes.io/hostname")
    where = PlacementConstraints(inter_pod=InterPodRules(anti_affinity=(noise,)))
    hosts = [
        node(name, cpu=4, labels={"kubernetes.io/hostname": name}) for name in ("n0", "n1", "n2")
    ]
    noisy = (("app", "noisy"),)
    assert evicted(
        *hosts,
        runs("one", "n0", cost=9, labels=noisy),
        runs("two", "n1", cost=1, labels=noisy),
        runs("room", "n1", cost=1, cpu=3),
        runs("three", "n2", cost=10, labels=noisy),
        wants(2, constraints=where),
    ) == {"one": 1}


def test_cheapest_victims_of_all_domains_of_a_tier_are_taken() -> None:
    """The cheapest gang of all is in the other domain, and would use up the budget."""
    covered = (("app", "covered"),)
    state = cluster(
        *nodes(2, "n0", "n1", "n2", "n3"),  # type: ignore[arg-type]
        *runs("dear", "n0", "n1", cost=90, cpu=1.5),
        *runs("tiny", "n0", cost=1, cpu=0.5, labels=covered),
        *runs("cheap", "n2", "n3", cost=9, cpu=1.5, labels=covered),
        group("wants", 2, priority=9, network=NetworkTopologyRule(True, 1)),
        *(pod(f"wants-{n}", cpu=1.5, group="wants") for n in range(2)),
    )
    state.budgets["d/b"] = DisruptionBudgetInfo("d/b", "d", parse_label_selector("app=covered"), 2)
    for name, members in (("s0", ("n0", "n1")), ("s1", ("n2", "n3"))):
        exact = tuple(HyperNodeMemberInfo(False, exact=each) for each in members)
        state.nodes.set_hypernode(HyperNodeInfo(name, 1, members=exact))
    found = checked_cycle(state, NOW).evictions
    assert {str(each.group) for each in found} == {"d/cheap"}


def test_cheapest_gang_is_found_among_many_nodes_that_lack_as_much() -> None:
    many = [f"n{n:03}" for n in range(200)]
    assert evicted(
        nodes(1, *many),
        *(runs(host, host, cost=300 - n) for n, host in enumerate(many)),
        wants(1),
    ) == {"n199": 1}


def test_higher_priorities_are_searched_if_the_lowest_sufficient_ones_may_not_go() -> None:
    """``a`` and ``b`` would be enough, and the budget lets only one of them go."""

    def one(name: str, priority: int, on: str, cpu: int) -> list[Facts]:
        labels = (("app", name),)
        return [
            group(name, 1, priority=priority),
            pod(f"{name}-0", cpu=cpu, group=name, on=on, labels=labels),
        ]

    assert evicted(
        nodes(2, "n0", "n1", "n2"),
        one("a", 0, "n0", 1),
        one("b", 1, "n0", 1),
        one("c", 2, "n1", 2),
        one("d", 3, "n2", 2),
        wants(2),
        budget="app in (a, b)",
    ) == {"c": 1}
