"""Fields of a runtime that are refused, and the rules for failed jobs.

A field that has no effect here is refused by name. Were it not in the schema, the API server would
drop it, and a user would learn of it when the first job fails.
"""

from collections.abc import Iterator, Mapping

import msgspec

from gangline.api.jobs.training_runtime import (
    FAILURE_REASONS,
    REFUSED_JOB_FIELDS,
    JobSetSpec,
    TrainingRuntimeSpec,
)
from gangline.api.schema.field_error import FieldError

_SET = "spec.template.spec"
_REFUSED = "has no effect on TrainJobs"
_OF_ALL_JOBS: Mapping[str, str] = {
    name: REFUSED_JOB_FIELDS[name] for name in ("suspend", "managed_by")
}
_OF_TORCH = {
    "num_proc_per_node": "set spec.trainer.numProcPerNode of the TrainJob",
    "elastic_policy": "remove it; elastic jobs are PyTorchJobs and ElasticJobs",
}


def refused_field_errors(spec: TrainingRuntimeSpec) -> Iterator[FieldError]:
    """Yield an error for each field that is known and has no effect."""
    if spec.ml_policy.flux is not None:
        remedy = "use the policy mpi, or none"
        yield FieldError("spec.mlPolicy.flux", None, "is not supported", remedy)
    torch = spec.ml_policy.torch
    if torch is not None:
        # Runtimes of earlier releases give the value that is the default now.
        if torch.num_proc_per_node == "auto":
            torch = msgspec.structs.replace(torch, num_proc_per_node=None)
        yield from _given(torch, _OF_TORCH, "spec.mlPolicy.torch")
    yield from _given(spec.template.spec, _OF_ALL_JOBS, _SET)
    for number, job in enumerate(spec.template.spec.replicated_jobs):
        where = f"{_SET}.replicatedJobs[{number}].template.spec"
        yield from _given(job.template.spec, REFUSED_JOB_FIELDS, where)


def failure_policy_errors(spec: JobSetSpec) -> Iterator[FieldError]:
    """Yield the errors of the rules for failed jobs."""
    rules = spec.failure_policy.rules if spec.failure_policy else ()
    known = [job.name for job in spec.replicated_jobs]
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
            ("targetReplicatedJobs", rule.target_replicated_jobs, known, "is no replicated job"),
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
