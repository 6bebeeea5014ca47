"""Builds the pods and services of a job as they are sent to the API server.

Names, labels, owner references and environment are those of upstream. There is one deviation:
services publish the addresses of pods that are not ready, because replicas must find each other *in
order to* become ready. Upstream does not, so a readiness probe on a worker keeps its jobs from ever
starting.

Pods of ElasticJobs, and others by an annotation of the job, mount an ``emptyDir`` of medium
``Memory`` at /dev/shm. Container engines provide 64 MiB there, too little for data loaders and for
checkpoints in memory, and a volume keeps its content when the container restarts. A volume that the
user mounts there takes precedence.
"""

import posixpath

import msgspec

from gangline.api.jobs.kubeflow import SHARED_MEMORY_ANNOTATION
from gangline.operator.model import labels, pod_template
from gangline.operator.model.job import (
    ConfiguresServices,
    Manifest,
    NormalizedJob,
    ReplicaRole,
    RestartPolicy,
    ShapesPods,
    implements,
)
from gangline.operator.model.plan import EngineSettings, PlannedCreation, TargetKind
from gangline.operator.model.replicas import ReplicaGang
from gangline.operator.policies import gang_restart, restart
from gangline.operator.policies.replica_tracker import tracker_of

SHARED_MEMORY_PATH = "/dev/shm"
_SHARED_MEMORY_VOLUME = "gangline-shared-memory"


def with_shared_memory(job: NormalizedJob, role: ReplicaRole, pod: Manifest) -> Manifest:
    """Mount memory in the pod of a role, if the job requests it and nothing is mounted there."""
    written = job.meta.annotations.get(SHARED_MEMORY_ANNOTATION)
    enabled = role.name in job.kind.shared_memory_roles if written is None else written != "false"
    if not enabled or _has_shared_memory(pod, job.kind.container):
        return pod
    limit = {} if written in (None, "true") else {"sizeLimit": written}
    volume = {"name": _SHARED_MEMORY_VOLUME, "emptyDir": {"medium": "Memory", **limit}}
    mount = {"name": _SHARED_MEMORY_VOLUME, "mountPath": SHARED_MEMORY_PATH}
    return pod_template.with_volume(pod, job.kind.container, volume, mount)


def with_termination_message(job: NormalizedJob, pod: Manifest) -> Manifest:
    """Have the kubelet copy the end of a failed program's log into the pod's status.

    The verdict about a failure is then the same in the job's conditions as in a diagnosis that
    reads the log. A policy of the user takes precedence.
    """
    trains = pod_template.main_container(pod, job.kind.container)
    if not trains or trains.get("terminationMessagePolicy"):
        return pod
    policy = "FallbackToLogsOnError"
    return pod_template.with_container(pod, job.kind.container, terminationMessagePolicy=policy)


def _has_shared_memory(pod: Manifest, container: str) -> bool:
    """Return whether a volume is mounted there, or the pod shares the IPC namespace of the node."""
    trains = pod_template.main_container(pod, container)
    if not trains or pod_template.pod_spec(pod).get("hostIPC"):
        return True
    mounts = trains.get("volumeMounts") or []
    places = (posixpath.normpath(str(each.get("mountPath"))) for each in mounts)
    return any(
        place in (SHARED_MEMORY_PATH, posixpath.dirname(SHARED_MEMORY_PATH)) for place in places
    )


def owner_reference(job: NormalizedJob) -> Manifest:
    reference: Manifest = msgspec.to_builtins(job.owner_reference())
    return reference


def build_pod(
    job: NormalizedJob,
    role: ReplicaRole,
    index: int,
    settings: EngineSettings,
    gang: ReplicaGang,
    generation: int,
) -> PlannedCreation:
    """Build the pod of one replica from the role's template."""
    own = labels.replica_labels(job.name, job.kind.controller, role.name, index)
    if job.rules.is_master(job, role, index):
        own[labels.JOB_ROLE] = labels.MASTER_ROLE
    variables = job.rules.environment(job, role, index, gang)
    only = None if job.kind.env_in_all_containers else job.kind.container
    manifest = pod_template.with_environment(role.template, variables, only)
    notes = _gang_annotations(job, role, settings) | gang_restart.generation_annotations(
        job, generation
    )
    manifest = pod_template.with_metadata(manifest, own, notes)
    manifest = pod_template.with_spec(
        manifest,
        restartPolicy=_restart_policy(job, role),
        **_scheduling(job, role, settings),
    )
    if implements(job.rules, ShapesPods):
        manifest = job.rules.shape_pod(job, role, index, manifest, gang)
    manifest = with_shared_memory(job, role, manifest)
    manifest = with_termination_message(job, manifest)
    meta: Manifest = {
        key: value
        for key, value in manifest["metadata"].items()
        if key in ("labels", "annotations", "finalizers")
    }
    meta |= _identity(job, tracker_of(job).pod_name(job, role, index))
    return PlannedCreation(
        TargetKind.POD,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": meta,
            "spec": pod_template.pod_spec(manifest),
        },
    )


def build_service(job: NormalizedJob, role: ReplicaRole, index: int) -> PlannedCreation | None:
    """Build the service of one replica; None if its kind needs no service."""
    fields = (
        job.rules.service_overrides(job, role, index)
        if implements(job.rules, ConfiguresServices)
        else {}
    )
    if fields is None:
        return None
    own = labels.replica_labels(job.name, job.kind.controller, role.name, index)
    name = tracker_of(job).service_name(job, role, index)
    spec: Manifest = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": own,
        "ports": _service_ports(role.template, job.kind.container),
    } | fields
    return PlannedCreation(
        TargetKind.SERVICE,
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"labels": own, **_identity(job, name)},
            "spec": {name: value for name, value in spec.items() if value is not None},
        },
    )


def _restart_policy(job: NormalizedJob, role: ReplicaRole) -> str:
    """The kubelet restarts containers, except where all replicas restart together."""
    return (
        RestartPolicy.NEVER if gang_restart.restarts_gang(job) else restart.pod_policy(role.restart)
    )


def _identity(job: NormalizedJob, name: str) -> Manifest:
    return {
        "name": name,
        "namespace": job.meta.namespace,
        "ownerReferences": [owner_reference(job)],
    }


def _gang_annotations(
    job: NormalizedJob, role: ReplicaRole, settings: EngineSettings
) -> dict[str, str]:
    if not settings.gang_scheduling:
        return {}
    return {labels.POD_GROUP_ANNOTATION: job.name, labels.TASK_SPEC_ANNOTATION: role.label}


def _scheduling(job: NormalizedJob, role: ReplicaRole, settings: EngineSettings) -> Manifest:
    """Return scheduler and priority class, where the template names none."""
    if not settings.gang_scheduling:
        return {}
    spec = pod_template.pod_spec(role.template)
    chosen = {
        "schedulerName": settings.scheduler_name,
        # Upstream sets it only on the group; a pod without the class is the first to be evicted.
        "priorityClassName": job.policy.scheduling.priority_class,
    }
    return {key: value for key, value in chosen.items() if value and not spec.get(key)}


def _service_ports(template: Manifest, container: str) -> list[Manifest]:
    """List the ports of the main container; Kubernetes requires a name for each if there are
    several.
    """
    found = pod_template.container_ports(template, container)
    return [
        {
            "name": entry.get("name") or f"port-{entry['containerPort']}",
            "port": entry["containerPort"],
            "targetPort": entry["containerPort"],
            "protocol": entry.get("protocol") or "TCP",
        }
        for entry in found
        if entry.get("containerPort")
    ]
