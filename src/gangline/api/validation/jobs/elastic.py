"""Errors and warnings for ElasticJobs and ScalePlans that no schema can express."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from gangline.api import names
from gangline.api.jobs.elastic import (
    ALLREDUCE,
    CHIEF,
    CONTAINER,
    EVALUATOR,
    IGNORED_ANNOTATIONS,
    JOB_NAME_LABEL,
    LEGACY_MASTER,
    LOCAL,
    MANUAL_MODES,
    MASTER,
    NODES_ANNOTATION,
    PARAMETER_SERVER,
    PENDING_STRATEGIES,
    PENDING_STRATEGY_ANNOTATION,
    PENDING_TIMEOUT_ANNOTATION,
    PS,
    ROLES,
    TRAINING_ROLES,
    WORKER,
    CriticalRanks,
    ElasticJob,
    ElasticReplicaSpec,
    PodMeta,
    ScalePlan,
    is_number,
    job_node_range,
    master_name,
    nnodes_flag,
    parse_critical_ranks,
    parse_node_range,
    parse_priority_fraction,
)
from gangline.api.jobs.kubeflow import ReplicaSpec
from gangline.api.meta.field_doc import ResourceList
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.resource_list import GPU
from gangline.api.schema.field_error import FieldError, child_path, name_errors
from gangline.api.validation import common_rules, replica_warnings
from gangline.api.validation.pods import STANDARD_RESOURCES, is_container_resource

_PATH = "spec.replicaSpecs"
_MASTER_NAME_LENGTH = len(master_name(""))

_UNSTARTED_PHASES = ("", "Pending")
"""Phases of a plan that has not been started."""
OPERATOR_VARIABLES = frozenset(
    (
        *("DLROVER_MASTER_ADDR", "GANGLINE_MASTER_ADDR", "GANGLINE_JOB_SECRET", "ELASTIC_JOB_NAME"),
        *("JOB_UID", "NODE_TYPE", "NODE_ID", "NODE_NUM", "NODE_RANK", "POD_IP", "POD_NAME"),
        *("NODE_IP", "WORKER_TYPE", "WORKER_ID", "WORKER_NUM", "WORKER_RANK"),
        *("WORLD_SIZE", "RANK", "TF_CONFIG"),
    )
)
_OF_STRATEGIES = {ALLREDUCE: ("WORLD_SIZE", "RANK"), PARAMETER_SERVER: ("TF_CONFIG",)}
"""Variables that only jobs of a strategy have."""


def validate(job: ElasticJob, old: ElasticJob | None = None) -> Iterator[FieldError]:
    spec = job.spec
    given = {
        key: ReplicaSpec(replica.replicas, replica.template)
        for key, replica in _replica_specs(job).items()
    }
    roles, errors = common_rules.read_roles(given, ROLES, _PATH)
    trained = {role: spec for role, spec in roles.items() if role in TRAINING_ROLES}
    yield from _name_errors(job, trained)
    yield from common_rules.annotation_errors(job.metadata)
    yield from _annotation_errors(job)
    yield from errors
    if roles and not trained:
        yield FieldError(_PATH, None, "has no role that trains", f"give {WORKER}")
    yield from common_rules.job_size_errors(trained, _PATH)
    for key, replica in spec.replica_specs.items():
        yield from _replica_errors(key, replica, child_path(_PATH, key))
    yield from _master_errors(roles)
    yield from _node_range_errors(job)
    yield from _strategy_errors(job, roles)
    for resource, written in spec.resource_limits.items():
        yield from common_rules.quantity_errors(
            child_path("spec.resourceLimits", resource), written
        )
    for key, variable in spec.envs.items():
        name = variable.name or key
        yield from name_errors(child_path("spec.envs", key), name, names.validate_env_name(name))
    total = sum(common_rules.replica_count(replica) for replica in trained.values())
    yield from common_rules.run_policy_errors(spec.run_policy, total + 1)


def list_warnings(job: ElasticJob) -> Iterator[FieldError]:
    spec, variables = job.spec, _operator_variables(job)
    for key, replica in spec.replica_specs.items():
        path = child_path(_PATH, key)
        if key != key.lower() and key.lower() in ROLES:
            yield FieldError(path, key, f"is read as {key.lower()!r}", f"write {key.lower()}")
        yield from _replica_warnings(key.lower(), replica, path, variables)
    for key, variable in spec.envs.items():
        if (name := variable.name or key) in variables:
            problem = "is set by the operator: this value is ignored"
            yield FieldError(child_path("spec.envs", key), name, problem, "omit the variable")
    yield from _spare_warnings(job)
    for name, why in IGNORED_ANNOTATIONS.items():
        if (given := job.metadata.annotations.get(name)) is not None:
            where = child_path("metadata.annotations", name)
            yield FieldError(where, given, f"has no effect: {why}", "omit it")
    for field, written in (
        ("enableElasticScheduling", spec.enable_elastic_scheduling),
        ("enableDynamicSharding", spec.enable_dynamic_sharding),
    ):
        if written is not None:
            problem = "is a field of older releases and has no effect"
            yield FieldError(f"spec.{field}", written, problem, "omit it")
    if not spec.distribution_strategy and PS not in {key.lower() for key in spec.replica_specs}:
        problem = f"is missing: the default is {PARAMETER_SERVER}"
        remedy = f"give {ALLREDUCE} for PyTorch"
        yield FieldError("spec.distributionStrategy", None, problem, remedy)


def validate_scale_plan(plan: ScalePlan, old: ScalePlan | None = None) -> Iterator[FieldError]:
    spec = plan.spec
    if old is not None and old.status.phase not in _UNSTARTED_PHASES and spec != old.spec:
        problem = "cannot be changed: the plan was executed or has failed"
        yield FieldError("spec", None, problem, "create another plan")
    if not plan.job_name:
        remedy = f"give the name of an ElasticJob, or the label {JOB_NAME_LABEL}"
        yield FieldError("spec.ownerJob", None, "is missing", remedy)
    for role, scale in spec.replica_resource_specs.items():
        path = child_path("spec.replicaResourceSpecs", role)
        yield from _plan_role_errors(role, path)
        yield from _plan_resource_errors(scale.resource, f"{path}.resource")
    lists = (
        ("createPods", spec.create_pods),
        ("removePods", spec.remove_pods),
        ("migratePods", spec.migrate_pods),
    )
    for field, pods in lists:
        for place, pod in enumerate(pods):
            yield from _plan_pod_errors(pod, f"spec.{field}[{place}]", named=field != "createPods")
    for place, host in enumerate(spec.ps_hosts):
        name, colon, port = host.rpartition(":")
        if not (name and colon and port.isascii() and port.isdigit()):
            problem = "is not an address"
            yield FieldError(f"spec.psHosts[{place}]", host, problem, "give HOST:PORT")
    if not spec.replica_resource_specs and not any(pods for _, pods in lists) and not spec.ps_hosts:
        yield FieldError("spec", None, "changes nothing", "give replicaResourceSpecs")


def _replica_specs(job: ElasticJob) -> Mapping[str, ElasticReplicaSpec]:
    return job.spec.replica_specs


def _name_errors(job: ElasticJob, roles: common_rules.RoleSpecs) -> Iterator[FieldError]:
    """The names of services follow from the job's: ``elasticjob-NAME-dlrover-master``."""
    meta = job.metadata
    around = {f"edljob-{role}": replica for role, replica in roles.items()}
    errors = list(common_rules.job_name_errors(meta, around))
    yield from errors
    most = names.MAX_LABEL_LENGTH - _MASTER_NAME_LENGTH
    if not errors and len(meta.name) > most:
        problem = f"is too long: the master's service is called {master_name('NAME')!r}"
        yield FieldError("metadata.name", meta.name, problem, f"use at most {most} characters")


def _replica_errors(key: str, replica: ElasticReplicaSpec, path: str) -> Iterator[FieldError]:
    is_master = key.lower() in (MASTER, LEGACY_MASTER)
    if not is_master or _containers(replica):
        template = _with_default_image(replica) if is_master else replica.template
        yield from common_rules.pod_template_errors(template, f"{path}.template")
    given = [container.get("name") for container in _containers(replica)]
    if len(given) > 1 and CONTAINER not in given:
        problem = f"has several containers and none is named {CONTAINER!r}"
        remedy = f"name the main container {CONTAINER!r}"
        yield FieldError(f"{path}.template.spec.containers", given, problem, remedy)
    yield from _priority_errors(replica.priority, f"{path}.priority")
    if replica.critical_nodes and parse_critical_ranks(replica.critical_nodes) is None:
        problem = "is not a list of ranks"
        remedy = "give all, none, or RANK:RESTARTS separated by commas, such as 0:3,1"
        yield FieldError(f"{path}.criticalNodes", replica.critical_nodes, problem, remedy)
    elif replica.critical_nodes and replica.replicas is not None:
        critical = parse_critical_ranks(replica.critical_nodes) or CriticalRanks(False, {})
        beyond = [rank for rank in critical.ranks if rank >= max(1, replica.replicas)]
        if beyond:
            problem = f"has rank {min(beyond)}, but there are only {replica.replicas} replicas"
            remedy = "count from 0"
            yield FieldError(f"{path}.criticalNodes", replica.critical_nodes, problem, remedy)


def _with_default_image(replica: ElasticReplicaSpec) -> dict[str, Any]:
    """Return the template of a master with an image: it may be omitted because it has a default."""
    main = _main_container(replica)
    spec = replica.template["spec"]
    containers = [
        {"image": "default", **container} if container is main else container
        for container in _containers(replica)
    ]
    return {**replica.template, "spec": {**spec, "containers": containers}}


def _priority_errors(priority: str | None, path: str) -> Iterator[FieldError]:
    if not priority or parse_priority_fraction(priority) is not None:
        return
    if is_number(priority):
        remedy = "give a number from 0 to 1, or the name of a priority class"
        yield FieldError(path, priority, "is not a fraction", remedy)
    else:
        yield from name_errors(path, priority, names.validate_dns_subdomain(priority))


def _master_errors(roles: common_rules.RoleSpecs) -> Iterator[FieldError]:
    if MASTER in roles and LEGACY_MASTER in roles:
        problem = f"is given beside {MASTER!r}, which means the same"
        yield FieldError(f"{_PATH}.{LEGACY_MASTER}", None, problem, "give one of them")
    for role in (MASTER, LEGACY_MASTER):
        if role in roles and common_rules.replica_count(roles[role]) != 1:
            count = common_rules.replica_count(roles[role])
            remedy = "give 1, or omit it"
            yield FieldError(f"{_PATH}.{role}.replicas", count, "is not 1", remedy)


def _node_range_errors(job: ElasticJob) -> Iterator[FieldError]:
    specs = {key.lower(): (key, spec) for key, spec in _replica_specs(job).items()}
    annotated = job.metadata.annotations.get(NODES_ANNOTATION)
    where = child_path("metadata.annotations", NODES_ANNOTATION)
    if annotated is not None and parse_node_range(annotated) is None:
        yield FieldError(where, annotated, "is not a node range", "give MIN:MAX, such as '1:4'")
    if WORKER not in specs:
        return
    key, workers = specs[WORKER]
    main = _main_container(workers)
    written = annotated or nnodes_flag(main)
    count = common_rules.replica_count(ReplicaSpec(workers.replicas))
    nodes = job_node_range(job.metadata.annotations, main, count)
    path = f"{child_path(_PATH, key)}"
    if written and nodes is None and not annotated:
        problem = f"has --nnodes {written}, which is not a valid range"
        yield FieldError(
            f"{path}.template", None, problem, "give --nnodes=MIN:MAX, 1 <= MIN <= MAX"
        )
    if nodes and 0 < count < nodes.min_nodes:
        problem = f"is less than the minimum of --nnodes, {nodes.min_nodes}: training never starts"
        yield FieldError(f"{path}.replicas", count, problem, f"give at least {nodes.min_nodes}")


def _annotation_errors(job: ElasticJob) -> Iterator[FieldError]:
    notes = job.metadata.annotations
    seconds = notes.get(PENDING_TIMEOUT_ANNOTATION)
    if seconds is not None and not (seconds.isascii() and seconds.isdecimal()):
        where = child_path("metadata.annotations", PENDING_TIMEOUT_ANNOTATION)
        yield FieldError(where, seconds, "is not a number of seconds", "give one, such as '900'")
    strategy = notes.get(PENDING_STRATEGY_ANNOTATION)
    if strategy is not None and strategy not in PENDING_STRATEGIES:
        where = child_path("metadata.annotations", PENDING_STRATEGY_ANNOTATION)
        remedy = f"use one of {', '.join(PENDING_STRATEGIES)}"
        yield FieldError(where, strategy, "is not allowed", remedy)


def _strategy_errors(job: ElasticJob, roles: common_rules.RoleSpecs) -> Iterator[FieldError]:
    strategy = job.spec.distribution_strategy
    for role in (PS, CHIEF):
        if strategy == ALLREDUCE and role in roles and common_rules.replica_count(roles[role]):
            problem = f"is not used by {ALLREDUCE}"
            remedy = f"omit it, or give {PARAMETER_SERVER}"
            yield FieldError(f"{_PATH}.{role}", None, problem, remedy)
    others = set(roles) & {PS, CHIEF, EVALUATOR}
    if strategy in (ALLREDUCE, LOCAL) and others and WORKER not in roles:
        yield FieldError(f"{_PATH}.{WORKER}", None, "is missing: no role trains", "add workers")


def _spare_warnings(job: ElasticJob) -> Iterator[FieldError]:
    for key, workers in _replica_specs(job).items():
        if key.lower() != WORKER:
            continue
        count = workers.replicas or 0
        nodes = job_node_range(job.metadata.annotations, _main_container(workers), count)
        if nodes and count > nodes.max_nodes:
            most, where = nodes.max_nodes, f"{child_path(_PATH, key)}.replicas"
            problem = f"is more than the maximum of --nnodes, {most}: the rest are spares"
            remedy = f"give {most}, or a larger maximum"
            yield FieldError(where, workers.replicas, problem, remedy)


def _operator_variables(job: ElasticJob) -> frozenset[str]:
    strategy = job.spec.distribution_strategy or PARAMETER_SERVER
    others = (names for other, names in _OF_STRATEGIES.items() if other != strategy)
    return OPERATOR_VARIABLES.difference(*others)


def _replica_warnings(
    role: str, replica: ElasticReplicaSpec, path: str, variables: frozenset[str]
) -> Iterator[FieldError]:
    if replica.batch_scheduler not in (None, "", "default"):
        problem = "has no effect: the operator's scheduler places the pods as a gang"
        yield FieldError(f"{path}.batchScheduler", replica.batch_scheduler, problem, "omit it")
    if role in (MASTER, LEGACY_MASTER):
        return
    where = f"{path}.template"
    yield from replica_warnings.template_warnings(replica.template, where, variables, CONTAINER)


def _plan_role_errors(role: str, path: str) -> Iterator[FieldError]:
    if role.lower() in TRAINING_ROLES:
        return
    close = get_close_matches(role.lower(), TRAINING_ROLES, n=1, cutoff=0.5)
    remedy = f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(TRAINING_ROLES)}"
    yield FieldError(path, role, "is not a role that can be scaled", remedy)


def _plan_pod_errors(pod: PodMeta, path: str, *, named: bool) -> Iterator[FieldError]:
    yield from _plan_role_errors(pod.type or WORKER, f"{path}.type")
    if named and not pod.name and pod.id is None and pod.rank_index is None:
        yield FieldError(path, None, "does not identify a pod", "give its name, id or rankIndex")
    yield from _plan_resource_errors(pod.resource, f"{path}.resource")


def _plan_resource_errors(requests: ResourceList, path: str) -> Iterator[FieldError]:
    for resource, written in requests.items():
        where = child_path(path, resource)
        if not is_container_resource(resource):
            close = get_close_matches(resource.lower(), STANDARD_RESOURCES, n=1, cutoff=0.8)
            known = f"use {', '.join(STANDARD_RESOURCES)} or a name with a domain, such as {GPU}"
            remedy = f"did you mean {close[0]!r}?" if close else known
            yield FieldError(where, resource, "is not the name of a resource", remedy)
        yield from common_rules.quantity_errors(where, written)


def _main_container(replica: ElasticReplicaSpec) -> Mapping[str, Any]:
    containers = _containers(replica)
    named = (container for container in containers if container.get("name") == CONTAINER)
    return next(named, (containers or [{}])[0])


def _containers(replica: ElasticReplicaSpec) -> list[dict[str, Any]]:
    return objects_in(subobject(replica.template, "spec").get("containers"))


def is_manual(mode: str | None) -> bool:
    return mode in MANUAL_MODES
