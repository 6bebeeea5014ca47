"""The operator as a component: assembles all parts and runs them until stopped.

``gangline operator`` and ``gangline up`` both call ``run``. It starts on a cluster that lacks some
of the kinds: jobs of a kind are reconciled as soon as its CRD exists, and pod groups are created as
soon as the cluster supports them.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

from gangline.api.job_resources import ELASTIC_JOBS, JOB_KINDS
from gangline.api.jobs.kind import JobKind
from gangline.api.meta.resource import Resource
from gangline.api.resources import KUBERNETES_POD_GROUPS, POD_GROUPS
from gangline.kube.client.client import ApiClient
from gangline.kube.controller.controller import Controller
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.kube.controller.leader_election import LeaderElector
from gangline.kube.errors import ApiError, NotFound
from gangline.kube.probes import Health, serve_probes
from gangline.kube.turns import run_until
from gangline.operator.adoption_controller import AdoptionController
from gangline.operator.engine.apply import PlanExecutor
from gangline.operator.engine.controller import JobReconciler
from gangline.operator.engine.observe import ClusterCache, JobKey
from gangline.operator.model.framework import Framework
from gangline.operator.model.plan import EngineSettings
from gangline.operator.scaleplan.controller import ScalePlanController
from gangline.operator.settings import GangScheduling, OperatorSettings, PodGroupKind
from gangline.operator.webhook.component import RunningWebhook, run_webhook

log = logging.getLogger(__name__)

COMPONENT = "gangline-operator"
LOOK_FOR_GROUPS_S = 30.0
MISSING_GROUPS_S = 2.0
MISSING_GROUPS_CHECKS = 3
"""The number of checks, MISSING_GROUPS_S apart, after which the cluster lacks pod groups."""
DISCOVERY_RETRY_S = 1.0


def all_frameworks(settings: OperatorSettings) -> list[Framework]:
    return [_create_framework(entry, settings) for entry in JOB_KINDS]


def _create_framework(entry: JobKind, settings: OperatorSettings) -> Framework:
    name = f"gangline.operator.frameworks.{entry.module}"
    module: Any = import_module(name)
    if hasattr(module, "__path__"):  # a kind that is a package
        module = import_module(f"{name}.framework")
    framework: Framework = module.create_framework(settings)
    return framework


def enabled_frameworks(settings: OperatorSettings) -> list[Framework]:
    frameworks, kinds = all_frameworks(settings), settings.kinds
    return [framework for framework in frameworks if not kinds or framework.kind.identity in kinds]


async def run(
    client: ApiClient,
    settings: OperatorSettings,
    stop: asyncio.Event,
    health: Health | None = None,
) -> None:
    """Run the operator until ``stop`` is set; report its state to ``health``. Raises ConfigError:
    metrics or health cannot be served at their address.
    """
    health = health or Health()
    async with (
        serve_probes(settings.metrics_address, settings.health_address, health),
        run_webhook(client, settings.webhook, enabled_frameworks(settings)) as webhook,
    ):
        if health.ports:
            log.info("serving", extra={"ports": health.ports})
        if webhook is not None:
            health.extra_checks.append(lambda: webhook.server.is_serving)
        await run_until(stop, _run_elected(client, settings, health, webhook))


async def _run_elected(
    client: ApiClient,
    settings: OperatorSettings,
    health: Health,
    webhook: RunningWebhook | None,
) -> None:
    lead = partial(_run_engine_for_groups, client, settings, health, webhook)
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


async def _run_engine_for_groups(
    client: ApiClient,
    settings: OperatorSettings,
    health: Health,
    webhook: RunningWebhook | None,
) -> None:
    """Run the engine; restart it when the cluster starts or ceases to support pod groups.

    Without them no gang is scheduled, but running jobs still get replacements.
    """
    while True:
        enabled = settings.gang_scheduling != GangScheduling.OFF
        resource = group_resource(settings)
        with_groups = enabled and await _supports_pod_groups(client, resource)
        fields = {"gang_scheduling": with_groups, "pod_groups": settings.pod_groups}
        log.info("operator starts", extra=fields)
        changed, check = asyncio.Event(), asyncio.Event()
        engine = _run_engine(
            client, settings, health, webhook, with_groups=with_groups, refused=check.set
        )
        async with asyncio.TaskGroup() as tasks:
            if enabled:
                tasks.create_task(_wait_for_change(client, resource, with_groups, check, changed))
            tasks.create_task(run_until(changed, engine))


async def _run_engine(
    client: ApiClient,
    settings: OperatorSettings,
    health: Health,
    webhook: RunningWebhook | None,
    *,
    with_groups: bool,
    refused: Callable[[], None],
) -> None:
    """Run the engine; call ``refused`` when the API server does not know pod groups."""
    engine = EngineSettings(
        gang_scheduling=with_groups,
        kubernetes_groups=settings.pod_groups is PodGroupKind.KUBERNETES,
        scheduler_name=settings.scheduler_name,
        force_delete_after=settings.force_delete_after,
        progress_url=webhook.progress_url if webhook else "",
    )
    authorities = webhook.authorities if webhook and webhook.progress_url else None
    cache = ClusterCache(
        client,
        enabled_frameworks(settings),
        settings.namespaces,
        with_groups=with_groups,
        group_resource=group_resource(settings),
    )
    executor = PlanExecutor(client, cache, settings.writes_in_flight, refused)
    async with EventRecorder(client, COMPONENT) as events, asyncio.TaskGroup() as tasks:
        reconciler = JobReconciler(client, cache, executor, events, engine, authorities=authorities)
        controller: Controller[JobKey] = Controller(
            "jobs",
            reconciler.reconcile,
            workers=settings.workers,
            on_error=reconciler.report_error,
            describe=partial(log_fields, cache),
        )
        # The group of a pod that exists cannot be set in its specification.
        joins = with_groups and not engine.kubernetes_groups
        adopter = AdoptionController(client, cache, settings.namespaces, gangs=joins)
        listeners: list[Callable[[JobKey], None]] = [controller.queue.add]
        if any(framework.kind.resource is ELASTIC_JOBS for framework in cache.frameworks.values()):
            runner = ScalePlanController(client, cache, events, settings.namespaces)
            listeners.append(runner.job_changed)
            tasks.create_task(runner.run())

        def notify(key: JobKey) -> None:
            for listener in listeners:
                listener(key)

        cache.add_job_listener(notify)
        tasks.create_task(cache.run())
        tasks.create_task(adopter.run())
        tasks.create_task(_resync(cache, controller.queue.add, settings.resync_s))
        # Order: a pass over a job whose pods lack our labels would create its pods again.
        await cache.synced()
        await adopter.adopt_existing()
        if authorities is not None:
            await authorities.wait_until_ready()
            tasks.create_task(authorities.run(cache.namespaces_with_jobs))
        health.ready = True
        await controller.run()


def log_fields(cache: ClusterCache, key: JobKey) -> Mapping[str, object]:
    job = cache.jobs[key.kind].get(key.namespace, key.name)
    uid = job.metadata.uid if job else ""
    return {"job_kind": key.kind, "job": f"{key.namespace}/{key.name}", "job_uid": uid}


async def _resync(
    cache: ClusterCache, enqueue: Callable[[JobKey], None], every_s: float | None
) -> None:
    """Enqueue every job periodically, in case a watch missed a change."""
    while every_s is not None:
        await asyncio.sleep(every_s)
        for kind, jobs in cache.jobs.items():
            for job in jobs.items():
                enqueue(JobKey(kind, job.metadata.namespace, job.metadata.name))


async def _wait_for_change(
    client: ApiClient,
    resource: Resource[Any],
    with_groups: bool,
    check: asyncio.Event,
    changed: asyncio.Event,
) -> None:
    """Set ``changed`` when the support for pod groups changes; ``check`` starts a check early."""
    missing = 0
    while True:
        check.clear()
        supported = await _supports_pod_groups(client, resource)
        # An API server that has just started may not serve its custom resources yet.
        missing = missing + 1 if with_groups and not supported else 0
        if (supported and not with_groups) or missing >= MISSING_GROUPS_CHECKS:
            return changed.set()
        if missing:
            await asyncio.sleep(MISSING_GROUPS_S)
            continue
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_FOR_GROUPS_S):
                await check.wait()


def group_resource(settings: OperatorSettings) -> Resource[Any]:
    """Return the kind of the pod groups that jobs get."""
    is_kubernetes = settings.pod_groups is PodGroupKind.KUBERNETES
    return KUBERNETES_POD_GROUPS if is_kubernetes else POD_GROUPS


async def _supports_pod_groups(client: ApiClient, resource: Resource[Any]) -> bool:
    """Return whether the cluster supports pod groups; retry until the API server responds."""
    while True:
        try:
            group_version = await client.request_json("GET", resource.prefix)
        except NotFound:
            return False
        except ApiError as error:
            log.warning("cannot discover pod groups: %s", error)
            await asyncio.sleep(DISCOVERY_RETRY_S)
            continue
        kinds = group_version.get("resources", []) if isinstance(group_version, dict) else []
        return any(kind.get("name") == resource.plural for kind in kinds)
