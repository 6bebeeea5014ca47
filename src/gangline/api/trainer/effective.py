"""Merges a TrainJob into its runtime: the roles with their final pod templates.

The order is upstream's: runtime patches, the overrides of the steps, the policy of the framework,
the counts. What a policy decides (processes of a node, variables) it decides from the merged
template, so that a job without ``spec.trainer`` and GPUs that only the runtime sets count as well.

Initializers: the source of a step, and the claim that a ``pvc`` source needs.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from gangline.api.jobs.train import StepInitializer, Trainer, TrainJob
from gangline.api.jobs.training_runtime import (
    DATASET_INITIALIZER,
    IN_ORDER,
    LAUNCHER,
    MODEL_INITIALIZER,
    MPI,
    NODE,
    READY,
    STEP_CONTAINERS,
    TORCH,
    TRAINER,
    JobDependency,
    JobSetSpec,
    MPIPolicy,
    PodFailureRule,
    ReplicatedJob,
    TorchElasticPolicy,
    TrainingRuntimeSpec,
)
from gangline.api.names import free_name
from gangline.api.trainer.merge import Json, merge, merge_list, upsert_env
from gangline.api.trainer.storage_uri import (
    PVC,
    SOURCE_CLAIM_PATH,
    STORAGE_URI,
    StorageUriError,
    parse_storage_uri,
)

_VOLUME = "initializer-source"


def with_source_claim(template: Json, container: Json) -> Json:
    """Mount the claim of a ``pvc`` source read-only, given the initializer's merged container."""
    if claim := _source_claim(container):
        pod: Json = template.get("spec") or {}
        volumes: list[Json] = pod.get("volumes") or []
        name = free_name(_VOLUME, {volume.get("name") for volume in volumes})
        source = {"claimName": claim, "readOnly": True}
        volume = {"name": name, "persistentVolumeClaim": source}
        mount = {"name": name, "mountPath": SOURCE_CLAIM_PATH, "readOnly": True}
        template = {**template, "spec": {**pod, "volumes": [*volumes, volume]}}
        mounts = merge_list(container.get("volumeMounts") or [], [mount], "mountPath")
        container = {**container, "volumeMounts": mounts}
    return with_container(template, container)


def _source_claim(container: Json) -> str:
    for variable in container.get("env") or []:
        if variable.get("name") == STORAGE_URI and isinstance(variable.get("value"), str):
            try:
                source = parse_storage_uri(variable["value"])
            except StorageUriError:
                return ""
            return source.location if source.scheme == PVC else ""
    return ""


DEFAULT_BACKOFF_LIMIT = 6
"""That of a batch Job."""


@dataclass(frozen=True, slots=True)
class EffectiveRole:
    name: str
    template: Json
    """Pod template; the names and labels of each pod are added when it is created."""
    jobs: int = 1
    """The batch Jobs that a JobSet would make of the role."""
    pods_per_job: int = 1
    step: str = ""
    depends_on: tuple[JobDependency, ...] = ()
    backoff_limit: int = DEFAULT_BACKOFF_LIMIT
    group: str = "default"
    failure_rules: tuple[PodFailureRule, ...] = ()

    @property
    def replicas(self) -> int:
        return self.jobs * self.pods_per_job

    def pod_name(self, job: str, index: int) -> str:
        """Return the name of a pod, which is its host name too."""
        return "{}-{}-{}-{}".format(job, self.name, *divmod(index, self.pods_per_job or 1))

    @property
    def is_initial(self) -> bool:
        """True if it fetches data or a model."""
        return self.step in (DATASET_INITIALIZER, MODEL_INITIALIZER)

    @property
    def container_name(self) -> str:
        """The container that the overrides of its step apply to."""
        return STEP_CONTAINERS.get(self.step, NODE)


@dataclass(frozen=True, slots=True)
class EffectiveJob:
    name: str
    roles: tuple[EffectiveRole, ...]
    nodes: int
    spec: TrainingRuntimeSpec
    """The runtime, after its patches."""
    labels: dict[str, str]
    """Labels of the runtime's template, with those of the patches."""
    annotations: dict[str, str]

    @property
    def subdomain(self) -> str:
        """The headless service that names the pods."""
        network = self.spec.template.spec.network
        return (network.subdomain if network else None) or self.name

    @property
    def mpi(self) -> MPIPolicy | None:
        return self.spec.ml_policy.mpi if self.framework == MPI else None

    @property
    def elastic(self) -> TorchElasticPolicy | None:
        """The range of its nodes, if their number may change while it runs."""
        torch = self.spec.ml_policy.torch if self.framework == TORCH else None
        return torch.elastic_policy if torch else None

    def is_elastic(self, role: EffectiveRole) -> bool:
        return self.elastic is not None and role.step == TRAINER

    @property
    def framework(self) -> str:
        return self.spec.ml_policy.framework

    def find_role(self, name: str) -> EffectiveRole | None:
        return next((role for role in self.roles if role.name == name), None)

    @property
    def training_roles(self) -> tuple[EffectiveRole, ...]:
        """Roles that train: those of the trainer step, and with MPI the workers."""
        mpi = self.mpi is not None
        return tuple(r for r in self.roles if r.step == TRAINER or (mpi and r.name == NODE))

    @property
    def coordinator(self) -> str:
        """The address of the coordinator; empty if the runtime names none."""
        coordinator = self.spec.template.spec.coordinator
        role = self.find_role(coordinator.replicated_job) if coordinator else None
        if coordinator is None or role is None:
            return ""
        first = (coordinator.job_index or 0) * role.pods_per_job
        return self.host(role.name, first + (coordinator.pod_index or 0))

    def host(self, role: str, index: int) -> str:
        named = self.find_role(role) or EffectiveRole(role, {})
        return f"{named.pod_name(self.name, index)}.{self.subdomain}"


def merge_runtime(job: TrainJob, runtime: TrainingRuntimeSpec) -> EffectiveJob:
    """Merge a job and its runtime, without the policy of the framework (see ``policy``)."""
    patched = apply_patches(job, runtime)
    trainer = job.spec.trainer or Trainer()
    nodes = trainer.num_nodes
    if nodes is None:
        nodes = patched.ml_policy.num_nodes or 1
    name, job_set = job.metadata.name, patched.template.spec
    roles = _in_order(list(map(_role, job_set.replicated_jobs)), patched)
    mpi = patched.ml_policy.mpi if patched.ml_policy.framework == MPI else None
    roles = [_override(role, job, trainer, is_mpi=mpi is not None) for role in roles]
    roles = _without_empty_waits(_count(roles, nodes, mpi))
    return EffectiveJob(
        name=name,
        roles=tuple(
            replace(role, template=with_claim_volumes(role.template, job_set, name))
            for role in roles
        ),
        nodes=nodes,
        spec=_with_elastic_policy(patched, trainer.elastic_policy),
        labels=patched.template.metadata.labels,
        annotations=patched.template.metadata.annotations,
    )


def _with_elastic_policy(
    runtime: TrainingRuntimeSpec, given: TorchElasticPolicy | None
) -> TrainingRuntimeSpec:
    policy = runtime.ml_policy
    if policy.torch is None or given is None:
        return runtime
    torch = msgspec.structs.replace(policy.torch, elastic_policy=given)
    changed = msgspec.structs.replace(policy, torch=torch)
    return msgspec.structs.replace(runtime, ml_policy=changed)


def apply_patches(job: TrainJob, runtime: TrainingRuntimeSpec) -> TrainingRuntimeSpec:
    """Apply the runtime patches of a job, in order. Raises ValueError: their types differ from the
    runtime's.
    """
    template: Json = msgspec.to_builtins(runtime.template)
    for patch in job.spec.runtime_patches:
        change = patch.training_runtime_spec and patch.training_runtime_spec.template
        if change:
            template = merge(template, msgspec.to_builtins(change))
    try:
        patched = msgspec.convert(template, type(runtime.template))
    except msgspec.ValidationError as error:
        raise ValueError(f"spec.runtimePatches: {error}") from error
    return msgspec.structs.replace(runtime, template=patched)


def claim_name(template: Json, job: str) -> str:
    return f"{(template.get('metadata') or {}).get('name', '')}-{job}"


def claim_templates(spec: JobSetSpec) -> list[Json]:
    return [
        msgspec.to_builtins(template)
        for policy in spec.volume_claim_policies
        for template in policy.templates
    ]


def with_claim_volumes(template: Json, spec: JobSetSpec, job: str) -> Json:
    """Add the volumes of the claims that containers of a pod template mount."""
    pod: Json = template.get("spec") or {}
    containers = [*(pod.get("containers") or []), *(pod.get("initContainers") or [])]
    mounted = {
        m.get("name") for container in containers for m in container.get("volumeMounts") or []
    }
    volumes: list[Json] = list(pod.get("volumes") or [])
    missing = mounted - {volume.get("name") for volume in volumes}
    added = [
        {
            "name": claim.metadata.name,
            "persistentVolumeClaim": {"claimName": f"{claim.metadata.name}-{job}"},
        }
        for policy in spec.volume_claim_policies
        for claim in policy.templates
        if claim.metadata.name in missing
    ]
    if not added:
        return template
    return {**template, "spec": {**pod, "volumes": [*volumes, *added]}}


def find_container(template: Json, name: str) -> Json | None:
    containers: list[Json] = (template.get("spec") or {}).get("containers") or []
    return next((container for container in containers if container.get("name") == name), None)


def with_container(template: Json, container: Json) -> Json:
    spec: Json = template.get("spec") or {}
    containers = [
        container if other.get("name") == container.get("name") else other
        for other in spec.get("containers") or []
    ]
    return {**template, "spec": {**spec, "containers": containers}}


def _role(written: ReplicatedJob) -> EffectiveRole:
    limit, policy = written.template.spec.backoff_limit, written.template.spec.pod_failure_policy
    return EffectiveRole(
        name=written.name,
        template=written.template.spec.template,
        jobs=1 if written.replicas is None else written.replicas,
        pods_per_job=written.template.spec.parallelism or 1,
        step=written.step,
        depends_on=tuple(written.depends_on),
        backoff_limit=DEFAULT_BACKOFF_LIMIT if limit is None else limit,
        group=written.group_name or "default",
        failure_rules=tuple(policy.rules) if policy else (),
    )


def _in_order(roles: list[EffectiveRole], runtime: TrainingRuntimeSpec) -> list[EffectiveRole]:
    """Apply the startup policy: each role waits until the one before it is ready."""
    policy = runtime.template.spec.startup_policy
    if policy is None or policy.startup_policy_order != IN_ORDER:
        return roles
    before = [None, *roles]
    return [
        replace(role, depends_on=(JobDependency(name=earlier.name, status=READY),))
        if earlier is not None
        else role
        for earlier, role in zip(before, roles, strict=False)
    ]


def _override(
    role: EffectiveRole, job: TrainJob, trainer: Trainer, *, is_mpi: bool
) -> EffectiveRole:
    """Apply the overrides of the step of a role."""
    container = find_container(role.template, role.container_name)
    if container is None:
        return role
    initializer = job.spec.initializer
    match role.step:
        case _ if is_mpi and role.name == NODE:
            # The nodes train as the launcher does, but run an SSH server: it keeps its command.
            container = _override_trainer(container, trainer, {})
        case step if step == TRAINER:
            command = {"command": [*trainer.command], "args": [*trainer.args]}
            container = _override_trainer(container, trainer, command)
        case step if step == DATASET_INITIALIZER and initializer and initializer.dataset:
            container = _override_initializer(container, initializer.dataset)
        case step if step == MODEL_INITIALIZER and initializer and initializer.model:
            container = _override_initializer(container, initializer.model)
    if role.is_initial:
        return replace(role, template=with_source_claim(role.template, container))
    return replace(role, template=with_container(role.template, container))


def _override_trainer(container: Json, trainer: Trainer, command: Json) -> Json:
    given = {"image": trainer.image, **command}
    changed = {**container, **{name: value for name, value in given.items() if value}}
    changed = upsert_env(changed, msgspec.to_builtins(trainer.env))
    return _with_resources(changed, trainer)


def _with_resources(container: Json, trainer: Trainer) -> Json:
    if trainer.resources_per_node is None:
        return container
    written: Json = msgspec.to_builtins(trainer.resources_per_node)
    return {**container, "resources": merge(container.get("resources") or {}, written)}


def _override_initializer(container: Json, given: StepInitializer) -> Json:
    variables: list[Json] = msgspec.to_builtins(given.env)
    if given.storage_uri:
        variables = [{"name": STORAGE_URI, "value": given.storage_uri}, *variables]
    changed = upsert_env(container, variables)
    if given.secret_ref is None:
        return changed
    source = {"secretRef": {"name": given.secret_ref.name}}
    return {**changed, "envFrom": [*(changed.get("envFrom") or []), source]}


def _count(
    roles: Iterable[EffectiveRole], nodes: int, mpi: MPIPolicy | None
) -> list[EffectiveRole]:
    """Set the number of pods: the nodes of the job, of which the launcher may be one."""
    counts = {}
    if mpi is not None:
        counts = {LAUNCHER: 1, NODE: nodes - 1 if mpi.run_launcher_as_node else nodes}
    return [
        replace(role, pods_per_job=max(counts.get(role.name, nodes), 0))
        if role.name in counts or role.step == TRAINER
        else role
        for role in roles
    ]


def _without_empty_waits(roles: list[EffectiveRole]) -> list[EffectiveRole]:
    """Let roles wait for what a role without pods would have waited for, in its place."""
    waits: dict[str, tuple[JobDependency, ...]] = {}
    result = []
    for role in roles:
        depends_on = tuple(w for wait in role.depends_on for w in waits.get(wait.name, (wait,)))
        if not role.replicas:
            waits[role.name] = depends_on
        result.append(replace(role, depends_on=depends_on))
    return result
