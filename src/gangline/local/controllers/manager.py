"""Runs all controllers on one set of informers, as kube-controller-manager does."""

import asyncio
import logging

from gangline.kube.client import Client
from gangline.kube.events import EventRecorder
from gangline.kube.shared import SharedInformers
from gangline.local.controllers.context import Context, ControllerSettings, Loop
from gangline.local.controllers.loops.autoscaler import AutoscalerLoop
from gangline.local.controllers.loops.budgets import BudgetsLoop
from gangline.local.controllers.loops.endpoint_slices import EndpointSlicesLoop
from gangline.local.controllers.loops.endpoints import EndpointsLoop
from gangline.local.controllers.loops.garbage import GarbageLoop
from gangline.local.controllers.loops.housekeeping import ExpiryLoop, NamespaceContentLoop
from gangline.local.controllers.loops.namespaces import NamespacesLoop
from gangline.local.controllers.loops.nodes import NodesLoop
from gangline.local.controllers.loops.volumes import VolumesLoop
from gangline.local.controllers.loops.workloads import DeploymentsLoop, ReplicaSetsLoop

log = logging.getLogger(__name__)

RESTART_S = (0.5, 30.0)
"""The first and the longest delay before a failed controller is restarted, in seconds."""

LOOPS: tuple[type[Loop], ...] = (
    NamespaceContentLoop,
    EndpointsLoop,
    EndpointSlicesLoop,
    ReplicaSetsLoop,
    DeploymentsLoop,
    VolumesLoop,
    NodesLoop,
    NamespacesLoop,
    BudgetsLoop,
    AutoscalerLoop,
    GarbageLoop,
    ExpiryLoop,
)


async def run(
    client: Client, settings: ControllerSettings, informers: SharedInformers | None = None
) -> None:
    """Run every controller until cancelled.

    ``informers`` may be shared with other components of the process. These must request their
    informers
    before this call, which runs all of them.
    """
    informers = informers or SharedInformers(client)
    async with EventRecorder(client, "controller-manager") as recorder:
        context = Context(client, informers, recorder, settings)
        loops = [loop(context) for loop in LOOPS]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(informers.run())
            await informers.synced()
            for loop in loops:
                tasks.create_task(_keep_running(loop), name=type(loop).__name__)


async def _keep_running(loop: Loop) -> None:
    """Restart a controller when it fails; the others continue meanwhile."""
    rest, longest = RESTART_S
    while True:
        try:
            await loop.run()
        except Exception:  # The outermost loop of each controller.
            log.exception(
                "controller failed and is restarted", extra={"controller": type(loop).__name__}
            )
        await asyncio.sleep(rest)
        rest = min(longest, rest * 2)
