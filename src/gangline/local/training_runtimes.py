"""Creates the runtimes that Gangline ships, for TrainJobs of the embedded cluster."""

import asyncio
import logging
from typing import Any

from gangline.api.meta.resource import Resource
from gangline.api.resources import CLUSTER_TRAINING_RUNTIMES
from gangline.api.trainer.builtin_runtimes import builtin_runtimes
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import AlreadyExists, ApiError

log = logging.getLogger(__name__)

_RUNTIMES: Resource[dict[str, Any]] = Resource(
    dict[str, Any],
    CLUSTER_TRAINING_RUNTIMES.group,
    CLUSTER_TRAINING_RUNTIMES.version,
    CLUSTER_TRAINING_RUNTIMES.plural,
    CLUSTER_TRAINING_RUNTIMES.kind,
    namespaced=False,
)


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
