"""MSJob: MindSpore, with the names of the ms-operator (``mindspore.gitee.com/v1``).

Upstream's fields; its run policy is extended to that of the other kinds (``suspend``,
``managedBy``). Pod templates keep their metadata, which upstream's definition prunes.
"""

from typing import Annotated

from gangline.api.jobs.kubeflow import JobStatus, ReplicaSpec, RunPolicy
from gangline.api.meta.field_doc import doc
from gangline.api.meta.objects import Object, Wire

GROUP = "mindspore.gitee.com"
SCHEDULER, PS, WORKER = "Scheduler", "PS", "Worker"
ROLES = (SCHEDULER, PS, WORKER)
"""In the order of creation: the other roles connect to the scheduler."""
CONTAINER = "mindspore"
PORT_NAME, PORT = "msjob-port", 2222
WORKER_0 = ""
ALL_WORKERS = "AllWorkers"


class MSJobSpec(Wire):
    """The desired state of an MSJob."""

    run_policy: Annotated[
        RunPolicy,
        doc("Run policy of the job. Its cleanPodPolicy is Running when not given."),
    ] = RunPolicy()
    success_policy: Annotated[
        str | None,
        doc(
            "When the job has succeeded: with worker 0 (empty, or not given), or with all workers "
            "(AllWorkers).",
            values=(WORKER_0, ALL_WORKERS),
        ),
    ] = None
    ms_replica_specs: Annotated[
        dict[str, ReplicaSpec],
        doc(
            "Pods by role: Worker, and for several of them one Scheduler; PS for parameter "
            "servers. In any capitalisation.",
            required=True,
        ),
    ] = {}
    enable_dynamic_worker: Annotated[
        bool,
        doc("True: the failure of a worker does not fail the job as long as others run."),
    ] = False


class MSJob(Object):
    """A distributed MindSpore training job."""

    spec: Annotated[MSJobSpec, doc("Desired state.", required=True)] = MSJobSpec()
    status: Annotated[JobStatus, doc("Observed state; written by the operator.")] = JobStatus()
