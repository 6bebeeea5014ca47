"""Detects Volcano's own scheduler: then pods that name it are left to it."""

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gangline.api.resources import DEPLOYMENTS, LEASES
from gangline.kube.client import ApiClient
from gangline.kube.errors import ApiError, NotFound, Unreachable
from gangline.scheduler.settings import SchedulerSettings

log = logging.getLogger(__name__)

VOLCANO = "volcano"
_NAMESPACE = "volcano-system"
_LABEL = "app=volcano-scheduler"
_LEASES = ("volcano", "vc-scheduler")
_LEASE_MAX_AGE = timedelta(minutes=1)
"""A lease that was renewed within this time belongs to a running scheduler."""


async def without_volcano_name(client: ApiClient, settings: SchedulerSettings) -> SchedulerSettings:
    """Return the settings without the scheduler name ``volcano`` if Volcano itself serves it."""
    if VOLCANO not in settings.scheduler_names:
        return settings
    found = await _find_volcano_deployment(client) or await _find_volcano_lease(client)
    if not found:
        return settings
    log.warning(
        "Volcano's scheduler runs here (%s): pods with schedulerName volcano are left to it",
        found,
    )
    return replace(settings, scheduler_names=settings.scheduler_names - {VOLCANO})


async def _find_volcano_deployment(client: ApiClient) -> str:
    """Return the deployment of Volcano's scheduler; empty: none, or it may not be listed."""
    try:
        deployments = (await client.list(DEPLOYMENTS, labels=_LABEL)).items
    except Unreachable:
        raise
    except ApiError as error:
        log.debug("cannot list deployments: %s", error)
        return ""
    for each in deployments:
        if each.spec.replicas != 0:
            return f"deployment {each.metadata.namespace}/{each.metadata.name}"
    return ""


async def _find_volcano_lease(client: ApiClient) -> str:
    """Return the lease that Volcano's scheduler renews; empty: none, or it may not be read."""
    for name in _LEASES:
        try:
            lease = await client.get(LEASES, name, _NAMESPACE)
        except NotFound:
            continue
        except Unreachable:
            raise
        except ApiError as error:
            log.debug("cannot read leases: %s", error)
            return ""
        renewed = lease.spec.renew_time
        if renewed is not None and datetime.now(UTC) - renewed < _LEASE_MAX_AGE:
            return f"lease {_NAMESPACE}/{name}"
    return ""
