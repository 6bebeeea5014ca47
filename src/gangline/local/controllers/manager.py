"""Runs all controllers on one set of informers, as kube-controller-manager does."""

import asyncio

from gangline.kube.client.client import ApiClient
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.kube.informers.informer import SharedInformerFactory
from gangline.local.controllers.context import (
    ControllerContext,
    ControllerSettings,
    QueueLoop,
    shared_informers,
)
from gangline.local.controllers.deployments.controller import DeploymentController
from gangline.local.controllers.device_taints import DeviceTaintController
from gangline.local.controllers.disruption import DisruptionController
from gangline.local.controllers.endpoints import EndpointsController
from gangline.local.controllers.ephemeral_volumes import EphemeralVolumeController
from gangline.local.controllers.garbage_collector import GarbageCollector
from gangline.local.controllers.jobs.controller import JobController
from gangline.local.controllers.namespaces import NamespaceController, NamespaceDefaultsController
from gangline.local.controllers.node_lifecycle import NodeLifecycleController
from gangline.local.controllers.pod_autoscaler import PodAutoscalerController
from gangline.local.controllers.replica_sets.controller import ReplicaSetController
from gangline.local.controllers.resource_claims import ResourceClaimController
from gangline.local.controllers.token_secrets import TokenSecretController
from gangline.local.controllers.volume_binder import VolumeBinderController
from gangline.local.supervision import keep_running

CONTROLLERS: tuple[type[QueueLoop], ...] = (
    NamespaceDefaultsController,
    TokenSecretController,
    EndpointsController,
    ReplicaSetController,
    DeploymentController,
    JobController,
    EphemeralVolumeController,
    VolumeBinderController,
    ResourceClaimController,
    DeviceTaintController,
    NodeLifecycleController,
    NamespaceController,
    DisruptionController,
    PodAutoscalerController,
    GarbageCollector,
)


async def run_controllers(
    client: ApiClient, settings: ControllerSettings, informers: SharedInformerFactory | None = None
) -> None:
    """Run every controller until cancelled.

    ``informers`` may be shared with other components of the process. These must request their
    informers before this call, which runs all of them.
    """
    informers = informers or shared_informers(client)
    async with EventRecorder(client, "controller-manager") as recorder:
        context = ControllerContext(client, informers, recorder, settings)
        loops = [loop(context) for loop in CONTROLLERS]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(informers.run())
            await informers.wait_for_sync()
            for loop in loops:
                tasks.create_task(keep_running(type(loop).__name__, loop.run))
