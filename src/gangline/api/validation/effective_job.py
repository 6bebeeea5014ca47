"""Errors in a TrainJob that show only together with its runtime.

The operator checks them when it reads a job; a webhook sees the job without the runtime.
"""

from collections.abc import Iterator
from dataclasses import replace

from gangline.api import names
from gangline.api.jobs.train import Trainer, TrainJob
from gangline.api.jobs.training_runtime import (
    DATASET_INITIALIZER,
    LAUNCHER,
    MODEL_INITIALIZER,
    NODE,
    TRAINER,
    TrainingRuntimeSpec,
)
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.schema.field_error import FieldError
from gangline.api.trainer.effective import EffectiveJob
from gangline.api.trainer.policy import missing_recipe, reserved_variables
from gangline.api.validation.common_rules import MAX_JOB_REPLICAS, pod_template_errors
from gangline.api.validation.jobs.train import node_range_errors

_CONTAINERS = ("containers", "initContainers")


def effective_job_errors(
    job: TrainJob, runtime: TrainingRuntimeSpec, merged: EffectiveJob
) -> Iterator[FieldError]:
    trainer = job.spec.trainer or Trainer()
    steps = {role.step for role in merged.roles}
    if TRAINER not in steps and job.spec.trainer is not None:
        problem = "has no effect: no job of the runtime has the trainer step"
        yield FieldError("spec.trainer", None, problem, "remove it, or use another runtime")
    for field, step in (("dataset", DATASET_INITIALIZER), ("model", MODEL_INITIALIZER)):
        if getattr(job.spec.initializer, field, None) is not None and step not in steps:
            problem = f"has no effect: the runtime has no job of the step {step!r}"
            yield FieldError(f"spec.initializer.{field}", None, problem, "use another runtime")
    for number, variable in enumerate(trainer.env):
        if variable.name in reserved_variables(merged):
            problem = f"is set by the framework {merged.framework!r}"
            yield FieldError(
                f"spec.trainer.env[{number}].name", variable.name, problem, "remove it"
            )
    if merged.mpi is not None and merged.nodes > 1 and merged.find_role(NODE) is None:
        problem, remedy = f"needs a job {NODE!r} in the runtime", "give 1, or use another runtime"
        yield FieldError("spec.trainer.numNodes", merged.nodes, problem, remedy)
    if merged.mpi is not None and merged.find_role(LAUNCHER) is None:
        yield FieldError("spec.runtimeRef.name", None, f"has no job {LAUNCHER!r}")
    yield from _elastic_errors(trainer, merged)
    if config := missing_recipe(merged):
        problem = f"select the configuration {config!r}, which torchtune does not have"
        remedy = "quantize a Llama on one device, with resourcesPerNode of one GPU"
        yield FieldError("spec.trainer.args", None, problem, remedy)
    yield from _patch_errors(job, runtime)
    yield from _size_errors(merged)
    yield from _coordinator_errors(merged)


def _elastic_errors(trainer: Trainer, merged: EffectiveJob) -> Iterator[FieldError]:
    if merged.elastic is None:
        if trainer.elastic_policy is not None:
            problem = f"has no effect: the policy of the runtime is {merged.framework!r}"
            remedy = "remove it, or use a runtime with the policy 'torch'"
            yield FieldError("spec.trainer.elasticPolicy", None, problem, remedy)
        return
    if trainer.elastic_policy is None or trainer.num_nodes is None:
        yield from node_range_errors(merged.nodes, merged.elastic)
    for field in ("command", "args"):
        for number, text in enumerate(getattr(trainer, field)):
            if "--nnodes" in text:
                problem = "overrides the range of nodes of elasticPolicy"
                yield FieldError(f"spec.trainer.{field}[{number}]", text, problem, "remove it")


def merged_template_errors(merged: EffectiveJob) -> Iterator[FieldError]:
    """Check the pods that a valid runtime and a valid job make together."""
    for role in merged.roles:
        yield from pod_template_errors(role.template, f"{role.name}.template")


def _patch_errors(job: TrainJob, runtime: TrainingRuntimeSpec) -> Iterator[FieldError]:
    """Patches must name jobs and containers of the runtime."""
    jobs = {
        replicated_job.name: replicated_job
        for replicated_job in runtime.template.spec.replicated_jobs
    }
    for number, patch in enumerate(job.spec.runtime_patches):
        template = patch.training_runtime_spec and patch.training_runtime_spec.template
        changes = template.spec.replicated_jobs if template and template.spec else ()
        for place, change in enumerate(changes):
            where = (
                f"spec.runtimePatches[{number}].trainingRuntimeSpec.template.spec"
                f".replicatedJobs[{place}]"
            )
            target = jobs.get(change.name)
            if target is None:
                remedy = f"name one of: {', '.join(jobs)}"
                yield FieldError(f"{where}.name", change.name, "is no job of the runtime", remedy)
                continue
            pod = change.template and change.template.spec and change.template.spec.template
            spec = (pod.spec if pod else None) or {}
            base = subobject(target.template.spec.template, "spec")
            given = [c.get("name") for field in _CONTAINERS for c in objects_in(base.get(field))]
            for field in _CONTAINERS:
                for position, container in enumerate(objects_in(spec.get(field))):
                    name = str(container.get("name"))
                    if name not in given:
                        path = f"{where}.template.spec.template.spec.{field}[{position}].name"
                        yield FieldError(path, name, "is no container of the runtime")


def _coordinator_errors(merged: EffectiveJob) -> Iterator[FieldError]:
    """The address of the coordinator is a label of all pods, and must exist."""
    coordinator = merged.spec.template.spec.coordinator
    role = merged.find_role(coordinator.replicated_job) if coordinator else None
    if coordinator is None or role is None:
        return
    path = "spec.template.spec.coordinator"
    for field, given, count in (
        ("jobIndex", coordinator.job_index or 0, role.jobs),
        ("podIndex", coordinator.pod_index or 0, role.pods_per_job),
    ):
        if given >= max(count, 1):
            remedy = f"the largest of {role.name} is {max(count, 1) - 1}"
            yield FieldError(f"{path}.{field}", given, "is no pod of the job", remedy)
    if len(merged.coordinator) > names.MAX_LABEL_LENGTH:
        problem = f"makes the address {merged.coordinator!r}, which is too long for a label"
        yield FieldError("metadata.name", merged.name, problem, "use a shorter name")


def _size_errors(merged: EffectiveJob) -> Iterator[FieldError]:
    bounds = merged.elastic
    roles = [
        replace(role, pods_per_job=max(role.pods_per_job, bounds.max_nodes))
        if bounds and merged.is_elastic(role)
        else role
        for role in merged.roles
    ]
    total = sum(role.replicas for role in roles)
    if total > MAX_JOB_REPLICAS:
        remedy = f"a job has at most {MAX_JOB_REPLICAS}"
        yield FieldError("spec.trainer.numNodes", merged.nodes, f"makes {total} pods", remedy)
    longest = max(
        (role.pod_name(merged.name, max(role.replicas - 1, 0)) for role in roles),
        key=len,
        default="",
    )
    if (excess := len(longest) - names.MAX_LABEL_LENGTH) > 0:
        problem = f"is too long: the host name {longest!r} has {len(longest)} characters"
        remedy = f"use at most {len(merged.name) - excess} characters"
        yield FieldError("metadata.name", merged.name, problem, remedy)
