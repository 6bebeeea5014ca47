"""TFJob: TensorFlow with parameter servers or with collective communication."""

from typing import Annotated

from gangline.api.jobs.kubeflow import JobStatus, ReplicaSpec, RunPolicy
from gangline.api.meta.field_doc import doc
from gangline.api.meta.objects import Object, Wire

ROLES = ("Chief", "Master", "PS", "Worker", "Evaluator")
"""In the order of creation: leading roles first."""
CONTAINER = "tensorflow"
WORKER_0 = ""
ALL_WORKERS = "AllWorkers"


class TFJobSpec(Wire):
    """The desired state of a TFJob."""

    run_policy: Annotated[RunPolicy, doc("Run policy of the job.")] = RunPolicy()
    tf_replica_specs: Annotated[
        dict[str, ReplicaSpec],
        doc(
            "Pods by role: PS, Worker, Evaluator, and at most one Chief or Master, in any "
            "capitalisation.",
            required=True,
        ),
    ] = {}
    success_policy: Annotated[
        str | None,
        doc(
            "When a job without a Chief or Master has succeeded: with worker 0 (empty, or not "
            "given), or with all workers (AllWorkers).",
            values=(WORKER_0, ALL_WORKERS),
        ),
    ] = None
    enable_dynamic_worker: Annotated[
        bool,
        doc(
            "True: workers may be added, removed and fail. Each gets only its own address and "
            "those of the parameter servers."
        ),
    ] = False


class TFJob(Object):
    """A distributed TensorFlow training job."""

    spec: Annotated[TFJobSpec, doc("Desired state.", required=True)] = TFJobSpec()
    status: Annotated[JobStatus, doc("Observed state; written by the operator.")] = JobStatus()
