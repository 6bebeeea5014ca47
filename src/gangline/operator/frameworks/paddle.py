"""PaddleJob: parameter servers and trainers, or trainers that use collectives.

Names, labels, environment and services are upstream's, and so are restarts: by the pod template,
which means none unless the template sets a policy. Replicas find each other through a ConfigMap
that their containers wait for (``paddle_network``). Differences from upstream:

- the job has succeeded when its workers have; running servers do not keep it alive;
- a heterogeneous worker gets the variable names that the framework reads;
- workers of an elastic job need an etcd for their rendezvous. Without an etcd address each would
  train alone; then the job gets its ConfigMap and restarts all replicas when it is resized;
- no pod waits in an init container, unless the administrator enables it.
"""

from dataclasses import dataclass, replace

from gangline.api import paddle as api
from gangline.api.kubeflow import JobStatus
from gangline.api.kubeflow import RunPolicy as RunPolicyFields
from gangline.api.paddle import PS, SERVICE, WORKER, PaddleJob, PaddleJobSpec, ResourceSpec
from gangline.api.validation import validate_job
from gangline.operator import template
from gangline.operator.frameworks import kubeflow, paddle_pod, paddle_status
from gangline.operator.frameworks import paddle_network as network
from gangline.operator.frameworks.base import Reading
from gangline.operator.frameworks.paddle_pod import PaddleSettings, Replica
from gangline.operator.job import (
    CleanPodPolicy,
    Kind,
    Manifest,
    RestartPolicy,
    Role,
    RunPolicy,
    TrainingJob,
)
from gangline.operator.labels import replica_name
from gangline.operator.replicas import Gang
from gangline.operator.stored import StoredJob

KIND = Kind(
    kind="PaddleJob",
    group=api.GROUP,
    version=api.VERSION,
    plural="paddlejobs",
    framework="paddle",
    controller="paddlejob-controller",
    container=api.CONTAINER,
    port_name="paddle-port",
    port=network.PORT,
    everywhere=False,
    makes=("ConfigMap",),
    finalizers=("finalizers.paddlepaddle.org",),
)

_DEFAULTS = kubeflow.Defaults(restart=RestartPolicy.NEVER)
_CLEAN = {
    api.ALWAYS: (CleanPodPolicy.ALL, CleanPodPolicy.ALL),
    api.ON_COMPLETION: (CleanPodPolicy.ALL, CleanPodPolicy.RUNNING),
    api.ON_FAILURE: (CleanPodPolicy.RUNNING, CleanPodPolicy.ALL),
    api.NEVER: (CleanPodPolicy.RUNNING, CleanPodPolicy.NONE),
}
"""Clean pod policies after success and after failure. Servers that run after success are useless.
Pods that run after a failure are retained only for users who set ``Never``.
"""


class Paddle:
    """The framework of PaddleJobs."""

    kind = KIND

    def __init__(self, init_image: str = "", etcd_server: str = "") -> None:
        self._settings = PaddleSettings(init_image, etcd_server)

    def read(self, stored: StoredJob) -> Reading:
        return kubeflow.read(stored, PaddleJob, validate_job, self._form)

    def read_status(self, stored: StoredJob) -> JobStatus:
        """Decode the stored status, also one written by upstream's operator.

        Raises:
            msgspec.DecodeError: the stored status cannot be decoded.
        """
        return paddle_status.read(stored)

    def _form(self, job: PaddleJob) -> TrainingJob:
        spec = job.spec
        elastic = paddle_pod.elastic_range(spec, self._settings)
        return TrainingJob(
            kind=KIND,
            meta=job.metadata,
            roles=[_role(spec, name, given, elastic) for name, given in spec.roles()],
            policy=_policy(spec),
            rules=PaddleRules(spec, self._settings),
            resize_together=spec.elastic is not None and elastic is None,
        )


@dataclass(frozen=True, slots=True)
class PaddleRules:
    """The rules of PaddleJobs."""

    spec: PaddleJobSpec
    settings: PaddleSettings

    def environment(self, job: TrainingJob, role: Role, index: int, gang: Gang) -> list[Manifest]:
        """List the variables of one replica, in upstream's order."""
        return Replica(job, self.spec, self.settings, role, index).environment()

    def shape_pod(
        self, job: TrainingJob, role: Role, index: int, pod: Manifest, gang: Gang
    ) -> Manifest:
        return Replica(job, self.spec, self.settings, role, index).shaped(pod)

    def service(self, job: TrainingJob, role: Role, index: int) -> Manifest | None:
        """Declare a replica's ports; select by upstream's label, which matches its pods too."""
        first = network.port(job, self.spec, role.name, index)
        return {
            "selector": {network.RES_NAME: replica_name(job.name, role.name, index)},
            "ports": network.service_ports(first),
        }

    def objects(self, job: TrainingJob, gang: Gang) -> list[Manifest]:
        """Return the ConfigMap; empty if workers use an etcd."""
        if paddle_pod.meets_in_etcd(self.spec, self.settings):
            return []
        return [network.config_map(job, self.spec, gang)]

    def is_master(self, job: TrainingJob, role: Role, index: int) -> bool:
        """Worker 0 is the master, or the first replica of a job without workers."""
        leader = next((name for name in (WORKER, *api.ROLES) if _has(job, name)), "")
        return (role.name, index) == (leader, 0)

    def has_succeeded(self, job: TrainingJob, gang: Gang) -> bool:
        """All trainers have succeeded, or all servers in a job without trainers."""
        trainers = [role.name for role in job.roles if role.replicas and role.name != PS]
        deciding = trainers or [PS]
        return all(gang[name].all_succeeded for name in deciding)

    def is_running(self, job: TrainingJob, gang: Gang) -> bool:
        """Every replica is running or completed."""
        return paddle_status.runs(gang)

    def status_fields(self, job: TrainingJob, gang: Gang, status: JobStatus) -> Manifest:
        return paddle_status.fields(job, self.spec, gang, status)


def _role(
    spec: PaddleJobSpec, name: str, given: ResourceSpec, elastic: tuple[int, int] | None
) -> Role:
    least = elastic[0] if elastic and name == WORKER else given.count
    return Role(
        name=name,
        replicas=given.count,
        least=min(least, given.count),
        restart=_restart(spec, name, given),
        template=given.template,
    )


def _restart(spec: PaddleJobSpec, name: str, given: ResourceSpec) -> RestartPolicy:
    """Choose as upstream: workers in Service mode may restart, others by their template."""
    if spec.elastic is not None:
        return RestartPolicy.ON_FAILURE
    if policy := template.pod_spec(given.template).get("restartPolicy"):
        return RestartPolicy(policy)
    by_name = name == WORKER and spec.intranet == SERVICE
    return RestartPolicy.ON_FAILURE if by_name else RestartPolicy.NEVER


def _policy(spec: PaddleJobSpec) -> RunPolicy:
    given = spec.run_policy
    common = RunPolicyFields(
        ttl_seconds_after_finished=given.ttl_seconds_after_finished,
        active_deadline_seconds=given.active_deadline_seconds,
        backoff_limit=given.backoff_limit,
        suspend=given.suspend,
        managed_by=given.managed_by,
        scheduling_policy=spec.scheduling_policy,
    )
    word = spec.clean_pod_policy or api.ON_COMPLETION
    after_success, after_failure = _CLEAN.get(word, _CLEAN[api.NEVER])
    policy = kubeflow.run_policy(common, _DEFAULTS)
    return replace(policy, clean_pods=after_success, clean_after_failure=after_failure)


def _has(job: TrainingJob, name: str) -> bool:
    role = job.role(name)
    return role is not None and role.replicas > 0
