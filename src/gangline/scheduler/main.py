"""Starts the scheduler: alone (``gangline scheduler``) or inside a cluster (``gangline up``).

If Volcano's own scheduler runs in the cluster, pods that name it are left to it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gangline.api.resources import DEPLOYMENTS, LEASES
from gangline.kube.client.client import ApiClient
from gangline.kube.controller.leader_election import LeaderElector
from gangline.kube.errors import ApiError, NotFound, Unreachable
from gangline.kube.probes import Health, serve_probes
from gangline.scheduler.loop import SchedulerLoop
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


async def run(
    client: ApiClient,
    settings: SchedulerSettings,
    stop: asyncio.Event,
    health: Health | None = None,
) -> None:
    """Schedule pods until ``stop`` is set. Unfinished work is found again at the next start.

    Raises:
        ConfigError: the address for metrics or probes cannot be used.
        ExceptionGroup: a task of the scheduler has failed; the caller handles it.
    """

    async def lead() -> None:
        state.ready = True
        # A copy that lost its lease starts with an empty cache when it leads again.
        await SchedulerLoop(client, await without_volcano_name(client, settings)).run()

    warn_of_ignored_settings(settings)
    state = health or Health()
    # A standby copy is ready: a rollout that waits for it must not wait for the lease.
    state.ready = settings.leader_election
    async with (
        serve_probes(settings.metrics_address, settings.health_address, state),
        asyncio.TaskGroup() as tasks,
    ):
        work = (
            _run_with_leader_election(client, settings, lead)
            if settings.leader_election
            else lead()
        )
        scheduling = tasks.create_task(work, name="scheduler")
        await stop.wait()
        scheduling.cancel()


def warn_of_ignored_settings(settings: SchedulerSettings) -> None:
    if settings.ignored_settings:
        log.warning("settings without effect: %s", "; ".join(settings.ignored_settings))


async def _run_with_leader_election(
    client: ApiClient, settings: SchedulerSettings, lead: Callable[[], Awaitable[None]]
) -> None:
    elector = LeaderElector(
        client,
        settings.leader_election_name,
        settings.leader_election_namespace,
        settings.identity,
        timing=settings.leader_election_timing,
    )
    await elector.run(lead)
