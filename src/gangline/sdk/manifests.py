"""Manifests of stored jobs: for resubmission without what the server has set, for copies under
another name, for scaling; and what a TrainJob runs after its runtime and its patches are merged.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gangline.api.job_resources import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS, TRAINING_RUNTIMES
from gangline.api.jobs.training_runtime import (
    NODE,
    RUNTIME_COPY_KEY,
    TRAINING_RUNTIME,
    TrainingRuntimeSpec,
    runtime_copy_name,
)
from gangline.api.meta.json_objects import subobject
from gangline.api.resources import CONFIG_MAPS
from gangline.api.trainer.effective import EffectiveJob
from gangline.api.trainer.policy import effective_job
from gangline.api.validation.training_runtime import read_runtime
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import NotFound
from gangline.sdk.client import JobError
from gangline.sdk.jobs import Job


async def effective_manifest(client: ApiClient, job: Job) -> dict[str, Any]:
    """Return the replicated jobs of a TrainJob with their final pod templates.

    The runtime is the copy that the operator stored for the job, or the present one before that.

    Raises:
        JobError: the job is of another kind, its runtime does not exist, or they do not fit.
    """
    if job.kind.resource is not TRAIN_JOBS:
        message = f"{job.qualified_name} has no runtime: 'gangline get --spec' prints what it runs"
        raise JobError(message)
    train_job = await client.get(TRAIN_JOBS, job.name, job.namespace)
    ref = train_job.spec.runtime_ref
    spec, source = await _runtime_spec(client, job, ref.kind, ref.name)
    try:
        return _describe(effective_job(train_job, spec), source)
    except ValueError as error:
        raise JobError(f"{job.qualified_name} cannot be merged with {source}: {error}") from error


async def _runtime_spec(
    client: ApiClient, job: Job, kind: str, name: str
) -> tuple[TrainingRuntimeSpec, str]:
    copy = runtime_copy_name(job.name)
    try:
        stored = await client.get(CONFIG_MAPS, copy, job.namespace)
    except NotFound:
        stored = None
    owner = stored.metadata.controller if stored else None
    if stored and owner and owner.uid == job.uid and RUNTIME_COPY_KEY in stored.data:
        text = stored.data[RUNTIME_COPY_KEY]
        return read_runtime(text.encode())[0], f"configmap/{copy}"
    try:
        if kind == TRAINING_RUNTIME:
            own = await client.get(TRAINING_RUNTIMES, name, job.namespace)
            return own.spec, f"{TRAINING_RUNTIMES.plural}/{name}"
        shared = await client.get(CLUSTER_TRAINING_RUNTIMES, name)
    except NotFound as error:
        message = f"the runtime of {job.qualified_name} does not exist: {kind} {name!r}"
        raise JobError(message) from error
    return shared.spec, f"{CLUSTER_TRAINING_RUNTIMES.plural}/{name}"


def _describe(job: EffectiveJob, source: str) -> dict[str, Any]:
    return {
        "name": job.name,
        "runtime": source,
        "framework": job.framework,
        "nodes": job.nodes,
        "replicatedJobs": [
            {
                "name": role.name,
                "replicas": role.replicas,
                **({"step": role.step} if role.step else {}),
                **({"dependsOn": msgspec.to_builtins(role.depends_on)} if role.depends_on else {}),
                "template": role.template,
            }
            for role in job.roles
        ],
    }


Manifest = dict[str, Any]

_SERVER_SET_FIELDS = (
    "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds", "managedFields", "ownerReferences", "selfLink", "finalizers",
)  # fmt: skip
_FOREIGN_ANNOTATIONS = (
    "kubectl.kubernetes.io/last-applied-configuration",
    "deployment.kubernetes.io/revision",
)
_NODE_ROLES = (NODE, "worker")


def to_submittable(stored: Mapping[str, Any]) -> Manifest:
    """Return a stored object without fields that the server has set."""
    manifest = {key: value for key, value in stored.items() if key != "status"}
    metadata = {key: v for key, v in stored["metadata"].items() if key not in _SERVER_SET_FIELDS}
    annotations = metadata.get("annotations") or {}
    own = {key: v for key, v in annotations.items() if key not in _FOREIGN_ANNOTATIONS}
    metadata.pop("annotations", None)
    if own:
        metadata["annotations"] = own
    manifest["metadata"] = metadata
    if stored.get("kind") == "Service":
        manifest["spec"] = _service_spec(stored["spec"])
    return manifest


def _service_spec(spec: Mapping[str, Any]) -> Manifest:
    """Drop the addresses and ports that the server has allocated."""
    service = {key: value for key, value in spec.items() if key not in {"clusterIP", "clusterIPs"}}
    service["ports"] = [
        {key: value for key, value in port.items() if key != "nodePort"}
        for port in spec.get("ports") or []
    ]
    return service


def rename_objects(objects: Sequence[Manifest], old: str, new: str) -> list[Manifest]:
    """Return a job and the objects that it owns under another name."""
    names = {
        object_["metadata"]["name"]: _new_name(object_["metadata"]["name"], old, new)
        for object_ in objects
    }
    names[old] = new
    return [_replace_names(object_, names) for object_ in objects]


def _new_name(name: str, old: str, new: str) -> str:
    return new + name.removeprefix(old) if name.startswith(old) else f"{new}-{name}"


def _replace_names(node: Any, names: Mapping[str, str]) -> Any:
    """Replace texts that equal an old name, in references, labels and selectors."""
    if isinstance(node, dict):
        return {key: _replace_names(value, names) for key, value in node.items()}
    if isinstance(node, list):
        return [_replace_names(value, names) for value in node]
    return names.get(node, node) if isinstance(node, str) else node


def with_owner(manifest: Mapping[str, Any], owner: Mapping[str, Any]) -> Manifest:
    """Return an object with its job as owner, so that it is deleted with the job."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    metadata = manifest["metadata"] | {"ownerReferences": [reference]}
    return {**manifest, "metadata": metadata}


def iterate_roles(job: Mapping[str, Any]) -> Iterator[tuple[list[str], Mapping[str, Any]]]:
    """Yield path and replica spec of each role, for any kind of job."""
    spec = job.get("spec") or {}
    for key, value in spec.items():
        if not isinstance(value, dict):
            continue
        if key.endswith("eplicaSpecs"):
            for role, item in value.items():
                yield ["spec", key, role], item
        elif isinstance(value.get("template"), dict):
            yield ["spec", key], value


def scale_patch(job: Mapping[str, Any], role: str, replicas: int) -> Manifest:
    """Return the merge patch that sets the number of replicas of a role.

    The workers of a TrainJob are its nodes.

    Raises:
        KeyError: the job has no such role; the argument lists its roles.
    """
    if job.get("kind") == TRAIN_JOBS.kind:
        if role.lower() not in _NODE_ROLES:
            raise KeyError(NODE)
        return {"spec": {"trainer": {"numNodes": replicas}}}
    for path, _ in iterate_roles(job):
        if path[-1].lower() == role.lower():
            patch: Manifest = {"replicas": replicas}
            for step in reversed(path):
                patch = {step: patch}
            return patch
    raise KeyError(", ".join(path[-1] for path, _ in iterate_roles(job)))


def replica_count(job: Mapping[str, Any], role: str) -> int:
    """Return the requested number of replicas of a role; 0 if the job has no such role."""
    if job.get("kind") == TRAIN_JOBS.kind and role.lower() in _NODE_ROLES:
        nodes = subobject(job, "spec", "trainer").get("numNodes")
        of_runtime = subobject(job, "status", "gangline", "roles", NODE).get("replicas")
        return int(nodes or of_runtime or 1)
    for path, spec in iterate_roles(job):
        if path[-1].lower() == role.lower():
            count = spec.get("replicas")
            return 1 if count is None else int(count)
    return 0
