"""The Brain as a component: the history, the records, the watches, the evaluation, the HTTP API.

``gangline brain`` and ``gangline up`` both call ``run``, the second without evaluation unless
``--brain`` is given. Several copies may run: the leader evaluates and writes, the others serve the
history and take over within seconds.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

from gangline.api.brain.job_advice import LEASE_NAME, RECORD_LEASE_NAME
from gangline.api.core.core import ConfigMap
from gangline.api.resources import CONFIG_MAPS, NAMESPACES
from gangline.brain.collection.collector import Collector
from gangline.brain.collection.job_digest import DigestSettings
from gangline.brain.collection.policy_config import PolicyWatch
from gangline.brain.evaluation.advisers import ManifestAdviser
from gangline.brain.evaluation.evaluator import Evaluator
from gangline.brain.evaluation.history import FactFlow, JobHistory
from gangline.brain.publication import Publisher
from gangline.brain.record.recorder import Recorder
from gangline.brain.server import BrainApi, serve_api
from gangline.brain.settings import BadSettings, BrainSettings
from gangline.brain.store.deletion import RetentionSettings
from gangline.brain.store.engine import Store, open_store
from gangline.brain.store.errors import StoreError
from gangline.kube.client.client import ApiClient
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.kube.controller.leader_election import LeaderElector
from gangline.kube.errors import AlreadyExists, ApiError
from gangline.kube.probes import Address, Health, serve_probes
from gangline.kube.turns import run_until, without_garbage_collection
from gangline.sdk.advice import BRAIN_CONFIG_MAP

log = logging.getLogger(__name__)

T = TypeVar("T")

COMPONENT = "gangline-brain"
RETRY_S = 2.0
FLUSH_S = 5.0
PROBE_S = 2.0


async def run(
    client: ApiClient, settings: BrainSettings, stop: asyncio.Event, health: Health | None = None
) -> None:
    """Run the Brain until ``stop`` is set.

    Raises:
        BadSettings: the database is wrong, or an address cannot be served.
    """
    health = health or Health()
    try:
        store = await asyncio.to_thread(
            open_store,
            settings.database,
            migrate=settings.migrate,
            digest_names=settings.digest_names,
            wait_for_server=True,
        )
    except StoreError as error:
        raise BadSettings(f"--database: {error}") from error
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(store)
        health.extra_checks.append(lambda: store.healthy)
        await stack.enter_async_context(
            serve_probes(settings.metrics_address, settings.health_address, health)
        )
        try:
            await run_until(stop, _serve(client, settings, store, health))
        finally:
            try:
                async with asyncio.timeout(FLUSH_S):
                    await store.flush()
            except (StoreError, TimeoutError) as error:
                log.warning("facts of the last seconds are not stored: %s", error)


async def _serve(client: ApiClient, settings: BrainSettings, store: Store, health: Health) -> None:
    # The uid of the namespace kube-system, which no two clusters share.
    system = await _retried(
        "cannot identify the cluster", lambda: client.get(NAMESPACES, "kube-system"), ApiError
    )
    cluster = system.metadata.uid
    # The key of the digests is in the database.
    await _retried(
        "waiting for the database",
        lambda: store.query(lambda reader: reader.running_jobs("", 1)),
        StoreError,
    )
    api = BrainApi(client, store, cluster)
    port = 0
    async with AsyncExitStack() as stack:
        if (address := settings.api_address) is not None:
            served = serve_api(api, address, settings.tls_certificate, settings.tls_key)
            port = await stack.enter_async_context(served)
            log.info("serving the history", extra={"port": port})
            health.ports["/v1"] = port

        elector = LeaderElector(
            client,
            # Beside the recorder of an embedded cluster, a Brain of its user's own leads too.
            LEASE_NAME if settings.advises else RECORD_LEASE_NAME,
            settings.leader_election_namespace,
            settings.identity,
            timing=settings.leader_election_timing,
        )
        # A standby copy is ready: it serves the history, and a rollout must not wait for the lease.
        health.ready = True
        async with asyncio.TaskGroup() as tasks:
            publishing = tasks.create_task(_publish(client, settings, store, port))
            await elector.run(_Leadership(client, settings, store, api, cluster, elector).run)
            publishing.cancel()


class _Leadership(NamedTuple):
    """What a Brain does while it has the lease."""

    client: ApiClient
    settings: BrainSettings
    store: Store
    api: BrainApi
    cluster: str
    elector: LeaderElector

    async def run(self) -> None:
        client, settings, store, api, cluster, _ = self
        digest = DigestSettings(cluster, store.digest)
        times = settings.usage_s, settings.segment_s
        collector = Collector(client, digest, settings.namespaces, *times)
        days, most_bytes = settings.record_days, settings.record_bytes
        retention = RetentionSettings(records_days=days, records_bytes=most_bytes)
        history = JobHistory(store, cluster, retention)
        await history.lead(settings.identity)
        watched = [job.uid for job in await history.known_jobs()]
        async with asyncio.TaskGroup() as tasks:
            if settings.digest_names:
                log.info("records of jobs are not written: they would show names")
            else:
                folders = settings.reads_folders
                recorder = Recorder(client, collector, store, cluster, reads_folders=folders)
                tasks.create_task(recorder.run())
                api.current_record = recorder.current
            tasks.create_task(collector.run(watched))
            with without_garbage_collection():
                await collector.synced()
                # What was observed lives long: each traversal would hold up the event loop.
                gc.freeze()
            if collector.has_all_kinds and not settings.namespaces:
                await history.end_vanished(collector.jobs.keys(), round(time.time() * 1000))
            api.receive_facts = collector.receive_facts
            try:
                if settings.advises:
                    api.manifest_adviser = ManifestAdviser(collector, history, digest)
                    await self._advise(collector, history)
                else:
                    facts = FactFlow(collector, history, client.transport.clock_skew_s)
                    while True:
                        await facts.store()
                        await facts.prune()
                        await asyncio.sleep(settings.cycle_s)
            finally:
                api.receive_facts = api.manifest_adviser = api.current_record = None
                gc.unfreeze()

    async def _advise(self, collector: Collector, history: JobHistory) -> None:
        """Evaluate jobs until cancelled."""
        client, settings = self.client, self.settings
        async with EventRecorder(client, COMPONENT) as events, asyncio.TaskGroup() as tasks:
            publisher = Publisher(client, events)
            policies = PolicyWatch(client, settings.policy_namespace, events)
            evaluator = Evaluator(
                client,
                collector,
                history,
                policies,
                publisher,
                events,
                dry_run=settings.dry_run,
                growth_check=settings.growth_check and partial(settings.growth_check, client),
                is_leader=lambda: self.elector.is_leader and self.elector.may_write,
            )
            for informer in (publisher.stored, policies.informer):
                tasks.create_task(informer.run())
                await informer.wait_for_sync()
            await evaluator.run(settings.cycle_s)


async def _publish(client: ApiClient, settings: BrainSettings, store: Store, port: int) -> None:
    """Write the address of the HTTP API where commands find it, and what happened to the history.

    A damaged database is reported when it is found, as an event and for ``gangline doctor``. One
    that only records leaves the address to a Brain that answers, and takes it when that has ended.
    """
    address, data = settings.api_address, dict[str, str]()
    if address is not None:
        scheme = "https" if settings.tls_certificate else "http"
        data["url"] = f"{scheme}://{Address(address.host, port)}"
    namespace = settings.leader_election_namespace
    reported = None if data else ""
    async with EventRecorder(client, COMPONENT) as events:
        while True:
            damage = store.damage
            own = data.get("url", "")
            if not settings.advises and await _another_answers(client, namespace, own):
                reported = None
            elif damage != reported:
                stored = await _write_config_map(client, namespace, data | {"problem": damage})
                if stored is not None:
                    reported = damage
                    if damage:
                        events.event(stored, "Warning", "HistoryDamaged", damage)
            await asyncio.sleep(FLUSH_S)


async def _another_answers(client: ApiClient, namespace: str, own: str) -> bool:
    """Return True if another process serves at the published address."""
    try:
        published = (await client.get(CONFIG_MAPS, BRAIN_CONFIG_MAP, namespace)).data.get("url", "")
        parts = urlsplit(published)
        if not published or published == own or not parts.port:
            return False
        async with asyncio.timeout(PROBE_S):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.close()
    except (ApiError, OSError, TimeoutError, ValueError):
        return False
    return True


async def _write_config_map(
    client: ApiClient, namespace: str, data: dict[str, str]
) -> ConfigMap | None:
    body = {"metadata": {"name": BRAIN_CONFIG_MAP}, "data": data}
    try:
        try:
            return await client.create(
                CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", **body}, namespace
            )
        except AlreadyExists:
            return await client.patch(CONFIG_MAPS, BRAIN_CONFIG_MAP, {"data": data}, namespace)
    except ApiError as error:
        log.info("commands need --brain: the address cannot be published: %s", error)
        return None


async def _retried(
    what: str, ask: Callable[[], Awaitable[T]], *errors: type[ApiError] | type[StoreError]
) -> T:
    """Return the first answer."""
    while True:
        try:
            return await ask()
        except errors as error:
            log.warning("%s: %s", what, error)
            await asyncio.sleep(RETRY_S)
