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

from gangline.api.failure import is_node_refusal
from gangline.api.jobs.kubeflow import RESIZE_ANNOTATION, RESTART_ANNOTATION
from gangline.operator.model.job import NormalizedJob, RestartPolicy
from gangline.operator.model.replicas import ObservedPod, ReplicaGang
from gangline.operator.policies.restart import FailureAction, failure_action

GENERATION_ANNOTATION = "gangline.dev/generation"
"""Pod annotation: the generation of the pod; 0 if missing."""

REPLICAS_ANNOTATION = "gangline.dev/world"
"""Pod annotation: the number of replicas of each role when the pod was created."""


def restarts_gang(job: NormalizedJob) -> bool:
    return job.restarts_together or job.meta.annotations.get(RESTART_ANNOTATION) == "gang"


def restarts_on_resize(job: NormalizedJob) -> bool:
    return job.restart_on_resize or job.meta.annotations.get(RESIZE_ANNOTATION) == "restart"


def generation_annotations(job: NormalizedJob, generation: int) -> dict[str, str]:
    """Return the annotations of a new pod; empty for jobs that never restart together."""
    annotations = {}
    if generation or restarts_gang(job):
        annotations[GENERATION_ANNOTATION] = str(generation)
    if restarts_on_resize(job):
        annotations[REPLICAS_ANNOTATION] = format_replicas(job)
    return annotations


def format_replicas(job: NormalizedJob) -> str:
    """Return the number of replicas of each role as text: ``Master=1,Worker=3``."""
    return ",".join(f"{role.name}={role.replicas}" for role in job.roles)


def generation_of(pod: ObservedPod) -> int:
    text = pod.metadata.annotations.get(GENERATION_ANNOTATION, "")
    return int(text) if text.isascii() and text.isdecimal() else 0


def split_by_generation(
    pods: Iterable[ObservedPod], generation: int
) -> tuple[list[ObservedPod], list[ObservedPod]]:
    current: list[ObservedPod] = []
    former: list[ObservedPod] = []
    for pod in pods:
        (former if generation_of(pod) < generation else current).append(pod)
    return current, former


def gang_failure_action(policy: RestartPolicy, pod: ObservedPod, container: str) -> FailureAction:
    """Return the action for a failed pod of a job that restarts together.

    The annotation asks for restarts, also if the restart policy is Never. Only an exit code that is
    permanent ends the job.
    """
    if policy is RestartPolicy.EXIT_CODE:
        return failure_action(policy, pod, container)
    return FailureAction.REPLACE


def externally_deleted(gang: ReplicaGang) -> list[ObservedPod]:
    """List the replicas that are being deleted by another component before they have succeeded.

    Pods that their nodes refused are excluded: the engine itself deletes them, and replaces no
    other pod.
    """
    return [
        pod
        for role in gang.roles.values()
        for index, pod in enumerate(role.pods)
        if pod and pod.is_terminating and index not in role.completed
        if not is_node_refusal(pod.status.reason)
    ]


def was_resized(job: NormalizedJob, gang: ReplicaGang) -> bool:
    now = format_replicas(job)
    recorded = (
        pod.metadata.annotations.get(REPLICAS_ANNOTATION) for pod in (*gang.pods, *gang.surplus)
    )
    return any(world is not None and world != now for world in recorded)
