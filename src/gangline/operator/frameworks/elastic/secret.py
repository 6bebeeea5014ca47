"""The Secret with which the processes of an ElasticJob authenticate each other.

Its name contains the job's uid, so it cannot collide with another job's, and the operator needs no
right to read it. Earlier releases used another name. A job that has run since then keeps the Secret
of its pods: otherwise new pods could not talk to existing ones.
"""

import hashlib

from gangline.api.jobs.elastic import MASTER
from gangline.operator.model import labels
from gangline.operator.model.job import NormalizedJob
from gangline.operator.model.replicas import ObservedPod, ReplicaGang

SECRET_KEY = "secret"
SECRET_VARIABLE = "GANGLINE_JOB_SECRET"
_DIGEST = 10


def secret_name(job: NormalizedJob) -> str:
    digest = hashlib.sha256(job.meta.uid.encode()).hexdigest()[:_DIGEST]
    return f"{legacy_secret_name(job.name)}-{digest}"


def legacy_secret_name(job: str) -> str:
    """Return the name in earlier releases, which consecutive jobs of one name shared."""
    return f"{job}-edljob-secret"


def current_secret_name(job: NormalizedJob, gang: ReplicaGang) -> str:
    """Return the Secret of the job's live pods: the master's, else that of the oldest pod.

    The former name is used only while a pod that has it is alive.
    """
    usual = secret_name(job)
    names = (usual, legacy_secret_name(job.name))
    living = sorted(filter(_is_alive, (*gang.pods, *gang.surplus)), key=_precedence)
    known = (pod.secret_of_variable(SECRET_VARIABLE) for pod in living)
    return next((name for name in known if name in names), usual)


def _is_alive(pod: ObservedPod) -> bool:
    return not pod.is_finished and not pod.is_terminating


def _precedence(pod: ObservedPod) -> tuple[bool, float, str]:
    role, _ = labels.parse_replica_labels(pod.metadata) or ("", 0)
    created = pod.metadata.creation_timestamp
    return role != MASTER, created.timestamp() if created else 0.0, pod.name
