"""Hands objects of plain manifests, or CRDs of another program, to a Helm release.

Helm takes over objects only if they carry its marks. Helm 4 also refuses to change fields that
another program has applied, so those programs give up their fields. Nothing else is changed: the
release changes the objects when it is installed.

Jobs that an upstream operator has begun stay with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from gangline.api.jobs.train import has_upstream_status
from gangline.api.resources import TRAIN_JOBS
from gangline.deploy.chart import Chart, ClusterCapabilities, Manifest, ReleaseSettings
from gangline.deploy.crd_compare import describe_loss
from gangline.deploy.manifests import (
    BOOTSTRAPPED,
    HELM_NAMESPACE,
    HELM_RELEASE,
    MANAGED_BY,
    ObjectIdentity,
    identity_of,
    sort_objects,
)
from gangline.deploy.values import Values
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import Forbidden, NotFound

SHOWN = 5
_PAGE = 500


async def jobs_with_job_sets(client: ApiClient) -> list[str]:
    """Return the unfinished TrainJobs whose pods belong to a JobSet, as ``namespace/name``."""
    path = f"/apis/{TRAIN_JOBS.group}/{TRAIN_JOBS.version}/{TRAIN_JOBS.plural}"
    names: list[str] = []
    page: dict[str, str] = {"limit": str(_PAGE)}
    while True:
        try:
            listing = await client.request_json("GET", path, params=page)
        except (NotFound, Forbidden):
            return names
        names += [
            f"{item['metadata']['namespace']}/{item['metadata']['name']}"
            for item in listing["items"]
            if _keeps_job_set(item.get("status") or {})
        ]
        following = listing["metadata"].get("continue")
        if not following:
            return names
        page = {"limit": str(_PAGE), "continue": following}


def job_set_note(jobs: list[str]) -> str:
    """Return what users of these jobs have to know; empty without jobs."""
    if not jobs:
        return ""
    more = f" and {len(jobs) - SHOWN} more" if len(jobs) > SHOWN else ""
    return (
        f"Gangline runs no pods for {len(jobs)} TrainJob{'s' if len(jobs) > 1 else ''} of Kubeflow "
        f"Trainer, whose pods belong to a JobSet until the end: "
        f"{', '.join(sorted(jobs)[:SHOWN])}{more}"
    )


def _keeps_job_set(status: dict[str, Any]) -> bool:
    ended = any(
        condition.get("type") in {"Complete", "Failed"} and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    )
    return not ended and has_upstream_status(msgspec.json.encode(status))


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
    left: dict[ObjectIdentity, str]
    """The others, each with the reason."""


def helm_objects(
    chart: Chart,
    values: Values,
    release: ReleaseSettings,
    capabilities: ClusterCapabilities | None = None,
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
    existing: Mapping[ObjectIdentity, Manifest],
    objects: Sequence[Manifest],
    release: ReleaseSettings,
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
