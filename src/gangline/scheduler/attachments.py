"""How many volumes a node can attach, by storage driver, as resources of nodes. Pure.

Nodes say so in their CSINode. A claim that one pod uses takes one of these places. A claim that
several use takes one on each of their nodes, however many of them are there: such a claim is a
resource of its own, of which nodes have plenty while it is attached there or a place is free.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from gangline.scheduler.model import ATTACHED, NodeName, PodFacts, Request
from gangline.scheduler.storage import ClaimFacts, Needs, Storage

PLENTY = 2**40


def needs_of(storage: Storage, pod: PodFacts) -> Needs:
    """Return what the claims of a pod that waits ask of its node."""
    needs = storage.needs(pod)
    if not storage.limits or not pod.claims:
        return needs
    return replace(needs, request=tuple(sorted((*needs.request, *_places(storage, pod)))))


def free_places(
    storage: Storage, pod: PodFacts, nodes: Iterable[NodeName]
) -> dict[str, dict[NodeName, int]]:
    """Count on each node what is free of the places that a pod takes, by resource."""
    listed = list(nodes)
    found: dict[str, dict[NodeName, int]] = {}
    for name, _ in _places(storage, pod):
        driver, _, shared = name.removeprefix(ATTACHED).partition(":")
        found[name] = {node: _free(storage, node, driver, shared) for node in listed}
    return found


def _places(storage: Storage, pod: PodFacts) -> Request:
    """The places that a pod takes: one for each claim that is its own, one with the others else."""
    limited = {driver for limits in storage.limits.values() for driver in limits}
    taken: Counter[str] = Counter()
    for key in pod.claims:
        driver = _driver(storage, storage.claims.get(key))
        if driver in limited:
            name = f"{ATTACHED}{_plain(driver)}"
            users = storage.holding[key] + len(storage.waiting.get(key, ()))
            taken[f"{name}:{_plain(key)}" if users > 1 else name] += 1
    return tuple(sorted(taken.items()))


def _free(storage: Storage, node: NodeName, driver: str, shared: str) -> int:
    limits = {_plain(name): limit for name, limit in storage.limits.get(node, {}).items()}
    if driver not in limits:
        # Whoever states no limit has none, as in Kubernetes.
        return PLENTY
    attached = {
        _plain(key)
        for key in storage.on_node.get(node, ())
        if _plain(_driver(storage, storage.claims.get(key))) == driver
    }
    free = max(0, limits[driver] - len(attached))
    if not shared:
        return free
    return PLENTY if shared in attached or free else 0


def _driver(storage: Storage, claim: ClaimFacts | None) -> str:
    """Who attaches the volume of a claim; empty: nobody, or nobody knows."""
    if claim is None:
        return ""
    volume = storage.volumes.get(claim.volume)
    return volume.driver if volume is not None else storage.provisioner(claim)


def _plain(name: str) -> str:
    """Leave out what makes a resource a device, or divides its name."""
    return name.replace("/", "|").replace(":", "|")
