"""Errors and warnings for MPIJobs that no schema can express."""

from collections.abc import Iterator, Mapping
from posixpath import normpath

from gangline.api.jobs.kubeflow import ReplicaSpec
from gangline.api.jobs.mpi import (
    CONTAINER,
    FILES_PATH,
    ROLES,
    ROOT_SSH_PATH,
    V2BETA1,
    MPIJob,
    default_replica_specs,
)
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.schema.field_error import FieldError
from gangline.api.validation import common_rules, replica_warnings
from gangline.api.validation.common_rules import RoleSpecs

_PATH = "spec.mpiReplicaSpecs"
_ANY_CONTAINER = ""

_RULES = replica_warnings.ReplicaRules(
    path=_PATH, roles=ROLES, default_restart_policy="Never", endless_roles=("Worker",)
)

_V2_FIELDS = (
    ("runLauncherAsWorker", "run_launcher_as_worker"),
    ("sshAuthMountPath", "ssh_auth_mount_path"),
    ("launcherCreationPolicy", "launcher_creation_policy"),
    ("mpiImplementation", "mpi_implementation"),
)
_V1_FIELDS = (("cleanPodPolicy", "clean_pod_policy"), ("mainContainer", "main_container"))

OPERATOR_VARIABLES = frozenset[str]()
"""None: the variables of a template take precedence."""


def validate(job: MPIJob, old: MPIJob | None = None) -> Iterator[FieldError]:
    specs = default_replica_specs(job)
    roles = yield from common_rules.kubeflow_job_errors(job, specs, ROLES, _PATH, _ANY_CONTAINER)
    if specs and "Launcher" not in roles:
        yield FieldError(f"{_PATH}.Launcher", None, "is missing", "give one: it runs mpirun")
    elif specs and (launchers := common_rules.replica_count(roles["Launcher"])) != 1:
        remedy = "give 1, and the pods for the processes as Worker"
        yield FieldError(f"{_PATH}.Launcher.replicas", launchers, "is not 1", remedy)
    elif job.api_version == V2BETA1 and "Worker" in roles and not roles["Worker"].replicas:
        where, remedy = f"{_PATH}.Worker.replicas", "give at least 1, or omit Worker"
        given = _read_roles(job.spec.mpi_replica_specs)["Worker"].replicas
        yield FieldError(where, given, "is missing" if given is None else "is not positive", remedy)
    else:
        yield from common_rules.job_size_errors(roles, _PATH)
    yield from _main_container_errors(job.spec.main_container, roles)
    path = job.spec.ssh_auth_mount_path
    if path and not path.startswith("/"):
        remedy = "give an absolute path, such as /root/.ssh"
        yield FieldError("spec.sshAuthMountPath", path, "is not an absolute path", remedy)


def list_warnings(job: MPIJob) -> Iterator[FieldError]:
    v2 = job.api_version == V2BETA1
    specs = default_replica_specs(job)
    yield from replica_warnings.common_replica_warnings(specs, job, _RULES)
    yield from _other_version_warnings(job, v2=v2)
    older, newer = job.spec.clean_pod_policy, job.spec.run_policy.clean_pod_policy
    if not v2 and older and newer and older != newer:
        problem = f"is ignored: spec.runPolicy.cleanPodPolicy, {newer!r}, takes precedence"
        yield FieldError("spec.cleanPodPolicy", older, problem, "omit it")
    roles = _read_roles(specs)
    workers = common_rules.replica_count(roles["Worker"]) if "Worker" in roles else 0
    if "Worker" in roles and not workers:
        problem = "0, also the default, lets the launcher run alone"
        yield FieldError(f"{_PATH}.Worker.replicas", None, problem, "give at least 1")
    effective = newer or ("" if v2 else older) or "None"
    if effective == "None" and workers:
        problem = "None, also the default, lets the workers keep their resources after the end"
        remedy = "give Running: workers never end by themselves"
        yield FieldError("spec.runPolicy.cleanPodPolicy", None, problem, remedy)
    yield from _container_warnings(job, roles, v2=v2)


def _container_warnings(job: MPIJob, roles: RoleSpecs, *, v2: bool) -> Iterator[FieldError]:
    """Mounts at the places of the operator's files, which these do not reach then, and arguments
    that workers of ``v1`` do not get.
    """
    keys = (job.spec.ssh_auth_mount_path or ROOT_SSH_PATH,) if v2 else ()
    for role, spec in roles.items():
        where = f"{_PATH}.{role}.template.spec.containers"
        paths = (FILES_PATH, *keys) if role == "Launcher" or not v2 else keys
        containers = objects_in(subobject(spec.template, "spec").get("containers"))
        names = [container.get("name") for container in containers]
        index = names.index(CONTAINER) if CONTAINER in names else 0
        main = containers[index] if containers else {}
        for place, mount in enumerate(objects_in(main.get("volumeMounts"))):
            given = mount.get("mountPath")
            if isinstance(given, str) and normpath(given) in map(normpath, paths):
                path = f"{where}[{index}].volumeMounts[{place}].mountPath"
                problem = "is where the operator mounts its files: this mount takes their place"
                yield FieldError(path, given, problem, "mount it elsewhere")
        if role == "Worker" and not v2 and main.get("args") and not main.get("command"):
            problem = "is ignored: a worker without a command waits for mpirun"
            yield FieldError(f"{where}[{index}].args", main["args"], problem, "give command")


def _read_roles(specs: Mapping[str, ReplicaSpec]) -> RoleSpecs:
    return common_rules.read_roles(specs, ROLES, _PATH)[0]


def _other_version_warnings(job: MPIJob, *, v2: bool) -> Iterator[FieldError]:
    """Fields of the other version are stored, because both have one schema, and not read."""
    version, remedy = ("v2beta1", "v1") if v2 else ("v1", "v2beta1")
    for field, attribute in _V1_FIELDS if v2 else _V2_FIELDS:
        if value := getattr(job.spec, attribute):
            problem = f"is ignored: a job of {version} has no such field"
            yield FieldError(
                f"spec.{field}", value, problem, f"omit it, or write a job of {remedy}"
            )


def _main_container_errors(name: str, roles: RoleSpecs) -> Iterator[FieldError]:
    """``mainContainer`` must name a container of the workers: mpirun starts processes there."""
    if not name or "Worker" not in roles:
        return
    containers = (roles["Worker"].template.get("spec") or {}).get("containers") or []
    there = [container.get("name", "") for container in containers]
    if there and name not in there:
        remedy = f"name one of {', '.join(there)}, or omit it to use the first one"
        yield FieldError("spec.mainContainer", name, "is not a container of the workers", remedy)
