"""Errors and warnings for PyTorchJobs that no schema can express."""

import re
from collections.abc import Iterator

from gangline.api.jobs.kubeflow import ElasticPolicy, PyTorchJob, ReplicaSpec
from gangline.api.schema.field_error import FieldError
from gangline.api.validation import common_rules, replica_warnings
from gangline.api.validation.common_rules import RoleSpecs

_ROLES = ("Master", "Worker")
_CONTAINER = "pytorch"
OPERATOR_VARIABLES = frozenset(
    (
        "MASTER_PORT",
        "MASTER_ADDR",
        "WORLD_SIZE",
        "RANK",
        "PET_MASTER_PORT",
        "PET_MASTER_ADDR",
        "PET_NODE_RANK",
        "PET_NPROC_PER_NODE",
        "PET_NNODES",
        "PET_RDZV_ENDPOINT",
        "PET_RDZV_BACKEND",
    )
)
_RULES = replica_warnings.ReplicaRules(
    path="spec.pytorchReplicaSpecs",
    roles=_ROLES,
    default_restart_policy="OnFailure",
    operator_variables=OPERATOR_VARIABLES,
)
_PROCESSES = re.compile(r"[1-9][0-9]{0,3}", re.ASCII)


def validate(job: PyTorchJob, old: PyTorchJob | None = None) -> Iterator[FieldError]:
    spec = job.spec
    path = "spec.pytorchReplicaSpecs"
    specs = spec.pytorch_replica_specs
    roles = yield from common_rules.kubeflow_job_errors(job, specs, _ROLES, path, _CONTAINER)
    yield from _replica_errors(roles, path)
    yield from _process_count_errors(spec.nproc_per_node)
    if spec.elastic_policy is not None:
        yield from _elastic_policy_errors(
            spec.elastic_policy, roles.get("Worker"), spec.nproc_per_node
        )


def list_warnings(job: PyTorchJob) -> Iterator[FieldError]:
    spec = job.spec
    yield from replica_warnings.common_replica_warnings(spec.pytorch_replica_specs, job, _RULES)
    elastic = spec.elastic_policy
    if elastic is not None and elastic.n_proc_per_node is not None:
        where, count = "spec.elasticPolicy.nProcPerNode", elastic.n_proc_per_node
        remedy = f'give spec.nprocPerNode: "{count}"'
        yield FieldError(where, count, "is the older field for it", remedy)


def _replica_errors(roles: RoleSpecs, path: str) -> Iterator[FieldError]:
    masters = common_rules.replica_count(roles["Master"]) if "Master" in roles else 1
    if masters != 1:
        remedy = "give 1, and further pods as Worker" if masters else "give 1, or omit Master"
        yield FieldError(f"{path}.Master.replicas", masters, "is not 1", remedy)
    else:
        yield from common_rules.job_size_errors(roles, path)


def _process_count_errors(count: str | None) -> Iterator[FieldError]:
    if count is None or count in ("auto", "cpu", "gpu"):
        return
    if not _PROCESSES.fullmatch(count):
        remedy = 'give auto, cpu, gpu or a number of processes in quotes, such as "8"'
        yield FieldError("spec.nprocPerNode", count, "is not a number of processes", remedy)


def _elastic_policy_errors(
    policy: ElasticPolicy, worker: ReplicaSpec | None, processes: str | None
) -> Iterator[FieldError]:
    path = "spec.elasticPolicy"
    if worker is None:
        yield from common_rules.elastic_range_errors((None, None), None, "spec.pytorchReplicaSpecs")
        return
    if policy.n_proc_per_node is not None and processes is not None:
        where = f"{path}.nProcPerNode"
        problem = "is given together with spec.nprocPerNode"
        yield FieldError(where, policy.n_proc_per_node, problem, "keep spec.nprocPerNode only")
    yield from common_rules.elastic_range_errors(
        (policy.min_replicas, policy.max_replicas), worker, "spec.pytorchReplicaSpecs"
    )
    for index, setting in enumerate(policy.rdzv_conf):
        where = f"{path}.rdzvConf[{index}]"
        if not setting.key:
            yield FieldError(f"{where}.key", None, "is missing", "name the setting")
        for field, text in (("key", setting.key), ("value", setting.value)):
            if "," in text or (field == "key" and "=" in text):
                problem = "contains a separator of settings"
                yield FieldError(f"{where}.{field}", text, problem, "write one setting per entry")
