"""Errors in TrainingRuntimes and ClusterTrainingRuntimes that no schema can express.

Fields of a runtime that are refused, and the rules for failed jobs.

A field that has no effect here is refused by name. Were it not in the schema, the API server would
drop it, and a user would learn of it when the first job fails.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gangline.api import names
from gangline.api.jobs.training_runtime import (
    DATASET_INITIALIZER,
    FAILURE_REASONS,
    FRAMEWORKS,
    IN_ORDER,
    INITIALIZER_VOLUME,
    LAUNCHER,
    MODEL_INITIALIZER,
    MPI,
    NODE,
    REFUSED_JOB_FIELDS,
    STEP_CONTAINERS,
    STEPS,
    SUPPORT_LABEL,
    TRAINER,
    VALIDATION_LABEL,
    WORKSPACE,
    ClusterTrainingRuntime,
    JobSetSpec,
    MLPolicy,
    ReplicatedJob,
    TorchElasticPolicy,
    TrainingRuntime,
    TrainingRuntimeSpec,
)
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.schema.check import check_schema
from gangline.api.schema.field_error import FieldError, child_path, is_below, name_errors
from gangline.api.trainer.effective import find_container, with_claim_volumes
from gangline.api.trainer.policy import RESERVED
from gangline.api.validation.common_rules import (
    cause_errors,
    conversion_error,
    metadata_errors,
    pod_template_errors,
)
from gangline.api.validation.jobs.train import elastic_policy_errors, node_range_errors
from gangline.api.validation.pods import claim_causes

_SET = "spec.template.spec"
_REFUSED = "has no effect on TrainJobs"
_OF_ALL_JOBS: Mapping[str, str] = {
    name: REFUSED_JOB_FIELDS[name] for name in ("suspend", "managed_by")
}
_OF_TORCH = {
    "num_proc_per_node": "set spec.trainer.numProcPerNode of the TrainJob",
}


def refused_field_errors(spec: TrainingRuntimeSpec) -> Iterator[FieldError]:
    """Yield an error for each field that is known and has no effect."""
    if spec.ml_policy.flux is not None:
        remedy = "use the policy mpi, or none"
        yield FieldError("spec.mlPolicy.flux", None, "is not supported", remedy)
    if spec.scheduling is not None:
        remedy = "remove it: pods are a gang in any case, and podGroupPolicy has its topology"
        yield FieldError("spec.scheduling", None, _REFUSED, remedy)
    torch = spec.ml_policy.torch
    if torch is not None:
        # Runtimes of earlier releases give the value that is the default now.
        if torch.num_proc_per_node == "auto":
            torch = msgspec.structs.replace(torch, num_proc_per_node=None)
        yield from _given(torch, _OF_TORCH, "spec.mlPolicy.torch")
        yield from _elastic_errors(spec.ml_policy, torch.elastic_policy)
    yield from _given(spec.template.spec, _OF_ALL_JOBS, _SET)
    for number, job in enumerate(spec.template.spec.replicated_jobs):
        where = f"{_SET}.replicatedJobs[{number}].template.spec"
        yield from _given(job.template.spec, REFUSED_JOB_FIELDS, where)


def _elastic_errors(policy: MLPolicy, elastic: TorchElasticPolicy | None) -> Iterator[FieldError]:
    if elastic is not None:
        yield from elastic_policy_errors(elastic, "spec.mlPolicy.torch.elasticPolicy")
        if policy.num_nodes is not None:
            yield from node_range_errors(policy.num_nodes, elastic, "spec.mlPolicy.numNodes")


def failure_policy_errors(spec: JobSetSpec) -> Iterator[FieldError]:
    rules = spec.failure_policy.rules if spec.failure_policy else ()
    jobs = [job.name for job in spec.replicated_jobs]
    earlier: set[str] = set()
    for number, rule in enumerate(rules):
        where = f"{_SET}.failurePolicy.rules[{number}]"
        if rule.name in earlier:
            yield FieldError(f"{where}.name", rule.name, "is the name of an earlier rule", "rename")
        earlier.add(rule.name)
        if rule.on_job_failure_message_patterns:
            problem = "cannot be matched: there are no batch Jobs with messages"
            path = f"{where}.onJobFailureMessagePatterns"
            yield FieldError(path, None, problem, "use onJobFailureReasons")
        listed = (
            ("targetReplicatedJobs", rule.target_replicated_jobs, jobs, "is no replicated job"),
            ("onJobFailureReasons", rule.on_job_failure_reasons, FAILURE_REASONS, "is no reason"),
        )
        for field, given, allowed, problem in listed:
            for index, name in enumerate(given):
                if name not in allowed:
                    remedy = f"name one of: {', '.join(allowed)}"
                    yield FieldError(f"{where}.{field}[{index}]", name, problem, remedy)


def _given(part: msgspec.Struct, refused: Mapping[str, str], path: str) -> Iterator[FieldError]:
    """Yield the fields of a part of the runtime that are given and refused."""
    for field in msgspec.structs.fields(type(part)):
        if field.name in refused and getattr(part, field.name) is not None:
            yield FieldError(f"{path}.{field.encode_name}", None, _REFUSED, refused[field.name])


_JOBS = "spec.template.spec.replicatedJobs"


def validate(
    runtime: TrainingRuntime | ClusterTrainingRuntime, old: Any = None
) -> Iterator[FieldError]:
    if runtime.metadata.labels.get(VALIDATION_LABEL) != "disabled":
        yield from runtime_spec_errors(runtime.spec)


def list_warnings(runtime: TrainingRuntime | ClusterTrainingRuntime) -> Iterator[FieldError]:
    if runtime.metadata.labels.get(SUPPORT_LABEL) == "deprecated":
        where = child_path("metadata.labels", SUPPORT_LABEL)
        problem = "marks a runtime that a later release removes"
        yield FieldError(where, "deprecated", problem, "use another runtime")
    framework = runtime.spec.ml_policy.framework
    for number, job in enumerate(runtime.spec.template.spec.replicated_jobs):
        containers = subobject(job.template.spec.template, "spec").get("containers")
        for index, container in enumerate(objects_in(containers)):
            for place, variable in enumerate(objects_in(container.get("env"))):
                name = variable.get("name")
                if container.get("name") == NODE and name in RESERVED.get(framework, ()):
                    where = f"{_JOBS}[{number}].template.spec.template.spec.containers[{index}]"
                    problem = f"is set by the policy {framework!r}: this value is ignored"
                    yield FieldError(f"{where}.env[{place}]", name, problem, "omit the variable")


def read_runtime(manifest: bytes) -> tuple[TrainingRuntimeSpec, list[FieldError]]:
    """Decode a runtime without its parts of the wrong type; return all errors."""
    shape = check_schema(msgspec.json.decode(manifest), TrainingRuntime)
    wrong = [error for error in shape.errors if is_below(error.path, shape.invalid_paths)]
    try:
        spec = msgspec.convert(shape.valid, TrainingRuntime).spec
    except msgspec.ValidationError as error:
        return TrainingRuntimeSpec(), [*wrong, conversion_error(error, "")]
    errors = (e for e in runtime_spec_errors(spec) if not is_below(e.path, shape.invalid_paths))
    return spec, [*wrong, *errors]


def runtime_spec_errors(spec: TrainingRuntimeSpec) -> Iterator[FieldError]:
    given = [name for name in FRAMEWORKS if getattr(spec.ml_policy, name) is not None]
    if len(given) > 1:
        problem = f"has several frameworks: {', '.join(given)}"
        yield FieldError("spec.mlPolicy", None, problem, "give at most one")
    group = spec.pod_group_policy
    if group and group.coscheduling and group.volcano:
        problem = "has both coscheduling and volcano"
        yield FieldError("spec.podGroupPolicy", None, problem, "give one of the two")
    jobs = spec.template.spec.replicated_jobs
    if not jobs:
        yield FieldError(_JOBS, None, "is missing", "give the replicated job 'node'")
    earlier: set[str] = set()
    for number, job in enumerate(jobs):
        yield from _job_errors(job, spec.template.spec, f"{_JOBS}[{number}]", earlier)
        earlier.add(job.name)
    if MPI in given and jobs and LAUNCHER not in earlier:
        problem = f"has no job {LAUNCHER!r}, which runs mpirun"
        yield FieldError(_JOBS, None, problem, f"name the job of the trainer step {LAUNCHER!r}")
    yield from _injection_errors(spec)
    yield from _claim_errors(spec.template.spec)
    yield from _success_errors(spec.template.spec, earlier)
    yield from _coordinator_errors(spec, earlier)
    yield from refused_field_errors(spec)
    yield from failure_policy_errors(spec.template.spec)


def _job_errors(
    job: ReplicatedJob, job_set: JobSetSpec, path: str, earlier: set[str]
) -> Iterator[FieldError]:
    yield from name_errors(f"{path}.name", job.name, names.validate_dns_label(job.name))
    if job.name in earlier:
        yield FieldError(f"{path}.name", job.name, "is the name of an earlier job", "rename it")
    if job.step and job.replicas not in (None, 1):
        remedy = "give 1; the number of nodes is spec.mlPolicy.numNodes"
        yield FieldError(f"{path}.replicas", job.replicas, "is not 1", remedy)
    for number, dependency in enumerate(job.depends_on):
        if dependency.name not in earlier:
            remedy = f"name one of: {', '.join(sorted(earlier))}" if earlier else "remove it"
            where = f"{path}.dependsOn[{number}].name"
            yield FieldError(where, dependency.name, "is no earlier job", remedy)
    yield from _order_errors(job, job_set, path)
    yield from _failure_errors(job, f"{path}.template.spec")
    yield from _container_errors(job, path)
    template = with_claim_volumes(job.template.spec.template, job_set, "job")
    yield from pod_template_errors(template, f"{path}.template.spec.template")


def _injection_errors(spec: TrainingRuntimeSpec) -> Iterator[FieldError]:
    torch, jobs = spec.ml_policy.torch, spec.template.spec.replicated_jobs
    targets = torch.env_injection.targets if torch and torch.env_injection else []
    for number, target in enumerate(targets):
        where = f"spec.mlPolicy.torch.envInjection.targets[{number}]"
        job = next((job for job in jobs if job.name == target.job_name), None)
        if job is None:
            remedy = f"name one of: {', '.join(job.name for job in jobs)}"
            yield FieldError(f"{where}.jobName", target.job_name, "is no replicated job", remedy)
            continue
        pod = subobject(job.template.spec.template, "spec")
        fields = (objects_in(pod.get(field)) for field in ("containers", "initContainers"))
        names = [container.get("name") for field in fields for container in field]
        for place, name in enumerate(target.container_names):
            path = f"{where}.containerNames[{place}]"
            if name not in names:
                yield FieldError(path, name, f"is no container of the job {job.name!r}")
            elif name == NODE and job.step == TRAINER:
                yield FieldError(path, name, "has the variables in any case", "remove it")


def _claim_errors(job_set: JobSetSpec) -> Iterator[FieldError]:
    earlier = set[str]()
    for number, policy in enumerate(job_set.volume_claim_policies):
        for place, claim in enumerate(policy.templates):
            where = f"{_SET}.volumeClaimPolicies[{number}].templates[{place}]"
            name = claim.metadata.name
            path = f"{where}.metadata.name"
            yield from name_errors(path, name, names.validate_dns_label(name))
            if name in earlier:
                yield FieldError(path, name, "is the name of an earlier claim", "rename it")
            earlier.add(name)
            yield from cause_errors(claim_causes(f"{where}.spec", msgspec.to_builtins(claim.spec)))
            yield from metadata_errors(claim.metadata, f"{where}.metadata")


def _coordinator_errors(spec: TrainingRuntimeSpec, job_names: set[str]) -> Iterator[FieldError]:
    coordinator = spec.template.spec.coordinator
    if coordinator and coordinator.replicated_job not in job_names:
        where = "spec.template.spec.coordinator.replicatedJob"
        remedy = f"name one of: {', '.join(sorted(job_names))}"
        yield FieldError(where, coordinator.replicated_job, "is no replicated job", remedy)


def _order_errors(job: ReplicatedJob, job_set: JobSetSpec, path: str) -> Iterator[FieldError]:
    policy = job_set.startup_policy
    if policy and policy.startup_policy_order == IN_ORDER and job.depends_on:
        problem = "is given together with startupPolicy"
        yield FieldError(f"{path}.dependsOn", None, problem, "remove one of the two")


def _failure_errors(job: ReplicatedJob, path: str) -> Iterator[FieldError]:
    policy, where = job.template.spec.pod_failure_policy, f"{path}.podFailurePolicy"
    if policy is None:
        return
    pod = job.template.spec.template.get("spec") or {}
    if isinstance(pod, dict) and pod.get("restartPolicy") != "Never":
        problem = "needs pods that do not restart by themselves"
        remedy = f"set {path}.template.spec.restartPolicy to Never"
        yield FieldError(where, None, problem, remedy)
    for number, rule in enumerate(policy.rules):
        if bool(rule.on_exit_codes) == bool(rule.on_pod_conditions):
            problem = "does not have one of onExitCodes and onPodConditions"
            yield FieldError(f"{where}.rules[{number}]", None, problem, "give exactly one")


def _container_errors(job: ReplicatedJob, path: str) -> Iterator[FieldError]:
    where = f"{path}.template.spec.template.spec.containers"
    if job.step and job.step not in STEPS:
        label = f"{path}.template.metadata.labels"
        remedy = f"use one of: {', '.join(STEPS)}"
        yield FieldError(label, job.step, "is no step of a TrainJob", remedy)
        return
    if not job.step:
        return
    expected = STEP_CONTAINERS[job.step]
    container = find_container(job.template.spec.template, expected)
    if container is None:
        remedy = f"name the container of this step {expected!r}"
        yield FieldError(where, None, f"has no container {expected!r}", remedy)
    elif job.step in (DATASET_INITIALIZER, MODEL_INITIALIZER):
        mounts = {mount.get("name") for mount in objects_in(container.get("volumeMounts"))}
        if INITIALIZER_VOLUME not in mounts:
            problem = f"has no mount of the volume {INITIALIZER_VOLUME!r}"
            remedy = f"mount it at {WORKSPACE}: what is fetched must stay for the nodes"
            yield FieldError(f"{where}[{expected}].volumeMounts", None, problem, remedy)


def _success_errors(spec: JobSetSpec, job_names: set[str]) -> Iterator[FieldError]:
    policy = spec.success_policy
    targets: Sequence[str] = policy.target_replicated_jobs if policy else ()
    for number, name in enumerate(targets):
        if name not in job_names:
            where = f"spec.template.spec.successPolicy.targetReplicatedJobs[{number}]"
            remedy = f"name one of: {', '.join(sorted(job_names))}"
            yield FieldError(where, name, "is no replicated job", remedy)
