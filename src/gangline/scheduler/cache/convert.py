"""Converts API objects to scheduler values: nodes, pods, groups, queues and HyperNodes."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime

import msgspec
from msgspec import structs

from gangline.api.brain.job_advice import RUN_TIME_ESTIMATE_ANNOTATION
from gangline.api.core.affinity import NodeSelectorRequirement, NodeSelectorTerm
from gangline.api.core.core import PodDisruptionBudget, PriorityClass
from gangline.api.core.node import Node
from gangline.api.meta.field_doc import ResourceList
from gangline.api.meta.objects import ObjectMeta
from gangline.api.meta.selectors import Selector, SelectorError, selector_from_object
from gangline.api.quantity import QuantityError
from gangline.api.resource_list import PODS, parse_resource, pod_request
from gangline.api.volcano.scheduling import (
    CHECKPOINT_ANNOTATION,
    DEFAULT_QUEUE,
    JOINING_PODS_ANNOTATION,
    OLD_PREVIOUS_NODES_ANNOTATION,
    PREVIOUS_NODES_ANNOTATION,
    PROTECTED_RUN_TIME_ANNOTATION,
    RUN_TIME_ANNOTATION,
    JoiningPods,
    NetworkTopology,
    PodGroup,
    PreviousNodesAnnotation,
    Queue,
    SubGroupPolicy,
)
from gangline.api.volcano.topology import HyperNode
from gangline.scheduler.cache.convert_placement import (
    NO_NAMESPACES,
    Namespaces,
    inter_pod_rules,
    node_group_terms,
    node_images,
    pod_images,
    pod_quota_attributes,
    preferred_node_group_terms,
)
from gangline.scheduler.cache.implied_groups import read_group
from gangline.scheduler.plugins.task_topology import parse_role_affinity
from gangline.scheduler.types import types
from gangline.scheduler.types.types import (
    DisruptionBudgetInfo,
    GroupKey,
    NodeName,
    PodKey,
    Request,
    shape_of,
)
from gangline.scheduler.types.wire import (
    AFFINITY_KEY,
    ANTI_AFFINITY_KEY,
    PREEMPTABLE_KEY,
    ROLE_KEY,
    LeanPod,
    LeanPodSpec,
    LeanVolume,
    belongs_to_job,
)

DEFAULT_SCHEDULER = "default-scheduler"
MAX_AMOUNT = 2**50
"""Larger amounts are clamped, so that sums cannot overflow: a pebibyte, or 2**50 units."""
_CLOSED = frozenset({"Closed", "Closing"})


def node_info(node: Node, *, images: bool = False) -> types.NodeInfo:
    """Convert a node; its images only if image locality has a weight."""
    ready = [condition for condition in node.status.conditions if condition.type == "Ready"]
    has = dict(_parse_amounts(node.status.capacity))
    offers = _parse_amounts(node.status.allocatable or node.status.capacity)
    return types.NodeInfo(
        name=NodeName(node.metadata.name),
        allocatable=offers,
        labels=tuple(sorted(node.metadata.labels.items())),
        taints=tuple(
            types.TaintInfo(taint.key, taint.value, taint.effect) for taint in node.spec.taints
        ),
        unschedulable=node.spec.unschedulable,
        ready=any(condition.status == "True" for condition in ready),
        overreported_resources=tuple(
            name for name, amount in offers if has and amount > has.get(name, amount)
        ),
        images=node_images(node) if images else (),
    )


def pod_info(
    pod: LeanPod,
    priorities: Mapping[str, int],
    scheduler_names: frozenset[str],
    namespaces: Namespaces = NO_NAMESPACES,
    template: types.PodInfo | None = None,
) -> types.PodInfo:
    """Convert a pod.

    Args:
        pod: the pod.
        priorities: the values of priority classes.
        scheduler_names: the scheduler names that this scheduler serves.
        namespaces: the labels of namespaces; empty: unknown.
        like: a pod with an equivalent spec, if the caller knows one (see ``have_same_shape``).

    Raises:
        QuantityError: a resource quantity cannot be parsed.
    """
    metadata, spec = pod.metadata, pod.spec
    if template is not None:
        shape, traits = template.shape, template.quota_attributes
    else:
        traits = pod_quota_attributes(spec)
        shape = shape_of(
            _clamped_request({**pod_request(spec), PODS: 1, **_host_ports(spec)}),
            _constraints(spec, metadata.labels, namespaces),
            *pod_images(spec),
        )
    group, implied = read_group(metadata) if metadata.annotations else (None, None)
    # Positional, in the order of the fields: keywords take six times as long, at a start for each
    # pod of the cluster.
    return types.PodInfo(
        PodKey(_key(metadata)),
        metadata.uid,
        shape,
        _created_at(metadata),
        spec.priority if spec.priority is not None else priorities.get(spec.priority_class_name, 0),
        group,
        implied,
        metadata.annotations.get(ROLE_KEY) or metadata.labels.get(ROLE_KEY, ""),  # role
        NodeName(spec.node_name) if spec.node_name else None,
        pod.status.phase or "Pending",
        metadata.deletion_timestamp is not None,  # is_terminating
        bool(spec.scheduling_gates),
        (spec.scheduler_name or DEFAULT_SCHEDULER) in scheduler_names,  # is_ours
        tuple(sorted(metadata.labels.items())) if metadata.labels else (),
        _is_preemptable(metadata),
        bool(spec.resource_claims),
        spec.preemption_policy != "Never",  # may_preempt
        _claim_keys(metadata, spec.volumes) if spec.volumes else (),
        float(max(0, spec.active_deadline_seconds or 0)),
        belongs_to_job(metadata),
        pod.status.start_time.timestamp() if pod.status.start_time else 0.0,
        traits,
    )


def have_same_shape(spec: LeanPodSpec, known: LeanPodSpec) -> bool:
    """Return whether pods with these specs certainly have one shape, on whatever node.

    Inter-pod rules also depend on the pod's labels, and on namespaces.
    """
    wants_nothing = spec.affinity is None and not spec.topology_spread_constraints
    return wants_nothing and structs.replace(spec, node_name=known.node_name) == known


def group_info(group: PodGroup, priorities: Mapping[str, int]) -> types.PodGroupInfo:
    spec = group.spec
    return types.PodGroupInfo(
        key=GroupKey(_key(group.metadata)),
        uid=group.metadata.uid,
        min_member=spec.min_member,
        min_task_member=tuple(sorted(spec.min_task_member.items())),
        queue=spec.queue or DEFAULT_QUEUE,
        priority=priorities.get(spec.priority_class_name, 0),
        priority_class=spec.priority_class_name,
        created=_created_at(group.metadata),
        min_resources=_parse_amounts(group.spec.min_resources or {}),
        joining=read_joining_pods(group),
        previous_nodes=read_previous_nodes(group),
        preemptable=_is_preemptable(group.metadata),
        role_affinity=parse_role_affinity(
            group.metadata.annotations.get(AFFINITY_KEY, ""),
            group.metadata.annotations.get(ANTI_AFFINITY_KEY, ""),
        ),
        network=_network(spec.network_topology),
        subgroups=tuple(map(_subgroup_rule, spec.sub_group_policy)),
        max_run_time_s=read_run_time(group),
        run_time_estimate_s=_read_seconds(group.metadata, RUN_TIME_ESTIMATE_ANNOTATION),
        checkpointed_at=read_checkpoint_time(group),
    )


def class_names(known: PriorityClass | None) -> tuple[str, ...]:
    """Return the names by which a PriorityClass is found; "" stands for the global default."""
    if known is None:
        return ()
    return (known.metadata.name, "") if known.global_default else (known.metadata.name,)


def budget_info(budget: PodDisruptionBudget) -> DisruptionBudgetInfo:
    """Convert a disruption budget. A selector that cannot be parsed selects no pods."""
    try:
        selector = selector_from_object(budget.spec.selector)
    except SelectorError:
        selector = Selector(matches_nothing=True)
    metadata = budget.metadata
    allowed = budget.status.disruptions_allowed
    return DisruptionBudgetInfo(_key(metadata), metadata.namespace, selector, allowed)


def _network(topology: NetworkTopology | None) -> types.NetworkTopologyRule | None:
    if topology is None:
        return None
    return types.NetworkTopologyRule(
        hard=topology.mode != "soft",
        tier=topology.highest_tier_allowed,
        tier_name=topology.highest_tier_name,
    )


def _subgroup_rule(policy: SubGroupPolicy) -> types.SubgroupRule:
    """Convert a subgroup policy. A selector that cannot be parsed selects no pods."""
    try:
        selector = (
            selector_from_object(policy.label_selector) if policy.label_selector else Selector()
        )
    except SelectorError:
        selector = Selector(matches_nothing=True)
    return types.SubgroupRule(
        name=policy.name,
        selector=selector,
        size=max(1, policy.sub_group_size or 1),
        min_subgroups=max(0, policy.min_sub_groups or 0),
        keys=tuple(policy.match_label_keys),
        network=_network(policy.network_topology),
    )


def hypernode_info(hypernode: HyperNode) -> types.HyperNodeInfo:
    return types.HyperNodeInfo(
        name=hypernode.metadata.name,
        tier=hypernode.spec.tier,
        tier_name=hypernode.spec.tier_name,
        members=tuple(
            types.HyperNodeMemberInfo(
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


def _claim_keys(pod: ObjectMeta, volumes: list[LeanVolume]) -> tuple[str, ...]:
    """Return the keys of a pod's claims; an ephemeral claim is named after pod and volume."""
    names = {
        volume.persistent_volume_claim.claim_name
        if volume.persistent_volume_claim is not None
        else f"{pod.name}-{volume.name}"
        for volume in volumes
        if volume.needs_claim
    }
    return tuple([f"{pod.namespace}/{name}" for name in sorted(names)])


def _is_preemptable(metadata: ObjectMeta) -> bool:
    value = metadata.annotations.get(PREEMPTABLE_KEY) or metadata.labels.get(PREEMPTABLE_KEY, "")
    return value.lower() != "false"


def read_run_time(group: PodGroup) -> float:
    """Return the run time in seconds that a group states; 0: none, or invalid."""
    return _read_seconds(group.metadata, RUN_TIME_ANNOTATION)


def read_protected_run_time(metadata: ObjectMeta) -> float:
    """Return the protected run time in seconds that a queue or a PriorityClass states; 0: none, or
    invalid.
    """
    return _read_seconds(metadata, PROTECTED_RUN_TIME_ANNOTATION)


def _read_seconds(metadata: ObjectMeta, annotation: str) -> float:
    try:
        seconds = float(metadata.annotations.get(annotation, "0"))
    except ValueError:
        return 0.0
    return seconds if 0 < seconds < MAX_AMOUNT else 0.0


def read_checkpoint_time(group: PodGroup) -> float:
    """Return the time of a group's last checkpoint; 0: none, or invalid."""
    written = group.metadata.annotations.get(CHECKPOINT_ANNOTATION, "")
    try:
        when = datetime.fromisoformat(written)
    except ValueError:
        return 0.0
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


_JOINING = msgspec.json.Decoder(list[JoiningPods])


def read_joining_pods(group: PodGroup) -> tuple[types.PodInfo, ...]:
    """Return the pods that join a gang later; none if they cannot be parsed."""
    written = group.metadata.annotations.get(JOINING_PODS_ANNOTATION)
    if not written:
        return ()
    try:
        return tuple(
            _joining_pod(group, role, name)
            for role in _JOINING.decode(written)
            for name in role.names
        )
    except (msgspec.DecodeError, msgspec.ValidationError, QuantityError):
        return ()


def _joining_pod(group: PodGroup, role: JoiningPods, name: str) -> types.PodInfo:
    metadata = ObjectMeta(name=name, namespace=group.metadata.namespace)
    spec = msgspec.convert(role.spec, LeanPodSpec)
    # A constant scheduler name: it is placed with its gang, by whichever name the gang has.
    spec = structs.replace(spec, node_name="", scheduling_gates=[], scheduler_name="")
    known = pod_info(LeanPod(metadata=metadata, spec=spec), {}, frozenset({DEFAULT_SCHEDULER}))
    return structs.replace(
        known,
        created=_created_at(group.metadata),
        group=GroupKey(_key(group.metadata)),
        role=role.role,
        is_expected=True,
    )


def read_previous_nodes(group: PodGroup) -> types.PreviousNodes | None:
    """Return the previous nodes of a restarting gang; None: none, or they cannot be parsed."""
    annotations = group.metadata.annotations
    written = annotations.get(PREVIOUS_NODES_ANNOTATION)
    written = written or annotations.get(OLD_PREVIOUS_NODES_ANNOTATION)
    if not written:
        return None
    try:
        kept = msgspec.json.decode(written, type=PreviousNodesAnnotation)
    except msgspec.DecodeError:
        return None
    until = kept.until if kept.until.tzinfo else kept.until.replace(tzinfo=UTC)
    namespace = group.metadata.namespace
    return types.PreviousNodes(
        expires_at=until.timestamp(),
        nodes=tuple(
            (PodKey(f"{namespace}/{pod}"), NodeName(node))
            for pod, node in sorted(kept.nodes.items())
        ),
    )


def queue_info(queue: Queue) -> types.QueueInfo:
    """Convert a queue. Without a state it is open; amounts that cannot be parsed are left out."""
    spec = queue.spec
    return types.QueueInfo(
        name=queue.metadata.name,
        open=queue.status.state not in _CLOSED,
        weight=1 if spec.weight is None else max(1, spec.weight),
        capability=_parse_amounts(spec.capability),
        deserved=_parse_amounts(spec.deserved),
        guarantee=_parse_amounts(spec.guarantee.resource if spec.guarantee else {}),
        reclaimable=spec.reclaimable is not False,
        priority=spec.priority,
        parent=spec.parent,
        fifo=spec.dequeue_strategy == "fifo",
        protected_s=read_protected_run_time(queue.metadata),
        required_node_terms=node_group_terms(spec.affinity),
        preferred_node_terms=preferred_node_group_terms(spec.affinity),
    )


def _parse_amounts(written: ResourceList) -> Request:
    found = {}
    for name, quantity in written.items():
        with suppress(QuantityError):
            found[name] = max(0, parse_resource(name, quantity))
    return _clamped_request(found)


def _host_ports(spec: LeanPodSpec) -> dict[str, int]:
    return {
        f"{types.HOST_PORT_PREFIX}{(port.protocol or 'TCP').lower()}:{port.host_port}": 1
        for container in spec.containers
        for port in container.ports
        if port.host_port
    }


def _clamped_request(counts: Mapping[str, int]) -> Request:
    """Return sorted amounts, clamped so that sums of many cannot overflow."""
    return tuple(sorted((name, min(MAX_AMOUNT, max(0, count))) for name, count in counts.items()))


def _constraints(
    spec: LeanPodSpec, labels: Mapping[str, str], namespaces: Namespaces
) -> types.PlacementConstraints:
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity and affinity.required_during_scheduling_ignored_during_execution
    preferred = affinity.preferred_during_scheduling_ignored_during_execution if affinity else []
    return types.PlacementConstraints(
        selector=tuple(sorted(spec.node_selector.items())),
        required=tuple(map(node_term, required.node_selector_terms)) if required else None,
        preferred=tuple((term.weight, node_term(term.preference)) for term in preferred),
        tolerations=tuple(
            types.TolerationInfo(t.key, t.operator or "Equal", t.value, t.effect)
            for t in spec.tolerations
        ),
        inter_pod=inter_pod_rules(spec, labels, namespaces),
    )


def node_term(term: NodeSelectorTerm) -> types.NodeTerm:
    return types.NodeTerm(
        labels=tuple(map(_expression, term.match_expressions)),
        fields=tuple(map(_expression, term.match_fields)),
    )


def _expression(requirement: NodeSelectorRequirement) -> types.LabelExpression:
    return types.LabelExpression(requirement.key, requirement.operator, tuple(requirement.values))


def _key(metadata: ObjectMeta) -> str:
    return f"{metadata.namespace}/{metadata.name}"


def _created_at(metadata: ObjectMeta) -> datetime:
    return metadata.creation_timestamp or types.EPOCH
