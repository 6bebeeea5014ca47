"""The resources of job kinds, and of kinds that belong to jobs.

A subset of ``resources`` for commands that only read jobs: it spares them the import of the rest.
"""

from gangline.api.core.pod import Pod
from gangline.api.jobs.elastic import ElasticJob, ScalePlan
from gangline.api.jobs.jax import JAXJob
from gangline.api.jobs.kubeflow import PyTorchJob
from gangline.api.jobs.mindspore import MSJob
from gangline.api.jobs.mpi import MPIJob
from gangline.api.jobs.paddle import PaddleJob
from gangline.api.jobs.tensorflow import TFJob
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
MPI_JOBS = Resource(MPIJob, "kubeflow.org", "v1", "mpijobs", "MPIJob")
ELASTIC_JOBS = Resource(
    ElasticJob, "elastic.iml.github.io", "v1alpha1", "elasticjobs", "ElasticJob"
)
SCALE_PLANS = Resource(ScalePlan, "elastic.iml.github.io", "v1alpha1", "scaleplans", "ScalePlan")
POD_GROUPS = Resource(PodGroup, _VOLCANO, "v1beta1", "podgroups", "PodGroup")
QUEUES = Resource(Queue, _VOLCANO, "v1beta1", "queues", "Queue", namespaced=False)
