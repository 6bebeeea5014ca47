"""Installs what Gangline ships in the embedded cluster: definitions, and runtimes of TrainJobs."""

import asyncio
import hashlib
import logging
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import msgspec

from gangline.api.crd import crd_manifests, job_set_manifest
from gangline.api.meta.resource import Resource
from gangline.api.resources import CLUSTER_TRAINING_RUNTIMES, CUSTOM_RESOURCE_DEFINITIONS
from gangline.api.trainer.builtin_runtimes import builtin_runtimes
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import AlreadyExists, ApiError, NotFound

log = logging.getLogger(__name__)

_RUNTIMES = replace(cast("Resource[Any]", CLUSTER_TRAINING_RUNTIMES), type=dict[str, Any])


async def install_runtimes(client: ApiClient) -> None:
    """Create missing runtimes; those that exist may have been changed and stay.

    The cluster starts without those that are refused, as by a webhook that does not respond.
    """
    try:
        present = {item["metadata"]["name"] for item in (await client.list(_RUNTIMES)).items}
    except ApiError as error:
        log.warning("training runtimes cannot be listed: %s", error)
        return
    missing = [
        manifest for manifest in builtin_runtimes() if manifest["metadata"]["name"] not in present
    ]
    await asyncio.gather(*(_create(client, manifest) for manifest in missing))


async def _create(client: ApiClient, manifest: dict[str, Any]) -> None:
    try:
        await client.create(_RUNTIMES, manifest)
    except AlreadyExists:
        return
    except ApiError as error:
        log.warning("training runtime %s: %s", manifest["metadata"]["name"], error)


FINGERPRINT = "gangline.dev/fingerprint"
DEFINITIONS = replace(cast("Resource[Any]", CUSTOM_RESOURCE_DEFINITIONS), type=dict[str, Any])


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
