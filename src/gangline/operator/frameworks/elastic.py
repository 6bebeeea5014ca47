"""ElasticJob: DLRover's elastic training, with a master that forms the world of nodes.

The operator creates all pods: the master, and also workers, parameter servers, chief and
evaluators, which DLRover leaves to its master. So the master may fail at any moment: no state that
is needed to continue exists only in its memory. ``elastic_rules`` decides what a failure leads to.
"""

from dataclasses import dataclass, replace

from gangline.api import elastic as api
from gangline.api.elastic import CONTAINER, MASTER, TRAINING_ROLES, WORKER, ElasticJob
from gangline.api.elastic_words import NodeRange, range_of
from gangline.api.kubeflow import JobStatus
from gangline.api.resources import SCALE_PLANS
from gangline.api.validation import validate_job
from gangline.operator import template
from gangline.operator.frameworks import elastic_status, kubeflow
from gangline.operator.frameworks.base import Reading
from gangline.operator.frameworks.elastic_master import master_template
from gangline.operator.frameworks.elastic_pod import PORT, spec_of
from gangline.operator.frameworks.elastic_rules import ElasticRules
from gangline.operator.job import (
    CleanPodPolicy,
    Kind,
    RestartPolicy,
    Role,
    RunPolicy,
    TrainingJob,
)
from gangline.operator.stored import StoredJob

KIND = Kind(
    kind="ElasticJob",
    group=api.GROUP,
    version=api.VERSION,
    plural="elasticjobs",
    framework="elastic",
    controller="elasticjob-controller",
    container=CONTAINER,
    port_name="",
    port=PORT,
    everywhere=False,
    makes=("ConfigMap", "Role", "RoleBinding", "ServiceAccount"),
    shares_memory=frozenset(TRAINING_ROLES),
    companions=(SCALE_PLANS,),
)

_DEFAULTS = kubeflow.Defaults(restart=RestartPolicy.NEVER, clean_pods=CleanPodPolicy.RUNNING)


@dataclass(frozen=True, slots=True)
class Elastic:
    """The framework of ElasticJobs."""

    master_image: str = ""
    """The image of masters; empty: the workers' image."""

    @property
    def kind(self) -> Kind:
        return KIND

    def read(self, stored: StoredJob) -> Reading:
        return kubeflow.read(stored, ElasticJob, validate_job, self._form)

    def read_status(self, stored: StoredJob) -> JobStatus:
        """Decode the stored status.

        Raises:
            msgspec.DecodeError: the stored status cannot be decoded.
        """
        return elastic_status.read(stored)

    def _form(self, job: ElasticJob) -> TrainingJob:
        nodes = nodes_of(job)
        trained = [_role(job, name, nodes) for name in TRAINING_ROLES]
        roles = [role for role in trained if role is not None]
        master = [self._master(job, roles)] if roles else []
        return TrainingJob(
            kind=KIND,
            meta=job.metadata,
            roles=[*master, *roles],
            policy=_policy(job),
            rules=ElasticRules(job.spec, nodes),
        )

    def _master(self, job: ElasticJob, roles: list[Role]) -> Role:
        given = spec_of(job.spec, MASTER)
        workers = sum(role.replicas for role in roles if role.name == WORKER)
        first = template.main_container(roles[0].template, CONTAINER)
        return Role(
            name=MASTER,
            replicas=1,
            restart=RestartPolicy.NEVER,
            template=master_template(
                job.metadata.name,
                job.metadata.namespace,
                workers,
                given.template if given else {},
                self.master_image,
                str(first.get("image") or ""),
            ),
            least=1,
        )


def nodes_of(job: ElasticJob) -> NodeRange | None:
    """Return the range of workers that a job allows; None if it sets none."""
    written = spec_of(job.spec, WORKER)
    if written is None:
        return None
    container = template.main_container(written.template, CONTAINER)
    return range_of(job.metadata.annotations, container)


def _role(job: ElasticJob, name: str, nodes: NodeRange | None) -> Role | None:
    written = spec_of(job.spec, name)
    if written is None:
        return None
    replicas = 1 if written.replicas is None else written.replicas
    ranged = name == WORKER and nodes is not None
    return Role(
        name=name,
        replicas=replicas,
        restart=RestartPolicy.NEVER,
        template=written.template,
        least=min(nodes.least, replicas) if ranged and nodes else replicas,
    )


def _policy(job: ElasticJob) -> RunPolicy:
    spec = job.spec
    policy = kubeflow.run_policy(spec.run_policy, _DEFAULTS)
    held = bool(spec.suspend or spec.suspended)
    return replace(policy, suspended=policy.suspended or held)
