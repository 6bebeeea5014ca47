"""Runs all controllers on one set of informers, as kube-controller-manager does."""

import asyncio
import logging

from gangline.kube.client import ApiClient
from gangline.kube.events import EventRecorder
from gangline.kube.shared import SharedInformerFactory
from gangline.local.controllers.context import ControllerContext, ControllerSettings, ControllerLoop
from gangline.local.controllers.loops.autoscaler import PodAutoscalerController
from gangline.local.controllers.loops.budgets import DisruptionController
from gangline.local.controllers.loops.endpoint_slices import EndpointSliceController
from gangline.local.controllers.loops.endpoints import EndpointsController
from gangline.local.controllers.loops.garbage import GarbageCollector
from gangline.local.controllers.loops.housekeeping import (
    EventTtlController,
    NamespaceDefaultsController,
)
from gangline.local.controllers.loops.namespaces import NamespaceController
from gangline.local.controllers.loops.nodes import NodeLifecycleController
from gangline.local.controllers.loops.volumes import VolumeBinderController
from gangline.local.controllers.loops.workloads import DeploymentController, ReplicaSetController

log = logging.getLogger(__name__)

RESTART_S = (0.5, 30.0)
"""The first and the longest delay before a failed controller is restarted, in seconds."""

CONTROLLERS: tuple[type[ControllerLoop], ...] = (
    NamespaceDefaultsController,
    EndpointsController,
    EndpointSliceController,
    ReplicaSetController,
    DeploymentController,
    VolumeBinderController,
    NodeLifecycleController,
    NamespaceController,
    DisruptionController,
    PodAutoscalerController,
    GarbageCollector,
    EventTtlController,
)


async def run_controllers(
    client: ApiClient, settings: ControllerSettings, informers: SharedInformerFactory | None = None
) -> None:
    """Run every controller until cancelled.

    ``informers`` may be shared with other components of the process. These must request their
    informers
    before this call, which runs all of them.
    """
    informers = informers or SharedInformerFactory(client)
    async with EventRecorder(client, "controller-manager") as recorder:
        context = ControllerContext(client, informers, recorder, settings)
        loops = [loop(context) for loop in CONTROLLERS]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(informers.run())
            await informers.wait_for_sync()
            for loop in loops:
                tasks.create_task(_keep_running(loop), name=type(loop).__name__)


async def _keep_running(loop: ControllerLoop) -> None:
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
