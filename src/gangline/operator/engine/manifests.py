"""Builds the objects of a job as they are sent to the API server.

Names, labels, owner references and environment are those of upstream. One deviation: services
publish the addresses of pods that are not ready, because replicas must find each other *in order
to* become ready.

Pods of ElasticJobs, and others by an annotation of the job, mount memory at /dev/shm: container
engines provide 64 MiB there, too little for data loaders and for checkpoints in memory, and a
volume keeps its content when the container restarts.

An owned object (such as a ConfigMap) has an annotation with a digest of its content, which shows
whether it is current. One without the annotation was created by an upstream operator: pods may
depend on its content, so it is never changed.
"""

import hashlib
from collections.abc import Iterable

import msgspec

from gangline.api.jobs import progress
from gangline.api.jobs.kubeflow import SHARED_MEMORY_ANNOTATION
from gangline.api.names import free_name
from gangline.operator.model import labels, pod_template
from gangline.operator.model.job import (
    CleanPodPolicy,
    ConfiguresServices,
    JobKindInfo,
    Manifest,
    NormalizedJob,
    OwnsObjects,
    ReplicaRole,
    RestartPolicy,
    ShapesPods,
    implements,
)
from gangline.operator.model.plan import (
    UNWATCHED,
    EngineSettings,
    OwnedObject,
    PlannedCreation,
    PlannedPatch,
    TargetKind,
)
from gangline.operator.model.replicas import ReplicaGang
from gangline.operator.policies import gang_restart
from gangline.operator.policies.replica_tracker import tracker_of

SHARED_MEMORY_PATH = "/dev/shm"
_SHARED_MEMORY_VOLUME = "gangline-shared-memory"
_PROGRESS_PATH = "/var/run/secrets/kubeflow/trainer"
_PROGRESS_VOLUME = "kubeflow-trainer-token"
_TOKEN_LIFETIME_S = 3600


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


def with_progress_endpoint(job: NormalizedJob, pod: Manifest, url: str) -> Manifest:
    """Give all containers what they need to report the progress of the job.

    A container that has one of the variables, or mounts something at the path, stays as it is.
    """
    if not url:
        return pod
    resource, meta = job.kind.resource, job.meta
    values = {
        progress.URL_VARIABLE: f"{url}{progress.report_path(resource, meta.namespace, job.name)}",
        progress.CA_VARIABLE: f"{_PROGRESS_PATH}/{progress.AUTHORITY_KEY}",
        progress.TOKEN_VARIABLE: f"{_PROGRESS_PATH}/token",
    }
    volumes = pod_template.pod_spec(pod).get("volumes") or []
    name = free_name(_PROGRESS_VOLUME, {volume.get("name") for volume in volumes})
    added: dict[str, list[Manifest]] = {
        "env": [{"name": key, "value": value} for key, value in values.items()],
        "volumeMounts": [{"name": name, "mountPath": _PROGRESS_PATH, "readOnly": True}],
    }
    containers = [
        container
        if pod_template.mounts_path(container, _PROGRESS_PATH)
        or any(variable.get("name") in values for variable in container.get("env") or [])
        else container | {key: [*(container.get(key) or []), *more] for key, more in added.items()}
        for container in pod_template.list_containers(pod)
    ]
    audience = progress.token_audience(resource, meta.namespace, job.name)
    token = {"audience": audience, "expirationSeconds": _TOKEN_LIFETIME_S, "path": "token"}
    # Training does not wait for CAs that cannot be published.
    authorities = {
        "name": progress.AUTHORITY_CONFIG_MAP,
        "items": [{"key": progress.AUTHORITY_KEY, "path": progress.AUTHORITY_KEY}],
        "optional": True,
    }
    sources = [{"serviceAccountToken": token}, {"configMap": authorities}]
    volume = {"name": name, "projected": {"sources": sources}}
    return pod_template.with_spec(pod, containers=containers, volumes=[*volumes, volume])


def with_termination_message(job: NormalizedJob, pod: Manifest) -> Manifest:
    """Have the kubelet copy the end of a failed program's log into the pod's status, and that of a
    failed init container.

    The verdict about a failure is then the same in the job's conditions as in a diagnosis that
    reads the log. A policy of the user takes precedence.
    """
    policy = "FallbackToLogsOnError"
    trains = pod_template.main_container(pod, job.kind.container)
    if trains and not trains.get("terminationMessagePolicy"):
        name = job.kind.container
        pod = pod_template.with_container(pod, name, terminationMessagePolicy=policy)
    before = [
        {
            **container,
            "terminationMessagePolicy": container.get("terminationMessagePolicy") or policy,
        }
        for container in pod_template.pod_spec(pod).get("initContainers") or []
    ]
    return pod_template.with_spec(pod, initContainers=before) if before else pod


def _has_shared_memory(pod: Manifest, container: str) -> bool:
    """Return whether a volume is mounted there, or the pod shares the IPC namespace of the node."""
    trains = pod_template.main_container(pod, container)
    if not trains or pod_template.pod_spec(pod).get("hostIPC"):
        return True
    return any(pod_template.mounts_path(trains, path) for path in (SHARED_MEMORY_PATH, "/dev"))


def owner_reference(job: NormalizedJob) -> Manifest:
    reference: Manifest = msgspec.to_builtins(job.owner_reference())
    return reference


def _replica_labels(job: NormalizedJob, role: ReplicaRole, index: int) -> dict[str, str]:
    number = index + role.first_label
    return labels.replica_labels(job.name, job.kind.controller, role.name, number)


def build_pod(
    job: NormalizedJob,
    role: ReplicaRole,
    index: int,
    settings: EngineSettings,
    gang: ReplicaGang,
    generation: int,
) -> PlannedCreation:
    own = _replica_labels(job, role, index)
    if job.rules.is_master(job, role, index):
        own[labels.JOB_ROLE] = labels.MASTER_ROLE
    variables = job.rules.environment(job, role, index, gang)
    only = None if job.kind.env_in_all_containers else job.kind.container
    manifest = pod_template.with_environment(
        role.template, variables, job.kind.operator_variables, only
    )
    notes = gang_restart.generation_annotations(job, generation)
    if settings.gang_scheduling:
        gang_notes = {labels.TASK_SPEC_ANNOTATION: role.label}
        if not settings.kubernetes_groups:
            gang_notes[labels.POD_GROUP_ANNOTATION] = job.name
        notes = gang_notes | notes
    manifest = pod_template.with_metadata(manifest, own, notes)
    # The kubelet restarts containers, except where all replicas restart together. It has no policy
    # by exit code.
    operator_restarts = gang_restart.restarts_gang(job) or role.restart is RestartPolicy.EXIT_CODE
    policy = RestartPolicy.NEVER if operator_restarts else role.restart
    manifest = pod_template.with_spec(
        manifest, restartPolicy=policy, **_scheduling(job, role, settings)
    )
    if implements(job.rules, ShapesPods):
        manifest = job.rules.shape_pod(job, role, index, manifest, gang)
    manifest = with_shared_memory(job, role, manifest)
    manifest = with_termination_message(job, manifest)
    manifest = with_progress_endpoint(job, manifest, settings.progress_url)
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
    fields = (
        job.rules.service_overrides(job, role, index)
        if implements(job.rules, ConfiguresServices)
        else {}
    )
    if fields is None:
        return None
    own = _replica_labels(job, role, index)
    name = tracker_of(job).service_name(job, role, index)
    spec: Manifest = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": own,
        "ports": _service_ports(role.template, job.kind),
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


def _identity(job: NormalizedJob, name: str) -> Manifest:
    return {
        "name": name,
        "namespace": job.meta.namespace,
        "ownerReferences": [owner_reference(job)],
    }


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
    fields: Manifest = {key: value for key, value in chosen.items() if value and not spec.get(key)}
    if settings.kubernetes_groups:
        fields["schedulingGroup"] = {"podGroupName": job.name}
    return fields


def _service_ports(template: Manifest, kind: JobKindInfo) -> list[Manifest]:
    """List the ports of the main container and the kind's, each once, with names that differ."""
    declared = pod_template.container_ports(template, kind.container)
    if kind.port_name:
        own = pod_template.find_port(template, kind.container, kind.port_name, kind.port)
        declared = [*declared, {"name": kind.port_name, "containerPort": own}]
    ports: dict[tuple[int, str], Manifest] = {}
    names = set[str]()
    for entry in declared:
        number, protocol = entry.get("containerPort"), entry.get("protocol") or "TCP"
        if not number or (number, protocol) in ports:
            continue
        name = free_name(entry.get("name") or f"port-{number}", names)
        names.add(name)
        ports[number, protocol] = {
            "name": name,
            "port": number,
            "targetPort": number,
            "protocol": protocol,
        }
    return list(ports.values())


CONTENT_ANNOTATION = "gangline.dev/content"
"""Annotation: the digest of the content with which the object was created."""


def desired_objects(job: NormalizedJob, gang: ReplicaGang) -> list[PlannedCreation]:
    rules = job.rules
    listed = rules.owned_objects(job, gang) if implements(rules, OwnsObjects) else []
    return [
        PlannedCreation(TargetKind(manifest["kind"]), _with_metadata(job, manifest))
        for manifest in listed
    ]


def missing_objects(
    desired: Iterable[PlannedCreation], observed: Iterable[OwnedObject]
) -> list[PlannedCreation]:
    """List the objects to create; those that cannot be read are excluded."""
    there = {(extra.target, extra.metadata.name) for extra in observed}
    seen = (creation for creation in desired if creation.target not in UNWATCHED)
    return [creation for creation in seen if (creation.target, creation.name) not in there]


def prepend_unwatched(
    desired: Iterable[PlannedCreation], creations: tuple[PlannedCreation, ...]
) -> tuple[PlannedCreation, ...]:
    """Put objects that cannot be read before pods that need them: they may not exist."""
    if not any(creation.target is TargetKind.POD for creation in creations):
        return creations
    return (*(creation for creation in desired if creation.target in UNWATCHED), *creations)


def update_patches(
    desired: Iterable[PlannedCreation], observed: Iterable[OwnedObject]
) -> list[PlannedPatch]:
    seen = {(extra.target, extra.metadata.name): extra for extra in observed}
    patches = []
    for creation in desired:
        extra = seen.get((creation.target, creation.name))
        if extra is None or extra.metadata.deletion_timestamp is not None:
            continue
        content = creation.manifest["metadata"]["annotations"][CONTENT_ANNOTATION]
        before = extra.metadata.annotations.get(CONTENT_ANNOTATION)
        if before not in (None, content):
            patches.append(
                PlannedPatch(creation.target, creation.name, _update_operations(creation.manifest))
            )
    return patches


def obsolete_objects(
    desired: Iterable[PlannedCreation], observed: Iterable[OwnedObject]
) -> list[OwnedObject]:
    """List the objects that a running job no longer needs, except those of an upstream operator."""
    names = {(creation.target, creation.name) for creation in desired}
    return [
        extra
        for extra in observed
        if (extra.target, extra.metadata.name) not in names
        and CONTENT_ANNOTATION in extra.metadata.annotations
    ]


def obsolete_after_end(
    policy: CleanPodPolicy, observed: Iterable[OwnedObject]
) -> list[OwnedObject]:
    """List the objects to delete when the job has finished.

    Retained pods may still read theirs, but a finished job must not be scaled.
    """
    everything = policy is CleanPodPolicy.ALL
    return [extra for extra in observed if everything or extra.target is TargetKind.AUTOSCALER]


def _with_metadata(job: NormalizedJob, manifest: Manifest) -> Manifest:
    meta: Manifest = manifest["metadata"]
    own = {labels.JOB_NAME: job.name, labels.OPERATOR_NAME: job.kind.controller}
    written = msgspec.json.encode(manifest, order="deterministic")
    return {
        **manifest,
        "metadata": {
            "name": meta["name"],
            "namespace": job.meta.namespace,
            "labels": {**(meta.get("labels") or {}), **own},
            "annotations": {
                **(meta.get("annotations") or {}),
                CONTENT_ANNOTATION: hashlib.sha256(written).hexdigest()[:16],
            },
            "ownerReferences": [owner_reference(job)],
        },
    }


def _update_operations(manifest: Manifest) -> list[Manifest]:
    content = manifest["metadata"]["annotations"][CONTENT_ANNOTATION]
    path = labels.annotation_path(CONTENT_ANNOTATION)
    digest = {"op": "add", "path": path, "value": content}
    fields = (
        {"op": "add", "path": f"/{name}", "value": value}
        for name, value in manifest.items()
        if name not in ("apiVersion", "kind", "metadata")
    )
    return [*fields, digest]
