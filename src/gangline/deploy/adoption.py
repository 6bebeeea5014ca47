"""Hands objects of plain manifests, or CRDs of another program, to a Helm release.

Helm takes over objects only if they carry its marks. Helm 4 also refuses to change fields that
another program has applied, so those programs give up their fields. Nothing else is changed: the
release changes the objects when it is installed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gangline.deploy.chart import Capabilities, Chart, Manifest, ReleaseSettings
from gangline.deploy.crd_compare import describe_loss
from gangline.deploy.manifests import (
    BOOTSTRAPPED,
    HELM_NAMESPACE,
    HELM_RELEASE,
    MANAGED_BY,
    Identity,
    identity_of,
    sort_objects,
)
from gangline.deploy.values import Values

HELM_MANAGER = "helm"
"""The field manager of Helm, in ``metadata.managedFields``."""

_INSTALLERS = ("kubectl", "gangline-deploy", "before-first-apply")
"""Prefixes of field managers that apply manifests, as opposed to controllers.

The last one has the fields that were written before the API server knew of field managers.
"""


class Adoption(NamedTuple):
    """What is handed over, and what is not."""

    adopted: list[Manifest]
    """The marks of the objects, and nothing else."""
    left: dict[Identity, str]
    """The others, each with the reason."""


def helm_objects(
    chart: Chart, values: Values, release: ReleaseSettings, capabilities: Capabilities | None = None
) -> list[Manifest]:
    """Return the objects that Helm would install; hooks need no marks.

    Raises:
        InvalidValues: a template refused the values.
    """
    rendered = chart.render(values, replace(release, service="Helm"), capabilities)
    return sort_objects(
        manifest
        for manifest in rendered
        if "helm.sh/hook" not in (manifest["metadata"].get("annotations") or {})
    )


def plan_adoption(
    existing: Mapping[Identity, Manifest], objects: Sequence[Manifest], release: ReleaseSettings
) -> Adoption:
    """Return which of the existing objects the release takes over."""
    plan = Adoption([], {})
    for manifest in objects:
        identity = identity_of(manifest)
        stored = existing.get(identity)
        if stored is None:
            continue
        if reason := _obstacle(stored, manifest, release):
            plan.left[identity] = reason
        else:
            plan.adopted.append(_marks(manifest, release))
    return plan


def _marks(manifest: Manifest, release: ReleaseSettings) -> Manifest:
    metadata = {
        key: value for key, value in manifest["metadata"].items() if key in {"name", "namespace"}
    }
    metadata["labels"] = {MANAGED_BY: "Helm"}
    metadata["annotations"] = {HELM_RELEASE: release.name, HELM_NAMESPACE: release.namespace}
    return {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "metadata": metadata,
    }


def _obstacle(stored: Manifest, ours: Manifest, release: ReleaseSettings) -> str:
    annotations: Mapping[str, str] = stored["metadata"].get("annotations") or {}
    owner = (annotations.get(HELM_RELEASE, ""), annotations.get(HELM_NAMESPACE, ""))
    if owner[0] and owner != (release.name, release.namespace):
        return f"it belongs to the Helm release {owner[0]} in the namespace {owner[1]}"
    if BOOTSTRAPPED in (stored["metadata"].get("labels") or {}):
        return "it is of the API server"
    if ours["kind"] == "CustomResourceDefinition":
        return describe_loss(stored, ours)
    return ""


def without_installers(managed_fields: Sequence[Manifest]) -> list[Manifest]:
    """Return ``metadata.managedFields`` without the programs that applied the object before."""
    return [
        managed_field
        for managed_field in managed_fields
        if not managed_field["manager"].startswith(_INSTALLERS)
    ]
