"""MPIJob: a launcher that runs ``mpirun``, and workers on which it starts processes.

``ssh`` has the rules of ``v2beta1``. In a job of ``v1`` the launcher reaches its workers by the
exec channel of the API server: no SSH server, no keys, and an RBAC role for its own workers only.
``mpirun`` calls ``/etc/mpi/kubexec.sh`` in place of ``rsh``. The script uses ``kubectl`` if the
image has it (or an administrator's image provides it), and otherwise a small Python client from the
same ConfigMap.

The launcher starts once all workers run (upstream's waits in an init container), so the gang is
counted without it, and its resources are reserved. Replicas have headless services, which upstream
does not create: Intel MPI's processes connect to their launcher by name.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gangline.api.jobs import mpi as api
from gangline.api.jobs.kubeflow import MANAGED_BY_US, ReplicaSpec
from gangline.api.jobs.mpi import CONTAINER, FILES_PATH, MPIJob, MPIJobSpec
from gangline.operator.frameworks import kubeflow
from gangline.operator.frameworks.mpi import exec_client, objects
from gangline.operator.frameworks.mpi.objects import (
    EXECUTABLE,
    LAUNCHER,
    NO_GPUS,
    READABLE,
    TOOLS_PATH,
    WORKER,
    LauncherRules,
    config_map,
    launcher_name,
    with_files,
    worker_names,
)
from gangline.operator.frameworks.mpi.ssh import SSHRules
from gangline.operator.model import pod_template
from gangline.operator.model.job import (
    CleanPodPolicy,
    JobKindInfo,
    JobRunPolicy,
    Manifest,
    NormalizedJob,
    ReplicaRole,
    RestartPolicy,
    table_entry,
)
from gangline.operator.model.replicas import ReplicaGang
from gangline.operator.settings import OperatorSettings

KIND = JobKindInfo(
    table_entry("MPIJob"),
    container=CONTAINER,
    env_in_all_containers=False,
    owned_kinds=("ConfigMap", "ServiceAccount", "Role", "RoleBinding"),
)

_TOOLS_VOLUME = "mpi-job-kubectl"
_WORKER_COMMAND = ("/bin/sh", "-c", "trap 'exit 143' TERM INT; sleep 365d & wait")
_AGENT = f"{FILES_PATH}/{objects.EXEC_SCRIPT}"
_HOST_FILE = f"{FILES_PATH}/{objects.HOST_FILE}"
_LAUNCHER_ENVIRONMENT: Mapping[str, str] = {
    "OMPI_MCA_plm_rsh_agent": _AGENT,
    "OMPI_MCA_orte_default_hostfile": _HOST_FILE,
    "I_MPI_HYDRA_BOOTSTRAP": "rsh",
    "I_MPI_HYDRA_BOOTSTRAP_EXEC": _AGENT,
    # Upstream's list ends here. Workers have no right to start other workers, as Open MPI's tree
    # of more than 64 would; Open MPI 5 and MPICH read other names.
    "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
    "PRTE_MCA_plm_ssh_agent": _AGENT,
    "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
    "PRTE_MCA_prte_default_hostfile": _HOST_FILE,
    "HYDRA_LAUNCHER": "rsh",
    "HYDRA_LAUNCHER_EXEC": _AGENT,
}
_V2_BACKOFF_LIMIT = 6
"""That of the batch Job with which the MPI operator runs a launcher."""


class MPIFramework(kubeflow.KubeflowFramework[MPIJob]):
    kind = KIND
    roles = (WORKER, LAUNCHER)
    defaults = kubeflow.KindDefaults(restart=RestartPolicy.NEVER)

    def __init__(self, kubectl_image: str = "") -> None:
        """Set the image that copies ``kubectl`` into launchers: upstream's, or one with the same
        variables.

        Only launcher images with neither ``kubectl`` nor Python need it.
        """
        self._kubectl_image = kubectl_image
        self._exec_client = inspect.getsource(exec_client)

    def rules(self, job: MPIJob) -> "MPIRules | SSHRules":
        if job.api_version == api.V2BETA1:
            return SSHRules(job.spec)
        return MPIRules(job.spec, self._exec_client, self._kubectl_image)

    def replica_specs(self, job: MPIJob) -> Mapping[str, ReplicaSpec]:
        return api.default_replica_specs(job)

    def adjust_roles(self, job: MPIJob, roles: list[ReplicaRole]) -> list[ReplicaRole]:
        if job.api_version == api.V2BETA1 and job.spec.run_launcher_as_worker:
            # Labels number all pods that train, as in upstream: Kueue places them by this order.
            roles = [replace(r, first_label=1) if r.name == WORKER else r for r in roles]
        if not _waits_for_workers(job):
            return roles
        # The launcher waits for the workers, so the gang must start without it. Its resources are
        # reserved: two jobs whose workers leave no node for a launcher would wait for ever.
        return [
            replace(role, min_replicas=0, joins_later=True)
            if role.name == LAUNCHER and _worker_count(roles)
            else role
            for role in roles
        ]

    def run_policy(self, job: MPIJob, roles: list[ReplicaRole]) -> JobRunPolicy:
        """Return the run policy; the minimum of the gang is at most the number of workers."""
        spec, policy = job.spec, super().run_policy(job, roles)
        if job.api_version == api.V2BETA1:
            policy = _v2_run_policy(policy)
        elif spec.clean_pod_policy and spec.run_policy.clean_pod_policy is None:
            policy = replace(policy, clean_pods=CleanPodPolicy(spec.clean_pod_policy))
        minimum = policy.scheduling.min_available
        if minimum is None or not _waits_for_workers(job):
            return policy
        members = min(minimum, _worker_count(roles) or 1)
        return replace(policy, scheduling=replace(policy.scheduling, min_available=members))


def create_framework(settings: OperatorSettings) -> MPIFramework:
    return MPIFramework(settings.mpi_kubectl_image)


@dataclass(frozen=True, slots=True)
class MPIRules(LauncherRules):
    """The rules of MPIJobs of ``v1``."""

    spec: MPIJobSpec
    exec_client: str = ""
    kubectl_image: str = ""

    def environment(
        self, job: NormalizedJob, role: ReplicaRole, index: int, gang: ReplicaGang
    ) -> list[Manifest]:
        """Configure a launcher's access to its workers."""
        if role.name != LAUNCHER:
            return []
        no_gpus = {} if _uses_gpus(role) else NO_GPUS
        return kubeflow.env_vars([*_LAUNCHER_ENVIRONMENT.items(), *no_gpus.items()])

    def can_start(
        self, job: NormalizedJob, role: ReplicaRole, index: int, gang: ReplicaGang
    ) -> bool:
        return role.name != LAUNCHER or gang[WORKER].all_running_or_succeeded

    def shape_pod(
        self, job: NormalizedJob, role: ReplicaRole, index: int, pod: Manifest, gang: ReplicaGang
    ) -> Manifest:
        """Mount the launcher's files and set its service account; set the worker's wait command."""
        if role.name == LAUNCHER:
            return self._shape_launcher(job, pod)
        container = pod_template.main_container(pod, KIND.container)
        if not container.get("command"):
            waiting = list(_WORKER_COMMAND)
            pod = pod_template.with_container(pod, KIND.container, command=waiting, args=[])
        return with_files(pod, job, FILES_PATH, {objects.EXEC_SCRIPT: EXECUTABLE})

    def owned_objects(self, job: NormalizedJob, gang: ReplicaGang) -> list[Manifest]:
        name = launcher_name(job)
        workers = worker_names(job)
        launcher = job.find_role(LAUNCHER)
        given = pod_template.service_account(launcher.template) if launcher else ""
        return [
            config_map(job, self._files(job, gang)),
            *([] if given else [objects.service_account(job, name)]),
            *objects.exec_role(job, name, given or name, workers, wait=bool(self.kubectl_image)),
        ]

    def _files(self, job: NormalizedJob, gang: ReplicaGang) -> dict[str, str]:
        slots = self.spec.slots_per_worker or 1
        workers, launcher = worker_names(job), job.find_role(LAUNCHER)
        alone = not workers or (launcher is not None and _uses_gpus(launcher))
        own = [launcher_name(job)] if alone else []
        running = [
            name
            for name, pod in zip(workers, gang[WORKER].pods, strict=False)
            if pod is not None and pod.is_active
        ]
        return {
            objects.HOST_FILE: objects.format_host_file([*own, *workers], slots),
            objects.EXEC_SCRIPT: objects.exec_script(self._exec_container(job)),
            objects.EXEC_CLIENT: self.exec_client,
            objects.DISCOVERY_SCRIPT: objects.discovery_script([*own, *running], slots),
        }

    def _exec_container(self, job: NormalizedJob) -> str:
        workers = job.find_role(WORKER)
        first = pod_template.main_container(workers.template, KIND.container) if workers else {}
        return self.spec.main_container or str(first.get("name", ""))

    def _shape_launcher(self, job: NormalizedJob, pod: Manifest) -> Manifest:
        shaped = with_files(
            pod,
            job,
            FILES_PATH,
            {
                objects.EXEC_SCRIPT: EXECUTABLE,
                objects.EXEC_CLIENT: READABLE,
                objects.HOST_FILE: READABLE,
                objects.DISCOVERY_SCRIPT: EXECUTABLE,
            },
        )
        if not pod_template.service_account(pod):
            shaped = pod_template.with_spec(shaped, serviceAccountName=launcher_name(job))
        return self._with_kubectl(job, shaped) if self.kubectl_image else shaped

    def _with_kubectl(self, job: NormalizedJob, pod: Manifest) -> Manifest:
        volume = {"name": _TOOLS_VOLUME, "emptyDir": {}}
        mount = {"name": _TOOLS_VOLUME, "mountPath": TOOLS_PATH}
        pod = pod_template.with_volume(pod, KIND.container, volume, mount)
        mounts = pod_template.main_container(pod, KIND.container).get("volumeMounts") or []
        amounts = {"cpu": "100m", "memory": "512Mi", "ephemeral-storage": "5Gi"}
        delivery = {
            "name": "kubectl-delivery",
            "image": self.kubectl_image,
            "imagePullPolicy": "IfNotPresent",
            "env": kubeflow.env_vars(
                [("TARGET_DIR", TOOLS_PATH), ("NAMESPACE", job.meta.namespace)]
            ),
            "resources": {"requests": amounts, "limits": amounts},
            "volumeMounts": [m for m in mounts if m.get("mountPath") in (TOOLS_PATH, FILES_PATH)],
        }
        return pod_template.with_init_container(pod, delivery)


def _worker_count(roles: Sequence[ReplicaRole]) -> int:
    return sum(role.replicas for role in roles if role.name == WORKER)


def _uses_gpus(role: ReplicaRole) -> bool:
    """Return whether a launcher requests GPUs: then it gets processes like a worker."""
    limits = (
        (container.get("resources") or {}).get("limits") or {}
        for container in pod_template.list_containers(role.template)
    )
    return any("gpu" in name for amounts in limits for name in amounts)


def _waits_for_workers(job: MPIJob) -> bool:
    """Return whether the launcher starts after the workers; then the gang starts without it."""
    v2 = job.api_version == api.V2BETA1
    return not v2 or job.spec.launcher_creation_policy == api.WAIT_FOR_WORKERS


def _v2_run_policy(policy: JobRunPolicy) -> JobRunPolicy:
    """Return the run policy of ``v2beta1``: this operator replaces the MPI operator."""
    if policy.managed_by == api.MANAGED_BY_MPI_OPERATOR:
        policy = replace(policy, managed_by=MANAGED_BY_US)
    if policy.backoff_limit is None:
        policy = replace(policy, backoff_limit=_V2_BACKOFF_LIMIT)
    return policy
