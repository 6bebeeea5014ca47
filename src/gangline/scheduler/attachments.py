"""Volume attach limits, by CSI driver, as resources of nodes.

Nodes publish the limits in their CSINode. A claim used by one pod takes one attachment. A claim
used by several pods takes one on each of their nodes, however many of them run there: such a claim
is a resource of its own (see ``shared_places``). Attachments of pods without a gang are assumed to
last for ever, so that attachments of gangs that will end can be reserved.
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
"""The amount for drivers without a limit, as in Kubernetes."""


def needs_of(storage: Storage, pod: PodFacts) -> Needs:
    """Return what the claims of a pending pod require of its node, including attachments."""
    needs = storage.needs(pod)
    if not storage.limits or not pod.claims:
        return needs
    return replace(needs, request=tuple(sorted((*needs.request, *_places(storage, pod)))))


def stocks(
    storage: Storage, pod: PodFacts, nodes: Iterable[NodeName], known: Container[str] = ()
) -> dict[str, dict[NodeName, Stock]]:
    """Return the attachments that a pod needs, counted on each node by resource; ``known`` are
    skipped.
    """
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
    """Return the columns that depend on attachments.

    Args:
        names: resources.
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
    """A parsed resource name."""

    driver: str
    claims: tuple[str, ...] = ()
    """Shared claims; empty: attachments for claims that are not shared."""
    own: int = 0
    together: bool = False
    """True if the amount is the number of pods that these claims, and this number of own ones,
    allow.
    """

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
    """Return a pod's attachments: one for each own claim, or one with all shared claims."""
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
    """Return the amount of a resource on a node, with its usage now and its lasting usage."""
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
    """Return the free amount of shared claims on a node, in the encoding of ``shared_places``."""
    lacking = sum(claim not in attached for claim in place.claims)
    if not place.together and not lacking:
        return ATTACHED_THERE
    return pods_taken(most - len(attached), lacking, place.own)


def _attached(storage: Storage, driver: str) -> dict[NodeName, AttachedThere]:
    """Return the attachments of a driver on limited nodes; counted once for all pods."""
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
    """Return the driver that attaches the volume of a claim; empty: none, or unknown."""
    if claim is None:
        return ""
    volume = storage.volumes.get(claim.volume)
    return volume.driver if volume is not None else storage.provisioner(claim)


@lru_cache(maxsize=16_384)
def _plain(name: str) -> str:
    """Escape the characters that mark a device or separate parts of the name."""
    return name.replace("/", "|").replace(":", "|").replace("+", "|")
