"""The Secret with which the processes of an ElasticJob authenticate each other.

Its name contains the job's uid, so it cannot collide with another job's, and the operator needs no
right to read it. Earlier releases used another name. A job that has run since then keeps the Secret
of its pods: otherwise new pods could not talk to existing ones.
"""

import hashlib

from gangline.api.elastic import MASTER
from gangline.operator import labels
from gangline.operator.job import TrainingJob
from gangline.operator.replicas import Gang, Pod

SECRET_KEY = "secret"
SECRET_VARIABLE = "GANGLINE_JOB_SECRET"
_DIGEST = 10


def secret_name(job: TrainingJob) -> str:
    digest = hashlib.sha256(job.meta.uid.encode()).hexdigest()[:_DIGEST]
    return f"{former_secret_name(job.name)}-{digest}"


def former_secret_name(job: str) -> str:
    """Return the name in earlier releases, which consecutive jobs of one name shared."""
    return f"{job}-edljob-secret"


def secret_in_use(job: TrainingJob, gang: Gang) -> str:
    """Return the Secret of the job's live pods: the master's, else that of the oldest pod.

    The former name is used only while a pod that has it is alive.
    """
    usual = secret_name(job)
    names = (usual, former_secret_name(job.name))
    living = sorted(filter(_lives, (*gang.pods, *gang.surplus)), key=_precedence)
    known = (pod.secret_behind(SECRET_VARIABLE) for pod in living)
    return next((name for name in known if name in names), usual)


def _lives(pod: Pod) -> bool:
    return not pod.over and not pod.terminating


def _precedence(pod: Pod) -> tuple[bool, float, str]:
    role, _ = labels.replica_of(pod.metadata) or ("", 0)
    created = pod.metadata.creation_timestamp
    return role != MASTER, created.timestamp() if created else 0.0, pod.name
