"""PaddleJob: parameter servers and trainers, or trainers that meet in collectives.

Names, labels, environment and services are upstream's, and so are restarts: those of the pod
template, which means none unless the template asks for them. Where replicas meet is told by a
ConfigMap that their containers wait for (``paddle_network``). Other than upstream's:

- the job has succeeded with its workers. Servers that serve for ever do not keep it alive;
- a heterogeneous worker goes by the names that the framework knows;
- an elastic job needs an etcd for its workers to meet. Without an address of one they would train
  each alone; then the job gets its ConfigMap and is restarted as a whole when it is resized;
- nothing waits in an init container, unless the administrator wants that.
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
"""What goes after success and after failure. What runs on after success are servers that nobody
uses any more; what runs on after a failure is of use to whoever said Never, and to nobody else."""


class Paddle:
    """The framework of PaddleJobs."""

    kind = KIND

    def __init__(self, init_image: str = "", etcd_server: str = "") -> None:
        """Set up for all PaddleJobs; see ``PaddleSettings``."""
        self._settings = PaddleSettings(init_image, etcd_server)

    def read(self, stored: StoredJob) -> Reading:
        """Read a job into the common form, with every mistake that is in it."""
        return kubeflow.read(stored, PaddleJob, validate_job, self._form)

    def read_status(self, stored: StoredJob) -> JobStatus:
        """Read where a job is in its life, also one that upstream's operator ran.

        Raises:
            msgspec.DecodeError: the stored status is not one.
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
    """What only a PaddleJob knows."""

    spec: PaddleJobSpec
    settings: PaddleSettings

    def environment(self, job: TrainingJob, role: Role, index: int, gang: Gang) -> list[Manifest]:
        """List the variables of one replica, in upstream's order."""
        return Replica(job, self.spec, self.settings, role, index).environment()

    def shape_pod(
        self, job: TrainingJob, role: Role, index: int, pod: Manifest, gang: Gang
    ) -> Manifest:
        """Give the pod upstream's labels and names, its network, and the ConfigMap."""
        return Replica(job, self.spec, self.settings, role, index).shaped(pod)

    def service(self, job: TrainingJob, role: Role, index: int) -> Manifest | None:
        """Offer a replica's ports under its name, and choose pods that upstream made as well."""
        first = network.port(job, self.spec, role.name, index)
        return {
            "selector": {network.RES_NAME: replica_name(job.name, role.name, index)},
            "ports": network.service_ports(first),
        }

    def objects(self, job: TrainingJob, gang: Gang) -> list[Manifest]:
        """Return the ConfigMap; none where workers meet in an etcd."""
        if paddle_pod.meets_in_etcd(self.spec, self.settings):
            return []
        return [network.config_map(job, self.spec, gang)]

    def is_master(self, job: TrainingJob, role: Role, index: int) -> bool:
        """Worker 0 leads, or the first replica of a job without workers."""
        leader = next((name for name in (WORKER, *api.ROLES) if _has(job, name)), "")
        return (role.name, index) == (leader, 0)

    def has_succeeded(self, job: TrainingJob, gang: Gang) -> bool:
        """All trainers have succeeded; in a job of nothing but servers, all of these."""
        trainers = [role.name for role in job.roles if role.replicas and role.name != PS]
        deciding = trainers or [PS]
        return all(gang[name].all_succeeded for name in deciding)

    def is_running(self, job: TrainingJob, gang: Gang) -> bool:
        """Every replica is at work or done."""
        return paddle_status.runs(gang)

    def status_fields(self, job: TrainingJob, gang: Gang, status: JobStatus) -> Manifest:
        """Write upstream's phase, mode and counts."""
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
    """Decide as upstream: workers reached by name may come back, others only if told to."""
    if spec.elastic is not None:
        return RestartPolicy.ON_FAILURE
    if told := template.pod_spec(given.template).get("restartPolicy"):
        return RestartPolicy(told)
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
