"""Starts the scheduler: alone (``gangline scheduler``) or inside a cluster (``gangline up``)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gangline.kube.client import ApiClient
from gangline.kube.leader import LeaderElector
from gangline.kube.probes import Health, serve_probes
from gangline.scheduler.rival import without_volcano_name
from gangline.scheduler.settings import SchedulerSettings
from gangline.scheduler.shell import SchedulerLoop

log = logging.getLogger(__name__)


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

    for setting in settings.ignored_settings:
        log.warning("the configuration has a setting without effect: %s", setting)
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


async def _run_with_leader_election(
    client: ApiClient, settings: SchedulerSettings, lead: Callable[[], Awaitable[None]]
) -> None:
    elector = LeaderElector(
        client,
        settings.leader_election_name,
        settings.leader_election_namespace,
        settings.identity,
    )
    await elector.run(lead)
