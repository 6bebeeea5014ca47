"""The rendered objects as they are applied without Helm: in order, with their namespace.

Also their paths in the API, and the labels and annotations that say who has installed an object.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from gangline.deploy.chart import Chart, ClusterCapabilities, Manifest, ReleaseSettings
from gangline.deploy.values import Values

PART_OF = "app.kubernetes.io/part-of"
MANAGED_BY = "app.kubernetes.io/managed-by"
HELM_RELEASE = "meta.helm.sh/release-name"
HELM_NAMESPACE = "meta.helm.sh/release-namespace"
BOOTSTRAPPED = "kubernetes.io/bootstrapping"
"""Label of what the API server creates itself."""
_HELM = "helm.sh/"
KEEP = "gangline.dev/keep"
"""Annotation of objects that outlive the release: they have the data of users."""

_RBAC = ("rbac.authorization.k8s.io/v1",)
_ADMISSION = ("admissionregistration.k8s.io/v1",)
KIND_VERSIONS: Mapping[str, tuple[str, ...]] = {
    "Namespace": ("v1",),
    "CustomResourceDefinition": ("apiextensions.k8s.io/v1",),
    "PriorityClass": ("scheduling.k8s.io/v1",),
    "ServiceAccount": ("v1",),
    "ClusterRole": _RBAC,
    "ClusterRoleBinding": _RBAC,
    "Role": _RBAC,
    "RoleBinding": _RBAC,
    "MutatingWebhookConfiguration": _ADMISSION,
    "ValidatingWebhookConfiguration": _ADMISSION,
    "ConfigMap": ("v1",),
    "PersistentVolumeClaim": ("v1",),
    "PodDisruptionBudget": ("policy/v1", "policy/v1beta1"),
    "Service": ("v1",),
    "ServiceMonitor": ("monitoring.coreos.com/v1",),
    "Deployment": ("apps/v1",),
    # Last: its definition is served a moment after it was created.
    "ClusterTrainingRuntime": ("trainer.kubeflow.org/v1alpha1",),
}
"""Kinds in the order of creation, so that pods start when their rights and configuration exist.

Each with its API versions, the newest first.
"""


class ObjectIdentity(NamedTuple):
    """What an object is in a cluster."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {f'{self.namespace}/' if self.namespace else ''}{self.name}"


def identity_of(manifest: Mapping[str, Any]) -> ObjectIdentity:
    metadata = manifest["metadata"]
    return ObjectIdentity(manifest["kind"], metadata.get("namespace", ""), metadata["name"])


def release_objects(
    chart: Chart,
    values: Values,
    release: ReleaseSettings,
    capabilities: ClusterCapabilities | None = None,
    *,
    namespace: bool = True,
) -> list[Manifest]:
    """Return the objects of a release in the order of creation; ``values`` are complete.

    Raises:
        InvalidValues: a template refused the values.
    """
    rendered = [_without_helm(manifest) for manifest in chart.render(values, release, capabilities)]
    own = [_namespace(release)] if namespace else []
    return sort_objects([*own, *rendered])


def sort_objects(objects: Iterable[Manifest]) -> list[Manifest]:
    """Return objects in the order of creation."""
    rank = {kind: number for number, kind in enumerate(KIND_VERSIONS)}
    return sorted(objects, key=lambda manifest: (rank[manifest["kind"]], identity_of(manifest)))


def _namespace(release: ReleaseSettings) -> Manifest:
    labels = {"app.kubernetes.io/part-of": "gangline"}
    metadata = {"name": release.namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def _without_helm(manifest: Manifest) -> Manifest:
    """Translate the resource policy of Helm; other annotations of Helm mean nothing without it."""
    changed = deepcopy(manifest)
    metadata = changed["metadata"]
    annotations = metadata.pop("annotations", None) or {}
    own = {key: value for key, value in annotations.items() if not key.startswith(_HELM)}
    if annotations.get("helm.sh/resource-policy") == "keep":
        own[KEEP] = "true"
    if own:
        metadata["annotations"] = own
    return changed


def plural_of(kind: str) -> str:
    """Return the resource of a kind of the chart: all have regular plurals."""
    return f"{kind.lower()}{'es' if kind.endswith('s') else 's'}"


def group_of(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def collection_path(api_version: str, kind: str, namespace: str = "") -> str:
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{scope}/{plural_of(kind)}"


def object_path(manifest: Mapping[str, Any]) -> str:
    metadata = manifest["metadata"]
    collection = collection_path(
        manifest["apiVersion"], manifest["kind"], metadata.get("namespace", "")
    )
    return f"{collection}/{metadata['name']}"
