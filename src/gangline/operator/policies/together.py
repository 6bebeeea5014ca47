"""Restarting all replicas of a job together, as one.

Ranks of a collective do not survive each other: when one goes, the others hang or fall, and a new
one cannot join them (kubeflow/trainer#2269). Users opt in by annotations of the job:

- ``gangline.dev/restart: gang``: any failure that the restart policy does not call permanent, and
  any replica that somebody takes away, restarts all replicas, also those that had ended well;
- ``gangline.dev/resize: restart``: so does a changed number of replicas.

Every pod carries the *generation* it was made for, and the job's status the current one. Raising
it is all that a restart takes: pods of former generations are nobody's replicas any more, they
are removed, and when the last of them is gone the new ones are made. Nothing in between can be
forgotten by an operator that dies, and nothing can be counted twice.
"""

from collections.abc import Iterable
from itertools import chain

from gangline.api.kubeflow import RESIZE_ANNOTATION, RESTART_ANNOTATION
from gangline.operator.job import RestartPolicy, TrainingJob
from gangline.operator.policies.restart import Judgement, judge
from gangline.operator.replicas import Gang, Pod

GENERATION = "gangline.dev/generation"
"""Pod annotation: the generation of replicas that the pod belongs to; 0 when not given."""

WORLD = "gangline.dev/world"
"""Pod annotation: how many replicas of each role its job had when the pod was made."""


def restarts(job: TrainingJob) -> bool:
    """Say whether the failure of one replica restarts all."""
    return job.meta.annotations.get(RESTART_ANNOTATION) == "gang"


def resizes(job: TrainingJob) -> bool:
    """Say whether a changed number of replicas restarts all."""
    return job.resize_together or job.meta.annotations.get(RESIZE_ANNOTATION) == "restart"


def annotations(job: TrainingJob, generation: int) -> dict[str, str]:
    """Return what a pod carries; nothing where it would say nothing."""
    carried = {GENERATION: str(generation)} if generation or restarts(job) else {}
    return carried | ({WORLD: world(job)} if resizes(job) else {})


def world(job: TrainingJob) -> str:
    """Write how many replicas each role has: ``Master=1,Worker=3``."""
    return ",".join(f"{role.name}={role.replicas}" for role in job.roles)


def generation_of(pod: Pod) -> int:
    """Read the generation that a pod belongs to."""
    text = pod.metadata.annotations.get(GENERATION, "")
    return int(text) if text.isascii() and text.isdecimal() else 0


def parted(pods: Iterable[Pod], generation: int) -> tuple[list[Pod], list[Pod]]:
    """Part the pods of the current generation from those of former ones."""
    current: list[Pod] = []
    former: list[Pod] = []
    for pod in pods:
        (former if generation_of(pod) < generation else current).append(pod)
    return current, former


def judged(policy: RestartPolicy, pod: Pod, container: str) -> Judgement:
    """Judge a failed pod of a job that restarts as a whole.

    Who asks for that wants restarts, also where a kind's default is Never; only an exit code that
    promises to come again ends the job.
    """
    if policy is RestartPolicy.EXIT_CODE:
        return judge(policy, pod, container)
    return Judgement.REPLACE


def taken_away(gang: Gang) -> list[Pod]:
    """List the replicas that somebody else is removing before they have ended well."""
    slots = chain.from_iterable(
        ((pod, index in role.completed) for index, pod in enumerate(role.pods) if pod)
        for role in gang.roles.values()
    )
    return [pod for pod, completed in slots if pod.terminating and not completed]


def outgrown(job: TrainingJob, gang: Gang) -> bool:
    """Say whether a replica was made for another number of replicas."""
    now = world(job)
    told = (pod.metadata.annotations.get(WORLD) for pod in (*gang.pods, *gang.surplus))
    return any(world is not None and world != now for world in told)
