"""The table of kinds: one ``Resource`` each, which the client takes as argument."""

from typing import Any

from gangline.api import job_resources
from gangline.api.cluster import admission, autoscaling, quota, rbac, workload
from gangline.api.cluster.apiextensions import CustomResourceDefinition
from gangline.api.core import core
from gangline.api.meta.resource import Resource
from gangline.api.volcano import topology

_APPS = "apps"
_RBAC = "rbac.authorization.k8s.io"

NAMESPACES = Resource(core.Namespace, "", "v1", "namespaces", "Namespace", namespaced=False)
NODES = Resource(core.Node, "", "v1", "nodes", "Node", namespaced=False)
PODS = job_resources.PODS
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
EVENTS_V1 = Resource(core.EventsEvent, "events.k8s.io", "v1", "events", "Event")
LEASES = Resource(core.Lease, "coordination.k8s.io", "v1", "leases", "Lease")
PRIORITY_CLASSES = Resource(
    core.PriorityClass,
    "scheduling.k8s.io",
    "v1",
    "priorityclasses",
    "PriorityClass",
    namespaced=False,
)
WORKLOADS = Resource(workload.Workload, workload.GROUP, workload.VERSION, "workloads", "Workload")
KUBERNETES_POD_GROUPS = Resource(
    workload.KubernetesPodGroup, workload.GROUP, workload.VERSION, "podgroups", "PodGroup"
)
STORAGE_CLASSES = Resource(
    core.StorageClass, "storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False
)
RESOURCE_QUOTAS = Resource(quota.ResourceQuota, "", "v1", "resourcequotas", "ResourceQuota")
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

PYTORCH_JOBS = job_resources.PYTORCH_JOBS
TF_JOBS = job_resources.TF_JOBS
JAX_JOBS = job_resources.JAX_JOBS
MS_JOBS = job_resources.MS_JOBS
PADDLE_JOBS = job_resources.PADDLE_JOBS
MPI_JOBS = job_resources.MPI_JOBS
ELASTIC_JOBS = job_resources.ELASTIC_JOBS
SCALE_PLANS = job_resources.SCALE_PLANS
JOB_ADVICE = job_resources.JOB_ADVICE
POD_GROUPS = job_resources.POD_GROUPS
QUEUES = job_resources.QUEUES
HYPERNODES = Resource(
    topology.HyperNode,
    topology.GROUP,
    topology.VERSION,
    "hypernodes",
    "HyperNode",
    namespaced=False,
)

TRAIN_JOBS = job_resources.TRAIN_JOBS
TRAINING_RUNTIMES = job_resources.TRAINING_RUNTIMES
CLUSTER_TRAINING_RUNTIMES = job_resources.CLUSTER_TRAINING_RUNTIMES

BUILT_IN_RESOURCES: tuple[Resource[Any], ...] = (
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
    EVENTS_V1,
    LEASES,
    PRIORITY_CLASSES,
    WORKLOADS,
    KUBERNETES_POD_GROUPS,
    STORAGE_CLASSES,
    POD_DISRUPTION_BUDGETS,
    RESOURCE_QUOTAS,
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
"""Kinds of Kubernetes itself. Older API servers lack Workload and PodGroup."""

CUSTOM_RESOURCES: tuple[Resource[Any], ...] = (
    *(kind.resource for kind in job_resources.JOB_KINDS),
    TRAINING_RUNTIMES,
    CLUSTER_TRAINING_RUNTIMES,
    SCALE_PLANS,
    POD_GROUPS,
    QUEUES,
    HYPERNODES,
)
"""Kinds that Gangline adds as CustomResourceDefinitions."""
