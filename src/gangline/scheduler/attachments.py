"""How many volumes a node can attach, by storage driver, as resources of nodes. Pure.

Nodes say so in their CSINode. A claim that one pod uses takes one of these places. A claim that
several use takes one on each of their nodes, however many of them are there: such a claim is a
resource of its own (see ``shared_places``). What pods without a gang use is taken to be used for
ever, so that places of gangs that will end can be planned for who waits.
"""

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

from gangline.scheduler.demand import Stock
from gangline.scheduler.model import ATTACHED, NodeName, PodFacts, Request
from gangline.scheduler.shared_places import ATTACHED_THERE, Taking, pods_taken
from gangline.scheduler.storage import AttachedThere, ClaimFacts, Needs, Storage

UNLIMITED = Stock(ATTACHED_THERE)
"""Of whoever states no limit, as in Kubernetes."""


def needs_of(storage: Storage, pod: PodFacts) -> Needs:
    """Return what the claims of a pod that waits ask of its node."""
    needs = storage.needs(pod)
    if not storage.limits or not pod.claims:
        return needs
    return replace(needs, request=tuple(sorted((*needs.request, *_places(storage, pod)))))


def stocks(
    storage: Storage, pod: PodFacts, nodes: Iterable[NodeName], known: Container[str] = ()
) -> dict[str, dict[NodeName, Stock]]:
    """Count on each node the places that a pod takes, by resource, but for those that are known."""
    listed = list(nodes)
    taken = [_Place.read(name) for name, _ in _places(storage, pod)]
    taken += [_Place(place.driver) for place in taken]
    found: dict[str, dict[NodeName, Stock]] = {}
    for place in taken:
        name = str(place)
        if name not in known and name not in found:
            attached = _attached(storage, place.driver)
            found[name] = {node: _stock(attached.get(node), place) for node in listed}
    return found


def takings(names: Iterable[str], columns: Mapping[str, int]) -> dict[int, Taking]:
    """Say what columns stand for that depend on places.

    Args:
        names: resources, of which some are such.
        columns: the column of each resource.
    """
    found: dict[int, Taking] = {}
    for name in names:
        if not name.startswith(ATTACHED):
            continue
        place = _Place.read(name)
        if place.claims:
            joint = place.claims if place.together else ()
            found[columns[name]] = Taking(
                columns[str(_Place(place.driver))],
                tuple(columns[str(_Place(place.driver, (claim,)))] for claim in joint),
                place.own,
            )
    return found


@dataclass(frozen=True, slots=True)
class _Place:
    """What the name of a resource says, all in plain names."""

    driver: str
    claims: tuple[str, ...] = ()
    """Shared claims; none: it is places for claims that are not shared."""
    own: int = 0
    together: bool = False
    """It is how many pods have room with these claims, and so many of their own."""

    def __str__(self) -> str:
        name = f"{ATTACHED}{self.driver}"
        if self.together:
            return f"{name}:{self.own}:{'+'.join(self.claims)}"
        return f"{name}:{self.claims[0]}" if self.claims else name

    @classmethod
    def read(cls, name: str) -> Self:
        driver, *more = name.removeprefix(ATTACHED).split(":")
        if len(more) == 2:
            return cls(driver, tuple(more[1].split("+")), int(more[0]), together=True)
        return cls(driver, tuple(more))


def _places(storage: Storage, pod: PodFacts) -> Request:
    """The places that a pod takes: one for each claim that is its own, one with the others else."""
    limited = {driver for limits in storage.limits.values() for driver in limits}
    own: Counter[str] = Counter()
    shared: dict[str, list[str]] = defaultdict(list)
    for key in pod.claims:
        driver = _driver(storage, storage.claims.get(key))
        if driver not in limited:
            continue
        if storage.holding[key] + len(storage.waiting.get(key, ())) > 1:
            shared[_plain(driver)].append(_plain(key))
        else:
            own[_plain(driver)] += 1
    taken = {_Place(driver): count for driver, count in own.items()}
    for driver, claims in shared.items():
        taken |= {_Place(driver, (claim,)): 1 for claim in claims}
        if own[driver] + len(claims) > 1:
            taken[_Place(driver, tuple(sorted(claims)), own[driver], together=True)] = 1
    return tuple(sorted((str(place), count) for place, count in taken.items()))


def _stock(there: AttachedThere | None, place: _Place) -> Stock:
    """What a node has of a resource, and how much is used now and when all gangs have ended."""
    if there is None:
        return UNLIMITED
    if not place.claims:
        return Stock(there.most, len(there.now), len(there.lasting))
    return Stock(
        ATTACHED_THERE,
        ATTACHED_THERE - _level(place, there.most, there.now),
        ATTACHED_THERE - _level(place, there.most, there.lasting),
    )


def _level(place: _Place, most: int, attached: Set[str]) -> int:
    """How much of shared claims a node has left, as ``shared_places`` understands it."""
    lacking = sum(claim not in attached for claim in place.claims)
    if not place.together and not lacking:
        return ATTACHED_THERE
    return pods_taken(most - len(attached), lacking, place.own)


def _attached(storage: Storage, driver: str) -> dict[NodeName, AttachedThere]:
    """What is attached to the nodes that a driver has a limit on; counted once for all who ask."""
    known = storage.attached.get(driver)
    if known is None:
        known = storage.attached[driver] = {
            node: AttachedThere(
                limit,
                _claims_of(storage, storage.on_node.get(node, ()), driver),
                _claims_of(storage, storage.staying.get(node, ()), driver),
            )
            for node, limits in storage.limits.items()
            for name, limit in limits.items()
            if _plain(name) == driver
        }
    return known


def _claims_of(storage: Storage, claims: Iterable[str], driver: str) -> Set[str]:
    return {
        _plain(key) for key in claims if _plain(_driver(storage, storage.claims.get(key))) == driver
    }


def _driver(storage: Storage, claim: ClaimFacts | None) -> str:
    """Who attaches the volume of a claim; empty: nobody, or nobody knows."""
    if claim is None:
        return ""
    volume = storage.volumes.get(claim.volume)
    return volume.driver if volume is not None else storage.provisioner(claim)


@lru_cache(maxsize=16_384)
def _plain(name: str) -> str:
    """Leave out what makes a resource a device, or divides its name."""
    return name.replace("/", "|").replace(":", "|").replace("+", "|")
