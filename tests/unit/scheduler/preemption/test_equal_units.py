"""Units of one gang that free equal amounts are tried once, unless rules or budgets differ."""

from gangline.api.meta.selectors import Requirement, Selector, parse_label_selector
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.placement.scratch import ScratchAllocation
from gangline.scheduler.preemption.clearing import Clearing
from gangline.scheduler.preemption.rights import EvictionRights, EvictionTally, ReclaimState
from gangline.scheduler.preemption.row_search import RowSearch, Selection
from gangline.scheduler.preemption.running_gangs import known_gangs
from gangline.scheduler.preemption.victim_sets import eviction_units, pods_to_evict
from gangline.scheduler.queueing.queue_tree import QueueTree
from gangline.scheduler.types.types import (
    DisruptionBudgetInfo,
    NodeName,
    PodInfo,
    PodKey,
    SubgroupRule,
)
from unit.scheduler.builders import cluster, group, node, pod


def cheapest_victims(state: SchedulerCache, claimant: PodInfo) -> list[str]:
    """Return the cheapest units on the node ``n`` that make the claimant fit there."""
    scratch, tree = ScratchAllocation(state.nodes), QueueTree.of(state)
    asked = tree.request_vector(claimant.shape.request)
    rights = EvictionRights(ReclaimState(tree), "default", asked, state.budgets)
    gangs = [known.gang for _, known in known_gangs(state) if known.gang is not None]
    units = [unit for gang in gangs for unit in eviction_units(gang, 0, 0.0)]
    units.sort(key=lambda unit: unit.order)
    search = RowSearch(Clearing(state, scratch, ()), rights, units)
    chosen = Selection([], set[PodKey](), EvictionTally())
    found = search.option(scratch, chosen, claimant, state.nodes.rows[NodeName("n")])
    assert found is not None
    return [each.key.removeprefix("d/") for each in pods_to_evict(found.units)]


def rule(label: str, minimum: int) -> SubgroupRule:
    selector = Selector((Requirement(label, "exists"),))
    return SubgroupRule(label, selector, 2, minimum, (label,))


def pair(label: str, number: int, cpu: float = 0.5) -> list[PodInfo]:
    return [
        pod(f"{label}{number}-{n}", cpu=cpu, group="low", on="n", labels=((label, str(number)),))
        for n in range(2)
    ]


def test_equal_subgroups_of_another_rule_are_tried() -> None:
    pods = [*pair("a", 0), *pair("a", 1), *pair("b", 0)]
    low = group("low", 2, subgroups=(rule("a", 1), rule("b", 0)))
    claimant = pod("high", cpu=2)
    state = cluster(node("n", cpu=3), low, *pods, claimant)
    assert cheapest_victims(state, claimant) == ["a0-0", "a0-1", "b0-0", "b0-1"]


def test_equal_pods_that_a_budget_does_not_cover_are_tried() -> None:
    covered = [pod(f"low-{n}", group="low", on="n", labels=(("app", "low"),)) for n in range(2)]
    claimant, last = pod("high", cpu=2), pod("low-2", group="low", on="n")
    state = cluster(node("n", cpu=3), group("low", 1), *covered, last, claimant)
    selector = parse_label_selector("app=low")
    state.budgets["d/keep"] = DisruptionBudgetInfo("d/keep", "d", selector, allowed=1)
    assert cheapest_victims(state, claimant) == ["low-0", "low-2"]
