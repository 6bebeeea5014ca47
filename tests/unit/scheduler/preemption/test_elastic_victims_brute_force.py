"""Victims of small clusters whose gangs may shrink, and of pods that avoid others."""

from collections.abc import Iterable, Iterator
from dataclasses import replace as with_fields
from itertools import combinations, product
from random import Random

import pytest
from msgspec.structs import replace

from gangline.api.meta.selectors import Requirement, Selector
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.types.types import (
    InterPodRules,
    PlacementConstraints,
    PodInfo,
    PodKey,
    PodTerm,
    shape_of,
)
from unit.scheduler.builders import checked_cycle, cluster, decide, group
from unit.scheduler.preemption.test_victim_sets_brute_force import SmallCluster

HOST = "kubernetes.io/hostname"
AVOIDS_WEB = PlacementConstraints(
    inter_pod=InterPodRules(
        anti_affinity=(PodTerm(Selector((Requirement("app", "=", ("web",)),)), HOST),)
    )
)
PARTS = [range(start, start + 10) for start in range(0, 80, 10)]


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

    def state(self, gone: Iterable[PodKey] = ()) -> SchedulerCache:
        left = {each.key: each for pods in self.gangs.values() for each in pods}
        for key in gone:
            del left[key]
        return cluster(
            *self.nodes,
            *(group(name, minimum) for name, minimum in self.minimum.items()),
            group("high", len(self.waiting), priority=9),
            *left.values(),
            *self.waiting,
        )

    def fits_without(self, gone: Iterable[PodKey]) -> bool:
        """Return whether the waiting gang is placed once these pods have ended."""
        return bool(decide(self.state(gone)).bindings)

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
@pytest.mark.parametrize("seeds", PARTS, ids=str)
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
