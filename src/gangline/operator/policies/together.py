"""Restarts all replicas of a job together.

Ranks of a collective do not survive each other: when one fails, the others hang or fail, and a new
one cannot join them (kubeflow/trainer#2269). Users opt in by annotations of the job:

- ``gangline.dev/restart: gang``: a failure that the restart policy does not call permanent, or the
  deletion of a replica by another component, restarts all replicas, also those that succeeded;
- ``gangline.dev/resize: restart``: a changed number of replicas restarts all of them too.

Every pod records the *generation* that it was created for, and the job's status the current one. A
restart is a single write that increments it. Pods of earlier generations lose their slots and are
deleted; when none is left, new ones are created. So an operator that is killed in between loses
nothing and counts nothing twice.
"""

from collections.abc import Iterable
from itertools import chain

from gangline.api.kubeflow import RESIZE_ANNOTATION, RESTART_ANNOTATION
from gangline.operator.job import RestartPolicy, TrainingJob
from gangline.operator.policies.restart import Judgement, judge
from gangline.operator.replicas import Gang, Pod

GENERATION = "gangline.dev/generation"
"""Pod annotation: the generation of the pod; 0 if missing."""

WORLD = "gangline.dev/world"
"""Pod annotation: the number of replicas of each role when the pod was created."""


def restarts(job: TrainingJob) -> bool:
    """Return whether the failure of one replica restarts all."""
    return job.meta.annotations.get(RESTART_ANNOTATION) == "gang"


def resizes(job: TrainingJob) -> bool:
    """Return whether a changed number of replicas restarts all."""
    return job.resize_together or job.meta.annotations.get(RESIZE_ANNOTATION) == "restart"


def annotations(job: TrainingJob, generation: int) -> dict[str, str]:
    """Return the annotations of a new pod; empty for jobs that never restart together."""
    carried = {GENERATION: str(generation)} if generation or restarts(job) else {}
    return carried | ({WORLD: world(job)} if resizes(job) else {})


def world(job: TrainingJob) -> str:
    """Return the number of replicas of each role as text: ``Master=1,Worker=3``."""
    return ",".join(f"{role.name}={role.replicas}" for role in job.roles)


def generation_of(pod: Pod) -> int:
    text = pod.metadata.annotations.get(GENERATION, "")
    return int(text) if text.isascii() and text.isdecimal() else 0


def parted(pods: Iterable[Pod], generation: int) -> tuple[list[Pod], list[Pod]]:
    current: list[Pod] = []
    former: list[Pod] = []
    for pod in pods:
        (former if generation_of(pod) < generation else current).append(pod)
    return current, former


def judged(policy: RestartPolicy, pod: Pod, container: str) -> Judgement:
    """Return the action for a failed pod of a job that restarts together.

    The annotation asks for restarts, also if the restart policy is Never. Only an exit code that is
    permanent ends the job.
    """
    if policy is RestartPolicy.EXIT_CODE:
        return judge(policy, pod, container)
    return Judgement.REPLACE


def taken_away(gang: Gang) -> list[Pod]:
    """List the replicas that are being deleted by another component before they have succeeded."""
    slots = chain.from_iterable(
        ((pod, index in role.completed) for index, pod in enumerate(role.pods) if pod)
        for role in gang.roles.values()
    )
    return [pod for pod, completed in slots if pod.terminating and not completed]


def outgrown(job: TrainingJob, gang: Gang) -> bool:
    now = world(job)
    recorded = (pod.metadata.annotations.get(WORLD) for pod in (*gang.pods, *gang.surplus))
    return any(world is not None and world != now for world in recorded)
