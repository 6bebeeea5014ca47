"""Converts API objects to scheduler values: nodes, pods, groups, queues and HyperNodes."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime

import msgspec
from msgspec import structs

from gangline.api.affinity import NodeSelectorRequirement, NodeSelectorTerm
from gangline.api.core import PodDisruptionBudget
from gangline.api.describe import ResourceList
from gangline.api.meta import ObjectMeta
from gangline.api.node import Node
from gangline.api.quantity import QuantityError
from gangline.api.resourcelist import PODS, amount, pod_request
from gangline.api.scheduling import (
    CHECKPOINT_ANNOTATION,
    DEFAULT_QUEUE,
    FAMILY_ANNOTATION,
    GROUP_NAME_ANNOTATION,
    LODGES_ANNOTATION,
    PLACES_ANNOTATION,
    RUN_TIME_ANNOTATION,
    KeptPlaces,
    NetworkTopology,
    PodGroup,
    Queue,
    SubGroupPolicy,
)
from gangline.api.selectors import Selector, SelectorError, from_object
from gangline.api.topology import HyperNode
from gangline.scheduler import model
from gangline.scheduler.budgets import BudgetFacts
from gangline.scheduler.model import GroupKey, NodeName, PodKey, Request, shape_of
from gangline.scheduler.observe_images import node_images, pod_images
from gangline.scheduler.observe_pools import node_group_fences, node_group_wishes, pod_traits
from gangline.scheduler.observe_relations import NO_NAMESPACES, Namespaces, relations
from gangline.scheduler.plugins.task_topology import wishes
from gangline.scheduler.run_times import family_of
from gangline.scheduler.wire import (
    AFFINITY_KEY,
    ANTI_AFFINITY_KEY,
    PREEMPTABLE_KEY,
    ROLE_KEY,
    LeanPod,
    LeanPodSpec,
    LeanVolume,
)

DEFAULT_SCHEDULER = "default-scheduler"
MOST = 2**50
"""Larger amounts are clamped, so that sums cannot overflow: a pebibyte, or 2**50 units."""
_CLOSED = frozenset({"Closed", "Closing"})


def node_facts(node: Node, *, images: bool = False) -> model.NodeFacts:
    """Convert a node; its images only if image locality has a weight."""
    ready = [condition for condition in node.status.conditions if condition.type == "Ready"]
    has = dict(_readable(node.status.capacity))
    offers = _readable(node.status.allocatable or node.status.capacity)
    return model.NodeFacts(
        name=NodeName(node.metadata.name),
        allocatable=offers,
        labels=tuple(sorted(node.metadata.labels.items())),
        taints=tuple(
            model.Taint(taint.key, taint.value, taint.effect) for taint in node.spec.taints
        ),
        unschedulable=node.spec.unschedulable,
        ready=any(condition.status == "True" for condition in ready),
        boasts=tuple(name for name, amount in offers if has and amount > has.get(name, amount)),
        images=node_images(node) if images else (),
    )


def pod_facts(
    pod: LeanPod,
    priorities: Mapping[str, int],
    answers_to: frozenset[str],
    namespaces: Namespaces = NO_NAMESPACES,
    like: model.PodFacts | None = None,
) -> model.PodFacts:
    """Convert a pod.

    Args:
        pod: the pod.
        priorities: the values of priority classes.
        answers_to: the scheduler names that this scheduler serves.
        namespaces: the labels of namespaces; empty: unknown.
        like: a pod with an equivalent spec, if the caller knows one (see ``alike``).

    Raises:
        QuantityError: a resource quantity cannot be parsed.
    """
    metadata, spec = pod.metadata, pod.spec
    if like is not None:
        shape, traits = like.shape, like.traits
    else:
        traits = pod_traits(spec)
        shape = shape_of(
            _facts_of({**pod_request(spec), PODS: 1, **_host_ports(spec)}),
            _constraints(spec, metadata.labels, namespaces),
            *pod_images(spec),
        )
    group = metadata.annotations.get(GROUP_NAME_ANNOTATION, "")
    return model.PodFacts(
        key=PodKey(_key(metadata)),
        uid=metadata.uid,
        shape=shape,
        created=_created(metadata),
        priority=spec.priority
        if spec.priority is not None
        else priorities.get(spec.priority_class_name, 0),
        group=GroupKey(f"{metadata.namespace}/{group}") if group else None,
        role=metadata.annotations.get(ROLE_KEY) or metadata.labels.get(ROLE_KEY, ""),
        node=NodeName(spec.node_name) if spec.node_name else None,
        phase=pod.status.phase or "Pending",
        terminating=metadata.deletion_timestamp is not None,
        gated=bool(spec.scheduling_gates),
        ours=(spec.scheduler_name or DEFAULT_SCHEDULER) in answers_to,
        labels=tuple(sorted(metadata.labels.items())),
        preemptable=_preemptable(metadata),
        preempts=spec.preemption_policy != "Never",
        limit_s=float(max(0, spec.active_deadline_seconds or 0)),
        started=pod.status.start_time.timestamp() if pod.status.start_time else 0.0,
        ended=_ended(pod),
        traits=traits,
        claims=_claims(metadata, spec.volumes) if spec.volumes else (),
    )


def alike(spec: LeanPodSpec, known: LeanPodSpec) -> bool:
    """Return whether pods with these specs certainly have one shape, on whatever node.

    Inter-pod rules also depend on the pod's labels, and on namespaces.
    """
    wants_nothing = spec.affinity is None and not spec.topology_spread_constraints
    return wants_nothing and structs.replace(spec, node_name=known.node_name) == known


def group_facts(group: PodGroup, priorities: Mapping[str, int]) -> model.GroupFacts:
    spec = group.spec
    return model.GroupFacts(
        key=GroupKey(_key(group.metadata)),
        uid=group.metadata.uid,
        min_member=spec.min_member,
        min_task_member=tuple(sorted(spec.min_task_member.items())),
        queue=spec.queue or DEFAULT_QUEUE,
        priority=priorities.get(spec.priority_class_name, 0),
        priority_class=spec.priority_class_name,
        created=_created(group.metadata),
        min_resources=_readable(group.spec.min_resources or {}),
        places=kept_places(group),
        preemptable=_preemptable(group.metadata),
        roles=wishes(
            group.metadata.annotations.get(AFFINITY_KEY, ""),
            group.metadata.annotations.get(ANTI_AFFINITY_KEY, ""),
        ),
        network=_network(spec.network_topology),
        parts=tuple(map(_part_rule, spec.sub_group_policy)),
        run_time_s=run_time(group),
        checkpointed=checkpointed(group),
        family=_family(group),
        lodges_with=group.metadata.annotations.get(LODGES_ANNOTATION, ""),
    )


def budget_facts(budget: PodDisruptionBudget) -> BudgetFacts:
    """Convert a disruption budget. A selector that cannot be parsed selects no pods."""
    try:
        selector = from_object(budget.spec.selector)
    except SelectorError:
        selector = Selector(nothing=True)
    metadata = budget.metadata
    allowed = budget.status.disruptions_allowed
    return BudgetFacts(_key(metadata), metadata.namespace, selector, allowed)


def _network(topology: NetworkTopology | None) -> model.NetworkRule | None:
    if topology is None:
        return None
    return model.NetworkRule(
        hard=topology.mode != "soft",
        tier=topology.highest_tier_allowed,
        tier_name=topology.highest_tier_name,
    )


def _part_rule(policy: SubGroupPolicy) -> model.PartRule:
    """Convert a subgroup policy. A selector that cannot be parsed selects no pods."""
    try:
        selector = from_object(policy.label_selector) if policy.label_selector else Selector()
    except SelectorError:
        selector = Selector(nothing=True)
    return model.PartRule(
        name=policy.name,
        selector=selector,
        size=max(1, policy.sub_group_size or 1),
        minimum=max(0, policy.min_sub_groups or 0),
        keys=tuple(policy.match_label_keys),
        network=_network(policy.network_topology),
    )


def hypernode_facts(hypernode: HyperNode) -> model.HyperNodeFacts:
    return model.HyperNodeFacts(
        name=hypernode.metadata.name,
        tier=hypernode.spec.tier,
        tier_name=hypernode.spec.tier_name,
        members=tuple(
            model.MemberFacts(
                hypernode=member.type == "HyperNode",
                exact=member.selector.exact_match.name if member.selector.exact_match else "",
                pattern=member.selector.regex_match.pattern if member.selector.regex_match else "",
                labels=tuple(sorted(member.selector.label_match.match_labels.items()))
                if member.selector.label_match
                else (),
            )
            for member in hypernode.spec.members
        ),
    )


def _claims(pod: ObjectMeta, volumes: list[LeanVolume]) -> tuple[str, ...]:
    """Return the keys of a pod's claims; an ephemeral claim is named after pod and volume."""
    names = {
        volume.persistent_volume_claim.claim_name
        if volume.persistent_volume_claim is not None
        else f"{pod.name}-{volume.name}"
        for volume in volumes
        if volume.needs_claim
    }
    return tuple([f"{pod.namespace}/{name}" for name in sorted(names)])


def _preemptable(metadata: ObjectMeta) -> bool:
    value = metadata.annotations.get(PREEMPTABLE_KEY) or metadata.labels.get(PREEMPTABLE_KEY, "")
    return value.lower() != "false"


def run_time(group: PodGroup) -> float:
    """Return the run time in seconds that a group states; 0: none, or invalid."""
    try:
        seconds = float(group.metadata.annotations.get(RUN_TIME_ANNOTATION, "0"))
    except ValueError:
        return 0.0
    return seconds if 0 < seconds < MOST else 0.0


def _ended(pod: LeanPod) -> float:
    """Return when the last container of an ended pod finished; 0: unknown."""
    if pod.status.phase not in {"Succeeded", "Failed"}:
        return 0.0
    states = [status.state.terminated for status in pod.status.container_statuses]
    times = [state.finished_at.timestamp() for state in states if state and state.finished_at]
    return max(times, default=0.0)


def _family(group: PodGroup) -> str:
    metadata, spec = group.metadata, group.spec
    if named := metadata.annotations.get(FAMILY_ANNOTATION):
        return f"{metadata.namespace}/{FAMILY_ANNOTATION}/{named}"
    kinds = sorted(owner.kind for owner in metadata.owner_references)
    queue = spec.queue or DEFAULT_QUEUE
    return family_of(metadata.namespace, metadata.name, *kinds, queue, spec.min_member)


def checkpointed(group: PodGroup) -> float:
    """Return the time of a group's last checkpoint; 0: none, or invalid."""
    written = group.metadata.annotations.get(CHECKPOINT_ANNOTATION, "")
    try:
        when = datetime.fromisoformat(written)
    except ValueError:
        return 0.0
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def kept_places(group: PodGroup) -> model.Places | None:
    """Return the previous nodes of a restarting gang; None: none, or they cannot be parsed."""
    written = group.metadata.annotations.get(PLACES_ANNOTATION)
    if not written:
        return None
    try:
        kept = msgspec.json.decode(written, type=KeptPlaces)
    except msgspec.DecodeError:
        return None
    until = kept.until if kept.until.tzinfo else kept.until.replace(tzinfo=UTC)
    namespace = group.metadata.namespace
    return model.Places(
        until=until.timestamp(),
        nodes=tuple(
            (PodKey(f"{namespace}/{pod}"), NodeName(node))
            for pod, node in sorted(kept.nodes.items())
        ),
    )


def queue_facts(queue: Queue) -> model.QueueFacts:
    """Convert a queue. Without a state it is open; amounts that cannot be parsed are left out."""
    spec = queue.spec
    return model.QueueFacts(
        name=queue.metadata.name,
        open=queue.status.state not in _CLOSED,
        weight=1 if spec.weight is None else max(1, spec.weight),
        capability=_readable(spec.capability),
        deserved=_readable(spec.deserved),
        guarantee=_readable(spec.guarantee.resource if spec.guarantee else {}),
        reclaimable=spec.reclaimable is not False,
        priority=spec.priority,
        parent=spec.parent,
        fifo=spec.dequeue_strategy == "fifo",
        fences=node_group_fences(spec.affinity),
        preferred=node_group_wishes(spec.affinity),
    )


def _readable(written: ResourceList) -> Request:
    found = {}
    for name, quantity in written.items():
        with suppress(QuantityError):
            found[name] = max(0, amount(name, quantity))
    return _facts_of(found)


def _host_ports(spec: LeanPodSpec) -> dict[str, int]:
    return {
        f"{model.HOST_PORT}{(port.protocol or 'TCP').lower()}:{port.host_port}": 1
        for container in spec.containers
        for port in container.ports
        if port.host_port
    }


def _facts_of(counts: Mapping[str, int]) -> Request:
    """Return sorted amounts, clamped so that sums of many cannot overflow."""
    return tuple(sorted((name, min(MOST, max(0, count))) for name, count in counts.items()))


def _constraints(
    spec: LeanPodSpec, labels: Mapping[str, str], namespaces: Namespaces
) -> model.Constraints:
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity and affinity.required_during_scheduling_ignored_during_execution
    preferred = affinity.preferred_during_scheduling_ignored_during_execution if affinity else []
    return model.Constraints(
        selector=tuple(sorted(spec.node_selector.items())),
        required=tuple(map(node_term, required.node_selector_terms)) if required else None,
        preferred=tuple((term.weight, node_term(term.preference)) for term in preferred),
        tolerations=tuple(
            model.Toleration(t.key, t.operator or "Equal", t.value, t.effect)
            for t in spec.tolerations
        ),
        relations=relations(spec, labels, namespaces),
    )


def node_term(term: NodeSelectorTerm) -> model.NodeTerm:
    return model.NodeTerm(
        labels=tuple(map(_expression, term.match_expressions)),
        fields=tuple(map(_expression, term.match_fields)),
    )


def _expression(requirement: NodeSelectorRequirement) -> model.Expression:
    return model.Expression(requirement.key, requirement.operator, tuple(requirement.values))


def _key(metadata: ObjectMeta) -> str:
    return f"{metadata.namespace}/{metadata.name}"


def _created(metadata: ObjectMeta) -> datetime:
    return metadata.creation_timestamp or model.EPOCH
