"""The table of job kinds, and the resources of kinds that belong to jobs.

``JOB_KINDS`` is the only list of the job kinds. CRDs, validation, warnings, the SDK, the commands
and the operator read it, and import the modules of a kind by their common name (``module``).
A new kind needs these modules and one entry here; ``deploy/chart`` needs its rights.

Commands that only read jobs import this subset of ``resources`` and not the rest. The types of the
resources are imported when they are first read.
"""

from typing import TYPE_CHECKING

from gangline.api.job_names import ELASTIC_CONTAINER
from gangline.api.jobs.kind import JobKind
from gangline.api.meta.resource import Resource, deferred_resource

if TYPE_CHECKING:
    from gangline.api.brain.job_advice import JobAdvice
    from gangline.api.core.pod import Pod
    from gangline.api.jobs.elastic import ElasticJob, ScalePlan
    from gangline.api.jobs.jax import JAXJob
    from gangline.api.jobs.kubeflow import PyTorchJob
    from gangline.api.jobs.kubeflow_paddle import KubeflowPaddleJob
    from gangline.api.jobs.mindspore import MSJob
    from gangline.api.jobs.mpi import MPIJob
    from gangline.api.jobs.paddle import PaddleJob
    from gangline.api.jobs.tensorflow import TFJob
    from gangline.api.jobs.train import TrainJob
    from gangline.api.jobs.training_runtime import ClusterTrainingRuntime, TrainingRuntime
    from gangline.api.jobs.xgboost import XGBoostJob
    from gangline.api.volcano.scheduling import PodGroup, Queue

_JOBS = "gangline.api.jobs"
_KUBEFLOW, _TRAINER = ("kubeflow.org", "v1"), ("trainer.kubeflow.org", "v1alpha1")
_DLROVER, _VOLCANO = ("elastic.iml.github.io", "v1alpha1"), ("scheduling.volcano.sh", "v1beta1")

PODS: Resource["Pod"] = deferred_resource("gangline.api.core.pod.Pod", "", "v1", "pods", "Pod")
PYTORCH_JOBS: Resource["PyTorchJob"] = deferred_resource(
    f"{_JOBS}.kubeflow.PyTorchJob", *_KUBEFLOW, "pytorchjobs", "PyTorchJob"
)
TF_JOBS: Resource["TFJob"] = deferred_resource(
    f"{_JOBS}.tensorflow.TFJob", *_KUBEFLOW, "tfjobs", "TFJob"
)
JAX_JOBS: Resource["JAXJob"] = deferred_resource(
    f"{_JOBS}.jax.JAXJob", *_KUBEFLOW, "jaxjobs", "JAXJob"
)
XGBOOST_JOBS: Resource["XGBoostJob"] = deferred_resource(
    f"{_JOBS}.xgboost.XGBoostJob", *_KUBEFLOW, "xgboostjobs", "XGBoostJob"
)
MS_JOBS: Resource["MSJob"] = deferred_resource(
    f"{_JOBS}.mindspore.MSJob", "mindspore.gitee.com", "v1", "msjobs", "MSJob"
)
PADDLE_JOBS: Resource["PaddleJob"] = deferred_resource(
    f"{_JOBS}.paddle.PaddleJob", "batch.paddlepaddle.org", "v1", "paddlejobs", "PaddleJob"
)
KUBEFLOW_PADDLE_JOBS: Resource["KubeflowPaddleJob"] = deferred_resource(
    f"{_JOBS}.kubeflow_paddle.KubeflowPaddleJob", *_KUBEFLOW, "paddlejobs", "PaddleJob"
)
MPI_JOBS: Resource["MPIJob"] = deferred_resource(
    f"{_JOBS}.mpi.MPIJob", *_KUBEFLOW, "mpijobs", "MPIJob"
)
ELASTIC_JOBS: Resource["ElasticJob"] = deferred_resource(
    f"{_JOBS}.elastic.ElasticJob", *_DLROVER, "elasticjobs", "ElasticJob"
)
TRAIN_JOBS: Resource["TrainJob"] = deferred_resource(
    f"{_JOBS}.train.TrainJob", *_TRAINER, "trainjobs", "TrainJob"
)
TRAINING_RUNTIMES: Resource["TrainingRuntime"] = deferred_resource(
    f"{_JOBS}.training_runtime.TrainingRuntime", *_TRAINER, "trainingruntimes", "TrainingRuntime"
)
CLUSTER_TRAINING_RUNTIMES: Resource["ClusterTrainingRuntime"] = deferred_resource(
    f"{_JOBS}.training_runtime.ClusterTrainingRuntime",
    *_TRAINER,
    "clustertrainingruntimes",
    "ClusterTrainingRuntime",
    namespaced=False,
)
SCALE_PLANS: Resource["ScalePlan"] = deferred_resource(
    f"{_JOBS}.elastic.ScalePlan", *_DLROVER, "scaleplans", "ScalePlan"
)
JOB_ADVICE: Resource["JobAdvice"] = deferred_resource(
    "gangline.api.brain.job_advice.JobAdvice",
    "brain.gangline.dev",
    "v1alpha1",
    "jobadvice",
    "JobAdvice",
)
POD_GROUPS: Resource["PodGroup"] = deferred_resource(
    "gangline.api.volcano.scheduling.PodGroup", *_VOLCANO, "podgroups", "PodGroup"
)
QUEUES: Resource["Queue"] = deferred_resource(
    "gangline.api.volcano.scheduling.Queue", *_VOLCANO, "queues", "Queue", namespaced=False
)

JOB_KINDS = (
    JobKind(
        PYTORCH_JOBS,
        "pytorch",
        "ptj",
        ("Master", "Worker"),
        "pytorch_replica_specs",
        is_scalable=True,
        other_names=("py",),
    ),
    JobKind(
        TF_JOBS,
        "tensorflow",
        "tfj",
        ("Chief", "Master", "Worker", "PS", "Evaluator"),
        "tf_replica_specs",
        is_scalable=True,
        other_names=("tensorflow",),
    ),
    JobKind(
        MS_JOBS,
        "mindspore",
        "msj",
        ("Worker", "Scheduler", "PS"),
        "ms_replica_specs",
        is_scalable=True,
        other_names=("mindspore", "mindsporejob"),
    ),
    JobKind(PADDLE_JOBS, "paddle", "pdj", ("worker", "ps", "heter")),
    JobKind(
        ELASTIC_JOBS,
        "elastic",
        "ej",
        ("chief", "worker", "ps", "evaluator", "dlrover-master"),
        "replica_specs",
        is_scalable=True,
        other_names=("elastictraining", "et", "etjob"),
    ),
    JobKind(JAX_JOBS, "jax", "jaxj", ("Worker",), "jax_replica_specs", is_scalable=True),
    JobKind(
        MPI_JOBS,
        "mpi",
        "mpij",
        ("Launcher", "Worker"),
        "mpi_replica_specs",
        other_versions=("v2beta1",),
        other_names=("mj", "horovod", "horovodjob", "hj", "deepspeed", "deepspeedjob", "dp"),
    ),
    JobKind(XGBOOST_JOBS, "xgboost", "xgbj", ("Master", "Worker"), "xgb_replica_specs"),
    JobKind(
        KUBEFLOW_PADDLE_JOBS,
        "kubeflow_paddle",
        "kpdj",
        ("Master", "Worker"),
        "paddle_replica_specs",
        is_scalable=True,
        is_named_with_group=True,
    ),
    JobKind(
        TRAIN_JOBS,
        "train",
        "trj",
        ("node", "launcher", "dataset-initializer", "model-initializer"),
        has_runtime=True,
        suspend_path=("spec", "suspend"),
    ),
)
"""In the order in which lists show them."""


def find_job_kind(api_version: str, kind: str) -> JobKind | None:
    """Return the job kind with an object's kind and group, in any version; None if it is no job."""
    key = (api_version.rpartition("/")[0], kind)
    return next((k for k in JOB_KINDS if (k.resource.group, k.resource.kind) == key), None)


MAIN_CONTAINERS = frozenset({ELASTIC_CONTAINER, *(kind.module for kind in JOB_KINDS)})
"""Names that the container which trains has in the kinds; another container may have another."""
