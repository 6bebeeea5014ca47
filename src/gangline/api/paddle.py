"""PaddleJob, as PaddleFlow's operator names it (``batch.paddlepaddle.org/v1``).

Upstream's fields; ``runPolicy`` and the common part of the status are ours. Not to be confused
with the PaddleJob of the group ``kubeflow.org``, which is another kind.
"""

from collections.abc import Iterator
from typing import Annotated

from gangline.api.describe import FreeForm, about
from gangline.api.kubeflow import (
    MANAGED_BY_MULTI_KUEUE,
    MANAGED_BY_US,
    JobStatus,
    SchedulingPolicy,
)
from gangline.api.meta import Object, Wire
from gangline.api.pod import PodTemplateSpec
from gangline.api.reference import ObjectReference

GROUP = "batch.paddlepaddle.org"
VERSION = "v1"
PS, WORKER, HETER = "ps", "worker", "heter"
ROLES = (PS, WORKER, HETER)
"""In the order of creation: servers are whom the others look for."""
CONTAINER = "paddle"

POD_IP, SERVICE, HOST = "PodIP", "Service", "Host"
ALWAYS, NEVER, ON_FAILURE, ON_COMPLETION = "Always", "Never", "OnFailure", "OnCompletion"
CLEAN_POLICIES = ("", ALWAYS, NEVER, ON_FAILURE, ON_COMPLETION)


class PaddleRunPolicy(Wire):
    """The bounds of a job's life."""

    ttl_seconds_after_finished: Annotated[
        int | None,
        about("Seconds after its end until the job is deleted; never if not given.", minimum=0),
    ] = None
    active_deadline_seconds: Annotated[
        int | None,
        about("Seconds from its start until an unfinished job is failed.", minimum=1),
    ] = None
    backoff_limit: Annotated[
        int | None,
        about("Restarts until the job is failed; no limit when not given.", minimum=0),
    ] = None
    suspend: Annotated[
        bool | None,
        about("True deletes the pods and holds the job until it is false again.", default=False),
    ] = None
    managed_by: Annotated[
        str | None,
        about(
            "Controller that runs the job; cannot be changed.",
            values=(MANAGED_BY_US, MANAGED_BY_MULTI_KUEUE),
        ),
    ] = None


class ResourceSpec(Wire):
    """The pods of one role."""

    replicas: Annotated[int | None, about("How many pods.", required=True, minimum=0)] = None
    requests: Annotated[
        int | None,
        about("Fewest pods that an elastic job with an etcd can live with.", minimum=0),
    ] = None
    limits: Annotated[
        int | None,
        about("Most pods that an elastic job with an etcd can use.", minimum=0),
    ] = None
    template: Annotated[FreeForm, about("What the pods look like.", shape=PodTemplateSpec)] = {}

    @property
    def count(self) -> int:
        """How many pods the role asks for."""
        return max(0, self.replicas or 0)


class FurtherSpec(ResourceSpec):
    """The pods of one role; their template has the fields of a worker's."""

    template: Annotated[
        FreeForm, about("What the pods look like.", shape=PodTemplateSpec, brief=True)
    ] = {}


class PaddleJobSpec(Wire):
    """What a PaddleJob runs."""

    clean_pod_policy: Annotated[
        str | None,
        about(
            "Which ended jobs lose their pods: Always all, Never none, OnFailure those that "
            "failed, OnCompletion (when not given) those that succeeded. Pods that still run when "
            "the job has ended go too, except after a failure under Never."
        ),
    ] = None
    intranet: Annotated[
        str | None,
        about(
            "How pods reach each other: by their addresses (PodIP, when not given), by the names "
            "of services (Service), or over the network of their nodes (Host).",
            values=("", POD_IP, SERVICE, HOST),
        ),
    ] = None
    with_gloo: Annotated[
        int | None,
        about(
            "Barriers over Gloo in a job with servers: 0 none (when not given), 1 of workers, 2 of "
            "workers and servers.",
            minimum=0,
            maximum=2,
        ),
    ] = None
    worker: Annotated[ResourceSpec | None, about("Trainers.")] = None
    ps: Annotated[FurtherSpec | None, about("Parameter servers.")] = None
    heter: Annotated[FurtherSpec | None, about("Trainers on other devices.")] = None
    elastic: Annotated[
        int | None, about("Given, with any value: the number of workers may change.")
    ] = None
    scheduling_policy: Annotated[
        SchedulingPolicy | None, about("What the gang scheduler is told.")
    ] = None
    run_policy: Annotated[PaddleRunPolicy, about("How it runs and ends.")] = PaddleRunPolicy()

    def roles(self) -> Iterator[tuple[str, ResourceSpec]]:
        """The declared roles with their names, in order."""
        specs: tuple[tuple[str, ResourceSpec | None], ...] = (
            (PS, self.ps),
            (WORKER, self.worker),
            (HETER, self.heter),
        )
        return ((role, spec) for role, spec in specs if spec is not None)


class ResourceStatus(Wire):
    """Pods of one role, counted."""

    pending: Annotated[int, about("Not placed, or not started yet.")] = 0
    starting: Annotated[int, about("On a node, but not ready.")] = 0
    running: Annotated[int, about("At work.")] = 0
    failed: Annotated[int, about("Failed.")] = 0
    succeeded: Annotated[int, about("Ended well.")] = 0
    unknown: Annotated[int, about("On a node that is not heard of.")] = 0
    refs: Annotated[list[ObjectReference], about("The pods.")] = []


class PaddleJobStatus(JobStatus):
    """Where a PaddleJob is in its life."""

    phase: Annotated[str, about("Pending, Starting, Running, Restarting, Completed or Failed.")] = (
        ""
    )
    mode: Annotated[str, about("PS, Collective or Single.")] = ""
    ps: Annotated[ResourceStatus | None, about("Its parameter servers.")] = None
    worker: Annotated[ResourceStatus | None, about("Its trainers.")] = None
    heter: Annotated[ResourceStatus | None, about("Its trainers on other devices.")] = None
    elastic: Annotated[str, about("Upstream's; not written any more.")] = ""
    observed_generation: Annotated[int, about("Generation that this is about.")] = 0


class PaddleJob(Object):
    """A distributed PaddlePaddle training job."""

    spec: Annotated[PaddleJobSpec, about("What it runs.", required=True)] = PaddleJobSpec()
    status: Annotated[
        PaddleJobStatus, about("Where it is in its life; written by the operator.")
    ] = PaddleJobStatus()
