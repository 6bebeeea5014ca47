"""The scheduling loop: watches the cluster, runs a cycle when something changes, applies the
result.

There is no period. A change sets a flag, and changes within a short interval share one cycle. The
next cycle runs while the last result is still being applied. Cycles take at most half of the time,
so that many changes cannot starve the other tasks of the process.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TypeVar

from gangline.api.meta import Object, ObjectMeta
from gangline.api.resource import Resource
from gangline.api.resources import QUEUES
from gangline.api.scheduling import DEFAULT_QUEUE, Queue, QueueSpec
from gangline.kube.client import Client
from gangline.kube.errors import AlreadyExists, KubeError, NotFound
from gangline.kube.events import EventRecorder
from gangline.kube.informer import Informer
from gangline.scheduler.announce import Announcer
from gangline.scheduler.bind import Binder
from gangline.scheduler.bind_volumes import VolumeBinder
from gangline.scheduler.decide import decide
from gangline.scheduler.evict import Evictor
from gangline.scheduler.feed import Feed
from gangline.scheduler.feed_attachments import AttachmentFeed
from gangline.scheduler.feed_capacity import CapacityFeed
from gangline.scheduler.metrics import BINDINGS, DECISION_TIME, WAITING
from gangline.scheduler.mistakes import MistakeReporter
from gangline.scheduler.model import Binding, GroupKey
from gangline.scheduler.node_report import NodeReporter
from gangline.scheduler.notebook import Notebook
from gangline.scheduler.queue_report import QueueReporter
from gangline.scheduler.report import Reporter
from gangline.scheduler.rush import Rush
from gangline.scheduler.settings import SchedulerSettings

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Object)

COALESCE_S = 0.002
"""Wait for further changes: the pods of one gang are created one after the other."""
QUEUE_RETRY_S = 5.0
OPTIONAL_KINDS_S = 3.0
"""How long the first cycle waits for pod groups and queues, which a cluster may not serve."""
COMPONENT = "gangline-scheduler"


class Scheduler:
    """Schedules the pods of one cluster until cancelled. An instance runs once."""

    def __init__(self, client: Client, settings: SchedulerSettings) -> None:
        self._client = client
        self._settings = settings
        self._policy = settings.policy
        self._changed = asyncio.Event()
        self._events = EventRecorder(client, COMPONENT)
        self._notebook = Notebook(client)
        self._feed = Feed(
            client,
            settings,
            self._changed.set,
            self._regrouped,
            time.time,
            self._look_again,
            self._notebook.found,
        )
        self._rush = Rush()
        self._reporter = Reporter(client, self._feed, self._events, settings, self._rush)
        MistakeReporter(self._feed, self._events)
        self._node_reporter = NodeReporter(self._feed.state, self._events)
        self._queue_reporter = QueueReporter(
            client, self._feed, self._events, settings.queue_status_every_s
        )

    async def run(self) -> None:
        """Watch, run cycles, and apply their results."""
        async with self._events, asyncio.TaskGroup() as tasks:
            feed = self._feed
            for informer in (*feed.required, *feed.optional, *feed.storage, *feed.additional):
                tasks.create_task(informer.run())
            attachments = AttachmentFeed(self._client, feed.state, self._changed.set)
            capacity = CapacityFeed(self._client, feed.state, self._changed.set)
            volumes = VolumeBinder(self._client, feed.state)
            feed.on_storage(volumes.changed)
            learning: tuple[asyncio.Task[object], ...] = (
                tasks.create_task(feed.learn_storage()),
                tasks.create_task(self._follow_if_known(tasks, attachments.informer)),
                tasks.create_task(self._follow_if_known(tasks, feed.quotas)),
                tasks.create_task(self._follow_capacity(tasks, capacity)),
            )
            tasks.create_task(self._reporter.controller.run())
            tasks.create_task(self._notebook.run())
            tasks.create_task(self._queue_reporter.controller.run())
            tasks.create_task(self._ensure_default_queue())
            binder = Binder(
                self._client,
                self._feed.state,
                tasks,
                at_once=self._settings.bindings_at_once,
                prepare=volumes.prepare,
                bound=lambda binding: self._bound(binding, announcer),
                released=self._changed.set,
                rush=self._rush,
            )
            announcer = Announcer(self._events, self._rush.resting, time.monotonic)
            tasks.create_task(announcer.run())
            evictor = Evictor(
                self._client,
                self._feed.state,
                tasks,
                evicted=self._reporter.evicted,
                refused=self._changed.set,
            )
            await self._synced(learning)
            # The cache is large and lives long. Without this the garbage collector traverses it
            # during a cycle, for longer than the cycle takes.
            gc.freeze()
            await self._decide_on_changes(binder, evictor)

    async def _synced(self, learning: Iterable[asyncio.Task[object]]) -> None:
        """Wait for the informers that a cycle needs; for optional kinds with a timeout.

        A member must not be placed alone because its group has not been read yet, nor be bound to a
        node whose storage is full.
        """
        for required in self._feed.required:
            await required.synced()
        with suppress(TimeoutError):
            async with asyncio.timeout(OPTIONAL_KINDS_S):
                for optional in self._feed.optional:
                    await optional.synced()
                await asyncio.wait(learning)

    async def _decide_on_changes(self, binder: Binder, evictor: Evictor) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(COALESCE_S)
            self._changed.clear()
            began = time.perf_counter()
            decision = decide(self._feed.state, time.time(), self._policy)
            state = self._feed.state
            state.promises = dict(decision.promises)
            state.lodgers.update(decision.lodgers)
            self._notebook.note(decision.promises, state.lodgers, state.groups)
            binder.bind(decision.bindings)
            evictor.evict(decision.evictions)
            self._reporter.take(decision)
            took = time.perf_counter() - began
            DECISION_TIME.observe(took)
            WAITING.set(len(self._feed.state.waiting))
            if decision.bindings:
                fields = {"pods": len(decision.bindings), "gangs": len(decision.placed)}
                log.info("placed", extra={**fields, "waiting": len(self._feed.state.waiting)})
            self._node_reporter.look()
            await asyncio.sleep(took)

    def _look_again(self, after_s: float) -> None:
        asyncio.get_running_loop().call_later(after_s + COALESCE_S, self._changed.set)

    def _regrouped(self, group: GroupKey) -> None:
        self._reporter.regrouped(group)
        facts = self._feed.state.groups.get(group)
        if facts is not None:
            self._queue_reporter.changed(facts.queue)

    def _bound(self, binding: Binding, announcer: Announcer) -> None:
        BINDINGS.inc()
        announcer.bound(binding)
        self._reporter.bound(binding)
        # The cache already assumes the node, so the watch will report no change.
        if binding.group is None:
            self._queue_reporter.changed(DEFAULT_QUEUE)
        else:
            self._regrouped(binding.group)

    async def _follow_capacity(self, tasks: asyncio.TaskGroup, capacity: CapacityFeed) -> None:
        """Run the informers of storage capacity. It is used only if all of its kinds are served."""
        drivers = await self._follow_if_known(tasks, capacity.drivers)
        if await self._follow_if_known(tasks, *capacity.versions) and drivers:
            capacity.learned()

    async def _follow_if_known(self, tasks: asyncio.TaskGroup, *versions: Informer[K]) -> bool:
        """Run the informer of the first version of a kind that the API server serves.

        Args:
            tasks: the task group that runs it.
            versions: informers of each version, the preferred one first.

        Returns:
            Whether one is served; its objects have been read then.
        """
        for informer in versions:
            if await self._is_known(informer.resource):
                tasks.create_task(informer.run())
                await informer.synced()
                return True
        return False

    async def _is_known(self, resource: Resource[K]) -> bool:
        path = f"/apis/{resource.api_version}" if resource.group else f"/api/{resource.version}"
        while True:
            try:
                known = await self._client.request_json("GET", path)
            except NotFound:
                return False
            except KubeError as error:
                log.debug("cannot discover kinds: %s", error)
                await asyncio.sleep(QUEUE_RETRY_S)
            else:
                return any(each["name"] == resource.plural for each in known["resources"])

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
