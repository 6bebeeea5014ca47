"""The scheduling loop: watches the cluster, runs a cycle when something changes, applies the
result.

There is no period. A change sets a flag, and changes within a short interval share one cycle. The
next cycle runs while the last result is still being applied. Cycles take at most half of the time,
and cycles that decide nothing a fifth, so that many changes cannot starve the other tasks of the
process: while thousands of evicted pods end, each of them causes a cycle.

``run`` starts it: alone (``gangline scheduler``) or inside a cluster (``gangline up``), and as the
leader of several copies where that is set. If Volcano's own scheduler runs in the cluster, pods
that name it are left to it.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from gangline.api.meta.objects import Object, ObjectMeta
from gangline.api.meta.resource import Resource
from gangline.api.resources import DEPLOYMENTS, LEASES, QUEUES
from gangline.api.volcano.scheduling import DEFAULT_QUEUE, Queue, QueueSpec
from gangline.kube.client.client import ApiClient
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.kube.controller.leader_election import LeaderElector
from gangline.kube.errors import AlreadyExists, ApiError, KubeError, NotFound, Unreachable
from gangline.kube.informers.informer import Informer
from gangline.kube.probes import Health, serve_probes
from gangline.kube.turns import without_garbage_collection
from gangline.scheduler.apply.binder import Binder, VolumeBinder
from gangline.scheduler.apply.claim_binder import DeviceClaimBinder
from gangline.scheduler.apply.evictor import Evictor, SavesBeforeEviction
from gangline.scheduler.apply.reservation_store import ReservationStore
from gangline.scheduler.apply.throttle import BindingsInFlight
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cycle.cycle import run_cycle
from gangline.scheduler.device_informers import DeviceInformers
from gangline.scheduler.informers import (
    CSINodeInformer,
    SchedulerInformers,
    StorageCapacityInformers,
)
from gangline.scheduler.metrics import (
    BINDINGS,
    CYCLE_DURATION,
    CYCLE_PHASES,
    GANG_WAIT,
    PENDING_PODS,
    START_DURATION,
    gang_size_class,
)
from gangline.scheduler.preemption.victims import ProtectedGangs
from gangline.scheduler.queueing.overcommit import next_deadline
from gangline.scheduler.reporting.queue_status import (
    QUEUE_METRICS,
    QueueStatusReporter,
    SchedulerSnapshot,
)
from gangline.scheduler.reporting.reporter import PendingReporter, ScheduledEventSender
from gangline.scheduler.reporting.start_forecasts import StartForecasts, forecast_in_process
from gangline.scheduler.reporting.warnings import NodeContradictionReporter, UnreadableFieldReporter
from gangline.scheduler.settings import SchedulerSettings
from gangline.scheduler.types import (
    CycleResult,
    GroupKey,
    PodBinding,
    PodInfo,
    Reservation,
)

log = logging.getLogger(__name__)
K = TypeVar("K", bound=Object)
COALESCE_S = 0.002
"""Wait for further changes: the pods of one gang are created one after the other."""
MAX_BACKLOG_S = 0.25
"""While more bindings wait than are sent at a time, a cycle is delayed by at most this time. It
could only lengthen their queue, and the event loop would serve no answers meanwhile.
"""
NODE_CHECK_S = 1.0
"""Delay of the comparison of the amounts of all nodes after a cycle. With thousands of nodes it
takes longer than a cycle without pending gangs.
"""
IDLE_REST, MAX_IDLE_REST_S = 4.0, 2.0
"""The pause after a cycle that has decided nothing: so many times its duration, up to a limit."""
QUEUE_RETRY_S = 5.0
OPTIONAL_KINDS_TIMEOUT_S = 3.0
"""How long the first cycle waits for pod groups and queues, which a cluster may not serve."""
COMPONENT = "gangline-scheduler"
VOLCANO = "volcano"
_NAMESPACE = "volcano-system"
_LABEL = "app=volcano-scheduler"
_LEASES = ("volcano", "vc-scheduler")
_LEASE_MAX_AGE = timedelta(minutes=1)
"""A lease that was renewed within this time belongs to a running scheduler."""


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


class SchedulerLoop:
    """Schedules the pods of one cluster until cancelled. An instance runs once."""

    def __init__(self, client: ApiClient, settings: SchedulerSettings) -> None:
        self._client = client
        self._settings = settings
        self._policy = settings.policy
        self._changed = asyncio.Event()
        self._events = EventRecorder(client, COMPONENT)
        self._reservation_store = ReservationStore(client)
        self._informers = SchedulerInformers(client, settings, self)
        self._start = StartReporter(self._informers)
        self._eviction_saves = SavesBeforeEviction(
            client, self._informers.groups, self._informers.state, settings.save_wait_s
        )
        self._bindings_in_flight = BindingsInFlight()
        self._reports_groups = False
        """True after the first cycle."""
        self._next_end = 0.0
        """Time for which a cycle is requested because a gang loses its protection."""
        self._result = CycleResult()
        """Of the last cycle."""
        self._node_check: asyncio.TimerHandle | None = None
        """The next comparison of the amounts of all nodes; None: nothing has changed since."""
        self._reporter = PendingReporter(
            client, self._informers, self._events, settings, self._bindings_in_flight
        )
        UnreadableFieldReporter(self._informers, self._events)
        self._node_reporter = NodeContradictionReporter(self._informers.state, self._events)
        self._queue_reporter = QueueStatusReporter(
            client, self._informers, self._events, settings.queue_status_interval_s
        )

    async def run(self) -> None:
        """Watch, run cycles, and apply their results."""
        async with self._events, asyncio.TaskGroup() as tasks:
            informers = self._informers
            for informer in (
                *informers.required,
                *informers.optional,
                *informers.storage,
                *informers.additional,
            ):
                tasks.create_task(informer.run())
            attachments = CSINodeInformer(self._client, informers.state, self.on_change)
            capacity = StorageCapacityInformers(self._client, informers.state, self.on_change)
            devices = DeviceInformers(self._client, informers.state, self.on_change)
            volumes = VolumeBinder(self._client, informers.state)
            device_claims = DeviceClaimBinder(
                self._client, informers.state, tasks, devices.configuration
            )
            informers.add_storage_listener(volumes.notify_changed)
            learning: tuple[asyncio.Task[object], ...] = (
                tasks.create_task(informers.wait_for_storage()),
                tasks.create_task(self._run_first_served(tasks, attachments.informer)),
                tasks.create_task(self._run_first_served(tasks, informers.quotas)),
                tasks.create_task(self._run_first_served(tasks, informers.kubernetes_groups)),
                tasks.create_task(self._run_capacity_informers(tasks, capacity)),
                tasks.create_task(self._run_device_informers(tasks, devices)),
            )
            tasks.create_task(self._reservation_store.run())
            tasks.create_task(self._eviction_saves.run())
            tasks.create_task(self._ensure_default_queue())

            async def prepare(gang: Sequence[PodBinding]) -> str:
                return await volumes.prepare(gang) or await device_claims.prepare(gang)

            binder = Binder(
                self._client,
                self._informers.state,
                tasks,
                at_once=self._settings.max_concurrent_bindings,
                prepare=prepare,
                give_back=device_claims.release,
                bound=lambda binding: self._on_bound(binding, announcer),
                released=self._on_refused,
                in_flight=self._bindings_in_flight,
            )
            announcer = ScheduledEventSender(
                self._events, self._bindings_in_flight.idle, time.monotonic, informers.pod_group
            )
            tasks.create_task(announcer.run())
            evictor = Evictor(
                self._client,
                self._informers.state,
                tasks,
                saves=self._eviction_saves,
                evicted=self._reporter.pod_evicted,
                refused=self.on_change,
            )
            with without_garbage_collection():
                await self._wait_for_sync(learning)
                # The cache is large and lives long. The garbage collector would traverse it now,
                # and later during a cycle, for longer than the cycle takes.
                gc.freeze()
            self._start.synced()
            tasks.create_task(self._queue_reporter.controller.run())
            if self._settings.forecast_interval_s:
                tasks.create_task(self._start_forecasts().run())
            self._changed.set()
            with QUEUE_METRICS.exported(self._snapshot):
                await self._run_cycles(binder, evictor, tasks)

    def _snapshot(self) -> SchedulerSnapshot:
        return SchedulerSnapshot(self._informers.state, self._result.pending_reasons)

    def _start_forecasts(self) -> StartForecasts:
        return StartForecasts(
            self._informers.state,
            self._reporter,
            self._bindings_in_flight,
            forecast_in_process(self._client, self._settings),
            self._settings.forecast_interval_s,
        )

    async def _wait_for_sync(self, learning: Iterable[asyncio.Task[object]]) -> None:
        """Wait for the informers that a cycle needs; for optional kinds with a timeout.

        A member must not be placed alone because its group has not been read yet, nor be bound to a
        node whose storage is full.
        """
        for required in self._informers.required:
            await required.wait_for_sync()
        with suppress(TimeoutError):
            async with asyncio.timeout(OPTIONAL_KINDS_TIMEOUT_S):
                for optional in self._informers.optional:
                    await optional.wait_for_answer()
                await asyncio.wait(learning)

    async def _run_cycles(self, binder: Binder, evictor: Evictor, tasks: asyncio.TaskGroup) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(COALESCE_S)
            await binder.wait_until_drained(MAX_BACKLOG_S)
            self._changed.clear()
            began = time.perf_counter()
            state, phases = self._informers.state, CyclePhaseTimer(began)
            now = time.time()
            result = self._result = run_cycle(state, now, self._policy, phases.ended)
            _observe_waits(state, result, now)
            state.admit(result.admitted, now)
            state.reservations = dict(result.reservations)
            self._reservation_store.store(result.reservations, state.groups)
            state.devices.assume(result.devices)
            binder.bind(result.bindings, result.volumes)
            self._eviction_saves.transfer(result)
            evictor.evict(result.evictions)
            self._eviction_saves.settle()
            self._reporter.set_result(result)
            self._bindings_in_flight.cycle_ended()
            phases.ended("apply")
            took = time.perf_counter() - began
            CYCLE_DURATION.observe(took)
            self._start.cycle_ended(took)
            if not self._reports_groups:
                self._start_reporting_groups(tasks)
            PENDING_PODS.set(len(self._informers.state.pending))
            if result.bindings:
                fields = {"pods": len(result.bindings), "gangs": len(result.placed)}
                log.info("placed", extra={**fields, "waiting": len(self._informers.state.pending)})
            if self._node_check is None:
                self._node_check = asyncio.get_running_loop().call_later(
                    NODE_CHECK_S, self._report_nodes
                )
            if result.pending_reasons:
                self._request_cycle_at_next_end()
            await asyncio.sleep(
                rest_after_cycle(took, has_decided=bool(result.bindings or result.evictions))
            )

    def _report_nodes(self) -> None:
        self._node_check = None
        self._node_reporter.report_changes()

    def _start_reporting_groups(self, tasks: asyncio.TaskGroup) -> None:
        """Write statuses from now on. Before the first cycle no gang is known to be pending."""
        self._reports_groups = True
        for group in self._informers.state.groups:
            self._reporter.group_changed(group)
        tasks.create_task(self._reporter.controller.run())

    def _request_cycle_at_next_end(self) -> None:
        """Run a cycle when a gang loses its protection or has waited too long: nothing else changes
        then.
        """
        now = time.time()
        state = self._informers.state
        ends = (
            ProtectedGangs(state, now).next_end(),
            next_deadline(state, self._policy.admission, now),
        )
        end = min((end for end in ends if end is not None), default=None)
        if end is not None and not now < self._next_end <= end:
            self._next_end = end
            self.request_cycle_after(end - now)

    def on_change(self) -> None:
        self._changed.set()
        self._bindings_in_flight.cycle_due()

    def _on_refused(self, pause_s: float) -> None:
        """The node of a refused pod is free now, and the pod may be tried after a pause."""
        self.on_change()
        self.request_cycle_after(pause_s)

    def request_cycle_after(self, delay_s: float) -> None:
        asyncio.get_running_loop().call_later(delay_s + COALESCE_S, self._changed.set)

    def on_reservation_found(self, group: GroupKey, reservation: Reservation) -> None:
        self._reservation_store.add_stored(group, reservation)

    def on_group_changed(self, group: GroupKey) -> None:
        if not self._reports_groups:
            return
        self._reporter.group_changed(group)
        facts = self._informers.state.groups.get(group)
        if facts is not None:
            self._queue_reporter.queue_changed(facts.queue)

    def _on_bound(self, binding: PodBinding, announcer: ScheduledEventSender) -> None:
        BINDINGS.inc()
        announcer.add_binding(binding)
        self._reporter.pod_bound(binding)
        # The cache already assumes the node, so the watch will report no change.
        if binding.group is None:
            self._queue_reporter.queue_changed(DEFAULT_QUEUE)
        else:
            self.on_group_changed(binding.group)

    async def _run_capacity_informers(
        self, tasks: asyncio.TaskGroup, capacity: StorageCapacityInformers
    ) -> None:
        """Run the informers of storage capacity. It is used only if all of its kinds are served."""
        drivers = await self._run_first_served(tasks, capacity.drivers)
        if await self._run_first_served(tasks, *capacity.versions) and drivers:
            capacity.start_using()

    async def _run_device_informers(
        self, tasks: asyncio.TaskGroup, devices: DeviceInformers
    ) -> None:
        """Run the informers of devices. Of their kinds only taint rules need not be served."""
        await self._run_first_served(tasks, *devices.taint_rules)
        served = [
            await self._run_first_served(tasks, devices.classes),
            await self._run_first_served(tasks, devices.slices),
            await self._run_first_served(tasks, devices.claims),
        ]
        if all(served):
            devices.start_using()

    async def _run_first_served(self, tasks: asyncio.TaskGroup, *versions: Informer[K]) -> bool:
        """Run the informer of the first version of a kind that the API server serves.

        Args:
            versions: informers of each version, the preferred one first.

        Returns:
            Whether one is served; its objects have been read then.
        """
        for informer in versions:
            if await self._is_served(informer.resource):
                tasks.create_task(informer.run())
                await informer.wait_for_sync()
                return True
        return False

    async def _is_served(self, resource: Resource[K]) -> bool:
        path = f"/apis/{resource.api_version}" if resource.group else f"/api/{resource.version}"
        while True:
            try:
                discovery = await self._client.request_json("GET", path)
            except NotFound:
                return False
            except KubeError as error:
                log.debug("cannot discover kinds: %s", error)
                await asyncio.sleep(QUEUE_RETRY_S)
            else:
                return any(kind["name"] == resource.plural for kind in discovery["resources"])

    async def _ensure_default_queue(self) -> None:
        """Create the default queue if it does not exist; retry while the kind is not served."""
        queue = Queue(metadata=ObjectMeta(name=DEFAULT_QUEUE), spec=QueueSpec(weight=1))
        while True:
            try:
                await self._client.create(QUEUES, queue)
            except AlreadyExists:
                return
            except KubeError as error:
                log.debug("no default queue yet: %s", error)
                await asyncio.sleep(QUEUE_RETRY_S)
            else:
                return


def rest_after_cycle(took_s: float, *, has_decided: bool) -> float:
    """Return the pause after a cycle, in seconds.

    Args:
        took_s: its duration.
        has_decided: it has bound or evicted pods, so that the next one may go on with that.
    """
    return took_s if has_decided else max(took_s, min(IDLE_REST * took_s, MAX_IDLE_REST_S))


class StartReporter:
    """Measures the time from its creation to the end of the first cycle.

    The phases of the list of pods are ``list`` (waiting for the server), ``decode`` and ``cache``.
    ``sync`` is the time until all kinds had been read, and includes them.
    """

    def __init__(self, informers: SchedulerInformers) -> None:
        self._informers = informers
        self._began = time.perf_counter()
        self._sync_s: float | None = None
        self._reported = False

    def synced(self) -> None:
        """Note that everything has been read."""
        self._sync_s = time.perf_counter() - self._began

    def cycle_ended(self, took_s: float) -> None:
        """Report the phases after the first cycle; later ones are ignored."""
        if self._reported or self._sync_s is None:
            return
        self._reported = True
        phases = {"sync": self._sync_s, "first_cycle": took_s}
        fields: dict[str, object] = {"pods": len(self._informers.pods)}
        for times in self._informers.pods.list_times:
            phases |= {"list": times.list_s, "decode": times.decode_s, "cache": times.cache_s}
            fields["protobuf"] = times.is_protobuf
        for phase, duration_s in phases.items():
            START_DURATION.labels(phase).set(duration_s)
            fields[f"{phase}_s"] = round(duration_s, 3)
        log.info("started", extra=fields)


class CyclePhaseTimer:
    """Observes the duration of the phases of one cycle."""

    def __init__(self, began: float) -> None:
        self._since = began

    def ended(self, phase: str) -> None:
        """Observe a phase; the next one begins."""
        now = time.perf_counter()
        CYCLE_PHASES.labels(phase).observe(now - self._since)
        self._since = now


def _observe_waits(state: SchedulerCache, result: CycleResult, now: float) -> None:
    """Observe how long the gangs that now have their nodes were pending."""
    gangs: dict[str, list[PodInfo]] = {}
    for binding in result.bindings:
        pod = state.pods.get(binding.pod)
        if pod is not None:
            gangs.setdefault(binding.group or binding.pod, []).append(pod)
    for pods in gangs.values():
        oldest = min(pod.created for pod in pods)
        GANG_WAIT.labels(gang_size_class(len(pods))).observe(max(0.0, now - oldest.timestamp()))


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


async def without_volcano_name(client: ApiClient, settings: SchedulerSettings) -> SchedulerSettings:
    """Return the settings without the scheduler name ``volcano`` if Volcano itself serves it."""
    if VOLCANO not in settings.scheduler_names:
        return settings
    volcano = await _find_volcano_deployment(client) or await _find_volcano_lease(client)
    if not volcano:
        return settings
    log.warning(
        "Volcano's scheduler runs here (%s): pods with schedulerName volcano are left to it",
        volcano,
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
    for deployment in deployments:
        if deployment.spec.replicas != 0:
            return f"deployment {deployment.metadata.namespace}/{deployment.metadata.name}"
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
