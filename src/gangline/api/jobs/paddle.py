"""PaddleJob, with the names of PaddleFlow's operator (``batch.paddlepaddle.org/v1``).

Upstream's fields; ``runPolicy`` and the common part of the status are ours. The PaddleJob of the
group ``kubeflow.org`` is another kind: ``kubeflow_paddle``.
"""

from collections.abc import Iterator
from typing import Annotated

from gangline.api.core.pod import PodTemplateSpec
from gangline.api.core.reference import ObjectReference
from gangline.api.jobs.kubeflow import CommonRunPolicy, JobStatus, SchedulingPolicy
from gangline.api.meta.field_doc import FreeForm, doc
from gangline.api.meta.objects import Object, Wire

PS, WORKER, HETER = "ps", "worker", "heter"
ROLES = (PS, WORKER, HETER)
"""In the order of creation: the other roles connect to the servers."""
CONTAINER = "paddle"

POD_IP, SERVICE, HOST = "PodIP", "Service", "Host"
ALWAYS, NEVER, ON_FAILURE, ON_COMPLETION = "Always", "Never", "OnFailure", "OnCompletion"
CLEAN_POLICIES = ("", ALWAYS, NEVER, ON_FAILURE, ON_COMPLETION)


class ResourceSpec(Wire):
    """The pods of one role."""

    replicas: Annotated[int | None, doc("How many pods.", required=True, minimum=0)] = None
    requests: Annotated[
        int | None,
        doc("Minimum number of pods of an elastic job with etcd.", minimum=0),
    ] = None
    limits: Annotated[
        int | None,
        doc("Maximum number of pods of an elastic job with etcd.", minimum=0),
    ] = None
    template: Annotated[FreeForm, doc("Template of the pods.", shape=PodTemplateSpec)] = {}

    @property
    def count(self) -> int:
        """Number of pods of the role."""
        return max(0, self.replicas or 0)


class SecondaryResourceSpec(ResourceSpec):
    """The pods of one role; their template has the fields of a worker's."""

    template: Annotated[
        FreeForm, doc("Template of the pods.", shape=PodTemplateSpec, brief=True)
    ] = {}


class PaddleJobSpec(Wire):
    """The desired state of a PaddleJob."""

    clean_pod_policy: Annotated[
        str | None,
        doc(
            "Ended jobs whose pods are deleted: Always all, Never none, OnFailure failed ones, "
            "OnCompletion (when not given) succeeded ones. Pods that still run when the job has "
            "ended are deleted as well, except after a failure under Never."
        ),
    ] = None
    intranet: Annotated[
        str | None,
        doc(
            "How pods reach each other: by their addresses (PodIP, when not given), by the names "
            "of services (Service), or over the network of their nodes (Host).",
            values=("", POD_IP, SERVICE, HOST),
        ),
    ] = None
    with_gloo: Annotated[
        int | None,
        doc(
            "Barriers over Gloo in a job with servers: 0 none (when not given), 1 of workers, 2 of "
            "workers and servers.",
            minimum=0,
            maximum=2,
        ),
    ] = None
    worker: Annotated[ResourceSpec | None, doc("Trainers.")] = None
    ps: Annotated[SecondaryResourceSpec | None, doc("Parameter servers.")] = None
    heter: Annotated[SecondaryResourceSpec | None, doc("Trainers on other devices.")] = None
    elastic: Annotated[
        int | None, doc("If given, with any value, the number of workers may change.")
    ] = None
    scheduling_policy: Annotated[
        SchedulingPolicy | None, doc("Settings for the gang scheduler.")
    ] = None
    run_policy: Annotated[CommonRunPolicy, doc("Run policy of the job.")] = CommonRunPolicy()

    def declared_roles(self) -> Iterator[tuple[str, ResourceSpec]]:
        """Return the declared roles and their names, in order."""
        specs: tuple[tuple[str, ResourceSpec | None], ...] = (
            (PS, self.ps),
            (WORKER, self.worker),
            (HETER, self.heter),
        )
        return ((role, spec) for role, spec in specs if spec is not None)


class ResourceStatus(Wire):
    """Numbers of pods of one role."""

    pending: Annotated[int, doc("Not placed or not started yet.")] = 0
    starting: Annotated[int, doc("On a node, but not ready.")] = 0
    running: Annotated[int, doc("Running.")] = 0
    failed: Annotated[int, doc("Failed.")] = 0
    succeeded: Annotated[int, doc("Succeeded.")] = 0
    unknown: Annotated[int, doc("On a node that does not report.")] = 0
    refs: Annotated[list[ObjectReference], doc("The pods.")] = []


class PaddleJobStatus(JobStatus):
    """The observed state of a PaddleJob."""

    phase: Annotated[str, doc("Pending, Starting, Running, Restarting, Completed or Failed.")] = ""
    mode: Annotated[str, doc("PS, Collective or Single.")] = ""
    ps: Annotated[ResourceStatus | None, doc("Its parameter servers.")] = None
    worker: Annotated[ResourceStatus | None, doc("Its trainers.")] = None
    heter: Annotated[ResourceStatus | None, doc("Its trainers on other devices.")] = None
    elastic: Annotated[str, doc("Upstream's; not written any more.")] = ""
    observed_generation: Annotated[int, doc("Generation that was observed.")] = 0


class PaddleJob(Object):
    """A distributed PaddlePaddle training job."""

    spec: Annotated[PaddleJobSpec, doc("Desired state.", required=True)] = PaddleJobSpec()
    status: Annotated[PaddleJobStatus, doc("Observed state; written by the operator.")] = (
        PaddleJobStatus()
    )
