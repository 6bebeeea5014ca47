"""Facts and tuning of a job in ConfigMaps, and the annotations of its PodGroup.

The operator creates the ConfigMaps. A master without them, or without rights to them, continues and
logs that once. A tuning with an impossible value is refused.
"""

import asyncio
import contextlib
import logging
import math
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from gangline.api.figures import plain_number
from gangline.api.jobs.training_facts import (
    FACTS_KEY,
    FACTS_VERSION,
    TUNING_KEY,
    JobTuning,
    LoaderTuning,
    TrainingFacts,
    facts_name,
    tuning_name,
)
from gangline.api.meta.resource import Resource
from gangline.api.resources import POD_GROUPS
from gangline.api.volcano.scheduling import DEFAULT_QUEUE
from gangline.elastic.protocol.messages import (
    CheckpointValues,
    LoaderValues,
    OptimizerValues,
    Tuning,
)
from gangline.kube.client.client import ApiClient, WatchEvent
from gangline.kube.config.config import load_config
from gangline.kube.errors import ApiError, NotFound

T = TypeVar("T", bound=msgspec.Struct)
_MAX_BATCH = 1 << 20
_MAX_WORKERS = 1024
_MAX_SECONDS = 1e12

log = logging.getLogger(__name__)

COMPONENT = "gangline-master"
RETRY_S = (5.0, 60.0)
"""Shortest and longest pause before a watch begins again after an error."""
READ_RETRY_S = (0.5, 1.0, 2.0)
"""Pauses between attempts to read what an earlier master has published. The API server may learn of
the master's rights some moments after the master has started.
"""
WATCH_PAUSE_S = 1.0
"""Pause after a watch that the server has ended, in case it ends each at once."""


def convert_tuning(tuning: JobTuning) -> Tuning:
    """Return the message. Raises ValueError: a value is impossible; the message names it."""
    if tuning.v != FACTS_VERSION:
        raise ValueError(f"v is {tuning.v}, expected {FACTS_VERSION}")
    if tuning.version < 1:
        raise ValueError(f"version is {tuning.version}, expected at least 1")
    optimizer, checkpoint = tuning.optimizer, tuning.checkpoint
    values = OptimizerValues()
    if optimizer is not None:
        _check("optimizer.learningRate", optimizer.learning_rate, 0.0, 1e6)
        _check("optimizer.weightDecay", optimizer.weight_decay, 0.0, 1e6)
        values = OptimizerValues(optimizer.learning_rate, optimizer.weight_decay)
    prior = None
    if checkpoint is not None:
        _check("checkpoint.failures", checkpoint.failures, 1e-9, 1e9)
        _check("checkpoint.seconds", checkpoint.seconds, 1e-3, _MAX_SECONDS)
        prior = CheckpointValues(checkpoint.failures, checkpoint.seconds)
    return Tuning(
        version=tuning.version,
        dataloader=_loader("dataloader", tuning.dataloader),
        devices={
            name: _loader(f"devices[{name}]", loader) for name, loader in tuning.devices.items()
        },
        optimizer=values,
        checkpoint=prior,
    )


def _loader(field: str, loader: LoaderTuning | None) -> LoaderValues:
    if loader is None:
        return LoaderValues()
    _check(f"{field}.batchSize", loader.batch_size, 1, _MAX_BATCH)
    _check(f"{field}.numWorkers", loader.num_workers, 0, _MAX_WORKERS)
    return LoaderValues(loader.batch_size, loader.num_workers, loader.pin_memory)


def _check(field: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not (math.isfinite(value) and least <= value <= most):
        bounds = f"{plain_number(least)} to {plain_number(most)}"
        raise ValueError(f"{field} is {plain_number(value)}, expected {bounds}")


class _Metadata(msgspec.Struct):
    annotations: dict[str, str] | None = None


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] | None = None
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _PodGroupSpec(msgspec.Struct):
    queue: str = ""


class _PodGroup(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _PodGroupSpec = msgspec.field(default_factory=_PodGroupSpec)


_CONFIG_MAPS = Resource(_ConfigMap, "", "v1", "configmaps", "ConfigMap")
_POD_GROUPS = Resource(
    _PodGroup, POD_GROUPS.group, POD_GROUPS.version, POD_GROUPS.plural, POD_GROUPS.kind
)


class JobConfigMaps:
    """Facts and tuning of one job in a cluster."""

    def __init__(self, client: ApiClient, namespace: str, job: str) -> None:
        self._client, self._namespace, self._job = client, namespace, job
        self._logged: set[str] = set()
        self.queue_changed: Callable[[str], None] = lambda _: None

    async def published(self) -> TrainingFacts | None:
        name = facts_name(self._job)
        for pause_s in (*READ_RETRY_S, 0.0):
            try:
                configmap = await self._client.get(_CONFIG_MAPS, name, self._namespace)
                text = (configmap.data or {}).get(FACTS_KEY, "")
                return msgspec.json.decode(text, type=TrainingFacts) if text else None
            except (ApiError, msgspec.DecodeError) as error:
                self._log_once("the facts of this job cannot be read", name, error)
                if isinstance(error, NotFound | msgspec.DecodeError):
                    return None
            await asyncio.sleep(pause_s)
        return None

    async def publish(self, facts: bytes) -> bool:
        name = facts_name(self._job)
        patch = {"data": {FACTS_KEY: facts.decode()}}
        try:
            await self._client.patch(_CONFIG_MAPS, name, patch, self._namespace)
        except ApiError as error:
            self._log_once("the facts of this job cannot be written", name, error)
            return isinstance(error, NotFound)
        return True

    async def watch_tuning(self, changed: Callable[[Tuning], None]) -> None:
        name = tuning_name(self._job)

        def take(event: WatchEvent[_ConfigMap]) -> None:
            if text := (event.object.data or {}).get(TUNING_KEY, ""):
                self._convert(text, name, changed)

        await self._watch(_CONFIG_MAPS, name, take, "the tuning of this job cannot be read")

    async def watch_group(self, changed: Callable[[Mapping[str, str]], None]) -> None:
        """Report the annotations of the job's PodGroup, for ever."""

        def take(event: WatchEvent[_PodGroup]) -> None:
            is_there = event.type != "DELETED"
            if is_there:
                self.queue_changed(event.object.spec.queue or DEFAULT_QUEUE)
            changed((event.object.metadata.annotations or {}) if is_there else {})

        problem = "requests to save before an eviction cannot be read"
        await self._watch(_POD_GROUPS, self._job, take, problem)

    async def _watch(
        self, resource: Resource[T], name: str, take: Callable[[WatchEvent[T]], None], problem: str
    ) -> None:
        pause_s = RETRY_S[0]
        while True:
            watch = self._client.watch(resource, self._namespace, fields=f"metadata.name={name}")
            try:
                async with contextlib.aclosing(watch) as events:
                    async for event in events:
                        pause_s = RETRY_S[0]
                        take(event)
                await asyncio.sleep(WATCH_PAUSE_S)
            except ApiError as error:
                self._log_once(problem, name, error)
                await asyncio.sleep(random.uniform(pause_s / 2, pause_s))
                pause_s = min(pause_s * 2, RETRY_S[1])

    async def facts_annotations(self) -> Mapping[str, str]:
        name = facts_name(self._job)
        try:
            configmap = await self._client.get(_CONFIG_MAPS, name, self._namespace)
        except ApiError as error:
            self._log_once("the facts of this job cannot be read", name, error)
            return {}
        return configmap.metadata.annotations or {}

    async def annotate_facts(self, annotations: Mapping[str, str | None]) -> bool:
        name = facts_name(self._job)
        patch = {"metadata": {"annotations": annotations}}
        try:
            await self._client.patch(_CONFIG_MAPS, name, patch, self._namespace)
        except ApiError as error:
            self._log_once("the facts of this job cannot be written", name, error)
            return False
        return True

    def _convert(self, text: str, name: str, changed: Callable[[Tuning], None]) -> None:
        try:
            tuning = convert_tuning(msgspec.json.decode(text, type=JobTuning))
        except (ValueError, msgspec.DecodeError) as error:
            log.warning("a tuning is ignored", extra={"configmap": name, "reason": str(error)})
            return
        changed(tuning)

    def _log_once(self, problem: str, name: str, error: Exception) -> None:
        if problem not in self._logged:
            self._logged.add(problem)
            log.warning(problem, extra={"configmap": name, "reason": str(error)})


@asynccontextmanager
async def cluster_facts(namespace: str, job: str) -> AsyncIterator[JobConfigMaps]:
    """Open a connection for facts and tuning, apart from that of the journal."""
    async with ApiClient(load_config(), COMPONENT) as client:
        yield JobConfigMaps(client, namespace, job)
