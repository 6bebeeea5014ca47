"""Validation of job manifests: yields every error, not only the first.

Two steps: the schema (types, allowed values, ranges, unknown fields), then the rules that no schema
can express (derived names, roles, containers, quantities, contradicting limits). The operator, the
command line and the SDK call the same functions, so their messages are the same.

Our own limit: a job has at most 5,000 replicas.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from gangline.api.job_resources import JOB_KINDS, POD_GROUPS, QUEUES, SCALE_PLANS
from gangline.api.jobs.kind import JobKind
from gangline.api.meta.objects import Object
from gangline.api.meta.resource import Resource
from gangline.api.schema.check import SchemaCheckResult, check_schema, unknown_field_errors
from gangline.api.schema.field_error import FieldError
from gangline.api.validation import volcano
from gangline.api.validation.common_rules import (
    MAX_JOB_REPLICAS,
    conversion_error,
    metadata_errors,
)
from gangline.api.validation.jobs import rules_of

__all__ = ["MAX_JOB_REPLICAS", "FieldError", "validate_job", "validate_manifest"]

ManifestRule = Callable[[Any, Any], Iterable[FieldError]]
"""Yields the errors of an object, given the object before the change or None."""


def _rule_of(kind: JobKind) -> ManifestRule:
    return lambda job, old: rules_of(kind).validate(job, old)


def _scale_plan_errors(plan: Any, old: Any) -> Iterable[FieldError]:
    from gangline.api.validation.jobs import elastic  # noqa: PLC0415 - see rules_of

    return elastic.validate_scale_plan(plan, old)


_RULES: tuple[tuple[Resource[Any], ManifestRule], ...] = (
    *((kind.resource, _rule_of(kind)) for kind in JOB_KINDS),
    (SCALE_PLANS, _scale_plan_errors),
    (POD_GROUPS, volcano.validate_pod_group),
    (QUEUES, volcano.validate_queue),
)
_KINDS: Mapping[tuple[Any, Any], tuple[type[Object], ManifestRule]] = {
    (resource.api_version, resource.kind): (resource.type, rule) for resource, rule in _RULES
}


def validate_job(job: Object, old: Object | None = None) -> list[FieldError]:
    """Return every error in a job that was read from the API.

    Fields that this version does not know are no errors here: the API server has accepted them.

    Args:
        job: the job, of any of our kinds.
        old: the job before this change, for immutable fields.
    """
    type_ = type(job)
    check = next(check for known, check in _KINDS.values() if known is type_)
    shape = check_schema(msgspec.to_builtins(job), type_)
    unknown = unknown_field_errors(shape.errors)
    errors = [error for error in shape.errors if error not in unknown]
    return errors + _semantic_errors(shape, check, type_, old)


def validate_manifest(
    manifest: Mapping[str, Any], *, strict: bool = True, old: Mapping[str, Any] | None = None
) -> list[FieldError]:
    """Return every error in a manifest of one of our kinds.

    Returns nothing for other kinds: the API server validates them.

    Args:
        manifest: the object as plain data, as read from YAML.
        strict: report fields that this version does not know.
        old: the object before this change, for immutable fields.
    """
    version, kind = manifest.get("apiVersion"), manifest.get("kind")
    if not (isinstance(version, str) and isinstance(kind, str)) or (version, kind) not in _KINDS:
        return []
    type_, check = _KINDS[version, kind]
    shape = check_schema(manifest, type_)
    unknown = [] if strict else unknown_field_errors(shape.errors)
    errors = [error for error in shape.errors if error not in unknown]
    return errors + _semantic_errors(
        shape, check, type_, None if old is None else _convert_old(old, type_)
    )


def _convert_old(manifest: Mapping[str, Any], type_: type[Object]) -> Object | None:
    """Convert the stored object; None if it cannot be converted, so that no field counts as
    immutable.
    """
    try:
        return msgspec.convert(check_schema(manifest, type_).valid, type_)
    except msgspec.ValidationError:
        return None


def _semantic_errors(
    result: SchemaCheckResult, check: ManifestRule, type_: type[Object], old: Object | None
) -> list[FieldError]:
    """Return the errors that no schema can express, for the parts that match the schema."""
    if not result.valid:
        return []
    try:
        job = msgspec.convert(result.valid, type_)
    except msgspec.ValidationError as error:
        return [conversion_error(error, "")]
    known = {error.path for error in result.errors}
    return [
        error
        for error in (*metadata_errors(job.metadata), *check(job, old))
        if error.path not in known and not _is_below(error.path, result.invalid_paths)
    ]


def _is_below(path: str, parts: Iterable[str]) -> bool:
    return any(path == part or path.startswith((f"{part}.", f"{part}[")) for part in parts)
