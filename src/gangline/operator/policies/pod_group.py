"""The pod group of a job: its members and what they need to start.

Upstream's group omits init containers, sidecars and overhead from its sums, ignores the minimum
size of an elastic job, and is written in every pass. Here the sums are those of the scheduler, and
the group is written when it differs. It stays through restarts, so that a gang keeps its position
in the queue, and is deleted when the job is finished or suspended. A user's own group of the job's
name takes precedence: the pods join it, and it is neither changed nor deleted.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from gangline.api import resource_list
from gangline.api.cluster import workload
from gangline.api.cluster.workload import KubernetesPodGroup
from gangline.api.core.pod import PodSpec
from gangline.api.jobs.kubeflow import JobStatus
from gangline.api.meta.conditions import find_condition
from gangline.api.meta.field_doc import ResourceList
from gangline.api.meta.objects import Object
from gangline.api.quantity import QuantityError
from gangline.api.volcano.scheduling import (
    GROUP,
    JOINING_PODS_ANNOTATION,
    PREVIOUS_NODES_ANNOTATION,
    QUEUE_NAME_ANNOTATION,
    RUN_TIME_ANNOTATION,
    VERSION,
    JoiningPods,
    PodGroup,
    PodGroupSpec,
    PreviousNodesAnnotation,
)
from gangline.operator.model import conditions, labels, pod_template
from gangline.operator.model.job import Manifest, NormalizedJob, ReplicaRole
from gangline.operator.model.plan import (
    AnyPodGroup,
    PlannedCreation,
    PlannedPatch,
    TargetKind,
)
from gangline.operator.model.replicas import ObservedPod, ReplicaGang
from gangline.operator.policies.replica_tracker import tracker_of

UNSCHEDULABLE = "Unschedulable"
LAST_APPLIED_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"

MAX_JOINING_BYTES = 100_000
"""A longer list of pods that join a gang is not written, and their resources are not reserved: all
annotations of an object have at most 256 KiB.
"""

PREVIOUS_NODES_TTL = timedelta(minutes=3)
"""How long the nodes of replicas that restart together stay reserved: old pods end within their
grace period, then new ones are created.
"""


def create_pod_group(job: NormalizedJob, *, kubernetes: bool = False) -> PlannedCreation:
    """Build the job's group, which has the job's name as other tools expect.

    Args:
        kubernetes: the group is one of ``scheduling.k8s.io``.
    """
    annotations = _group_annotations(job)
    if kubernetes and (queue := job.policy.scheduling.queue):
        annotations[QUEUE_NAME_ANNOTATION] = queue
    spec = _kubernetes_spec(job) if kubernetes else msgspec.to_builtins(desired_spec(job))
    group, version = (workload.GROUP, workload.VERSION) if kubernetes else (GROUP, VERSION)
    return PlannedCreation(
        TargetKind.POD_GROUP,
        {
            "apiVersion": f"{group}/{version}",
            "kind": "PodGroup",
            "metadata": {
                "name": job.name,
                "namespace": job.meta.namespace,
                "labels": {
                    labels.JOB_NAME: job.name,
                    labels.OPERATOR_NAME: job.kind.controller,
                },
                "annotations": annotations,
                "ownerReferences": [msgspec.to_builtins(job.owner_reference())],
            },
            "spec": spec,
        },
    )


def update_pod_group(job: NormalizedJob, group: AnyPodGroup) -> PlannedPatch | None:
    """Return the patch that makes a group current. Its queue is not changed, as in upstream.

    Nor is any other field of a group that a user applied (``kubectl apply``) after it was created.
    Of a group of Kubernetes only ``minCount`` may change.
    """
    if group.metadata.deletion_timestamp is not None:
        return None
    if LAST_APPLIED_ANNOTATION in group.metadata.annotations:
        return None
    if isinstance(group, KubernetesPodGroup):
        operations = _min_count_operations(job, group)
    else:
        operations = _spec_operations(job, group)
    # A removed deadline, for example, must not be used any more.
    operations += labels.annotation_operations(
        group.metadata.annotations,
        _derived_annotations(job),
        (RUN_TIME_ANNOTATION, JOINING_PODS_ANNOTATION),
    )
    return (
        PlannedPatch(TargetKind.POD_GROUP, group.metadata.name, operations) if operations else None
    )


def _kubernetes_spec(job: NormalizedJob) -> Manifest:
    members, priority_class = _members(job)[1], job.policy.scheduling.priority_class
    return {
        "schedulingPolicy": {"gang": {"minCount": members}} if members else {"basic": {}},
        # The ranks of a job train together: none goes on without the others.
        "disruptionMode": {"all": {}},
        **({"priorityClassName": priority_class} if priority_class else {}),
    }


def _min_count_operations(job: NormalizedJob, group: KubernetesPodGroup) -> list[Manifest]:
    gang, members = group.spec.scheduling_policy.gang, _members(job)[1]
    if gang is None or not members or gang.min_count == members:
        return []
    path = "/spec/schedulingPolicy/gang/minCount"
    return [{"op": "replace", "path": path, "value": members}]


def _spec_operations(job: NormalizedJob, group: PodGroup) -> list[Manifest]:
    spec = desired_spec(job)
    if group.spec.queue:
        spec = msgspec.structs.replace(spec, queue=group.spec.queue)
    fields = {
        "minMember": (spec.min_member, group.spec.min_member),
        "minTaskMember": (spec.min_task_member, group.spec.min_task_member),
        "queue": (spec.queue, group.spec.queue),
        "priorityClassName": (spec.priority_class_name, group.spec.priority_class_name),
        "minResources": (
            _comparable_amounts(spec.min_resources),
            _comparable_amounts(group.spec.min_resources),
        ),
    }
    written = {**msgspec.to_builtins(spec), "minResources": spec.min_resources or {}}
    empty: dict[str, object] = {"minMember": 0, "minTaskMember": {}}
    return [
        {"op": "add", "path": f"/spec/{name}", "value": written.get(name, empty.get(name, ""))}
        for name, (want, have) in fields.items()
        if want != have
    ]


def desired_spec(job: NormalizedJob) -> PodGroupSpec:
    """Return the spec of the job's group.

    A number of pods that the user sets counts over all roles. Otherwise each role has a minimum of
    its own, so that no gang starts with workers and without its master.
    """
    scheduling = job.policy.scheduling
    counts, members = _members(job)
    own_minimum = scheduling.min_available is not None
    tasks = {} if own_minimum else {role.label: count for role, count in counts}
    counts += [(role, role.replicas) for role in _joining_roles(job, counts)]
    given = scheduling.min_resources
    return PodGroupSpec(
        min_member=members,
        min_task_member=tasks,
        queue=scheduling.queue,
        priority_class_name=scheduling.priority_class,
        network_topology=scheduling.topology,
        min_resources=dict(given) if given is not None else _resources(counts),
    )


def record_previous_nodes(
    group: Object, pods: Iterable[ObservedPod], until: datetime
) -> PlannedPatch | None:
    """Record the nodes of the pods on the group, so that the scheduler reserves them."""
    places = {pod.name: pod.spec.node_name for pod in pods if pod.spec.node_name}
    if not places:
        return None
    annotation = PreviousNodesAnnotation(until, dict(sorted(places.items())))
    encoded = msgspec.json.encode(annotation).decode()
    if group.metadata.annotations.get(PREVIOUS_NODES_ANNOTATION) == encoded:
        return None
    annotations = {**group.metadata.annotations, PREVIOUS_NODES_ANNOTATION: encoded}
    operation: Manifest = {"op": "add", "path": "/metadata/annotations", "value": annotations}
    return PlannedPatch(TargetKind.POD_GROUP, group.metadata.name, [operation])


def time_to_schedule_timeout(
    job: NormalizedJob, gang: ReplicaGang, status: JobStatus, now: datetime
) -> timedelta | None:
    """Return the time until the scheduling timeout; None if the gang is placed or has no limit."""
    limit = job.policy.scheduling.timeout
    placed = any(pod.spec.node_name for pod in gang.pods)
    ran = find_condition(status.conditions, conditions.RUNNING) or status.restarts.total
    if limit is None or status.start_time is None or placed or ran:
        return None
    return status.start_time + limit - now


_PENDING = {(UNSCHEDULABLE, "True"), (workload.INITIALLY_SCHEDULED, "False")}


def pending_reason(group: AnyPodGroup | None) -> str:
    """Return why the gang is pending, as reported by the scheduler; empty if it is not."""
    reported = group.status.conditions if group else []
    reasons = [c.message for c in reported if (c.type, c.status) in _PENDING]
    return reasons[-1] if reasons else ""


def _group_annotations(job: NormalizedJob) -> dict[str, str]:
    """Copy the job's annotations, which configure gang schedulers, except kubectl's own."""
    copied = {
        key: value
        for key, value in job.meta.annotations.items()
        if not key.startswith("kubectl.kubernetes.io/")
    }
    return {**copied, **_derived_annotations(job)}


def _derived_annotations(job: NormalizedJob) -> dict[str, str]:
    """Return the maximal run time in seconds and the joining pods, if there are any."""
    deadline = job.policy.active_deadline
    ends = f"{deadline.total_seconds():.0f}" if deadline else ""
    run_time = job.meta.annotations.get(RUN_TIME_ANNOTATION, ends)
    derived = {RUN_TIME_ANNOTATION: run_time, JOINING_PODS_ANNOTATION: _joining_pods(job)}
    return {name: value for name, value in derived.items() if value}


def _joining_roles(job: NormalizedJob, counts: list[tuple[ReplicaRole, int]]) -> list[ReplicaRole]:
    """Return the roles whose pods join the gang when it runs, without those that it counts."""
    counted = {role.name for role, _ in counts}
    return [role for role in job.roles if role.joins_later and role.name not in counted]


_CONTAINER_FIELDS = ("name", "resources", "ports", "restartPolicy")
_POD_FIELDS = (
    "activeDeadlineSeconds",
    "affinity",
    "nodeSelector",
    "overhead",
    "preemptionPolicy",
    "resourceClaims",
    "resources",
    "tolerations",
    "topologySpreadConstraints",
)


def _joining_pods(job: NormalizedJob) -> str:
    """Return the pods that join the gang, for the scheduler; empty if none do.

    Each has the fields that its placement depends on: without variables and commands, which may be
    long.
    """
    tracker = tracker_of(job)
    pods = [
        JoiningPods(
            [tracker.pod_name(job, role, index) for index in range(role.replicas)],
            role.label,
            _placement_fields(role),
        )
        for role in _joining_roles(job, _members(job)[0])
    ]
    written = msgspec.json.encode(pods, order="sorted").decode() if pods else ""
    return written if len(written) <= MAX_JOINING_BYTES else ""


def _placement_fields(role: ReplicaRole) -> Manifest:
    spec = pod_template.pod_spec(role.template)
    fields = {name: spec[name] for name in _POD_FIELDS if spec.get(name)}
    for field in ("containers", "initContainers"):
        containers = [
            {name: container[name] for name in _CONTAINER_FIELDS if container.get(name)}
            for container in spec.get(field) or ()
        ]
        if containers:
            fields[field] = containers
    claims = [
        {name: volume[name] for name in ("name", "persistentVolumeClaim") if name in volume}
        for volume in spec.get("volumes") or ()
        if "persistentVolumeClaim" in volume
    ]
    return {**fields, "volumes": claims} if claims else fields


def _members(job: NormalizedJob) -> tuple[list[tuple[ReplicaRole, int]], int]:
    """Return the pods of each role that the minimum consists of, and their number."""
    members = job.policy.scheduling.min_available
    if members is not None:
        return _first_members(job, members), members
    counts = [(role, role.min_replicas) for role in job.roles if role.min_replicas]
    return counts, sum(count for _, count in counts)


def _first_members(job: NormalizedJob, members: int) -> list[tuple[ReplicaRole, int]]:
    """Select the pods that the minimum consists of: roles in order, the leader first."""
    counts, left = [], members
    for role in job.roles:
        count = min(role.replicas, left)
        left -= count
        if count:
            counts.append((role, count))
    return counts


def _resources(counts: list[tuple[ReplicaRole, int]]) -> ResourceList | None:
    """Sum the requests of the members; None if a quantity cannot be parsed.

    The API server refuses such a pod with an error message.
    """
    try:
        requests = [
            resource_list.pod_request(
                msgspec.convert(pod_template.pod_spec(role.template), PodSpec)
            )
            for role, _ in counts
        ]
    except (QuantityError, msgspec.ValidationError):
        return None
    sums = [
        {name: amount * count for name, amount in request.items()}
        for request, (_, count) in zip(requests, counts, strict=True)
    ]
    return resource_list.format_resources(resource_list.sum_resources(sums)) or None


def _comparable_amounts(written: ResourceList | None) -> object:
    try:
        return resource_list.parse_resources(written or {})
    except QuantityError:
        return written
