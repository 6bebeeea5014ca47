"""Oracle of node groups, volumes and subgroups."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.plugins.volumes import ClaimInfo
from gangline.scheduler.types import (
    CycleResult,
    NetworkTopologyRule,
    NodeInfo,
    NodeTerm,
    PodBinding,
    PodGroupInfo,
    PodInfo,
    PodKey,
    RequiredNodeTerms,
)
from unit.scheduler.oracle.placement import ClusterOracle, allowed_domains, term_matches

_SubgroupKey = tuple[str, tuple[str, ...]]


def required_terms_of(state: SchedulerCache, queue: str) -> tuple[RequiredNodeTerms, ...]:
    """Return the node terms of a queue: those of the nearest queue that has any."""
    seen: list[str] = []
    while queue in state.queues and queue not in seen:
        seen.append(queue)
        facts = state.queues[queue]
        if facts.required_node_terms or facts.preferred_node_terms:
            return facts.required_node_terms
        queue = facts.parent
    return ()


def meets_all(fences: tuple[RequiredNodeTerms, ...], node: NodeInfo) -> bool:
    """Return whether a node matches all of these terms."""
    return all(any(term_matches(term, node) for term in fence.terms) for fence in fences)


def node_group_violations(state: SchedulerCache, decision: CycleResult) -> Iterator[str]:
    """Yield the pods on nodes that their queue, or one of their volumes, does not allow."""
    nodes = {str(node.name): node for node in state.nodes.infos if node is not None}
    for binding in decision.bindings:
        pod, node = state.pods[binding.pod], nodes.get(str(binding.node))
        if node is None:
            continue
        group = state.groups.get(pod.group) if pod.group is not None else None
        queue = group.queue if group is not None else "default"
        if not meets_all(required_terms_of(state, queue), node):
            yield f"{pod.key} is put on {node.name}, outside the node groups of queue {queue}"
        for key in pod.claims if state.storage.synced else ():
            yield from _unreached(state, pod, key, node)
    if state.storage.synced:
        yield from _volume_violations(state, decision, nodes)
        if state.storage.limits:
            yield from _too_many_volumes(state, decision)


def _volume_violations(
    state: SchedulerCache, decision: CycleResult, nodes: dict[str, NodeInfo]
) -> Iterator[str]:
    """Yield the unbound claims of bound pods that cannot have what was chosen for them."""
    storage = state.storage
    on: dict[str, set[str]] = defaultdict(set)
    pods_of: Counter[str] = Counter()
    for pod in state.pods.values():
        pods_of.update(pod.claims if pod.holds_resources else ())
    for binding in decision.bindings:
        for key in state.pods[binding.pod].claims:
            on[key].add(str(binding.node))
            pods_of[key] += 1
    chosen = Counter(volume for key, volume in decision.volumes.items() if key in on)
    yield from (
        f"volume {name} is given to {count} claims" for name, count in chosen.items() if count > 1
    )
    for key in sorted(on):
        claim = storage.claims.get(key)
        if claim is None:
            continue
        if "ReadWriteOncePod" in claim.modes and pods_of[key] > 1:
            yield f"{key} has {pods_of[key]} pods"
        if claim.volume or key in storage.assumed:
            continue
        volume = storage.volumes.get(decision.volumes.get(key, ""))
        if volume is None:
            can_provision = _driver_of(state, key) not in ("", "kubernetes.io/no-provisioner")
            if not can_provision or (len(on[key]) > 1 and "ReadWriteMany" not in claim.modes):
                yield f"{key} has no volume on {sorted(on[key])}"
        elif volume.claim not in ("", key) or volume.size < claim.size:
            yield f"{key} cannot have volume {volume.name}"
        elif not all(_reaches(volume.terms, nodes[name]) for name in on[key]):
            yield f"{key} gets volume {volume.name}, which {sorted(on[key])} do not all reach"


def _unreached(state: SchedulerCache, pod: PodInfo, key: str, node: NodeInfo) -> Iterator[str]:
    claim = state.storage.claims.get(key)
    volume = state.storage.volumes.get(claim.volume) if claim is not None else None
    if claim is None or (claim.volume and volume is None):
        yield f"{pod.key} is put on {node.name}, and has no volume for {key}"
    elif volume is not None and not _reaches(volume.terms, node):
        yield f"{pod.key} is put on {node.name}, which does not reach {volume.name}"
    elif volume is None and _no_storage_for(state, claim, node):
        yield f"{pod.key} is put on {node.name}, which has no storage left for {key}"


def _no_storage_for(state: SchedulerCache, claim: ClaimInfo, node: NodeInfo) -> bool:
    """Return whether a volume would have to be provisioned without enough storage capacity."""
    capacities, driver = state.storage.capacities, _driver_of(state, claim.key)
    if not capacities.synced or driver not in capacities.publishing_drivers or not claim.size:
        return False
    volumes = state.storage.volumes.values()
    if any(v.is_usable and v.claim in ("", claim.key) and _reaches(v.terms, node) for v in volumes):
        return False
    named = claim.storage_class
    return not any(
        (named is None or each.storage_class == named)
        and each.max_volume_bytes is not None
        and each.max_volume_bytes >= claim.size
        and each.nodes is not None
        and (each.nodes == NodeTerm() or term_matches(each.nodes, node))
        for each in capacities.facts.values()
    )


def _reaches(terms: tuple[NodeTerm, ...] | None, node: NodeInfo) -> bool:
    return terms is None or any(term_matches(term, node) for term in terms)


def _too_many_volumes(state: SchedulerCache, decision: CycleResult) -> Iterator[str]:
    """Nodes that would attach more volumes than their limit; each volume counts once."""
    before: dict[str, set[str]] = defaultdict(set)
    after: dict[str, set[str]] = defaultdict(set)
    for pod in state.pods.values():
        if pod.holds_resources:
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


def _driver_of(state: SchedulerCache, key: str) -> str:
    """Return the driver that attaches the volume of a claim, or will after provisioning."""
    claim = state.storage.claims.get(key)
    if claim is None:
        return ""
    if claim.volume:
        volume = state.storage.volumes.get(claim.volume)
        return volume.driver if volume is not None else ""
    defaults = sorted(each.name for each in state.storage.classes.values() if each.is_default)
    named = claim.storage_class if claim.storage_class is not None else "".join(defaults[:1])
    made_by = state.storage.classes.get(named)
    return made_by.driver if made_by is not None else ""


def subgroup_violations(state: SchedulerCache, decision: CycleResult) -> Iterator[str]:
    """Yield the subgroups that are incomplete, too few, or violate a network rule."""
    put = {binding.pod: binding for binding in decision.bindings}
    for key in sorted({b.group for b in decision.bindings if b.group is not None}):
        group = state.groups[key]
        if group.subgroups:
            yield from _incomplete_subgroups(state, group, put)


def _incomplete_subgroups(
    state: SchedulerCache, group: PodGroupInfo, put: dict[PodKey, PodBinding]
) -> Iterator[str]:
    small: dict[_SubgroupKey, list[PodInfo]] = defaultdict(list)
    for pod in state.members[group.key].values():
        stays = pod.phase == "Succeeded" or (pod.holds_resources and not pod.is_terminating)
        if (stays or pod.key in put) and (which := _subgroup_of(group, pod)) is not None:
            small[which].append(pod)
    rules = {rule.name: rule for rule in group.subgroups}
    complete: Counter[str] = Counter()
    scene = ClusterOracle(state)
    for (name, values), pods in sorted(small.items()):
        rule = rules[name]
        complete[name] += len(pods) >= rule.size
        if not any(pod.key in put for pod in pods):
            continue
        if len(pods) < rule.size:
            yield f"{group.key} has {len(pods)} of {rule.size} pods of {name} {values}"
        if rule.network is not None and rule.network.hard:
            yield from _far_apart(state, scene, rule.network, pods, put)
    for rule in group.subgroups:
        if complete[rule.name] < rule.min_subgroups:
            count = complete[rule.name]
            yield f"{group.key} has {count} of {rule.min_subgroups} subgroups of {rule.name}"


def _far_apart(
    state: SchedulerCache,
    scene: ClusterOracle,
    rule: NetworkTopologyRule,
    pods: list[PodInfo],
    put: dict[PodKey, PodBinding],
) -> Iterator[str]:
    nodes = {str(binding.node) for pod in pods if (binding := put.get(pod.key)) is not None}
    nodes |= {str(pod.node) for pod in pods if pod.holds_resources}
    nodes &= scene.nodes.keys()
    if not any(nodes <= each for each in allowed_domains(state, scene, rule)):
        yield f"{pods[0].group} has a subgroup on {sorted(nodes)}, which no allowed domain holds"


def _subgroup_of(group: PodGroupInfo, pod: PodInfo) -> _SubgroupKey | None:
    labels = dict(pod.labels)
    for rule in group.subgroups:
        if rule.selector.matches(labels):
            return rule.name, tuple(labels.get(key, "") for key in rule.keys)
    return None
