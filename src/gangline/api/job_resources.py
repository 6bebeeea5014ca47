"""The resources of job kinds, and of kinds that belong to jobs.

A subset of ``resources`` for commands that only read jobs: it spares them the import of the rest.
"""

from gangline.api.elastic import ElasticJob, ScalePlan
from gangline.api.jax import JAXJob
from gangline.api.kubeflow import PyTorchJob
from gangline.api.mindspore import MSJob
from gangline.api.mpi import MPIJob
from gangline.api.paddle import PaddleJob
from gangline.api.pod import Pod
from gangline.api.resource import Resource
from gangline.api.scheduling import PodGroup, Queue
from gangline.api.tensorflow import TFJob
from gangline.api.xgboost import XGBoostJob

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
