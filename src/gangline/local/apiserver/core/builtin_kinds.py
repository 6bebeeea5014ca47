"""Tables of the built-in kinds.

Active kinds have an effect in this cluster. Stored-only kinds are accepted so that manifests that
contain them apply, but no controller acts on them; their creation returns a warning.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from gangline.api.cluster.autoscaling import HorizontalPodAutoscalerV1
from gangline.api.resources import BUILT_IN_RESOURCES
from gangline.api.schema.openapi import openapi_schema
from gangline.local.apiserver.core.registry import Json, ServedKind
from gangline.local.apiserver.machinery.schema.builtin_schemas import message_schema

POD_FIELDS = (
    "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
    "spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName",
)  # fmt: skip
EVENT_FIELDS = (
    "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
    "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
    "reason", "reportingComponent", "source", "type",
)  # fmt: skip
# Without ephemeralcontainers: this kubelet does not run them, and kubectl checks discovery.
POD_SUBRESOURCES = ("status", "binding", "eviction", "log", "exec", "attach", "portforward")
OTHER_VERSIONS = {("autoscaling", "v1", "HorizontalPodAutoscaler"): HorizontalPodAutoscalerV1}
"""Structs of versions without a reader in this package. Only their schemas are used."""
WITH_STATUS = {"subresources": ("status",), "resets_status": True}


def _schema(group: str, version: str, kind: str) -> Callable[[], Json] | None:
    version_kind = (group, version, kind)
    found = next(
        (r for r in BUILT_IN_RESOURCES if (r.group, r.version, r.kind) == version_kind), None
    )
    type_: Any = found.type if found else OTHER_VERSIONS.get(version_kind)
    return partial(openapi_schema, type_) if type_ else None


def _kind(group: str, kind: str, plural: str, **more: object) -> ServedKind:
    group_name, _, version = group.rpartition("/")
    more.setdefault("schema_source", _schema(group_name, version, kind))
    return ServedKind(group_name, version, kind, plural, **more)  # type: ignore[arg-type]


def _cluster(group: str, kind: str, plural: str, **more: object) -> ServedKind:
    return _kind(group, kind, plural, namespaced=False, **more)


def active_kinds() -> list[ServedKind]:
    """Return the kinds that some component of the cluster acts on."""
    every = ("all",)
    workload = {
        "subresources": ("status", "scale"),
        "resets_status": True,
        "counts_generations": True,
        "categories": every,
    }
    rbac = "rbac.authorization.k8s.io/v1"
    return [
        _cluster("v1", "Namespace", "namespaces", short_names=("ns",),
                 subresources=("status", "finalize"), resets_status=True,
                 selectable=("status.phase",)),
        _cluster("v1", "Node", "nodes", short_names=("no",), subresources=("status",),
                 selectable=("spec.unschedulable",)),
        _kind("v1", "Pod", "pods", short_names=("po",), categories=every,
              subresources=POD_SUBRESOURCES, resets_status=True, selectable=POD_FIELDS),
        _kind("v1", "Binding", "bindings", verbs=("create",)),
        _kind("v1", "Service", "services", short_names=("svc",), categories=every,
              selectable=("spec.clusterIP", "spec.type"), **WITH_STATUS),
        _kind("v1", "Endpoints", "endpoints", short_names=("ep",), singular="endpoints"),
        _kind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices"),
        _kind("v1", "ConfigMap", "configmaps", short_names=("cm",)),
        _kind("v1", "Secret", "secrets", selectable=("type",)),
        _kind("v1", "Event", "events", short_names=("ev",), selectable=EVENT_FIELDS),
        _cluster("v1", "PersistentVolume", "persistentvolumes", short_names=("pv",), **WITH_STATUS),
        _kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims", short_names=("pvc",),
              **WITH_STATUS),
        _kind("v1", "ServiceAccount", "serviceaccounts", short_names=("sa",),
              subresources=("token",)),
        _kind("v1", "ResourceQuota", "resourcequotas", short_names=("quota",), **WITH_STATUS),
        _kind("apps/v1", "Deployment", "deployments", short_names=("deploy",), **workload),
        _kind("apps/v1", "ReplicaSet", "replicasets", short_names=("rs",), **workload),
        _kind("batch/v1", "Job", "jobs", categories=every, counts_generations=True,
              schema_source=partial(message_schema, "batch/v1#Job"), **WITH_STATUS),
        _kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers",
              short_names=("hpa",), categories=every, counts_generations=True, **WITH_STATUS),
        _kind("autoscaling/v1", "HorizontalPodAutoscaler", "horizontalpodautoscalers",
              short_names=("hpa",), categories=every, counts_generations=True,
              storage_version="v2", **WITH_STATUS),
        _kind("coordination.k8s.io/v1", "Lease", "leases"),
        _cluster("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", short_names=("pc",)),
        _kind("events.k8s.io/v1", "Event", "events", short_names=("ev",),
              storage_version="core", selectable=EVENT_FIELDS),
        _kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", short_names=("pdb",),
              counts_generations=True, **WITH_STATUS),
        _cluster("storage.k8s.io/v1", "StorageClass", "storageclasses", short_names=("sc",)),
        _kind(rbac, "Role", "roles"),
        _kind(rbac, "RoleBinding", "rolebindings"),
        _cluster(rbac, "ClusterRole", "clusterroles"),
        _cluster(rbac, "ClusterRoleBinding", "clusterrolebindings"),
        _cluster("apiextensions.k8s.io/v1", "CustomResourceDefinition",
                 "customresourcedefinitions", short_names=("crd", "crds"),
                 counts_generations=True, categories=("api-extensions",), **WITH_STATUS),
        _cluster("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration",
                 "mutatingwebhookconfigurations", counts_generations=True,
                 categories=("api-extensions",)),
        _cluster("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration",
                 "validatingwebhookconfigurations", counts_generations=True,
                 categories=("api-extensions",)),
    ]  # fmt: skip


def stored_only_kinds() -> list[ServedKind]:
    """Return the kinds that are stored without effect."""

    def stored(group: str, kind: str, plural: str, **more: object) -> ServedKind:
        note = f"{kind} objects are stored by this cluster, but nothing acts on them"
        return _kind(group, kind, plural, note=note, **more)

    workload = {
        "subresources": ("status", "scale"),
        "resets_status": True,
        "counts_generations": True,
        "categories": ("all",),
    }
    counted = {"counts_generations": True, **WITH_STATUS}
    return [
        stored("v1", "ReplicationController", "replicationcontrollers", short_names=("rc",),
               **workload),
        stored("v1", "LimitRange", "limitranges", short_names=("limits",)),
        stored("v1", "PodTemplate", "podtemplates"),
        stored("apps/v1", "StatefulSet", "statefulsets", short_names=("sts",), **workload),
        stored("apps/v1", "DaemonSet", "daemonsets", short_names=("ds",), categories=("all",),
               **counted),
        stored("apps/v1", "ControllerRevision", "controllerrevisions"),
        stored("batch/v1", "CronJob", "cronjobs", short_names=("cj",), categories=("all",),
               **counted),
        stored("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", short_names=("netpol",),
               counts_generations=True),
        stored("networking.k8s.io/v1", "Ingress", "ingresses", short_names=("ing",), **counted),
    ]  # fmt: skip


def kinds_of_other_components() -> list[ServedKind]:
    """Return the kinds that kube-scheduler, kube-controller-manager and drivers list and watch.

    They are stored with Kubernetes' schema. No component of this cluster acts on them.
    """

    def described(api_version: str, kind: str, plural: str, **more: object) -> ServedKind:
        schema = partial(message_schema, f"{api_version}#{kind}")
        note = f"{kind} objects are stored by this cluster, but none of its components acts on them"
        return _kind(api_version, kind, plural, schema_source=schema, note=note, **more)

    cluster = {"namespaced": False}
    counted = {"counts_generations": True}
    storage, resource, network = "storage.k8s.io/v1", "resource.k8s.io/v1", "networking.k8s.io/v1"
    admission = "admissionregistration.k8s.io/v1"
    policies = {**cluster, **counted, "categories": ("api-extensions",)}
    return [
        described(storage, "CSIDriver", "csidrivers", **cluster),
        described(storage, "CSINode", "csinodes", **cluster),
        described(storage, "CSIStorageCapacity", "csistoragecapacities"),
        described(storage, "VolumeAttachment", "volumeattachments", **cluster, **WITH_STATUS),
        described(storage, "VolumeAttributesClass", "volumeattributesclasses", **cluster,
                  short_names=("vac",)),
        described(resource, "DeviceClass", "deviceclasses", **cluster, **counted),
        described(resource, "ResourceClaim", "resourceclaims", **WITH_STATUS),
        described(resource, "ResourceClaimTemplate", "resourceclaimtemplates"),
        described(resource, "ResourceSlice", "resourceslices", **cluster, **counted,
                  selectable=("spec.driver", "spec.nodeName")),
        described(network, "IPAddress", "ipaddresses", **cluster, short_names=("ip",)),
        described(network, "ServiceCIDR", "servicecidrs", **cluster, **WITH_STATUS),
        described(admission, "ValidatingAdmissionPolicy", "validatingadmissionpolicies",
                  **policies, **WITH_STATUS),
        described(admission, "ValidatingAdmissionPolicyBinding",
                  "validatingadmissionpolicybindings", **policies),
        described("certificates.k8s.io/v1", "CertificateSigningRequest",
                  "certificatesigningrequests", **cluster, short_names=("csr",),
                  subresources=("status", "approval"), resets_status=True,
                  selectable=("spec.signerName",)),
    ]  # fmt: skip


def all_builtin_kinds() -> list[ServedKind]:
    """Return all kinds that exist without a CustomResourceDefinition."""
    return active_kinds() + stored_only_kinds() + kinds_of_other_components()
