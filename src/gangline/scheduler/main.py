"""Starts the scheduler: alone (``gangline scheduler``) or inside a cluster (``gangline up``)."""

import asyncio

from gangline.kube.client import Client
from gangline.scheduler.settings import SchedulerSettings
from gangline.scheduler.shell import Scheduler


async def run(client: Client, settings: SchedulerSettings, stop: asyncio.Event) -> None:
    """Schedule pods until ``stop`` is set. What was not finished is found again at the next start.

    Raises:
        ExceptionGroup: a task of the scheduler has failed; the caller decides what to do.
    """
    async with asyncio.TaskGroup() as tasks:
        scheduling = tasks.create_task(Scheduler(client, settings).run(), name="scheduler")
        await stop.wait()
        scheduling.cancel()
