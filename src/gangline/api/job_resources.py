"""The table of job kinds, and the resources of kinds that belong to jobs.

``JOB_KINDS`` is the only list of the job kinds. CRDs, validation, warnings, the SDK, the commands
and the operator read it, and import the modules of a kind by their common name (``module``).
A new kind needs these modules and one entry here; ``deploy/chart`` needs its rights.

Commands that only read jobs import this subset of ``resources`` and not the rest.
"""

from gangline.api.brain import job_advice
from gangline.api.core.pod import Pod
from gangline.api.jobs.elastic import CONTAINER, ElasticJob, ScalePlan
from gangline.api.jobs.jax import JAXJob
from gangline.api.jobs.kind import JobKind
from gangline.api.jobs.kubeflow import PyTorchJob
from gangline.api.jobs.kubeflow_paddle import KubeflowPaddleJob
from gangline.api.jobs.mindspore import MSJob
from gangline.api.jobs.mpi import MPIJob
from gangline.api.jobs.paddle import PaddleJob
from gangline.api.jobs.tensorflow import TFJob
from gangline.api.jobs.train import TrainJob
from gangline.api.jobs.training_runtime import ClusterTrainingRuntime, TrainingRuntime
from gangline.api.jobs.xgboost import XGBoostJob
from gangline.api.meta.resource import Resource
from gangline.api.volcano.scheduling import PodGroup, Queue

_VOLCANO = "scheduling.volcano.sh"

PODS = Resource(Pod, "", "v1", "pods", "Pod")
PYTORCH_JOBS = Resource(PyTorchJob, "kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
TF_JOBS = Resource(TFJob, "kubeflow.org", "v1", "tfjobs", "TFJob")
JAX_JOBS = Resource(JAXJob, "kubeflow.org", "v1", "jaxjobs", "JAXJob")
XGBOOST_JOBS = Resource(XGBoostJob, "kubeflow.org", "v1", "xgboostjobs", "XGBoostJob")
MS_JOBS = Resource(MSJob, "mindspore.gitee.com", "v1", "msjobs", "MSJob")
PADDLE_JOBS = Resource(PaddleJob, "batch.paddlepaddle.org", "v1", "paddlejobs", "PaddleJob")
KUBEFLOW_PADDLE_JOBS = Resource(KubeflowPaddleJob, "kubeflow.org", "v1", "paddlejobs", "PaddleJob")
MPI_JOBS = Resource(MPIJob, "kubeflow.org", "v1", "mpijobs", "MPIJob")
ELASTIC_JOBS = Resource(
    ElasticJob, "elastic.iml.github.io", "v1alpha1", "elasticjobs", "ElasticJob"
)
TRAIN_JOBS = Resource(TrainJob, "trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
TRAINING_RUNTIMES = Resource(
    TrainingRuntime, TRAIN_JOBS.group, TRAIN_JOBS.version, "trainingruntimes", "TrainingRuntime"
)
CLUSTER_TRAINING_RUNTIMES = Resource(
    ClusterTrainingRuntime,
    TRAIN_JOBS.group,
    TRAIN_JOBS.version,
    "clustertrainingruntimes",
    "ClusterTrainingRuntime",
    namespaced=False,
)
SCALE_PLANS = Resource(ScalePlan, "elastic.iml.github.io", "v1alpha1", "scaleplans", "ScalePlan")
JOB_ADVICE = Resource(
    job_advice.JobAdvice, job_advice.GROUP, job_advice.VERSION, "jobadvice", "JobAdvice"
)
POD_GROUPS = Resource(PodGroup, _VOLCANO, "v1beta1", "podgroups", "PodGroup")
QUEUES = Resource(Queue, _VOLCANO, "v1beta1", "queues", "Queue", namespaced=False)

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
        other_names=("mj", "horovod", "horovodjob", "hj"),
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
        suspend_path=("spec", "suspend"),
    ),
)
"""In the order in which lists show them."""


def find_job_kind(api_version: str, kind: str) -> JobKind | None:
    """Return the job kind with an object's kind and group, in any version; None if it is no job."""
    group = api_version.rpartition("/")[0]
    for entry in JOB_KINDS:
        if (entry.resource.group, entry.resource.kind) == (group, kind):
            return entry
    return None


MAIN_CONTAINERS = frozenset({CONTAINER, *(kind.module for kind in JOB_KINDS)})
"""Names that the container which trains has in the kinds; another container may have another."""
