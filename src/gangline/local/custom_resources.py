"""Installs Gangline's CustomResourceDefinitions in a cluster, and updates outdated ones."""

import hashlib
from contextlib import suppress
from typing import Any

import msgspec

from gangline.api.crd import crd_manifests, job_set_manifest
from gangline.api.meta.resource import Resource
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import AlreadyExists, NotFound

FINGERPRINT = "gangline.dev/fingerprint"
DEFINITIONS: Resource[dict[str, Any]] = Resource(
    dict[str, Any],
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
)


async def install_definitions(client: ApiClient) -> None:
    """Create missing definitions and replace those with another fingerprint.

    A definition of JobSet is never replaced: it may be that of the JobSet project.
    """
    for manifest in crd_manifests().values():
        await _install(client, manifest)
    with suppress(AlreadyExists):
        await client.create(DEFINITIONS, job_set_manifest())


async def _install(client: ApiClient, manifest: dict[str, Any]) -> None:
    name = manifest["metadata"]["name"]
    fingerprint = hashlib.sha256(msgspec.json.encode(manifest)).hexdigest()[:16]
    annotations = {**manifest["metadata"].get("annotations", {}), FINGERPRINT: fingerprint}
    desired = {**manifest, "metadata": {**manifest["metadata"], "annotations": annotations}}
    try:
        present = await client.get(DEFINITIONS, name)
    except NotFound:
        try:
            await client.create(DEFINITIONS, desired)
        except AlreadyExists:
            return
    else:
        if present["metadata"].get("annotations", {}).get(FINGERPRINT) != fingerprint:
            metadata = {**desired["metadata"]}
            metadata["resourceVersion"] = present["metadata"]["resourceVersion"]
            await client.update(DEFINITIONS, {**desired, "metadata": metadata})
