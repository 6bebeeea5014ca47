"""Kubeflow's PaddleJob (``kubeflow.org/v1``): Paddle processes that find each other by a launcher.

Paddle's own PaddleJob, of the group ``batch.paddlepaddle.org``, is another kind.
"""

from typing import Annotated

from gangline.api.jobs.kubeflow import JobStatus, ReplicaSpec, RunPolicy
from gangline.api.meta.field_doc import FreeForm, doc
from gangline.api.meta.objects import Object, Wire

ROLES = ("Master", "Worker")
CONTAINER = "paddle"


class PaddleElasticPolicy(Wire):
    """How many workers a job may have."""

    min_replicas: Annotated[
        int | None,
        doc("Fewest workers; maxReplicas, else the number of workers, if not given.", minimum=1),
    ] = None
    max_replicas: Annotated[
        int | None,
        doc("Most workers; minReplicas, else the number of workers, if not given.", minimum=1),
    ] = None
    max_restarts: Annotated[
        int | None, doc("Restarts of the processes within their pods.", minimum=0)
    ] = None
    metrics: Annotated[list[FreeForm], doc("Metrics to scale by (autoscaling/v2).")] = []


class KubeflowPaddleJobSpec(Wire):
    """The desired state of Kubeflow's PaddleJob."""

    run_policy: Annotated[RunPolicy, doc("Run policy of the job.")] = RunPolicy()
    elastic_policy: Annotated[
        PaddleElasticPolicy | None,
        doc("If given, a changed number of workers restarts all pods."),
    ] = None
    paddle_replica_specs: Annotated[
        dict[str, ReplicaSpec],
        doc("Pods by role: Master (parameter servers) and Worker.", required=True),
    ] = {}


class KubeflowPaddleJob(Object):
    """A distributed PaddlePaddle training job, as Kubeflow defines it."""

    spec: Annotated[KubeflowPaddleJobSpec, doc("Desired state.", required=True)] = (
        KubeflowPaddleJobSpec()
    )
    status: Annotated[JobStatus, doc("Observed state; written by the operator.")] = JobStatus()
