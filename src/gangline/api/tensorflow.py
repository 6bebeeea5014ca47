"""TFJob: TensorFlow with parameter servers or with collective communication."""

from typing import Annotated

from gangline.api.describe import about
from gangline.api.kubeflow import JobStatus, ReplicaSpec, RunPolicy
from gangline.api.meta import Object, Wire

ROLES = ("Chief", "Master", "PS", "Worker", "Evaluator")
"""In the order of creation: leading roles first."""
CONTAINER = "tensorflow"
WORKER_0 = ""
ALL_WORKERS = "AllWorkers"


class TFJobSpec(Wire):
    """The desired state of a TFJob."""

    run_policy: Annotated[RunPolicy, about("Run policy of the job.")] = RunPolicy()
    tf_replica_specs: Annotated[
        dict[str, ReplicaSpec],
        about(
            "Pods by role: PS, Worker, Evaluator, and at most one Chief or Master, in any "
            "capitalisation.",
            required=True,
        ),
    ] = {}
    success_policy: Annotated[
        str | None,
        about(
            "When a job without a Chief or Master has succeeded: with worker 0 (empty, or not "
            "given), or with all workers (AllWorkers).",
            values=(WORKER_0, ALL_WORKERS),
        ),
    ] = None
    enable_dynamic_worker: Annotated[
        bool,
        about(
            "True: workers may be added, removed and fail. Each gets only its own address and "
            "those of the parameter servers."
        ),
    ] = False


class TFJob(Object):
    """A distributed TensorFlow training job."""

    spec: Annotated[TFJobSpec, about("Desired state.", required=True)] = TFJobSpec()
    status: Annotated[JobStatus, about("Observed state; written by the operator.")] = JobStatus()
