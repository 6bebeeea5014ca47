"""Objects of the Helm chart, rendered for tests as ``gangline deploy`` renders them."""

from typing import Any

from gangline.deploy.chart import Chart, Manifest, ReleaseSettings
from gangline.deploy.manifests import release_objects

NAMESPACE = "gangline-system"
OFF = {"enabled": False}
RIGHTS_KINDS = frozenset(
    ("Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
)
OPERATOR_ONLY: dict[str, Any] = {
    "scheduler": OFF,
    "webhook": OFF,
    "rbac": {"aggregate": False},
    "priorityClass": {"create": False},
}


def chart_objects(**values: Any) -> list[Manifest]:
    """The objects of a release in the order of creation, the namespace first; without CRDs."""
    chart = Chart.load()
    bare = {"crds": {"install": False}, "runtimes": {"install": False}}
    complete = chart.complete({**bare, **values})
    return release_objects(chart, complete, ReleaseSettings(namespace=NAMESPACE))


def rights_of(objects: list[Manifest]) -> set[tuple[str, str, str]]:
    """(group, resource, verb) of every right that roles among the objects grant."""
    return {
        (group, resource, verb)
        for each in objects
        for rule in each.get("rules", [])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
