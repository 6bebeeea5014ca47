"""TFJob: TensorFlow, with parameter servers or with workers that meet in collectives."""

from typing import Annotated

from gangline.api.describe import about
from gangline.api.kubeflow import JobStatus, ReplicaSpec, RunPolicy
from gangline.api.meta import Object, Wire

ROLES = ("Chief", "Master", "PS", "Worker", "Evaluator")
"""In the order of creation: whoever leads comes first."""
CONTAINER = "tensorflow"
WORKER_0 = ""
ALL_WORKERS = "AllWorkers"


class TFJobSpec(Wire):
    """What a TFJob runs."""

    run_policy: Annotated[RunPolicy, about("How it runs and ends.")] = RunPolicy()
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
            "True: workers may come, go and fail. Each is told of itself and of the parameter "
            "servers only."
        ),
    ] = False


class TFJob(Object):
    """A distributed TensorFlow training job."""

    spec: Annotated[TFJobSpec, about("What it runs.", required=True)] = TFJobSpec()
    status: Annotated[JobStatus, about("Where it is in its life; written by the operator.")] = (
        JobStatus()
    )
