"""Rules that all kinds of jobs share: names, roles, templates, run policy.

Every function yields all errors that it finds, each with the path of its field. The module of a
kind combines them.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Protocol

import msgspec

from gangline.api import names
from gangline.api.core.pod import PodTemplateSpec
from gangline.api.jobs.kubeflow import (
    RESIZE_ANNOTATION,
    RESTART_ANNOTATION,
    SHARED_MEMORY_ANNOTATION,
    STALLED_ANNOTATION,
    CommonRunPolicy,
    ReplicaSpec,
    RunPolicy,
    SchedulingPolicy,
)
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.meta.objects import ObjectMeta, StatusCause
from gangline.api.quantity import QuantityError, parse_quantity, quantity_or_none
from gangline.api.schema.field_error import FieldError, child_path, name_errors
from gangline.api.validation.field_rules import annotation_causes, label_causes
from gangline.api.validation.pods import template_causes

MAX_JOB_REPLICAS = 5000
"""A job with more pods than this is refused as a probable typing error."""

_RANDOM_SUFFIX = "-00000"  # what the server adds to metadata.generateName

_SWITCH_ANNOTATIONS = {
    RESTART_ANNOTATION: ("gang",),
    RESIZE_ANNOTATION: ("restart",),
    STALLED_ANNOTATION: ("restart", "fail"),
}

RoleSpecs = dict[str, ReplicaSpec]


class HasRunPolicy(Protocol):
    @property
    def run_policy(self) -> RunPolicy: ...


class JobWithRunPolicy(Protocol):
    @property
    def metadata(self) -> ObjectMeta: ...

    @property
    def spec(self) -> HasRunPolicy: ...


def job_name_errors(meta: ObjectMeta, roles: RoleSpecs) -> Iterator[FieldError]:
    """The names of the job's pods and services must be valid, not only its own."""
    replicas = {role: replica_count(replica) for role, replica in roles.items()}
    if meta.name:
        complaint = names.validate_job_name(meta.name, replicas)
        yield from name_errors("metadata.name", meta.name, complaint)
    elif meta.generate_name:
        name = meta.generate_name.rstrip("-") + _RANDOM_SUFFIX
        complaint = names.validate_job_name(name, replicas)
        yield from name_errors("metadata.generateName", meta.generate_name, complaint)
    else:
        yield FieldError("metadata.name", None, "is missing", "give the job a name")


def annotation_errors(meta: ObjectMeta) -> Iterator[FieldError]:
    for key, values in _SWITCH_ANNOTATIONS.items():
        given = meta.annotations.get(key)
        if given not in (None, *values):
            where = child_path("metadata.annotations", key)
            allowed = " or ".join(map(repr, values))
            yield FieldError(where, given, "is not an allowed value", f"give {allowed}")
    memory = meta.annotations.get(SHARED_MEMORY_ANNOTATION)
    amount = quantity_or_none(memory)
    if memory not in (None, "true", "false") and (amount is None or amount.nano <= 0):
        where = child_path("metadata.annotations", SHARED_MEMORY_ANNOTATION)
        remedy = "give 'true', 'false' or a quantity, such as '8Gi'"
        yield FieldError(where, memory, "is not an allowed value", remedy)


def read_roles(
    specs: Mapping[str, ReplicaSpec], role_names: tuple[str, ...], path: str
) -> tuple[RoleSpecs, list[FieldError]]:
    """Return the replica specs by the canonical spelling of their role, and the spelling errors."""
    spelt = {role.lower(): role for role in role_names}
    roles: RoleSpecs = {}
    errors: list[FieldError] = []
    for key, replica in specs.items():
        role = spelt.get(key.lower())
        if role is None:
            close = get_close_matches(key.lower(), spelt, n=1, cutoff=0.5)
            remedy = (
                f"did you mean {spelt[close[0]]!r}?" if close else f"use {' or '.join(role_names)}"
            )
            errors.append(FieldError(child_path(path, key), None, "is not a role", remedy))
        elif role in roles:
            problem, remedy = f"is another spelling of {role!r}, which is given too", "give it once"
            errors.append(FieldError(child_path(path, key), None, problem, remedy))
        else:
            roles[role] = replica
    if not specs:
        errors.append(FieldError(path, None, "is missing", f"give {' or '.join(role_names)}"))
    return roles, errors


def conversion_error(error: msgspec.ValidationError, path: str) -> FieldError:
    """Convert a msgspec error about what the schema does not cover, such as an invalid date."""
    problem, _, place = str(error).partition(" - at `$")
    return FieldError(f"{path}{place.rstrip('`')}".lstrip("."), None, problem)


def job_size_errors(roles: RoleSpecs, path: str) -> Iterator[FieldError]:
    counts = {role: replica_count(replica) for role, replica in roles.items()}
    total = sum(counts.values())
    if counts and not total:
        remedy = "give at least 1; to suspend a job, set spec.runPolicy.suspend"
        where = f"{path}.{list(counts)[-1]}.replicas"
        yield FieldError(where, 0, "makes a job without pods", remedy)
    if total > MAX_JOB_REPLICAS:
        largest = max(counts, key=lambda role: counts[role])
        problem = f"makes a job of {total} pods"
        remedy = f"a job has at most {MAX_JOB_REPLICAS}"
        yield FieldError(f"{path}.{largest}.replicas", counts[largest], problem, remedy)


def elastic_range_errors(
    bounds: tuple[int | None, int | None], worker: ReplicaSpec | None, path: str
) -> Iterator[FieldError]:
    """Check ``spec.elasticPolicy``: its bounds, and the workers at ``path`` that they limit."""
    policy = "spec.elasticPolicy"
    if worker is None:
        remedy = f"give {path}.Worker: only workers can be added and removed"
        yield FieldError(policy, None, "has no workers to add or remove", remedy)
        return
    (least, most), workers = bounds, replica_count(worker)
    if least is not None and most is not None and least > most:
        problem = f"is more than maxReplicas {most}"
        yield FieldError(f"{policy}.minReplicas", least, problem, f"give at most {most}")
        return
    where = f"{path}.Worker.replicas"
    if least is not None and workers < least:
        problem = f"is less than minReplicas {least}: the job would wait without end"
        yield FieldError(where, workers, problem, f"give at least {least}")
    if most is not None and workers > most:
        problem = f"is more than maxReplicas {most}: the rest would never be admitted"
        yield FieldError(where, workers, problem, f"give at most {most}")


def kubeflow_job_errors(
    job: JobWithRunPolicy,
    specs: Mapping[str, ReplicaSpec],
    role_names: tuple[str, ...],
    path: str,
    container: str,
) -> Generator[FieldError, None, RoleSpecs]:
    """Check what all kinds with replica specs and a run policy share; return the read roles.

    With an empty ``container`` the main container may have any name.
    """
    roles, errors = read_roles(specs, role_names, path)
    yield from job_name_errors(job.metadata, roles)
    yield from annotation_errors(job.metadata)
    yield from errors
    for key, replica in specs.items():
        yield from template_errors(replica, f"{child_path(path, key)}.template", container)
    total = sum(replica_count(replica) for replica in roles.values())
    yield from run_policy_errors(job.spec.run_policy, total)
    return roles


def replica_count(replica: ReplicaSpec) -> int:
    return 1 if replica.replicas is None else max(0, replica.replicas)


def template_errors(replica: ReplicaSpec, path: str, container: str) -> Iterator[FieldError]:
    """Check a pod template. If ``container`` is set, one of its containers must have that name."""
    yield from pod_template_errors(replica.template, path)
    containers = objects_in(subobject(replica.template, "spec").get("containers"))
    given = [container.get("name") for container in containers]
    if container and given and container not in given:
        where = f"{path}.spec.containers"
        remedy = f"name the main container {container!r}"
        yield FieldError(where, given, f"has no container {container!r}", remedy)


def pod_template_errors(template: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Check a pod template by the rules of the API server, which refuses its pods otherwise."""
    try:
        modelled = msgspec.to_builtins(msgspec.convert(template, PodTemplateSpec))
    except msgspec.ValidationError as error:
        yield conversion_error(error, path)
        return
    for volume in objects_in(subobject(modelled, "spec").get("volumes")):
        if volume.keys() == {"name"}:
            volume["emptyDir"] = {}  # the API server's default
    yield from cause_errors(template_causes(path, modelled))


def metadata_errors(meta: ObjectMeta, path: str = "metadata") -> Iterator[FieldError]:
    yield from cause_errors(label_causes(f"{path}.labels", meta.labels))
    yield from cause_errors(annotation_causes(f"{path}.annotations", meta.annotations))


def cause_errors(causes: Iterable[StatusCause]) -> Iterator[FieldError]:
    for cause in causes:
        yield FieldError(cause.field, None, cause.message, reason=cause.reason)


def run_policy_errors(policy: RunPolicy, total: int) -> Iterator[FieldError]:
    if policy.scheduling_policy is not None:
        path = "spec.runPolicy.schedulingPolicy"
        yield from scheduling_policy_errors(policy.scheduling_policy, total, path)


def scheduling_policy_errors(
    policy: SchedulingPolicy, total: int, path: str
) -> Iterator[FieldError]:
    if total and (policy.min_available or 0) > total:
        problem = f"is more than the {total} pods of the job"
        yield FieldError(
            f"{path}.minAvailable", policy.min_available, problem, f"give at most {total}"
        )
    if policy.queue:
        yield from name_errors(
            f"{path}.queue", policy.queue, names.validate_dns_subdomain(policy.queue)
        )
    if policy.priority_class:
        complaint = names.validate_dns_subdomain(policy.priority_class)
        yield from name_errors(f"{path}.priorityClass", policy.priority_class, complaint)
    for name, written in (policy.min_resources or {}).items():
        yield from quantity_errors(child_path(f"{path}.minResources", name), written)


def quantity_errors(path: str, written: str | int | float) -> Iterator[FieldError]:
    try:
        if parse_quantity(written).nano < 0:
            yield FieldError(path, written, "is negative", "give 0 or more")
    except QuantityError as error:
        yield FieldError(path, written, error.problem, error.remedy)


def immutable_field_errors(policy: RunPolicy, old: RunPolicy) -> Iterator[FieldError]:
    yield from managed_by_errors(policy, old)
    path = "spec.runPolicy.schedulingPolicy"
    yield from queue_errors(policy.scheduling_policy, old.scheduling_policy, path)


def managed_by_errors(policy: CommonRunPolicy, old: CommonRunPolicy) -> Iterator[FieldError]:
    """Check that the job's controller is the one that it was created with."""
    if policy.managed_by != old.managed_by:
        where = "spec.runPolicy.managedBy"
        yield FieldError(where, policy.managed_by, "was changed", f"leave it {old.managed_by!r}")


def queue_errors(
    policy: SchedulingPolicy | None, old: SchedulingPolicy | None, path: str
) -> Iterator[FieldError]:
    """Check that a job that has a queue stays in it."""
    before = (old or SchedulingPolicy()).queue
    queue = (policy or SchedulingPolicy()).queue
    if before and queue and queue != before:
        remedy = f"leave it {before!r}, or create a new job"
        yield FieldError(f"{path}.queue", queue, "was changed", remedy)
