"""The operator as a component: assembles all parts and runs them until stopped.

``gangline operator`` and ``gangline up`` both call ``run``. It starts on a cluster that lacks some
of the kinds: jobs of a kind are reconciled as soon as its CRD exists, and pod groups are created as
soon as the cluster supports them.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any

from gangline.api.resources import POD_GROUPS
from gangline.kube.client import Client
from gangline.kube.controller import Controller
from gangline.kube.errors import ApiError, NotFound
from gangline.kube.events import EventRecorder
from gangline.kube.leader import LeaderElector
from gangline.kube.probes import Health, serve
from gangline.operator.adopter import Adopter
from gangline.operator.cache import Cache, JobKey
from gangline.operator.decision import EngineSettings
from gangline.operator.frameworks.base import Framework
from gangline.operator.frameworks.elastic import KIND as ELASTIC_KIND
from gangline.operator.frameworks.elastic import Elastic
from gangline.operator.frameworks.jax import Jax
from gangline.operator.frameworks.mindspore import MindSpore
from gangline.operator.frameworks.mpi import MPI
from gangline.operator.frameworks.paddle import Paddle
from gangline.operator.frameworks.pytorch import PyTorch
from gangline.operator.frameworks.tensorflow import TensorFlow
from gangline.operator.frameworks.xgboost import XGBoost
from gangline.operator.hands import Hands
from gangline.operator.scaleplan_runner import ScalePlanRunner
from gangline.operator.settings import GangScheduling, OperatorSettings
from gangline.operator.shell import Reconciler
from gangline.operator.webhook.component import admission

log = logging.getLogger(__name__)

COMPONENT = "gangline-operator"
LOOK_FOR_GROUPS_S = 30.0
ASK_AGAIN_S = 1.0


def frameworks(settings: OperatorSettings) -> list[Framework]:
    return [
        PyTorch(settings.init_image),
        TensorFlow(settings.cluster_domain),
        Jax(),
        XGBoost(),
        MPI(settings.mpi_kubectl_image),
        MindSpore(),
        Paddle(settings.paddle_init_image, settings.paddle_etcd_server),
        Elastic(settings.elastic_master_image),
    ]


def chosen(settings: OperatorSettings) -> list[Framework]:
    every = frameworks(settings)
    return [each for each in every if not settings.kinds or each.kind.kind in settings.kinds]


async def run(
    client: Client,
    settings: OperatorSettings,
    stop: asyncio.Event,
    health: Health | None = None,
) -> None:
    """Run the operator until ``stop`` is set; report its state to ``health``.

    Raises:
        ConfigError: metrics or health cannot be served at their address.
    """
    health = health or Health()
    async with (
        serve(settings.metrics_address, settings.health_address, health),
        admission(client, settings.webhook, chosen(settings)) as webhook,
    ):
        if health.ports:
            log.info("serving", extra={"ports": health.ports})
        if webhook is not None:
            health.further.append(lambda: webhook.server.is_serving)
        await _until(stop, _elected(client, settings, health))


async def _elected(client: Client, settings: OperatorSettings, health: Health) -> None:
    async def lead() -> None:
        await _work(client, settings, health)

    if not settings.leader_election:
        return await lead()
    elector = LeaderElector(
        client,
        settings.leader_election_name,
        settings.leader_election_namespace,
        settings.identity,
        timing=settings.leader_election_timing,
    )
    # A standby replica is ready: a rollout that waits for it must not wait for the lease.
    health.ready = True
    await elector.run(lead)


async def _work(client: Client, settings: OperatorSettings, health: Health) -> None:
    """Run the engine; restart it when the cluster starts to support pod groups."""
    while True:
        enabled = settings.gang_scheduling != GangScheduling.OFF
        with_groups = enabled and await _has_groups(client)
        log.info("operator starts", extra={"gang_scheduling": with_groups})
        appeared = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            if enabled and not with_groups:
                tasks.create_task(_look_for_groups(client, appeared))
            tasks.create_task(
                _until(appeared, _engine(client, settings, health, with_groups=with_groups))
            )


async def _engine(
    client: Client, settings: OperatorSettings, health: Health, *, with_groups: bool
) -> None:
    engine = EngineSettings(
        gang=with_groups,
        scheduler_name=settings.scheduler_name,
        force_delete_after=settings.force_delete_after,
    )
    cache = Cache(client, chosen(settings), settings.namespaces, with_groups=with_groups)
    executor = Hands(client, cache, settings.writes_in_flight)
    async with EventRecorder(client, COMPONENT) as events, asyncio.TaskGroup() as tasks:
        reconciler = Reconciler(client, cache, executor, events, engine)
        controller: Controller[JobKey] = Controller(
            "jobs",
            reconciler.reconcile,
            workers=settings.workers,
            describe=partial(describe, cache),
        )
        adopter = Adopter(client, cache, settings.namespaces, gangs=with_groups)
        listeners: list[Callable[[JobKey], None]] = [controller.queue.add]
        if ELASTIC_KIND.kind in cache.frameworks:
            runner = ScalePlanRunner(client, cache, events, settings.namespaces)
            listeners.append(runner.heard)
            tasks.create_task(runner.run())
        cache.on_change(lambda key: _tell(listeners, key))
        tasks.create_task(cache.run())
        tasks.create_task(adopter.run())
        tasks.create_task(_resync(cache, controller.queue.add, settings.resync_s))
        # Order: a pass over a job whose pods lack our labels would create its pods again.
        await cache.synced()
        await adopter.take_over()
        health.ready = True
        await controller.run()


def _tell(listeners: Iterable[Callable[[JobKey], None]], key: JobKey) -> None:
    for listener in listeners:
        listener(key)


def describe(cache: Cache, key: JobKey) -> Mapping[str, object]:
    job = cache.jobs[key.kind].get(key.namespace, key.name)
    uid = job.metadata.uid if job else ""
    return {"job_kind": key.kind, "job": f"{key.namespace}/{key.name}", "job_uid": uid}


async def _resync(cache: Cache, look_at: Callable[[JobKey], None], every_s: float | None) -> None:
    """Enqueue every job periodically, in case a watch missed a change."""
    while every_s is not None:
        await asyncio.sleep(every_s)
        for kind, jobs in cache.jobs.items():
            for job in jobs.items():
                look_at(JobKey(kind, job.metadata.namespace, job.metadata.name))


async def _look_for_groups(client: Client, appeared: asyncio.Event) -> None:
    while True:
        if await _has_groups(client):
            return appeared.set()
        await asyncio.sleep(LOOK_FOR_GROUPS_S)


async def _has_groups(client: Client) -> bool:
    """Return whether the cluster supports pod groups; retry until the API server responds."""
    while True:
        try:
            found = await client.request_json("GET", POD_GROUPS.prefix)
        except NotFound:
            return False
        except ApiError as error:
            log.warning("cannot discover pod groups: %s", error)
            await asyncio.sleep(ASK_AGAIN_S)
            continue
        kinds = found.get("resources", []) if isinstance(found, dict) else []
        return any(kind.get("name") == POD_GROUPS.plural for kind in kinds)


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` until it ends or ``stop`` is set."""
    task = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        stopping.cancel()
        task.cancel()
        await asyncio.gather(stopping, task, return_exceptions=True)
