"""Validation of job manifests: every error, not only the first, and warnings.

Two steps: the schema (types, allowed values, ranges, unknown fields), then the rules that no schema
can express (derived names, roles, containers, quantities, contradicting limits). The operator, the
command line and the SDK call the same functions, so their messages are the same. Warnings are about
valid settings that are probably not intended: upstream operators accept them silently.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from gangline.api.job_resources import (
    CLUSTER_TRAINING_RUNTIMES,
    JOB_KINDS,
    POD_GROUPS,
    QUEUES,
    SCALE_PLANS,
    TRAINING_RUNTIMES,
    find_job_kind,
)
from gangline.api.jobs.kind import JobKind, original_version_of
from gangline.api.jobs.kubeflow import RunPolicy
from gangline.api.meta.objects import Object
from gangline.api.meta.resource import Resource
from gangline.api.schema.check import check_schema, unknown_field_errors
from gangline.api.schema.field_error import FieldError, child_path, is_below
from gangline.api.validation.common_rules import (
    MAX_JOB_REPLICAS,
    conversion_error,
    immutable_field_errors,
    metadata_errors,
    quantity_errors,
)
from gangline.api.validation.jobs import rules_of
from gangline.api.volcano.scheduling import PodGroup, Queue

__all__ = [
    "MAX_JOB_REPLICAS",
    "FieldError",
    "ManifestCheck",
    "check_manifest",
    "validate_job",
    "validate_manifest",
]

ManifestRule = Callable[[Any, Any], Iterable[FieldError]]
"""Yields the errors of an object, given the object before the change or None."""


class _KindRules(NamedTuple):
    type: type[Object]
    validate: ManifestRule
    list_warnings: Callable[[Any], Iterable[FieldError]] = lambda job: ()


def _job_rules(kind: JobKind) -> _KindRules:
    return _KindRules(
        kind.resource.type,
        lambda job, old: _job_errors(kind, job, old),
        lambda job: rules_of(kind).list_warnings(job),
    )


def _job_errors(kind: JobKind, job: Any, old: Any) -> Iterator[FieldError]:
    yield from rules_of(kind).validate(job, old)
    # A job with a runtime has no run policy of its own.
    has_policy = isinstance(job.spec.run_policy, RunPolicy) and not kind.has_runtime
    if old is not None and has_policy:
        yield from immutable_field_errors(job.spec.run_policy, old.spec.run_policy)


def _scale_plan_errors(plan: Any, old: Any) -> Iterable[FieldError]:
    from gangline.api.validation.jobs import elastic

    return elastic.validate_scale_plan(plan, old)


def _runtime_errors(runtime: Any, old: Any) -> Iterable[FieldError]:
    from gangline.api.validation import training_runtime

    return training_runtime.validate(runtime, old)


def _runtime_warnings(runtime: Any) -> Iterable[FieldError]:
    from gangline.api.validation import training_runtime

    return training_runtime.list_warnings(runtime)


def _validate_pod_group(group: PodGroup, old: PodGroup | None = None) -> Iterator[FieldError]:
    for name, written in (group.spec.min_resources or {}).items():
        yield from quantity_errors(child_path("spec.minResources", name), written)
    topology = group.spec.network_topology
    if topology and topology.highest_tier_name and topology.highest_tier_allowed is not None:
        where = "spec.networkTopology.highestTierName"
        problem = "is given together with highestTierAllowed"
        yield FieldError(where, topology.highest_tier_name, problem, "give one of the two")


def _validate_queue(queue: Queue, old: Queue | None = None) -> Iterator[FieldError]:
    spec = queue.spec
    guarantee = spec.guarantee.resource if spec.guarantee else {}
    amounts = (("capability", spec.capability), ("deserved", spec.deserved))
    for path, given in (*amounts, ("guarantee.resource", guarantee)):
        for name, written in given.items():
            yield from quantity_errors(child_path(f"spec.{path}", name), written)
    if spec.parent and spec.parent == queue.metadata.name:
        yield FieldError("spec.parent", spec.parent, "is the queue itself", "name another queue")


_RULES: tuple[tuple[Resource[Any], _KindRules], ...] = (
    (SCALE_PLANS, _KindRules(SCALE_PLANS.type, _scale_plan_errors)),
    *(
        (resource, _KindRules(resource.type, _runtime_errors, _runtime_warnings))
        for resource in (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES)
    ),
    (POD_GROUPS, _KindRules(POD_GROUPS.type, _validate_pod_group)),
    (QUEUES, _KindRules(QUEUES.type, _validate_queue)),
)
_KINDS: Mapping[tuple[Any, Any], _KindRules] = {
    **{(resource.api_version, resource.kind): rules for resource, rules in _RULES},
    **{
        (version, kind.resource.kind): _job_rules(kind)
        for kind in JOB_KINDS
        for version in kind.api_versions
    },
}


@dataclass(frozen=True, slots=True)
class ManifestCheck:
    """What one check of a manifest found."""

    errors: list[FieldError] = field(default_factory=list)
    warnings: list[FieldError] = field(default_factory=list)
    """Fields of the wrong type cause none. Unknown fields are warnings unless checked strictly."""
    job: Any = None
    """The object without null fields and without parts of the wrong type, also inside pod
    templates; None if it cannot be decoded, or is of another kind.
    """


def check_manifest(
    manifest: Mapping[str, Any], *, strict: bool = True, old: Object | None = None
) -> ManifestCheck:
    """Check a manifest of one of our kinds, and its change from ``old``. Others are left to the
    server.

    ``strict`` reports fields that this version does not know as errors.
    """
    version, kind = manifest.get("apiVersion"), manifest.get("kind")
    if not (isinstance(version, str) and isinstance(kind, str)) or (version, kind) not in _KINDS:
        return ManifestCheck()
    rules = _KINDS[version, kind]
    job_kind = find_job_kind(version, kind)
    if job_kind and job_kind.other_versions:
        manifest = {**manifest, "apiVersion": original_version_of(job_kind, manifest)}
    checked = _check(manifest, rules, strict=strict, old=old)
    if checked.job is not None:
        checked.warnings[:0] = rules.list_warnings(checked.job)
    return checked


def validate_manifest(
    manifest: Mapping[str, Any], *, strict: bool = True, old: Mapping[str, Any] | None = None
) -> list[FieldError]:
    """Return the errors that ``check_manifest`` finds; ``old`` is plain data as well."""
    before = None if old is None else check_manifest(old).job
    return check_manifest(manifest, strict=strict, old=before).errors


def validate_job(job: Object, old: Object | None = None) -> list[FieldError]:
    """Return the errors that ``check_job`` finds."""
    return check_job(job, old).errors


def check_job(job: Object, old: Object | None = None) -> ManifestCheck:
    """Check a job, and its change from ``old``, that was read from the API.

    Fields that this version does not know are no errors here: the API server has accepted them.
    """
    rules = next(rules for rules in _KINDS.values() if rules.type is type(job))
    return _check(msgspec.to_builtins(job), rules, strict=False, old=old)


def _check(
    manifest: Mapping[str, Any], rules: _KindRules, *, strict: bool, old: Object | None
) -> ManifestCheck:
    """Check the schema, then the rules that it cannot express for the parts that match it."""
    shape = check_schema(manifest, rules.type)
    unknown = [] if strict else unknown_field_errors(shape.errors)
    errors = [error for error in shape.errors if error not in unknown]
    if not shape.valid:
        return ManifestCheck(errors, unknown)
    try:
        job = msgspec.convert(shape.valid, rules.type)
    except msgspec.ValidationError as error:
        return ManifestCheck([*errors, conversion_error(error, "")], unknown)
    paths = {error.path for error in shape.errors}
    errors += [
        error
        for error in (*metadata_errors(job.metadata), *rules.validate(job, old))
        if error.path not in paths and not is_below(error.path, shape.invalid_paths)
    ]
    return ManifestCheck(errors, unknown, job)
