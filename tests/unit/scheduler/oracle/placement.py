"""Oracle of placements: each pod may run on its node, with the pods that run there.

Bindings are checked in their order, each with the earlier ones in place.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.types import (
    CycleResult,
    HyperNodeMemberInfo,
    LabelExpression,
    NetworkTopologyRule,
    NodeInfo,
    NodeTerm,
    PlacementConstraints,
    PodBinding,
    PodInfo,
    PodTerm,
    SpreadTerm,
    TaintInfo,
    TolerationInfo,
)

_UNSCHEDULABLE = TaintInfo("node.kubernetes.io/unschedulable", "", "NoSchedule")
_NOT_READY = TaintInfo("node.kubernetes.io/not-ready", "", "NoSchedule")


def placement_violations(state: SchedulerCache, decision: CycleResult) -> Iterator[str]:
    """Yield the pods that may not run on their nodes."""
    scene = ClusterOracle(state)
    for binding in decision.bindings:
        pod = state.pods[binding.pod]
        node = scene.nodes.get(binding.node)
        if node is None:
            yield f"{pod.key} is put on {binding.node}, which does not exist"
            continue
        for why in (
            *filter_messages(pod.shape.constraints, node),
            *scene.inter_pod_violations(pod, node),
        ):
            yield f"{pod.key} is put on {node.name}: {why}"
        scene.pods_on[node.name].append(pod)
    yield from _network_violations(state, scene, decision.bindings)


def filter_messages(constraints: PlacementConstraints, node: NodeInfo) -> Iterator[str]:
    """Yield why a pod may not run on a node, apart from other pods."""
    repelling = [taint for taint in node.taints if taint.effect in ("NoSchedule", "NoExecute")]
    if node.unschedulable:
        repelling.append(_UNSCHEDULABLE)
    if not node.ready:
        repelling.append(_NOT_READY)
    for taint in repelling:
        if not any(_tolerates(toleration, taint) for toleration in constraints.tolerations):
            yield f"it does not tolerate {taint.key}"
    labels = dict(node.labels)
    for key, value in constraints.selector:
        if labels.get(key) != value:
            yield f"it selects nodes with {key}={value}"
    terms = constraints.required
    if terms is not None and not any(term_matches(term, node) for term in terms):
        yield "its node affinity excludes the node"


def _tolerates(toleration: TolerationInfo, taint: TaintInfo) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return (toleration.key, toleration.value) == (taint.key, taint.value)


def term_matches(term: NodeTerm, node: NodeInfo) -> bool:
    """Return whether a node matches a term."""
    if not term.labels and not term.fields:
        return False
    labels, fields = dict(node.labels), {"metadata.name": str(node.name)}
    pairs = [(each, labels) for each in term.labels] + [(each, fields) for each in term.fields]
    return all(_expression_holds(expression, there) for expression, there in pairs)


def _expression_holds(expression: LabelExpression, there: Mapping[str, str]) -> bool:
    present = expression.key in there
    value = there.get(expression.key, "")
    numbers = re.fullmatch(r"[+-]?\d+", value) and expression.values
    return {
        "In": present and value in expression.values,
        "NotIn": not present or value not in expression.values,
        "Exists": present,
        "DoesNotExist": not present,
        "Gt": bool(numbers) and int(value) > int(expression.values[0]),
        "Lt": bool(numbers) and int(value) < int(expression.values[0]),
    }[expression.operator]


class ClusterOracle:
    """Nodes, and the pods on them."""

    def __init__(self, state: SchedulerCache) -> None:
        self.nodes = {str(node.name): node for node in state.nodes.infos if node is not None}
        self.pods_on: dict[str, list[PodInfo]] = defaultdict(list)
        for pod in state.pods.values():
            if pod.holds_resources and pod.node in self.nodes:
                self.pods_on[str(pod.node)].append(pod)
        self._repelling = any(
            _required_anti_affinity(p) for pods in self.pods_on.values() for p in pods
        )

    def inter_pod_violations(self, pod: PodInfo, node: NodeInfo) -> Iterator[str]:
        """Yield the inter-pod rules that the pod would violate on the node, or that others have
        against it.
        """
        relations = pod.shape.constraints.inter_pod
        if relations is not None:
            required = [term for term in relations.affinity if not term.weight]
            if required and not self._finds_company(pod, required, node):
                yield "its affinity selects no pod there"
            for spread in relations.spread:
                if spread.hard and not self._is_even(pod, spread, node):
                    yield "its topology spread is violated"
        for term in _required_anti_affinity(pod):
            if any(
                _term_selects(pod, term, other) for other in self._within(node, term.topology_key)
            ):
                yield "its anti-affinity excludes a pod there"
        self._repelling |= bool(_required_anti_affinity(pod))
        for key, other in self._neighbours(node) if self._repelling else ():
            if any(
                t.topology_key == key and _term_selects(other, t, pod)
                for t in _required_anti_affinity(other)
            ):
                yield f"{other.key} excludes it by anti-affinity"

    def _neighbours(self, node: NodeInfo) -> Iterator[tuple[str, PodInfo]]:
        for key, _ in node.labels:
            for other in self._within(node, key):
                yield key, other

    def _within(self, node: NodeInfo, key: str) -> Iterator[PodInfo]:
        """Pods on nodes with the same value of a label."""
        value = dict(node.labels).get(key)
        if value is not None:
            for other in self.nodes.values():
                if dict(other.labels).get(key) == value:
                    yield from self.pods_on[str(other.name)]

    def _finds_company(self, pod: PodInfo, terms: list[PodTerm], node: NodeInfo) -> bool:
        """Whether each term's domain has a pod that all terms select, or the pod is the first."""
        keys = [term.topology_key for term in terms]
        if not all(key in dict(node.labels) for key in keys):
            return False

        def is_selected(other: PodInfo) -> bool:
            return all(_term_selects(pod, term, other) for term in terms)

        if all(any(map(is_selected, self._within(node, key))) for key in keys):
            return True
        anywhere = any(
            is_selected(other)
            for each in self.nodes.values()
            if any(key in dict(each.labels) for key in keys)
            for other in self.pods_on[str(each.name)]
        )
        return not anywhere and is_selected(pod)

    def _is_even(self, pod: PodInfo, spread: SpreadTerm, node: NodeInfo) -> bool:
        key = spread.pods.topology_key
        here = dict(node.labels).get(key)
        if here is None:
            return False
        counts: dict[str, int] = {}
        for each in self.nodes.values():
            place = dict(each.labels).get(key)
            if place is not None and self._is_spread_domain(pod, spread, each):
                there = sum(
                    _term_selects(pod, spread.pods, o)
                    for o in self.pods_on[str(each.name)]
                    if not o.is_terminating
                )
                counts[place] = counts.get(place, 0) + there
        if not counts:
            return True
        least = min(counts.values(), default=0) if len(counts) >= spread.min_domains else 0
        mine = counts.get(here, 0) + _term_selects(pod, spread.pods, pod)
        return mine - least <= spread.max_skew

    @staticmethod
    def _is_spread_domain(pod: PodInfo, spread: SpreadTerm, node: NodeInfo) -> bool:
        """Whether the policies of a constraint count a node."""
        constraints, relations = pod.shape.constraints, pod.shape.constraints.inter_pod
        labels = dict(node.labels)
        if not all(s.pods.topology_key in labels for s in relations.spread if s.hard):
            return False
        everything = (TolerationInfo(operator="Exists"),)
        affinity = replace(constraints, tolerations=everything)
        taints = PlacementConstraints(tolerations=constraints.tolerations)
        return not (
            (spread.honors_affinity and any(filter_messages(affinity, node)))
            or (spread.honors_taints and any(filter_messages(taints, node)))
        )


def _required_anti_affinity(pod: PodInfo) -> list[PodTerm]:
    relations = pod.shape.constraints.inter_pod
    return (
        [term for term in relations.anti_affinity if not term.weight]
        if relations is not None
        else []
    )


def _term_selects(owner: PodInfo, term: PodTerm, other: PodInfo) -> bool:
    home, there = owner.key.split("/")[0], other.key.split("/")[0]
    if term.namespaces is not None and there not in (term.namespaces or (home,)):
        return False
    return term.selector.matches(dict(other.labels))


def _network_violations(
    state: SchedulerCache, scene: ClusterOracle, bindings: tuple[PodBinding, ...]
) -> Iterator[str]:
    """Gangs whose network rule is violated."""
    put = {binding.pod: str(binding.node) for binding in bindings}
    for key in sorted({binding.group for binding in bindings if binding.group is not None}):
        group = state.groups[key]
        if group.network is None or not group.network.hard:
            continue
        nodes = {
            put.get(pod.key) or str(pod.node)
            for pod in state.members[key].values()
            if pod.key in put or (pod.holds_resources and not pod.is_terminating)
        }
        nodes &= scene.nodes.keys()
        if not any(nodes <= each for each in allowed_domains(state, scene, group.network)):
            yield f"{key} is on {sorted(nodes)}, which no network domain allowed to it holds"


def allowed_domains(
    state: SchedulerCache, scene: ClusterOracle, rule: NetworkTopologyRule
) -> Iterator[set[str]]:
    """Yield the nodes of each network domain that a rule allows."""
    if rule.label:
        labels = {name: dict(node.labels).get(rule.label) for name, node in scene.nodes.items()}
        for value in set(labels.values()) - {None}:
            yield {name for name in labels if labels[name] == value}
        return
    for domain in state.nodes.hypernodes.values():
        named = [d.tier for d in state.nodes.hypernodes.values() if d.tier_name == rule.tier_name]
        highest = max(named, default=0) if rule.tier_name else rule.tier
        if highest is None or domain.tier <= highest:
            yield _nodes_of(state, scene, domain.name, frozenset())


def _nodes_of(
    state: SchedulerCache, scene: ClusterOracle, name: str, above: frozenset[str]
) -> set[str]:
    if name in above:
        return set()
    found: set[str] = set()
    for member in state.nodes.hypernodes[name].members:
        if member.hypernode:
            for other in state.nodes.hypernodes:
                if _names(member, other):
                    found |= _nodes_of(state, scene, other, above | {name})
        else:
            for node in scene.nodes.values():
                labelled = bool(member.labels) and set(member.labels) <= set(node.labels)
                if labelled or (not member.labels and _names(member, node.name)):
                    found.add(str(node.name))
    return found


def _names(member: HyperNodeMemberInfo, name: str) -> bool:
    if member.exact:
        return member.exact == name
    return bool(member.pattern) and re.search(member.pattern, name) is not None
