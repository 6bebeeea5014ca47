"""Errors and warnings for TrainJobs that no schema can express, without their runtime.

Upstream states many of these as CEL in its definition; ours has none, because it must install on
Kubernetes 1.20. ``effective_job`` has the rules that need the runtime.
"""

from collections.abc import Iterator

import msgspec

from gangline.api import names
from gangline.api.jobs.kubeflow import ReplicaSpec
from gangline.api.jobs.train import (
    TTL_ANNOTATION,
    RuntimePatch,
    StepInitializer,
    Trainer,
    TrainJob,
    TrainJobSpec,
)
from gangline.api.jobs.training_runtime import (
    CLUSTER_TRAINING_RUNTIME,
    GROUP,
    NODE,
    STEPS,
    TRAINING_RUNTIME,
    NodeRange,
    TorchElasticPolicy,
)
from gangline.api.meta.json_objects import objects_in
from gangline.api.schema.field_error import FieldError, child_path, name_errors
from gangline.api.trainer.storage_uri import (
    SCHEMES,
    STORAGE_URI,
    StorageUriError,
    parse_storage_uri,
)
from gangline.api.validation import common_rules

_OWN_ENV = frozenset({NODE, *STEPS})
"""Containers whose variables the job itself sets."""
_FIXED = ("runtime_ref", "initializer", "active_deadline_seconds", "managed_by")
_REMOVED = {
    "pod_template_overrides": "use spec.runtimePatches",
    "labels": "use template.metadata.labels of an entry of spec.runtimePatches",
    "annotations": "use template.metadata.annotations of an entry of spec.runtimePatches",
}
"""Fields of earlier releases of Kubeflow Trainer, and where their values belong now."""
_NODES = "spec.trainer.numNodes"
_SUSPEND_FIRST = "suspend the job first: set spec.suspend"

OPERATOR_VARIABLES = frozenset[str]()
"""None: those of the frameworks are part of the merged templates."""


def validate(job: TrainJob, old: TrainJob | None = None) -> Iterator[FieldError]:
    spec, trainer = job.spec, job.spec.trainer or Trainer()
    most = trainer.elastic_policy.max_nodes if trainer.elastic_policy else 1
    roles = {f"{NODE}-0": ReplicaSpec(max(trainer.num_nodes or 1, most))}
    yield from common_rules.job_name_errors(job.metadata, roles)
    yield from common_rules.annotation_errors(job.metadata)
    yield from _ttl_errors(job)
    yield from _runtime_errors(spec)
    wire_names = {field.name: field.encode_name for field in msgspec.structs.fields(TrainJobSpec)}
    for name, remedy in _REMOVED.items():
        if getattr(spec, name):
            problem = "is a field of earlier releases of Kubeflow Trainer"
            yield FieldError(f"spec.{wire_names[name]}", None, problem, remedy)
    if trainer.num_nodes is not None:
        yield from _node_errors(trainer.num_nodes)
    if trainer.elastic_policy is not None:
        yield from elastic_policy_errors(trainer.elastic_policy, "spec.trainer.elasticPolicy")
        if trainer.num_nodes is not None:
            yield from node_range_errors(trainer.num_nodes, trainer.elastic_policy)
    for where, uri in _sources(spec):
        try:
            parse_storage_uri(uri)
        except StorageUriError as error:
            yield FieldError(where, uri, str(error), error.remedy)
    yield from _source_variable_errors(spec)
    for number, patch in enumerate(spec.runtime_patches):
        yield from _patch_errors(patch, f"spec.runtimePatches[{number}]")
    if old is not None:
        reported = old.status.gangline
        yield from _change_errors(spec, old.spec)
        yield from resize_errors(
            spec, old.spec, reported.node_range, is_reported=bool(reported.phase)
        )


def list_warnings(job: TrainJob) -> Iterator[FieldError]:
    """Yield sources that Gangline's initializer does not fetch; another program may do it."""
    for where, uri in _sources(job.spec):
        try:
            is_known = parse_storage_uri(uri).is_known
        except StorageUriError:
            continue
        if not is_known:
            schemes = ", ".join(f"{scheme}://" for scheme in SCHEMES)
            problem = "has a scheme that Gangline's initializer does not know"
            yield FieldError(where, uri, problem, f"use one of {schemes}")


def _source_variable_errors(spec: TrainJobSpec) -> Iterator[FieldError]:
    """The variable of an initializer's source must not differ from its field."""
    for name in ("dataset", "model"):
        given: StepInitializer | None = getattr(spec.initializer, name, None)
        for place, variable in enumerate(given.env if given and given.storage_uri else ()):
            if variable.name == STORAGE_URI and given and variable.value != given.storage_uri:
                where = f"spec.initializer.{name}.env[{place}]"
                problem = f"differs from spec.initializer.{name}.storageUri, which sets it"
                yield FieldError(where, STORAGE_URI, problem, "give one of the two")


def _sources(spec: TrainJobSpec) -> Iterator[tuple[str, str]]:
    """Yield the path and the source of each initializer that has one."""
    for name in ("dataset", "model"):
        given: StepInitializer | None = getattr(spec.initializer, name, None)
        if given and given.storage_uri:
            yield f"spec.initializer.{name}.storageUri", given.storage_uri


def _ttl_errors(job: TrainJob) -> Iterator[FieldError]:
    written = job.metadata.annotations.get(TTL_ANNOTATION)
    if written is not None and not (written.isascii() and written.isdecimal()):
        where = child_path("metadata.annotations", TTL_ANNOTATION)
        yield FieldError(where, written, "is not a number of seconds", "give 0 or more")


def _runtime_errors(spec: TrainJobSpec) -> Iterator[FieldError]:
    given = spec.runtime_ref
    if given.api_group not in ("", GROUP):
        where = "spec.runtimeRef.apiGroup"
        yield FieldError(where, given.api_group, "is not the group of runtimes", f"give {GROUP!r}")
    kinds = (CLUSTER_TRAINING_RUNTIME, TRAINING_RUNTIME)
    if given.kind not in kinds:
        remedy = f"give {' or '.join(kinds)}"
        yield FieldError("spec.runtimeRef.kind", given.kind, "is not a kind of runtime", remedy)
    if given.name:
        yield from name_errors(
            "spec.runtimeRef.name", given.name, names.validate_dns_subdomain(given.name)
        )


def _node_errors(nodes: int) -> Iterator[FieldError]:
    if nodes == 0:
        remedy = "give at least 1; to suspend a job, set spec.suspend"
        yield FieldError(_NODES, nodes, "makes a job without nodes", remedy)
    if nodes > common_rules.MAX_JOB_REPLICAS:
        remedy = f"a job has at most {common_rules.MAX_JOB_REPLICAS}"
        yield FieldError(_NODES, nodes, "is too many", remedy)


def elastic_policy_errors(policy: TorchElasticPolicy, path: str) -> Iterator[FieldError]:
    least, most = policy.min_nodes, policy.max_nodes
    if least > most:
        problem = f"is more than maxNodes {most}"
        yield FieldError(f"{path}.minNodes", least, problem, f"give at most {most}")
    if most > common_rules.MAX_JOB_REPLICAS:
        remedy = f"a job has at most {common_rules.MAX_JOB_REPLICAS}"
        yield FieldError(f"{path}.maxNodes", most, "is too many", remedy)
    if policy.metrics:
        problem, remedy = "has no effect: no autoscaler changes a TrainJob", "change numNodes"
        yield FieldError(f"{path}.metrics", None, problem, remedy)


def node_range_errors(nodes: int, bounds: NodeRange, path: str = _NODES) -> Iterator[FieldError]:
    least, most = bounds.min_nodes, bounds.max_nodes
    if least <= most and not least <= nodes <= most:
        problem = f"is not within elasticPolicy, minNodes {least} to maxNodes {most}"
        yield FieldError(path, nodes, problem, f"give {least} to {most}")


def resize_errors(
    spec: TrainJobSpec,
    old: TrainJobSpec | None,
    bounds: NodeRange | None,
    *,
    is_reported: bool = True,
) -> Iterator[FieldError]:
    """Check a change of the number of nodes of a running job.

    ``bounds`` are those of its runtime; None unless it is elastic, or the operator has not reported
    them yet. ``validate`` checks the job's own.
    """
    if old is None:
        return
    trainer, before = spec.trainer or Trainer(), old.trainer or Trainer()
    nodes = trainer.num_nodes
    if nodes == before.num_nodes or spec.suspend or old.suspend or trainer.elastic_policy:
        return
    if bounds is None and not is_reported:
        problem = "was changed before the operator has reported whether the job is elastic"
        yield FieldError(_NODES, nodes, problem, "repeat the change when the job has a status")
    elif bounds is None:
        problem = "was changed while the job runs, and neither the job nor its runtime is elastic"
        remedy = f"{_SUSPEND_FIRST}; or use an elasticPolicy, with minNodes and maxNodes"
        yield FieldError(_NODES, nodes, problem, remedy)
    elif nodes is not None:
        yield from node_range_errors(nodes, bounds)


def _patch_errors(patch: RuntimePatch, path: str) -> Iterator[FieldError]:
    prefix, slash, _ = patch.manager.partition("/")
    if not slash or names.validate_dns_subdomain(prefix):
        remedy = "give DOMAIN/NAME, such as 'example.com/team'"
        yield FieldError(f"{path}.manager", patch.manager, "has no domain", remedy)
    template = patch.training_runtime_spec and patch.training_runtime_spec.template
    jobs = template.spec.replicated_jobs if template and template.spec else []
    base = f"{path}.trainingRuntimeSpec.template.spec.replicatedJobs"
    for number, replicated_job in enumerate(jobs):
        pod = (
            replicated_job.template
            and replicated_job.template.spec
            and replicated_job.template.spec.template
        )
        if not pod or not pod.spec:
            continue
        where = f"{base}[{number}].template.spec.template.spec.containers"
        for position, container in enumerate(objects_in(pod.spec.get("containers"))):
            name = container.get("name")
            if name in _OWN_ENV and container.get("env"):
                field = "spec.trainer.env" if name == NODE else "spec.initializer"
                problem = f"belongs to container {name!r}, whose variables the job sets"
                yield FieldError(f"{where}[{position}].env", None, problem, f"use {field}")


def _change_errors(spec: TrainJobSpec, old: TrainJobSpec) -> Iterator[FieldError]:
    wire = {field.name: field.encode_name for field in msgspec.structs.fields(TrainJobSpec)}
    for name in _FIXED:
        if getattr(spec, name) != getattr(old, name):
            remedy = "leave it, or create a new job"
            yield FieldError(f"spec.{wire[name]}", None, "was changed", remedy)
    trainer, before = spec.trainer or Trainer(), old.trainer or Trainer()
    if msgspec.structs.replace(trainer, num_nodes=None) != msgspec.structs.replace(
        before, num_nodes=None
    ):
        yield FieldError("spec.trainer", None, "was changed", "leave it, or create a new job")
    if _without_times(spec) != _without_times(old) and not (spec.suspend or old.suspend):
        problem = "was changed while the job runs"
        yield FieldError("spec.runtimePatches", None, problem, _SUSPEND_FIRST)


def _without_times(spec: TrainJobSpec) -> list[RuntimePatch]:
    return [
        msgspec.structs.replace(runtime_patch, time=None) for runtime_patch in spec.runtime_patches
    ]
