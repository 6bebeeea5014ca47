"""Keeps the observed cluster current: one list and watch per kind, however many viewers there are.

Kinds that the cluster does not have, or that the server may not read, are left out. While the API
server is away, the pages show the last state and say since when it is not current. When it answers
again, all watches are opened immediately: each by itself would wait for up to half a minute.
"""

import asyncio
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from gangline.api.brain.job_advice import OWNER_ANNOTATION
from gangline.api.resources import EVENTS, HYPERNODES, NODES, POD_GROUPS, QUEUES
from gangline.dashboard.observed import (
    WATCHED_PODS,
    ClusterSnapshot,
    SourceState,
    watched_resource,
)
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import (
    ApiError,
    ConfigError,
    Forbidden,
    NotFound,
    ServerTimeout,
    Unreachable,
)
from gangline.kube.informers.informer import Informer
from gangline.sdk.kinds import JOB_KINDS

_CHECK_S = 0.5
"""How often the states of the copies are compared."""
_ANSWER_S = 2.0
"""Limit of the question whether the API server is back."""


@dataclass(slots=True)
class ClusterWatch:
    client: ApiClient
    cluster: ClusterSnapshot
    namespaces: Sequence[str] = ()
    """The namespaces that are watched; empty for all."""
    _informers: dict[str, Informer[Any]] = field(default_factory=dict)
    _running: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _overcome: dict[str, Exception] = field(default_factory=dict)
    """The last problem of an informer that was started again after it."""

    async def run(self) -> None:
        cluster = self.cluster
        for kind in JOB_KINDS:
            self._add(watched_resource(kind), partial(cluster.store_job, kind), _with_owner_only)
        self._add(WATCHED_PODS, cluster.store_pod)
        self._add(POD_GROUPS, cluster.store_group)
        self._add(EVENTS, cluster.store_event)
        self._add(NODES, cluster.store_node)
        self._add(QUEUES, partial(cluster.store_named, cluster.queues))
        self._add(HYPERNODES, partial(cluster.store_named, cluster.hypernodes))
        async with asyncio.TaskGroup() as tasks:
            for name, informer in self._informers.items():
                self._running[name] = tasks.create_task(informer.run())
            tasks.create_task(self._compare_states(tasks))

    def _add(
        self,
        resource: Any,
        listener: Callable[[Any, Any], None],
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        scope = self.namespaces if resource.namespaced else None
        informer: Informer[Any] = Informer(
            self.client, resource, scope, transform=transform, from_cache=True
        )
        informer.add_listener(listener)
        name = f"{resource.plural}.{resource.group}"
        self._informers[name] = informer
        self.cluster.sources[name] = SourceState()

    async def _compare_states(self, tasks: asyncio.TaskGroup) -> None:
        frozen = False
        while True:
            for name, informer in self._informers.items():
                self._compare(name, informer)
            away = [name for name, state in self.cluster.sources.items() if state.problem]
            if away and await self._answers():
                for name in away:
                    self._start_again(name, tasks)
            if not frozen and self.cluster.has_synced:
                # Build the jobs of the first page before somebody waits for it, a few at a time.
                for number, entry in enumerate(self.cluster):
                    self.cluster.job(entry)
                    if number % 20 == 0:
                        await asyncio.sleep(0)
                # The copies are large and long-lived: the garbage collector leaves them out.
                gc.freeze()
                frozen = True
            await asyncio.sleep(_CHECK_S if frozen else _CHECK_S / 10)

    async def _answers(self) -> bool:
        try:
            await self.client.request_json("GET", "/version", timeout_s=_ANSWER_S)
        except (ApiError, ConfigError) as error:
            return not isinstance(error, (Unreachable, ServerTimeout, ConfigError))
        return True

    def _start_again(self, name: str, tasks: asyncio.TaskGroup) -> None:
        """Open the watch of a kind immediately, from the last revision on."""
        informer = self._informers[name]
        if isinstance(informer.problem, (Unreachable, ServerTimeout)):
            self._overcome[name] = informer.problem
            self._running[name].cancel()
            self._running[name] = tasks.create_task(informer.run())

    def _compare(self, name: str, informer: Informer[Any]) -> None:
        state, problem = self.cluster.sources[name], informer.problem
        if problem is self._overcome.get(name):
            problem = None  # the watch has nothing to report yet
        absent = isinstance(problem, (NotFound, Forbidden))
        text = str(problem) if problem is not None and not absent else ""
        if (state.synced, state.absent, state.problem) == (informer.has_synced, absent, text):
            return
        state.synced, state.absent, state.problem = informer.has_synced, absent, text
        state.since = (state.since or datetime.now(UTC)) if text else None
        self.cluster.note_change()


def _with_owner_only(job: Any) -> Any:
    """Drop annotations that no page shows: some tools store complete objects in them."""
    annotations = job.metadata.annotations
    owner = {name: text for name, text in annotations.items() if name == OWNER_ANNOTATION}
    if owner == annotations:
        return job
    metadata = msgspec.structs.replace(job.metadata, annotations=owner)
    return msgspec.structs.replace(job, metadata=metadata)
