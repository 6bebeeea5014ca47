"""Oracle of node groups, volumes and subgroups."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from gangline.scheduler.model import (
    Binding,
    Decision,
    Fence,
    GroupFacts,
    NetworkRule,
    NodeFacts,
    NodeTerm,
    PodFacts,
    PodKey,
)
from gangline.scheduler.simulate.check_places import Scene, meets, permitted
from gangline.scheduler.state import ClusterState
from gangline.scheduler.storage import ClaimFacts

_SmallGang = tuple[str, tuple[str, ...]]


def fences_of(state: ClusterState, queue: str) -> tuple[Fence, ...]:
    """Return the node terms of a queue: those of the nearest queue that has any."""
    seen: list[str] = []
    while queue in state.queues and queue not in seen:
        seen.append(queue)
        facts = state.queues[queue]
        if facts.fences or facts.preferred:
            return facts.fences
        queue = facts.parent
    return ()


def within(fences: tuple[Fence, ...], node: NodeFacts) -> bool:
    """Return whether a node matches all of these terms."""
    return all(any(meets(term, node) for term in fence.terms) for fence in fences)


def outside_pools(state: ClusterState, decision: Decision) -> Iterator[str]:
    """Yield the pods on nodes that their queue, or one of their volumes, does not allow."""
    nodes = {str(node.name): node for node in state.nodes.facts if node is not None}
    for binding in decision.bindings:
        pod, node = state.pods[binding.pod], nodes.get(str(binding.node))
        if node is None:
            continue
        group = state.groups.get(pod.group) if pod.group is not None else None
        queue = group.queue if group is not None else "default"
        if not within(fences_of(state, queue), node):
            yield f"{pod.key} is put on {node.name}, outside the node groups of queue {queue}"
        for key in pod.claims if state.storage.known else ():
            yield from _unreached(state, pod, key, node)
    if state.storage.known and state.storage.limits:
        yield from _too_many_volumes(state, decision)


def _unreached(state: ClusterState, pod: PodFacts, key: str, node: NodeFacts) -> Iterator[str]:
    claim = state.storage.claims.get(key)
    volume = state.storage.volumes.get(claim.volume) if claim is not None else None
    if claim is None or (claim.volume and volume is None):
        yield f"{pod.key} is put on {node.name}, and has no volume for {key}"
    elif volume is not None and not _reaches(volume.terms, node):
        yield f"{pod.key} is put on {node.name}, which does not reach {volume.name}"
    elif volume is None and _no_storage_for(state, claim, node):
        yield f"{pod.key} is put on {node.name}, which has no storage left for {key}"


def _no_storage_for(state: ClusterState, claim: ClaimFacts, node: NodeFacts) -> bool:
    """Return whether a volume would have to be provisioned without enough storage capacity."""
    capacities, driver = state.storage.capacities, _driver_of(state, claim.key)
    if not capacities.known or driver not in capacities.publishing or not claim.size:
        return False
    volumes = state.storage.volumes.values()
    if any(v.usable and v.claim in ("", claim.key) and _reaches(v.terms, node) for v in volumes):
        return False
    named = claim.storage_class
    return not any(
        (named is None or each.storage_class == named)
        and each.largest is not None
        and each.largest >= claim.size
        and each.nodes is not None
        and (each.nodes == NodeTerm() or meets(each.nodes, node))
        for each in capacities.facts.values()
    )


def _reaches(terms: tuple[NodeTerm, ...] | None, node: NodeFacts) -> bool:
    return terms is None or any(meets(term, node) for term in terms)


def _too_many_volumes(state: ClusterState, decision: Decision) -> Iterator[str]:
    """Nodes that would attach more volumes than their limit; each volume counts once."""
    before: dict[str, set[str]] = defaultdict(set)
    after: dict[str, set[str]] = defaultdict(set)
    for pod in state.pods.values():
        if pod.holds_room:
            before[str(pod.node)] |= set(pod.claims)
    for binding in decision.bindings:
        after[str(binding.node)] |= set(state.pods[binding.pod].claims)
    limits = {str(name): drivers for name, drivers in state.storage.limits.items()}
    for node in sorted(after):
        new = after[node] - before[node]
        had = Counter(_driver_of(state, key) for key in before[node])
        more = Counter(_driver_of(state, key) for key in new)
        for driver, most in limits.get(node, {}).items():
            if more[driver] and (has := had[driver] + more[driver]) > most:
                yield f"{node} attaches {most} volumes of {driver}, it would have {has}"


def _driver_of(state: ClusterState, key: str) -> str:
    """Return the driver that attaches the volume of a claim, or will after provisioning."""
    claim = state.storage.claims.get(key)
    if claim is None:
        return ""
    if claim.volume:
        volume = state.storage.volumes.get(claim.volume)
        return volume.driver if volume is not None else ""
    defaults = sorted(each.name for each in state.storage.classes.values() if each.default)
    named = claim.storage_class if claim.storage_class is not None else "".join(defaults[:1])
    made_by = state.storage.classes.get(named)
    return made_by.driver if made_by is not None else ""


def torn_apart(state: ClusterState, decision: Decision) -> Iterator[str]:
    """Yield the subgroups that are incomplete, too few, or violate a network rule."""
    put = {binding.pod: binding for binding in decision.bindings}
    for key in sorted({b.group for b in decision.bindings if b.group is not None}):
        group = state.groups[key]
        if group.parts:
            yield from _broken(state, group, put)


def _broken(state: ClusterState, group: GroupFacts, put: dict[PodKey, Binding]) -> Iterator[str]:
    small: dict[_SmallGang, list[PodFacts]] = defaultdict(list)
    for pod in state.members[group.key].values():
        stays = pod.phase == "Succeeded" or (pod.holds_room and not pod.terminating)
        if (stays or pod.key in put) and (which := _small_gang(group, pod)) is not None:
            small[which].append(pod)
    rules = {rule.name: rule for rule in group.parts}
    complete: Counter[str] = Counter()
    scene = Scene(state)
    for (name, values), pods in sorted(small.items()):
        rule = rules[name]
        complete[name] += len(pods) >= rule.size
        if not any(pod.key in put for pod in pods):
            continue
        if len(pods) < rule.size:
            yield f"{group.key} has {len(pods)} of {rule.size} pods of {name} {values}"
        if rule.network is not None and rule.network.hard:
            yield from _far_apart(state, scene, rule.network, pods, put)
    for rule in group.parts:
        if complete[rule.name] < rule.minimum:
            count = complete[rule.name]
            yield f"{group.key} has {count} of {rule.minimum} subgroups of {rule.name}"


def _far_apart(
    state: ClusterState,
    scene: Scene,
    rule: NetworkRule,
    pods: list[PodFacts],
    put: dict[PodKey, Binding],
) -> Iterator[str]:
    nodes = {str(binding.node) for pod in pods if (binding := put.get(pod.key)) is not None}
    nodes |= {str(pod.node) for pod in pods if pod.holds_room}
    nodes &= scene.nodes.keys()
    if not any(nodes <= each for each in permitted(state, scene, rule)):
        yield f"{pods[0].group} has a subgroup on {sorted(nodes)}, which no allowed domain holds"


def _small_gang(group: GroupFacts, pod: PodFacts) -> _SmallGang | None:
    labels = dict(pod.labels)
    for rule in group.parts:
        if rule.selector.matches(labels):
            return rule.name, tuple(labels.get(key, "") for key in rule.keys)
    return None
