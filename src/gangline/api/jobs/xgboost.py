"""XGBoostJob: a Master that runs the tracker, and Workers that report to it."""

from typing import Annotated

from gangline.api.jobs.kubeflow import JobStatus, ReplicaSpec, RunPolicy
from gangline.api.meta.field_doc import doc
from gangline.api.meta.objects import Object, Wire

ROLES = ("Master", "Worker")
CONTAINER = "xgboost"


class XGBoostJobSpec(Wire):
    """The desired state of an XGBoostJob."""

    run_policy: Annotated[RunPolicy, doc("Run policy of the job.")] = RunPolicy()
    xgb_replica_specs: Annotated[
        dict[str, ReplicaSpec],
        doc("Pods by role: Master (exactly one pod) and Worker.", required=True),
    ] = {}


class XGBoostJob(Object):
    """A distributed XGBoost training job."""

    spec: Annotated[XGBoostJobSpec, doc("Desired state.", required=True)] = XGBoostJobSpec()
    status: Annotated[JobStatus, doc("Observed state; written by the operator.")] = JobStatus()
