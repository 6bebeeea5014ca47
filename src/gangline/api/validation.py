"""Whether a job can be carried out: every mistake in it, not only the first.

Two steps. The shape (``shape``): types, allowed values, ranges, unknown fields. Then what no schema
can say: names that get too long, roles, containers, amounts, limits that contradict each other.
The operator, the command line and the SDK ask the same functions, so that all say the same.

Limits of our own: a job has at most 5,000 replicas.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from gangline.api import names
from gangline.api.fielderror import FieldError, child, complaint_at
from gangline.api.kubeflow import (
    ElasticPolicy,
    PyTorchJob,
    ReplicaSpec,
    RunPolicy,
    SchedulingPolicy,
)
from gangline.api.meta import Object, ObjectMeta
from gangline.api.pod import PodTemplateSpec
from gangline.api.podvalidation import validate_metadata, validate_template
from gangline.api.quantity import QuantityError, parse_quantity
from gangline.api.scheduling import PodGroup, Queue
from gangline.api.shape import Shape, check_shape, unknown_fields

__all__ = ["MOST_REPLICAS", "FieldError", "validate_manifest", "validate_pytorch_job"]

MOST_REPLICAS = 5000
"""More pods than this in one job are taken for a slip of the keyboard."""

_PYTORCH_ROLES = ("Master", "Worker")
_PYTORCH_CONTAINER = "pytorch"
_PROCESSES = re.compile(r"[1-9][0-9]{0,3}", re.ASCII)
_RANDOM_SUFFIX = "-00000"  # what the server adds to metadata.generateName

Roles = dict[str, ReplicaSpec]


def validate_pytorch_job(job: PyTorchJob, old: PyTorchJob | None = None) -> list[FieldError]:
    """Every mistake in a PyTorchJob as it was read from the API.

    Fields that this version does not know are no mistake here: the API server has let them pass.

    Args:
        job: the job.
        old: the job before this change, for what cannot be changed.
    """
    shape = check_shape(msgspec.to_builtins(job), PyTorchJob)
    unknown = unknown_fields(shape.errors)
    errors = [error for error in shape.errors if error not in unknown]
    return errors + _beyond(shape, lambda sound: _pytorch_job(sound, old), PyTorchJob)


def validate_manifest(manifest: Mapping[str, Any], *, strict: bool = True) -> list[FieldError]:
    """Every mistake in an object of one of our kinds, as a user wrote it.

    Objects of other kinds have none: the API server knows better.

    Args:
        manifest: the object as plain data; whatever a YAML file may hold.
        strict: count fields that this version does not know as mistakes.
    """
    version, kind = manifest.get("apiVersion"), manifest.get("kind")
    if (version, kind) not in _KINDS:
        return []
    type_, check = _KINDS[version, kind]
    shape = check_shape(manifest, type_)
    unknown = [] if strict else unknown_fields(shape.errors)
    errors = [error for error in shape.errors if error not in unknown]
    return errors + _beyond(shape, check, type_)


def _beyond(
    shape: Shape, check: Callable[[Any], Iterable[FieldError]], type_: type[Object]
) -> list[FieldError]:
    """What no schema can say, of the parts that have the right shape."""
    if not shape.sound:
        return []
    try:
        job = msgspec.convert(shape.sound, type_)
    except msgspec.ValidationError as error:
        return [_unreadable(error, "")]
    known = {error.path for error in shape.errors}
    return [
        error
        for error in (*validate_metadata(job.metadata, "metadata"), *check(job))
        if error.path not in known and not _is_within(error.path, shape.dropped)
    ]


def _unreadable(error: msgspec.ValidationError, path: str) -> FieldError:
    """A value that is wrong in a way that the schema cannot say, such as a date that is none."""
    problem, _, place = str(error).partition(" - at `$")
    return FieldError(f"{path}{place.rstrip('`')}".lstrip("."), None, problem)


def _is_within(path: str, parts: Iterable[str]) -> bool:
    return any(path == part or path.startswith((f"{part}.", f"{part}[")) for part in parts)


def _pytorch_job(job: PyTorchJob, old: PyTorchJob | None = None) -> Iterator[FieldError]:
    spec = job.spec
    path = "spec.pytorchReplicaSpecs"
    roles, errors = _roles(spec.pytorch_replica_specs, _PYTORCH_ROLES, path)
    yield from _name(job.metadata, roles)
    yield from errors
    yield from _pytorch_replicas(roles, path)
    for key, replica in spec.pytorch_replica_specs.items():
        yield from _template(replica, f"{child(path, key)}.template", _PYTORCH_CONTAINER)
    total = sum(_count(replica) for replica in roles.values())
    yield from _run_policy(spec.run_policy, total)
    yield from _processes(spec.nproc_per_node)
    if spec.elastic_policy is not None:
        yield from _elastic(spec.elastic_policy, roles.get("Worker"), spec.nproc_per_node)
    if old is not None:
        yield from _unchanged(spec.run_policy, old.spec.run_policy)


def _name(meta: ObjectMeta, roles: Roles) -> Iterator[FieldError]:
    replicas = {role: _count(replica) for role, replica in roles.items()}
    if meta.name:
        yield from complaint_at("metadata.name", meta.name, names.job_name(meta.name, replicas))
    elif meta.generate_name:
        name = meta.generate_name.rstrip("-") + _RANDOM_SUFFIX
        complaint = names.job_name(name, replicas)
        yield from complaint_at("metadata.generateName", meta.generate_name, complaint)
    else:
        yield FieldError("metadata.name", None, "is missing", "give the job a name")


def _roles(
    specs: Mapping[str, ReplicaSpec], known: tuple[str, ...], path: str
) -> tuple[Roles, list[FieldError]]:
    """The replicas by the right spelling of their role, and what is wrong with the spelling."""
    spelt = {role.lower(): role for role in known}
    roles: Roles = {}
    errors: list[FieldError] = []
    for key, replica in specs.items():
        role = spelt.get(key.lower())
        if role is None:
            close = get_close_matches(key.lower(), spelt, n=1, cutoff=0.5)
            remedy = f"did you mean {spelt[close[0]]!r}?" if close else f"use {' or '.join(known)}"
            errors.append(FieldError(child(path, key), None, "is not a role", remedy))
        elif role in roles:
            problem, remedy = f"is another spelling of {role!r}, which is there", "give it once"
            errors.append(FieldError(child(path, key), None, problem, remedy))
        else:
            roles[role] = replica
    if not specs:
        errors.append(FieldError(path, None, "is missing", f"give {' or '.join(known)}"))
    return roles, errors


def _count(replica: ReplicaSpec) -> int:
    return 1 if replica.replicas is None else max(0, replica.replicas)


def _pytorch_replicas(roles: Roles, path: str) -> Iterator[FieldError]:
    counts = {role: _count(replica) for role, replica in roles.items()}
    masters, total = counts.get("Master", 1), sum(counts.values())
    if masters != 1:
        remedy = "give 1, and further pods as Worker" if masters else "give 1, or leave Master out"
        yield FieldError(f"{path}.Master.replicas", masters, "is not 1", remedy)
    elif counts and not total:
        remedy = "give at least 1; to hold a job, set spec.runPolicy.suspend"
        yield FieldError(f"{path}.Worker.replicas", 0, "leaves the job without a pod", remedy)
    if total > MOST_REPLICAS:
        largest = max(counts, key=lambda role: counts[role])
        problem = f"makes a job of {total} pods"
        remedy = f"a job has at most {MOST_REPLICAS}"
        yield FieldError(f"{path}.{largest}.replicas", counts[largest], problem, remedy)


def _template(replica: ReplicaSpec, path: str, container: str) -> Iterator[FieldError]:
    try:
        template = msgspec.convert(replica.template, PodTemplateSpec)
    except msgspec.ValidationError as error:
        yield _unreadable(error, path)
        return
    yield from validate_template(template, path)
    given = [each.name for each in template.spec.containers]
    if given and container not in given:
        where = f"{path}.spec.containers"
        remedy = f"name the container that trains {container!r}"
        yield FieldError(where, given, f"has no container {container!r}", remedy)


def _run_policy(policy: RunPolicy, total: int) -> Iterator[FieldError]:
    if policy.scheduling_policy is not None:
        path = "spec.runPolicy.schedulingPolicy"
        yield from _scheduling_policy(policy.scheduling_policy, total, path)


def _scheduling_policy(policy: SchedulingPolicy, total: int, path: str) -> Iterator[FieldError]:
    if total and (policy.min_available or 0) > total:
        problem = f"is more than the {total} pods of the job"
        yield FieldError(
            f"{path}.minAvailable", policy.min_available, problem, f"give at most {total}"
        )
    if policy.queue:
        yield from complaint_at(f"{path}.queue", policy.queue, names.dns_subdomain(policy.queue))
    if policy.priority_class:
        complaint = names.dns_subdomain(policy.priority_class)
        yield from complaint_at(f"{path}.priorityClass", policy.priority_class, complaint)
    for name, written in (policy.min_resources or {}).items():
        yield from _amount(child(f"{path}.minResources", name), written)


def _amount(path: str, written: str | int | float) -> Iterator[FieldError]:
    try:
        if parse_quantity(written).nano < 0:
            yield FieldError(path, written, "is below nothing", "give an amount of 0 or more")
    except QuantityError as error:
        yield FieldError(path, written, error.problem, error.remedy)


def _processes(count: str | None) -> Iterator[FieldError]:
    if count is None or count in ("auto", "cpu", "gpu"):
        return
    if not _PROCESSES.fullmatch(count):
        remedy = 'give auto, cpu, gpu or a number of processes in quotes, such as "8"'
        yield FieldError("spec.nprocPerNode", count, "is not a number of processes", remedy)


def _elastic(
    policy: ElasticPolicy, worker: ReplicaSpec | None, processes: str | None
) -> Iterator[FieldError]:
    path = "spec.elasticPolicy"
    if worker is None:
        remedy = "give spec.pytorchReplicaSpecs.Worker: only workers come and go"
        yield FieldError(path, None, "has no workers to add or remove", remedy)
        return
    if policy.n_proc_per_node is not None and processes is not None:
        where = f"{path}.nProcPerNode"
        problem = "is given together with spec.nprocPerNode"
        yield FieldError(where, policy.n_proc_per_node, problem, "keep spec.nprocPerNode only")
    yield from _elastic_range(policy, _count(worker), path)
    for index, setting in enumerate(policy.rdzv_conf):
        where = f"{path}.rdzvConf[{index}]"
        if not setting.key:
            yield FieldError(f"{where}.key", None, "is missing", "name the setting")
        for field, text in (("key", setting.key), ("value", setting.value)):
            if "," in text or (field == "key" and "=" in text):
                problem = "has a sign that parts settings"
                yield FieldError(f"{where}.{field}", text, problem, "write one setting an entry")


def _elastic_range(policy: ElasticPolicy, workers: int, path: str) -> Iterator[FieldError]:
    least, most = policy.min_replicas, policy.max_replicas
    if least is not None and most is not None and least > most:
        problem = f"is more than maxReplicas {most}"
        yield FieldError(f"{path}.minReplicas", least, problem, f"give at most {most}")
        return
    where = "spec.pytorchReplicaSpecs.Worker.replicas"
    if least is not None and workers < least:
        problem = f"is less than minReplicas {least}: the job would wait for ever"
        yield FieldError(where, workers, problem, f"give at least {least}")
    if most is not None and workers > most:
        problem = f"is more than maxReplicas {most}: the others would never be let in"
        yield FieldError(where, workers, problem, f"give at most {most}")


def _unchanged(policy: RunPolicy, old: RunPolicy) -> Iterator[FieldError]:
    if policy.managed_by != old.managed_by:
        where = "spec.runPolicy.managedBy"
        yield FieldError(where, policy.managed_by, "was changed", f"leave it {old.managed_by!r}")
    before = (old.scheduling_policy or SchedulingPolicy()).queue
    queue = (policy.scheduling_policy or SchedulingPolicy()).queue
    if before and queue and queue != before:
        where = "spec.runPolicy.schedulingPolicy.queue"
        yield FieldError(where, queue, "was changed", f"leave it {before!r}, or make a new job")


def _pod_group(group: PodGroup) -> Iterator[FieldError]:
    for name, written in (group.spec.min_resources or {}).items():
        yield from _amount(child("spec.minResources", name), written)
    topology = group.spec.network_topology
    if topology and topology.highest_tier_name and topology.highest_tier_allowed is not None:
        where = "spec.networkTopology.highestTierName"
        problem = "is given together with highestTierAllowed"
        yield FieldError(where, topology.highest_tier_name, problem, "give one of the two")


def _queue(queue: Queue) -> Iterator[FieldError]:
    spec = queue.spec
    guarantee = spec.guarantee.resource if spec.guarantee else {}
    amounts = (("capability", spec.capability), ("deserved", spec.deserved))
    for field, amount in (*amounts, ("guarantee.resource", guarantee)):
        for name, written in amount.items():
            yield from _amount(child(f"spec.{field}", name), written)
    if spec.parent and spec.parent == queue.metadata.name:
        yield FieldError("spec.parent", spec.parent, "is the queue itself", "name another queue")


_KINDS: Mapping[tuple[Any, Any], tuple[type[Object], Callable[[Any], Iterable[FieldError]]]] = {
    ("kubeflow.org/v1", "PyTorchJob"): (PyTorchJob, _pytorch_job),
    ("scheduling.volcano.sh/v1beta1", "PodGroup"): (PodGroup, _pod_group),
    ("scheduling.volcano.sh/v1beta1", "Queue"): (Queue, _queue),
}
