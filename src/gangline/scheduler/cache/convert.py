"""Converts API objects to scheduler values: nodes, pods, groups, queues, HyperNodes, and storage.

Pods may describe their gang by annotations, as Volcano's controller of pod groups would create it.
A pod that names no PodGroup in ``scheduling.k8s.io/group-name`` may state its queue, and the size
of its gang. The pods of one owner (a Job, a ReplicaSet) are one gang then; without an owner a pod
is alone. No PodGroup is written: the gang exists in the cache while it has pods.
"""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache

import msgspec
from msgspec import structs

from gangline.api.brain.job_advice import RUN_TIME_ESTIMATE_ANNOTATION
from gangline.api.core.affinity import NodeSelector
from gangline.api.core.core import (
    PersistentVolume,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    PriorityClass,
    StorageClass,
)
from gangline.api.core.host_ports import host_ports
from gangline.api.core.node import Node
from gangline.api.go_duration import parse_go_duration
from gangline.api.meta.field_doc import ResourceList
from gangline.api.meta.objects import LabelSelector, ObjectMeta
from gangline.api.meta.selectors import EVERYTHING, SelectorError, selector_from_object
from gangline.api.quantity import QuantityError, parse_whole
from gangline.api.resource_list import PODS, parse_resource, pod_request
from gangline.api.volcano.scheduling import (
    CHECKPOINT_ANNOTATION,
    DEFAULT_QUEUE,
    GROUP_MIN_MEMBER_ANNOTATION,
    GROUP_MIN_RESOURCES_ANNOTATION,
    GROUP_NAME_ANNOTATION,
    JOINING_PODS_ANNOTATION,
    PREVIOUS_NODES_ANNOTATION,
    PROTECTED_RUN_TIME_ANNOTATION,
    QUEUE_NAME_ANNOTATION,
    RUN_TIME_ANNOTATION,
    VOLCANO_GROUP_NAME_ANNOTATION,
    WAITING_TIME_ANNOTATIONS,
    JoiningPods,
    NetworkTopology,
    PodGroup,
    PreviousNodesAnnotation,
    Queue,
    SubGroupPolicy,
)
from gangline.api.volcano.topology import HyperNode
from gangline.scheduler import types
from gangline.scheduler.cache.convert_devices import device_claims
from gangline.scheduler.cache.convert_placement import (
    NO_NAMESPACES,
    Namespaces,
    inter_pod_rules,
    node_group_terms,
    node_images,
    node_term,
    node_terms,
    pod_images,
    pod_quota_attributes,
    preferred_node_group_terms,
    read_selector,
)
from gangline.scheduler.plugins.task_topology import parse_role_affinity
from gangline.scheduler.plugins.volumes import (
    ClaimInfo,
    StorageCapacityInfo,
    StorageClassInfo,
    VolumeInfo,
)
from gangline.scheduler.types import (
    DisruptionBudgetInfo,
    GroupKey,
    ImpliedGroup,
    LabelExpression,
    NodeName,
    NodeTerm,
    PodKey,
    Request,
    kubernetes_group_key,
    shape_of,
)
from gangline.scheduler.wire import (
    AFFINITY_KEY,
    ANTI_AFFINITY_KEY,
    IMPLIED_GROUP_ANNOTATIONS,
    PREEMPTABLE_KEY,
    ROLE_KEY,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    LeanPod,
    LeanPodSpec,
    LeanVolume,
    belongs_to_job,
)

DEFAULT_SCHEDULER = "default-scheduler"
MAX_AMOUNT = 2**55
"""Larger requests of pods are clamped, so that the sum of 255 on one node cannot overflow: 32 Pi.

The capacity of nodes is clamped below it: no node has as much.
"""
_MAX_TOTAL = 2**62
"""Larger amounts of queues and groups are clamped."""
_MAX_SECONDS = 2**50
_CLOSED = frozenset({"Closed", "Closing"})
MAX_MEMBERS = 100_000
"""Larger minimums are ignored, like those that are not numbers."""
PREFIX = "podgroup-"
"""Volcano's prefix of the names of such gangs."""


def node_info(node: Node, *, images: bool = False) -> types.NodeInfo:
    """Convert a node; its images only if image locality has a weight."""
    ready = [condition for condition in node.status.conditions if condition.type == "Ready"]
    has = dict(_parse_amounts(node.status.capacity, MAX_AMOUNT - 1))
    offers = _parse_amounts(node.status.allocatable or node.status.capacity, MAX_AMOUNT - 1)
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
    """Convert a pod. The cache adds the devices of its claims to its request.

    Args:
        scheduler_names: the scheduler names that this scheduler serves.
        namespaces: the labels of namespaces; empty: unknown.
        template: a pod with an equivalent spec, if the caller has one (see ``have_same_shape``).

    Raises:
        QuantityError: a resource quantity cannot be parsed.
    """
    metadata, spec = pod.metadata, pod.spec
    if template is not None:
        shape, traits = template.shape, template.quota_attributes
    else:
        traits = pod_quota_attributes(spec)
        shape = shape_of(
            _clamped_request({**pod_request(spec), PODS: 1, **_host_ports(spec)}, MAX_AMOUNT),
            _constraints(spec, metadata.labels, namespaces),
            *pod_images(spec),
        )
    group, implied = read_group(metadata) if metadata.annotations else (None, None)
    if spec.scheduling_group is not None:
        group = kubernetes_group_key(metadata.namespace, spec.scheduling_group.pod_group_name)
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
        device_claims(pod) if spec.resource_claims else (),
        spec.preemption_policy != "Never",  # may_preempt
        _claim_keys(metadata, spec.volumes) if spec.volumes else (),
        float(max(0, spec.active_deadline_seconds or 0)),
        belongs_to_job(metadata),
        pod.status.start_time.timestamp() if pod.status.start_time else 0.0,
        traits,
    )


def have_same_shape(spec: LeanPodSpec, other: LeanPodSpec) -> bool:
    """Return whether pods with these specs certainly have one shape, on whatever node.

    Inter-pod rules also depend on the pod's labels, and on namespaces.
    """
    # The devices of a claim are part of the shape.
    wants_nothing = (
        spec.affinity is None and not spec.topology_spread_constraints and not spec.resource_claims
    )
    return wants_nothing and other == structs.replace(
        spec, node_name=other.node_name, scheduling_group=other.scheduling_group
    )


def group_info(group: PodGroup, priorities: Mapping[str, int]) -> types.PodGroupInfo:
    spec = group.spec
    # Volcano's controller writes all replicas as minimum of a role whose user wrote none, and its
    # scheduler ignores the roles' minimums where they exceed that of the gang.
    counts_roles = sum(spec.min_task_member.values()) <= spec.min_member
    return types.PodGroupInfo(
        key=GroupKey(_key(group.metadata)),
        uid=group.metadata.uid,
        min_member=spec.min_member,
        min_task_member=tuple(sorted(spec.min_task_member.items())) if counts_roles else (),
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
        is_admitted=group.status.phase not in {"", "Pending"},
        waiting_time_s=read_waiting_time(group),
    )


def class_names(priority_class: PriorityClass | None) -> tuple[str, ...]:
    """Return the names by which a PriorityClass is found; "" stands for the global default."""
    if priority_class is None:
        return ()
    return (
        (priority_class.metadata.name, "")
        if priority_class.global_default
        else (priority_class.metadata.name,)
    )


def budget_info(budget: PodDisruptionBudget) -> DisruptionBudgetInfo:
    selector, metadata = read_selector(budget.spec.selector), budget.metadata
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
    return types.SubgroupRule(
        name=policy.name,
        selector=read_selector(policy.label_selector) if policy.label_selector else EVERYTHING,
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
    return seconds if 0 < seconds < _MAX_SECONDS else 0.0


def read_waiting_time(group: PodGroup) -> float:
    """Return after how many seconds a group has waited too long; 0: none, or not a duration."""
    for annotation in WAITING_TIME_ANNOTATIONS:
        if written := group.metadata.annotations.get(annotation):
            return parse_go_duration(written)
    return 0.0


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
    template = pod_info(LeanPod(metadata=metadata, spec=spec), {}, frozenset({DEFAULT_SCHEDULER}))
    return structs.replace(
        template,
        created=_created_at(group.metadata),
        group=GroupKey(_key(group.metadata)),
        role=role.role,
        device_claims=(),  # they are created with the pod
        is_expected=True,
    )


def read_previous_nodes(group: PodGroup) -> types.PreviousNodes | None:
    """Return the previous nodes of a restarting gang; None: none, or they cannot be parsed."""
    written = group.metadata.annotations.get(PREVIOUS_NODES_ANNOTATION)
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


def _parse_amounts(written: ResourceList, most: int = _MAX_TOTAL) -> Request:
    amounts = {}
    for name, quantity in written.items():
        with suppress(QuantityError):
            amounts[name] = parse_resource(name, quantity)
    return _clamped_request(amounts, most)


def _host_ports(spec: LeanPodSpec) -> dict[str, int]:
    taken: dict[str, int] = {}
    for number, protocol, address in sorted(set(host_ports(spec))):
        name = f"{types.HOST_PORT_PREFIX}{protocol.lower()}:{number}"
        # The port on all addresses comes first.
        if address and taken.get(name) != types.HOST_PORT_CAPACITY:
            taken[name] = taken.get(name, 0) + 1
            name = f"{name}:{address}"
        taken[name] = types.HOST_PORT_CAPACITY
    return taken


def _clamped_request(counts: Mapping[str, int], most: int) -> Request:
    """Return sorted amounts, clamped to ``most``."""
    return tuple(sorted((name, min(most, max(0, count))) for name, count in counts.items()))


def _constraints(
    spec: LeanPodSpec, labels: Mapping[str, str], namespaces: Namespaces
) -> types.PlacementConstraints:
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity and affinity.required_during_scheduling_ignored_during_execution
    preferred = affinity.preferred_during_scheduling_ignored_during_execution if affinity else []
    return types.PlacementConstraints(
        selector=tuple(sorted(spec.node_selector.items())),
        required=node_terms(required) if required else None,
        preferred=tuple((term.weight, node_term(term.preference)) for term in preferred),
        tolerations=tuple(
            types.TolerationInfo(t.key, t.operator or "Equal", t.value, t.effect)
            for t in spec.tolerations
        ),
        inter_pod=inter_pod_rules(spec, labels, namespaces),
    )


def _key(metadata: ObjectMeta) -> str:
    return f"{metadata.namespace}/{metadata.name}"


def _created_at(metadata: ObjectMeta) -> datetime:
    return metadata.creation_timestamp or types.EPOCH


SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""Annotation of a claim: the node for which its volume is provisioned."""
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_NO_PROVISIONER = "kubernetes.io/no-provisioner"
_ZONES = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
_ZONE_SEPARATOR = "__"
"""Separates the zones of one volume."""


def claim_info(claim: PersistentVolumeClaim) -> ClaimInfo:
    metadata, spec = claim.metadata, claim.spec
    bound = claim.status.phase == "Bound"
    return ClaimInfo(
        key=f"{metadata.namespace}/{metadata.name}",
        uid=metadata.uid,
        volume=spec.volume_name if bound else "",
        requested_volume="" if bound else spec.volume_name,
        storage_class=spec.storage_class_name,
        modes=frozenset(spec.access_modes),
        size=_size(spec.resources.requests),
        block=spec.volume_mode == "Block",
        selector=EVERYTHING if spec.selector is None else read_selector(spec.selector),
        selected_node=metadata.annotations.get(SELECTED_NODE, ""),
        is_terminating=metadata.deletion_timestamp is not None,
    )


def volume_info(volume: PersistentVolume) -> VolumeInfo:
    spec = volume.spec
    owner = spec.claim_ref
    return VolumeInfo(
        name=volume.metadata.name,
        terms=_reachable_terms(volume),
        storage_class=spec.storage_class_name,
        modes=frozenset(spec.access_modes),
        size=_size(spec.capacity),
        block=spec.volume_mode == "Block",
        labels=tuple(sorted(volume.metadata.labels.items())),
        claim=f"{owner.namespace}/{owner.name}" if owner else "",
        claim_uid=owner.uid if owner else "",
        driver=spec.csi.driver if spec.csi is not None else "",
        is_usable=volume.metadata.deletion_timestamp is None
        and volume.status.phase not in {"Released", "Failed"},
    )


def storage_class_info(storage_class: StorageClass) -> StorageClassInfo:
    terms = [
        NodeTerm(
            tuple(
                LabelExpression(requirement["key"], "In", tuple(requirement["values"]))
                for requirement in topology.get("matchLabelExpressions") or ()
            )
        )
        for topology in storage_class.allowed_topologies
    ]
    return StorageClassInfo(
        name=storage_class.metadata.name,
        waits_for_consumer=storage_class.volume_binding_mode == "WaitForFirstConsumer",
        can_provision=storage_class.provisioner != _NO_PROVISIONER,
        driver=storage_class.provisioner,
        allowed_terms=tuple(terms),
        is_default=storage_class.metadata.annotations.get(_DEFAULT_CLASS) == "true",
    )


def attach_limits(node: CSINode) -> dict[str, int]:
    """Return the attach limits of a node by driver; drivers without a limit are absent."""
    return {
        driver.name: max(0, driver.allocatable.count)
        for driver in node.spec.drivers
        if driver.allocatable is not None and driver.allocatable.count is not None
    }


def capacity_info(capacity: CSIStorageCapacity) -> StorageCapacityInfo:
    """Convert a storage capacity. A size that cannot be parsed counts as 0."""
    largest = capacity.maximum_volume_size
    if largest is None:
        largest = capacity.capacity
    return StorageCapacityInfo(
        storage_class=capacity.storage_class_name,
        nodes=_topology_term(capacity.node_topology),
        max_volume_bytes=_size({"storage": largest}) if largest is not None else None,
        total_bytes=_size({"storage": total}) if (total := capacity.capacity) is not None else None,
    )


def publishes_capacity(driver: CSIDriver) -> bool:
    """Return whether a driver wants its storage capacity to be considered."""
    return driver.spec.storage_capacity is True


_EXPRESSIONS = {
    "=": "In",
    "in": "In",
    "!=": "NotIn",
    "notin": "NotIn",
    "exists": "Exists",
    "!": "DoesNotExist",
}


def _topology_term(topology: LabelSelector | None) -> NodeTerm | None:
    """Return the term that selects the topology's nodes; None: it selects none."""
    if topology is None:
        return None
    try:
        chosen = selector_from_object(topology).requirements
    except SelectorError:
        return None
    return NodeTerm(
        tuple(
            LabelExpression(requirement.key, _EXPRESSIONS[requirement.operator], requirement.values)
            for requirement in chosen
        )
    )


def _reachable_terms(volume: PersistentVolume) -> tuple[NodeTerm, ...] | None:
    """Return the terms of the nodes that reach a volume: its node affinity, within its zone."""
    affinity = volume.spec.node_affinity
    required: NodeSelector | None = affinity.required if affinity else None
    zone = tuple(
        LabelExpression(key, "In", tuple(value.split(_ZONE_SEPARATOR)))
        for key, value in sorted(volume.metadata.labels.items())
        if key in _ZONES
    )
    if required is None:
        return (NodeTerm(zone),) if zone else None
    return tuple(NodeTerm((*t.labels, *zone), t.fields) for t in node_terms(required))


def _size(amounts: dict[str, int | float | str]) -> int:
    try:
        return parse_whole(amounts.get("storage", 0))
    except QuantityError:
        return 0


def read_group(metadata: ObjectMeta) -> tuple[GroupKey | None, ImpliedGroup | None]:
    """Return the gang of a pod, and what its annotations say about it."""
    annotations = metadata.annotations
    named = annotations.get(GROUP_NAME_ANNOTATION)
    if named:
        return GroupKey(f"{metadata.namespace}/{named}"), None
    described = not IMPLIED_GROUP_ANNOTATIONS.isdisjoint(annotations)
    named = annotations.get(VOLCANO_GROUP_NAME_ANNOTATION)
    if named:
        # Without a size the PodGroup decides: a member must not start alone before it exists.
        has_size = GROUP_MIN_MEMBER_ANNOTATION in annotations
        implied = _implied_group(annotations) if has_size else None
        return GroupKey(f"{metadata.namespace}/{named}"), implied
    if not described:
        return None, None
    owner = metadata.controller
    uid = owner.uid if owner is not None else metadata.uid
    return GroupKey(f"{metadata.namespace}/{PREFIX}{uid}"), _implied_group(annotations)


def _implied_group(annotations: Mapping[str, str]) -> ImpliedGroup:
    return _parsed(
        annotations.get(QUEUE_NAME_ANNOTATION, ""),
        annotations.get(GROUP_MIN_MEMBER_ANNOTATION, ""),
        annotations.get(GROUP_MIN_RESOURCES_ANNOTATION, ""),
    )


@lru_cache(maxsize=4096)
def _parsed(queue: str, min_member: str, min_resources: str) -> ImpliedGroup:
    """Return one object for equal annotations: there may be very many pods."""
    count = 1
    with suppress(ValueError):
        count = int(min_member or 1)
    amounts: dict[str, int] = {}
    with suppress(msgspec.DecodeError, QuantityError):
        written = msgspec.json.decode(min_resources or "{}", type=dict[str, str | int | float])
        amounts = {name: parse_resource(name, value) for name, value in written.items()}
    size = count if 0 < count <= MAX_MEMBERS else 1
    return ImpliedGroup(queue or DEFAULT_QUEUE, size, _clamped_request(amounts, _MAX_TOTAL))
