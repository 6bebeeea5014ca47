"""Which Secret the processes of an ElasticJob know each other by.

Its name holds the job's uid, so no other job's has it and the operator need not look whose it is.
It did not always: a job that has run since an earlier release goes on with the Secret that its
pods were started with, or its new pods could not talk to those that there are.
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
    """Name the Secret of a job."""
    digest = hashlib.sha256(job.meta.uid.encode()).hexdigest()[:_DIGEST]
    return f"{former_secret_name(job.name)}-{digest}"


def former_secret_name(job: str) -> str:
    """Name it as earlier releases did: jobs of one name that came one after the other shared it."""
    return f"{job}-edljob-secret"


def secret_in_use(job: TrainingJob, gang: Gang) -> str:
    """Name the Secret that the job's living pods have: the master's, else that of the eldest pod.

    With the last pod that has the former one its time is over.
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
