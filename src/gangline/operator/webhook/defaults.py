"""The defaults that are written into a job, so that ``kubectl get -o yaml`` shows what will happen.

A default is written only if no later change of another field would lead to another default, and
only into maps, never into lists. Invariant: a job means the same with and without the webhook, now
and after every later change (a test compares the engine's plans), and a second ``kubectl apply`` of
the same file changes nothing. Written are the number of replicas, the restart policy and the
clean-up policy. Not written, although upstream sets them in memory:

- the canonical case of a role name: the next apply of the user's file would add its own again;
- the default port: it is in a list, which a client replaces completely at the next apply;
- bounds of an elastic job, and processes per node: they follow from other fields, and a stored copy
  would become outdated when those change.

The defaults come from the kind's own reading of the job, so there is no second table.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import msgspec

from gangline.api.jobs.kubeflow import MANAGED_BY_US, ReplicaSpec, RunPolicy
from gangline.api.meta.objects import Object
from gangline.operator.model.framework import Framework, ParsedJob
from gangline.operator.model.job import NormalizedJob, RawJob

Operation = dict[str, Any]

_STORED = msgspec.json.Decoder(RawJob)


class DefaultedFields(NamedTuple):
    """The fields of a kind that have defaults; None: the kind has no such field."""

    roles_field: str | None
    """The field of the specification that maps roles to replica specs."""
    clean_up_path: tuple[str, ...] | None
    """The path of the clean-up policy."""


def frameworks_by_kind(frameworks: Sequence[Framework]) -> Mapping[tuple[str, str], Framework]:
    """Return the frameworks by apiVersion and kind of their jobs."""
    return {(version, f.kind.kind): f for f in frameworks for version in f.kind.entry.api_versions}


def read_manifest(framework: Framework, manifest: Mapping[str, Any]) -> ParsedJob | None:
    """Read a job that is not stored yet; None if its metadata is invalid, or it is not JSON."""
    try:
        return framework.read(_STORED.decode(msgspec.json.encode(manifest)))
    except (msgspec.DecodeError, OverflowError):
        return None


class JobDefaulter:
    """Computes the defaults of jobs of the enabled kinds."""

    def __init__(self, frameworks: Sequence[Framework]) -> None:
        self._frameworks = frameworks_by_kind(frameworks)

    def patch_operations(self, manifest: Mapping[str, Any]) -> list[Operation]:
        """List the JSON patch operations that write a job's defaults into it.

        Empty for a job with errors, which has no reliable reading, and for one with another
        controller, whose defaults may differ.
        """
        version, kind = str(manifest.get("apiVersion")), str(manifest.get("kind"))
        framework = self._frameworks.get((version, kind))
        if framework is None:
            return []
        reading = read_manifest(framework, manifest)
        if reading is None:
            return []
        newer = reading.job.api_version not in ("", framework.kind.api_version)
        type_: type[Object] = framework.kind.resource.type
        places = _defaulted_fields(type_, newer=newer)
        if places is None:
            return []
        if reading.spec_errors or reading.job.policy.managed_by not in (None, MANAGED_BY_US):
            return []
        spec = manifest["spec"]
        return [
            *_clean_up_operations(spec, places, reading.job),
            *_role_operations(spec, places, reading.job),
        ]


@cache
def _defaulted_fields(type_: type[Object], *, newer: bool) -> DefaultedFields | None:
    """Derive the fields from the structs of a kind; ``newer``: of another version than that of
    storage, which has no older fields.
    """
    spec = get_type_hints(type_).get("spec")
    if spec is None:
        return None
    hints = get_type_hints(spec)
    fields = {field.name: field.encode_name for field in msgspec.structs.fields(spec)}
    roles = [fields[name] for name, hint in hints.items() if hint == dict[str, ReplicaSpec]]
    clean_up: tuple[str, ...] | None = None
    if issubclass(hints.get("run_policy", object), RunPolicy):
        # If a kind has two fields, the one with lower precedence: the user may set the other later.
        own = "clean_pod_policy" in fields and not newer
        clean_up = ("cleanPodPolicy",) if own else ("runPolicy", "cleanPodPolicy")
    return DefaultedFields(roles[0] if roles else None, clean_up)


def _clean_up_operations(
    spec: Mapping[str, Any], places: DefaultedFields, job: NormalizedJob
) -> Iterator[Operation]:
    if places.clean_up_path is None or job.policy.clean_after_failure is not None:
        return
    policy = spec.get("runPolicy") or {}
    older = len(places.clean_up_path) == 1 and spec.get("cleanPodPolicy") is not None
    if older or policy.get("cleanPodPolicy") is not None:
        return
    value: Any = str(job.policy.clean_pods)
    if len(places.clean_up_path) > 1 and spec.get("runPolicy") is None:
        yield _add(("spec", "runPolicy"), {"cleanPodPolicy": value})
    else:
        yield _add(("spec", *places.clean_up_path), value)


def _role_operations(
    spec: Mapping[str, Any], places: DefaultedFields, job: NormalizedJob
) -> Iterator[Operation]:
    if places.roles_field is None:
        return
    roles = {role.name.lower(): role for role in job.roles}
    for key, replica in spec[places.roles_field].items():
        role = roles.get(key.lower())
        if role is None:
            continue
        here = ("spec", places.roles_field, key)
        if replica.get("replicas") is None:
            yield _add((*here, "replicas"), role.replicas)
        if replica.get("restartPolicy") is None:
            yield _add((*here, "restartPolicy"), str(role.restart))


def _add(way: tuple[str, ...], value: Any) -> Operation:
    escaped = (step.replace("~", "~0").replace("/", "~1") for step in way)
    return {"op": "add", "path": "".join(f"/{step}" for step in escaped), "value": value}
