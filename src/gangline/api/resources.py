"""The table of kinds: one ``Resource`` for each, to be passed to the client."""

from typing import Any

from gangline.api import admission, autoscaling, core, rbac, topology
from gangline.api.apiextensions import CustomResourceDefinition
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

_APPS = "apps"
_RBAC = "rbac.authorization.k8s.io"
_VOLCANO = "scheduling.volcano.sh"

NAMESPACES = Resource(core.Namespace, "", "v1", "namespaces", "Namespace", namespaced=False)
NODES = Resource(core.Node, "", "v1", "nodes", "Node", namespaced=False)
PODS = Resource(Pod, "", "v1", "pods", "Pod")
SERVICES = Resource(core.Service, "", "v1", "services", "Service")
ENDPOINTS = Resource(core.Endpoints, "", "v1", "endpoints", "Endpoints")
ENDPOINT_SLICES = Resource(
    core.EndpointSlice, "discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"
)
CONFIG_MAPS = Resource(core.ConfigMap, "", "v1", "configmaps", "ConfigMap")
SECRETS = Resource(core.Secret, "", "v1", "secrets", "Secret")
EVENTS = Resource(core.Event, "", "v1", "events", "Event")
SERVICE_ACCOUNTS = Resource(core.ServiceAccount, "", "v1", "serviceaccounts", "ServiceAccount")
PERSISTENT_VOLUMES = Resource(
    core.PersistentVolume, "", "v1", "persistentvolumes", "PersistentVolume", namespaced=False
)
PERSISTENT_VOLUME_CLAIMS = Resource(
    core.PersistentVolumeClaim, "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"
)
NEW_EVENTS = Resource(core.EventsEvent, "events.k8s.io", "v1", "events", "Event")
LEASES = Resource(core.Lease, "coordination.k8s.io", "v1", "leases", "Lease")
PRIORITY_CLASSES = Resource(
    core.PriorityClass,
    "scheduling.k8s.io",
    "v1",
    "priorityclasses",
    "PriorityClass",
    namespaced=False,
)
STORAGE_CLASSES = Resource(
    core.StorageClass, "storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False
)
POD_DISRUPTION_BUDGETS = Resource(
    core.PodDisruptionBudget, "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"
)
DEPLOYMENTS = Resource(core.Deployment, _APPS, "v1", "deployments", "Deployment")
REPLICA_SETS = Resource(core.ReplicaSet, _APPS, "v1", "replicasets", "ReplicaSet")
ROLES = Resource(rbac.Role, _RBAC, "v1", "roles", "Role")
ROLE_BINDINGS = Resource(rbac.RoleBinding, _RBAC, "v1", "rolebindings", "RoleBinding")
CLUSTER_ROLES = Resource(
    rbac.ClusterRole, _RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False
)
CLUSTER_ROLE_BINDINGS = Resource(
    rbac.ClusterRoleBinding,
    _RBAC,
    "v1",
    "clusterrolebindings",
    "ClusterRoleBinding",
    namespaced=False,
)
CUSTOM_RESOURCE_DEFINITIONS = Resource(
    CustomResourceDefinition,
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
)
MUTATING_WEBHOOK_CONFIGURATIONS = Resource(
    admission.MutatingWebhookConfiguration,
    admission.GROUP,
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING_WEBHOOK_CONFIGURATIONS = Resource(
    admission.ValidatingWebhookConfiguration,
    admission.GROUP,
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
HORIZONTAL_POD_AUTOSCALERS = Resource(
    autoscaling.HorizontalPodAutoscaler,
    autoscaling.GROUP,
    "v2",
    "horizontalpodautoscalers",
    "HorizontalPodAutoscaler",
)

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
HYPERNODES = Resource(
    topology.HyperNode,
    topology.GROUP,
    topology.VERSION,
    "hypernodes",
    "HyperNode",
    namespaced=False,
)

BUILT_IN: tuple[Resource[Any], ...] = (
    NAMESPACES,
    NODES,
    PODS,
    SERVICES,
    ENDPOINTS,
    ENDPOINT_SLICES,
    CONFIG_MAPS,
    SECRETS,
    EVENTS,
    SERVICE_ACCOUNTS,
    PERSISTENT_VOLUMES,
    PERSISTENT_VOLUME_CLAIMS,
    NEW_EVENTS,
    LEASES,
    PRIORITY_CLASSES,
    STORAGE_CLASSES,
    POD_DISRUPTION_BUDGETS,
    DEPLOYMENTS,
    REPLICA_SETS,
    ROLES,
    ROLE_BINDINGS,
    CLUSTER_ROLES,
    CLUSTER_ROLE_BINDINGS,
    CUSTOM_RESOURCE_DEFINITIONS,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    HORIZONTAL_POD_AUTOSCALERS,
)
"""Kinds that a Kubernetes API server has by itself."""

CUSTOM: tuple[Resource[Any], ...] = (
    PYTORCH_JOBS,
    TF_JOBS,
    JAX_JOBS,
    XGBOOST_JOBS,
    MPI_JOBS,
    MS_JOBS,
    PADDLE_JOBS,
    ELASTIC_JOBS,
    SCALE_PLANS,
    POD_GROUPS,
    QUEUES,
    HYPERNODES,
)
"""Kinds that Gangline brings as CustomResourceDefinitions."""
