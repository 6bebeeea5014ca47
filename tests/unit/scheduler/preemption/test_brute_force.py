"""Victims of small clusters, compared with all sets of gangs that might be evicted."""

from collections.abc import Iterable, Iterator
from dataclasses import replace as with_fields
from itertools import combinations, product
from random import Random

import pytest
from msgspec.structs import replace

from gangline.api.meta.selectors import Requirement, Selector
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.types import (
    DisruptionBudgetInfo,
    InterPodRules,
    NodeInfo,
    PlacementConstraints,
    PodGroupInfo,
    PodInfo,
    PodKey,
    PodTerm,
    QueueInfo,
    shape_of,
)
from unit.scheduler.builders import checked_cycle, cluster, decide, group, node, pod, request

COUNT = 12
"""Number of clusters in a test."""
PARTS = 6
PART_OF_SEEDS = [range(start, start + COUNT) for start in range(0, PARTS * COUNT, COUNT)]
WEB = (("app", "web"),)
BUDGET = DisruptionBudgetInfo("d/web", "d", Selector((Requirement("app", "=", ("web",)),)), 2)

Facts = NodeInfo | PodInfo | PodGroupInfo | QueueInfo


class SmallCluster:
    """A full cluster of a few gangs, and one gang of higher priority that waits."""

    def __init__(self, seed: int, reclaims: bool = False) -> None:
        random = Random(seed)
        self.nodes = [
            node(f"n{index}", cpu=random.randint(2, 4), gpu=random.choice([0, 2]))
            for index in range(random.randint(2, 4))
        ]
        self.queues = [
            QueueInfo("qa", deserved=request(cpu=random.randint(2, 5), pods=0)),
            QueueInfo("qb", weight=random.randint(1, 3)),
        ]
        self.gangs: dict[str, list[PodInfo]] = {}
        self.groups: list[PodGroupInfo] = []
        free = {str(each.name): dict(each.allocatable) for each in self.nodes}
        for number in range(random.randint(2, 5)):
            self._run_gang(random, number, free, reclaims)
        self.waiting = [
            pod("high-0", cpu=random.randint(1, 4), gpu=random.choice([0, 0, 1]), group="high")
        ]
        for index in range(1, random.randint(1, 3)):
            request_of = {"cpu": random.randint(1, 3), "gpu": random.choice([0, 0, 1])}
            self.waiting.append(pod(f"high-{index}", group="high", **request_of))  # type: ignore[arg-type]

    def _run_gang(
        self, random: Random, number: int, free: dict[str, dict[str, int]], reclaims: bool
    ) -> None:
        name, cpu, gpu = f"g{number}", random.randint(1, 2), random.choice([0, 0, 1])
        members = []
        for index in range(random.randint(1, 3)):
            asked = dict(request(cpu=cpu, gpu=gpu))
            fitting = [
                host
                for host, left in free.items()
                if all(left.get(n, 0) >= a for n, a in asked.items())
            ]
            if fitting:
                host = random.choice(fitting)
                free[host] = {n: a - asked.get(n, 0) for n, a in free[host].items()}
                labels = random.choice([(), (), WEB])
                key = f"{name}-{index}"
                members.append(pod(key, cpu=cpu, gpu=gpu, group=name, on=host, labels=labels))
        if members:
            self.gangs[name] = members
            queue = random.choice(["qa", "qb"]) if reclaims else "default"
            self.groups.append(group(name, len(members), queue=queue))

    def facts(self, queue: str, without: Iterable[str] = (), priority: int = 9) -> list[Facts]:
        """Return the cluster without some gangs; queue and priority are of the waiting gang."""
        gone = set(without)
        running = [each for name, pods in self.gangs.items() if name not in gone for each in pods]
        high = group("high", len(self.waiting), priority=priority, queue=queue)
        return [*self.nodes, *self.queues, *self.groups, high, *running, *self.waiting]

    def fits_without(self, gangs: Iterable[str], queue: str) -> bool:
        """Return whether the waiting gang is placed once these gangs have ended."""
        # Of the same priority it searches for no victims, which takes most of a cycle.
        return bool(decide(cluster(*self.facts(queue, gangs, priority=0))).bindings)

    def broken_gangs(self, queue: str, budget: bool = False) -> set[str]:
        state = cluster(*self.facts(queue))
        if budget:
            state.budgets[BUDGET.key] = BUDGET
        return {str(e.group).removeprefix("d/") for e in checked_cycle(state).evictions}

    def keeps_budget(self, gangs: Iterable[str]) -> bool:
        pods = [each for name in gangs for each in self.gangs[name]]
        return sum(each.labels == WEB for each in pods) <= BUDGET.allowed


@pytest.mark.parametrize("budget", [False, True], ids=["no budget", "a budget"])
@pytest.mark.parametrize("seeds", PART_OF_SEEDS, ids=str)
def test_sufficient_victims_are_found_and_none_is_needless(seeds: range, budget: bool) -> None:
    evicting = 0
    for seed in seeds:
        small = SmallCluster(seed)
        if small.fits_without((), "default"):
            continue
        chosen = small.broken_gangs("default", budget)
        sets = [
            set(gangs)
            for size in range(1, len(small.gangs) + 1)
            for gangs in combinations(small.gangs, size)
            if not budget or small.keeps_budget(gangs)
        ]
        sufficient = [gangs for gangs in sets if small.fits_without(gangs, "default")]
        assert bool(chosen) == bool(sufficient), seed
        if chosen:
            evicting += 1
            assert chosen in sufficient, seed
            assert not [gangs for gangs in sufficient if gangs < chosen], seed
            assert len(chosen) == min(map(len, sufficient)), seed
    assert evicting > 1


@pytest.mark.parametrize("seeds", PART_OF_SEEDS, ids=str)
def test_no_gang_of_another_queue_is_needless(seeds: range) -> None:
    evicting = 0
    for seed in seeds:
        small = SmallCluster(seed, reclaims=True)
        for queue in ("qa", "qb"):
            chosen = small.broken_gangs(queue)
            evicting += bool(chosen)
            for gang in chosen:
                assert not small.fits_without(chosen - {gang}, queue), seed
    assert evicting > 1


HOST = "kubernetes.io/hostname"
AVOIDS_WEB = PlacementConstraints(
    inter_pod=InterPodRules(
        anti_affinity=(PodTerm(Selector((Requirement("app", "=", ("web",)),)), HOST),)
    )
)
ELASTIC_SEEDS = [range(start, start + 10) for start in range(0, 40, 10)]


class ElasticCluster:
    """A small cluster in which some gangs may shrink, and one of high priority waits."""

    def __init__(self, seed: int, avoids: bool) -> None:
        random = Random(seed)
        small = SmallCluster(seed)
        self.nodes = [with_fields(each, labels=((HOST, str(each.name)),)) for each in small.nodes]
        self.gangs = small.gangs
        self.minimum = {
            name: random.randint(1, len(pods)) if random.random() < 0.7 else len(pods)
            for name, pods in self.gangs.items()
        }
        self.waiting = small.waiting
        if avoids:
            self.waiting = [
                replace(each, shape=shape_of(each.shape.request, AVOIDS_WEB))
                for each in small.waiting
            ]

    def state(self, gone: Iterable[PodKey] = (), priority: int = 9) -> SchedulerCache:
        left = {each.key: each for pods in self.gangs.values() for each in pods}
        for key in gone:
            del left[key]
        return cluster(
            *self.nodes,
            *(group(name, minimum) for name, minimum in self.minimum.items()),
            group("high", len(self.waiting), priority=priority),
            *left.values(),
            *self.waiting,
        )

    def fits_without(self, gone: Iterable[PodKey]) -> bool:
        """Return whether the waiting gang is placed once these pods have ended."""
        return bool(decide(self.state(gone, priority=0)).bindings)

    def units(self, evicted: set[PodKey]) -> tuple[set[str], list[set[PodKey]]]:
        """Return the broken gangs, and what is evicted as gangs and as single pods."""
        broken, units = set(), []
        for name, pods in self.gangs.items():
            gone = {each.key for each in pods} & evicted
            if len(pods) - len(gone) >= self.minimum[name]:
                units += [{key} for key in gone]
            else:
                assert len(gone) == len(pods), "a broken gang is evicted completely"
                broken.add(name)
                units.append(gone)
        return broken, units

    def shrunk(self, broken: Iterable[str]) -> Iterator[set[PodKey]]:
        """Yield all ways to break these gangs and to shrink all others to their minimum."""
        whole = {each.key for name in broken for each in self.gangs[name]}
        ways: list[list[tuple[PodInfo, ...]]] = [
            list(combinations(pods, len(pods) - self.minimum[name]))
            for name, pods in self.gangs.items()
            if name not in broken
        ]
        for chosen in product(*ways):
            yield whole | {each.key for part in chosen for each in part}

    def fewest_broken(self) -> int | None:
        """Return the least number of broken gangs that is sufficient; None: none is."""
        for count in range(len(self.gangs) + 1):
            for broken in combinations(self.gangs, count):
                if any(self.fits_without(gone) for gone in self.shrunk(broken)):
                    return count
        return None


@pytest.mark.parametrize("avoids", [False, True], ids=["any node", "away from others"])
@pytest.mark.parametrize("seeds", ELASTIC_SEEDS, ids=str)
def test_gangs_shrink_before_any_is_broken_and_none_ends_in_vain(
    seeds: range, avoids: bool
) -> None:
    evicting = needless = 0
    for seed in seeds:
        small = ElasticCluster(seed, avoids)
        if small.fits_without(()):
            continue
        evicted = {each.pod for each in checked_cycle(small.state()).evictions}
        fewest = small.fewest_broken()
        assert bool(evicted) == (fewest is not None), seed
        if fewest is None:
            continue
        evicting += 1
        broken, units = small.units(evicted)
        assert small.fits_without(evicted), seed
        needless += len(broken) - fewest
        for unit in units:
            assert not small.fits_without(evicted - unit), seed
    assert evicting
    assert needless <= 1, "the search is not exhaustive: now and then it breaks one gang more"
