"""PyTorchJob: ``torch.distributed`` by variables, or ``torchrun`` with its elastic rendezvous.

A Master is the worker of rank 0 and the rendezvous address of the others. The environment is
upstream's, which many scripts read, with three fixes:

- Workers without a Master get ranks, a world size and worker 0 as rendezvous address. Upstream
  gives them nothing (kubeflow/trainer#1991), and each of them trains alone.
- The node range of an elastic job counts its Master, which starts an agent like any worker.
  Upstream omits it (#2277), and the last worker is rejected.
- An empty ``rdzvConf`` means no settings, where upstream crashes.

With ``elasticPolicy.metrics`` Kubernetes scales the workers. The autoscaler is deleted when the job
is suspended or finished (upstream's continues to scale a finished job).

As in upstream (#1790), WORLD_SIZE counts processes if ``nprocPerNode`` is a number, while RANK
counts pods. ``torchrun`` replaces both in each process; without it a pod has one process and the
two agree.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gangline.api.jobs.kubeflow import ElasticPolicy, PyTorchJob, PyTorchJobSpec
from gangline.operator.frameworks import kubeflow
from gangline.operator.model import pod_template
from gangline.operator.model.job import (
    JobKindInfo,
    Manifest,
    NormalizedJob,
    ReplicaRole,
    RestartPolicy,
    table_entry,
)
from gangline.operator.model.labels import replica_name
from gangline.operator.model.replicas import ReplicaGang
from gangline.operator.settings import OperatorSettings

KIND = JobKindInfo(
    table_entry("PyTorchJob"),
    container="pytorch",
    port_name="pytorchjob-port",
    port=23456,
    owned_kinds=("HorizontalPodAutoscaler",),
)
MASTER, WORKER = "Master", "Worker"

_WAIT_ATTEMPTS, _WAIT_S = 100, 2


class PyTorchFramework(kubeflow.KubeflowFramework[PyTorchJob]):
    kind = KIND
    roles = (MASTER, WORKER)
    defaults = kubeflow.KindDefaults(restart=RestartPolicy.ON_FAILURE)

    def __init__(self, init_image: str = "") -> None:
        """Set the image of an init container in which workers wait until the master's name
        resolves.

        Upstream always adds one. Here services publish addresses before pods are ready, and torch's
        store retries for half an hour, so the container would only cost an image pull: it is off by
        default. Set it for scripts that resolve the name once.
        """
        self._init_image = init_image

    def rules(self, job: PyTorchJob) -> "PyTorchRules":
        return PyTorchRules(job.spec, self._init_image)

    def adjust_roles(self, job: PyTorchJob, roles: list[ReplicaRole]) -> list[ReplicaRole]:
        return [_with_min_replicas(role, job.spec.elastic_policy) for role in roles]


def create_framework(settings: OperatorSettings) -> PyTorchFramework:
    return PyTorchFramework(settings.init_image)


@dataclass(frozen=True, slots=True)
class PyTorchRules(kubeflow.LeadingRoleRules):
    """The Master leads, or without one the workers."""

    leaders = (MASTER, WORKER)
    spec: PyTorchJobSpec
    init_image: str = ""

    def shape_pod(
        self, job: NormalizedJob, role: ReplicaRole, index: int, pod: Manifest, gang: ReplicaGang
    ) -> Manifest:
        """Let workers wait for the master's name, if the administrator enabled it."""
        if not self.init_image or self.leader(job) == WORKER or role.name == MASTER:
            return pod
        return pod_template.with_init_container(pod, self._wait_container(job))

    def has_succeeded(self, job: NormalizedJob, gang: ReplicaGang) -> bool:
        """The Master decides; without one all workers must succeed.

        In an elastic job without one the agents decide.
        """
        if self.spec.elastic_policy and self.leader(job) == WORKER:
            return gang[WORKER].agents_succeeded
        return gang[self.leader(job)].all_succeeded

    def needs_all_ranks(self, job: NormalizedJob) -> bool:
        """An agent of an elastic job forms a new world with those that are left."""
        return self.spec.elastic_policy is None

    def environment(
        self, job: NormalizedJob, role: ReplicaRole, index: int, gang: ReplicaGang
    ) -> list[Manifest]:
        variables = [("PYTHONUNBUFFERED", "1"), *self._rendezvous_variables(job, role, index)]
        processes = self._processes_per_node()
        if processes is not None:
            variables.append(("PET_NPROC_PER_NODE", processes))
        if self.spec.elastic_policy:
            variables += self._elastic_variables(job, self.spec.elastic_policy)
        else:
            variables.append(("PET_NNODES", str(job.size)))
        return kubeflow.env_vars(variables)

    def owned_objects(self, job: NormalizedJob, gang: ReplicaGang) -> list[Manifest]:
        return kubeflow.autoscalers(job, self.spec.elastic_policy, job.find_role(WORKER))

    def _wait_container(self, job: NormalizedJob) -> Manifest:
        name = replica_name(job.name, MASTER, 0)
        script = (
            f"for attempt in $(seq {_WAIT_ATTEMPTS}); do "
            f"nslookup {name} && exit 0; sleep {_WAIT_S}; done; exit 1"
        )
        return {
            "name": "init-pytorch",
            "image": self.init_image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", script],
            "resources": {
                "requests": {"cpu": "50m", "memory": "10Mi"},
                "limits": {"cpu": "100m", "memory": "20Mi"},
            },
        }

    def _rendezvous_variables(
        self, job: NormalizedJob, role: ReplicaRole, index: int
    ) -> Iterator[tuple[str, str]]:
        if self.spec.elastic_policy and self.leader(job) == WORKER:
            return  # torchrun assigns ranks at each rendezvous: fixed ones would be wrong.
        leader = job.find_role(self.leader(job))
        if leader is None:
            return
        port = str(_port(leader))
        address = replica_name(job.name, leader.name, 0)
        rank = str(index if role is leader else index + leader.replicas)
        yield "MASTER_PORT", port
        yield "PET_MASTER_PORT", port
        yield "MASTER_ADDR", address
        yield "PET_MASTER_ADDR", address
        count = self.spec.nproc_per_node or ""
        processes = int(count) if count.isascii() and count.isdigit() else 1
        yield "WORLD_SIZE", str(job.size * processes)
        yield "RANK", rank
        yield "PET_NODE_RANK", rank

    def _processes_per_node(self) -> str | None:
        """The default is ``auto``, unless the older field in the elastic policy is set."""
        elastic = self.spec.elastic_policy
        older = elastic.n_proc_per_node if elastic else None
        return self.spec.nproc_per_node or (None if older is not None else "auto")

    def _elastic_variables(
        self, job: NormalizedJob, policy: ElasticPolicy
    ) -> Iterator[tuple[str, str]]:
        workers = job.find_role(WORKER)
        host = policy.rdzv_host or replica_name(job.name, WORKER, 0)
        port = policy.rdzv_port or (_port(workers) if workers else KIND.port)
        yield "PET_RDZV_ENDPOINT", f"{host}:{port}"
        yield "PET_RDZV_BACKEND", policy.rdzv_backend or "c10d"
        least, most = kubeflow.worker_range(policy, workers)
        others = job.size - job.count(WORKER)
        yield "PET_NNODES", f"{least + others}:{most + others}"
        # With a shared store a worker that joins later waits for an address that is not written.
        yield "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"
        for name, value in (
            ("PET_MAX_RESTARTS", policy.max_restarts),
            ("PET_NPROC_PER_NODE", policy.n_proc_per_node),
            ("PET_RDZV_ID", policy.rdzv_id),
        ):
            if value is not None:
                yield name, str(value)
        if policy.rdzv_conf:
            yield "PET_RDZV_CONF", ",".join(f"{s.key}={s.value}" for s in policy.rdzv_conf)
        if policy.standalone:
            yield "PET_STANDALONE", ""


def _with_min_replicas(role: ReplicaRole, elastic: ElasticPolicy | None) -> ReplicaRole:
    if elastic is None or role.name != WORKER:
        return role
    least, _ = kubeflow.worker_range(elastic, role)
    return replace(role, min_replicas=min(least, role.replicas))


def _port(role: ReplicaRole) -> int:
    return kubeflow.role_port(KIND, role)
