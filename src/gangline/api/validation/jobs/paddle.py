"""Errors and warnings for PaddleJobs that no schema can express."""

from collections.abc import Iterator
from difflib import get_close_matches

from gangline.api.jobs.kubeflow import ReplicaSpec
from gangline.api.jobs.paddle import (
    CLEAN_POLICIES,
    CONTAINER,
    ROLES,
    WORKER,
    PaddleJob,
    ResourceSpec,
)
from gangline.api.schema.field_error import FieldError
from gangline.api.validation import common_rules, replica_warnings

_MISSPELT_POLICIES = ("OnFailed", "Nerver")
"""Values that occur in upstream's samples although upstream does not know them. They clean nothing.
"""

OPERATOR_VARIABLES = frozenset(
    ("POD_IP", "PADDLE_TRAINER_ID", "TRAINING_ROLE", "PADDLE_TRAINING_ROLE")
)


def validate(job: PaddleJob, old: PaddleJob | None = None) -> Iterator[FieldError]:
    spec = job.spec
    roles = {role: ReplicaSpec(replicas=given.count) for role, given in spec.declared_roles()}
    yield from common_rules.job_name_errors(job.metadata, roles)
    yield from common_rules.annotation_errors(job.metadata)
    if not roles:
        yield FieldError("spec", None, "has no role", f"give {' or '.join(ROLES)}")
    yield from common_rules.job_size_errors(roles, "spec")
    for role, given in spec.declared_roles():
        yield from _role_errors(given, f"spec.{role}")
    clean_policy = spec.clean_pod_policy
    if clean_policy and clean_policy not in (*CLEAN_POLICIES, *_MISSPELT_POLICIES):
        remedy = _suggest_policy(clean_policy)
        yield FieldError("spec.cleanPodPolicy", clean_policy, "is not allowed", remedy)
    if spec.elastic is not None and not (spec.worker and spec.worker.count):
        remedy = "give spec.worker: only workers can be added and removed"
        yield FieldError("spec.elastic", spec.elastic, "has no workers to add or remove", remedy)
    if spec.scheduling_policy is not None:
        total = sum(given.count for _, given in spec.declared_roles())
        path = "spec.schedulingPolicy"
        yield from common_rules.scheduling_policy_errors(spec.scheduling_policy, total, path)
    if old is not None:
        yield from common_rules.managed_by_errors(spec.run_policy, old.spec.run_policy)
        yield from common_rules.queue_errors(
            spec.scheduling_policy, old.spec.scheduling_policy, "spec.schedulingPolicy"
        )


def list_warnings(job: PaddleJob) -> Iterator[FieldError]:
    spec = job.spec
    if spec.clean_pod_policy in _MISSPELT_POLICIES:
        problem = "is not a policy and is read as 'Never'"
        yield FieldError(
            "spec.cleanPodPolicy",
            spec.clean_pod_policy,
            problem,
            _suggest_policy(spec.clean_pod_policy),
        )
    if spec.with_gloo and not (spec.ps and spec.ps.count):
        problem = "has no effect: the first server runs the rendezvous, and there is none"
        yield FieldError("spec.withGloo", spec.with_gloo, problem, "omit it, or add spec.ps")
    for role, given in spec.declared_roles():
        yield from _role_warnings(role, given)


def _role_errors(given: ResourceSpec, path: str) -> Iterator[FieldError]:
    yield from common_rules.pod_template_errors(given.template, f"{path}.template")
    if given.requests is not None and given.limits is not None and given.requests > given.limits:
        problem = f"is more than limits {given.limits}"
        remedy = f"give at most {given.limits}; requests of pods belong in template"
        yield FieldError(f"{path}.requests", given.requests, problem, remedy)


def _suggest_policy(policy: str) -> str:
    spelt = {value.lower(): value for value in CLEAN_POLICIES if value}
    if close := get_close_matches(policy.lower(), spelt, n=1, cutoff=0.6):
        return f"did you mean {spelt[close[0]]!r}?"
    return f"use one of {', '.join(map(repr, spelt.values()))}"


def _role_warnings(role: str, given: ResourceSpec) -> Iterator[FieldError]:
    spec = given.template.get("spec") or {}
    path = f"spec.{role}.template.spec"
    containers = spec.get("containers") or []
    names = [container.get("name") for container in containers]
    if len(names) > 1 and CONTAINER not in names:
        problem = f"has several containers and none is named {CONTAINER!r}: the first one is used"
        yield FieldError(
            f"{path}.containers", names, problem, f"name the main container {CONTAINER!r}"
        )
    if role == WORKER and spec.get("restartPolicy") == "Always":
        problem = "restarts a worker that has finished: the job never completes"
        yield FieldError(f"{path}.restartPolicy", "Always", problem, "use OnFailure")
    for field in ("hostname", "subdomain"):
        if spec.get(field):
            problem = "is replaced by the pod's name, which its peers use"
            yield FieldError(f"{path}.{field}", spec[field], problem, "omit it")
    where = f"spec.{role}.template"
    yield from replica_warnings.template_warnings(
        given.template, where, OPERATOR_VARIABLES, CONTAINER
    )
