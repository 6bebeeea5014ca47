"""Reads a live cluster once into a scheduler cache, to repeat a cycle for ``gangline explain``."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeVar

from gangline.api.meta.resource import Resource
from gangline.api.resources import CONFIG_MAPS, NODES
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import Forbidden, NotFound
from gangline.kube.informers.informer import Informer
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.node_table import DEFAULT_WEIGHTS
from gangline.scheduler.device_informers import DeviceInformers
from gangline.scheduler.informers import (
    CSINodeInformer,
    SchedulerInformers,
    StorageCapacityInformers,
)
from gangline.scheduler.plugins.scores import ScoreWeights
from gangline.scheduler.settings import SchedulerSettings
from gangline.scheduler.types import GroupKey, Reservation
from gangline.scheduler.volcano_config import read_configuration
from gangline.scheduler.wire import slim_pod

T = TypeVar("T")

CONFIG_NAMESPACE = "gangline-system"
CONFIG_MAP = "gangline-scheduler"
CONFIG_KEY = "configuration.yaml"


async def read_cluster_state(
    client: ApiClient,
    answers_to: frozenset[str],
    weights: ScoreWeights = DEFAULT_WEIGHTS,
    hierarchical: bool = False,
) -> SchedulerCache:
    """Read all objects that a cycle depends on.

    Kinds that the cluster does not serve, or that must not be read, count as empty; nodes and pods
    must be readable.

    Args:
        answers_to: the scheduler names whose pods are scheduled.
        hierarchical: True if queues take their parents from annotations.

    Raises:
        ApiError: nodes or pods cannot be read.
    """
    settings = SchedulerSettings(
        scheduler_names=answers_to, weights=weights, hierarchical=hierarchical
    )
    feed = SchedulerInformers(client, settings, _NoListener())
    state = feed.state
    await _read_storage(client, feed)
    await _read_devices(client, state)
    _, nodes, classes = feed.required
    groups, queues, budgets = feed.optional
    # Groups and pods depend on what is read before them.
    before: list[Informer[Any]] = [classes, *feed.additional, queues, budgets, feed.quotas]
    for informer in (*before, groups, feed.kubernetes_groups):
        await _fill(client, informer)
    await nodes.fill((await client.list(NODES, transform=nodes.transform)).items)

    # Each page is converted before the next one is read: all pods take four times the memory.
    lean_pods: Resource[Any] = feed.pods.resource
    infos = (
        await client.list(lean_pods, transform=lambda pod: feed.convert_pod(slim_pod(pod)))
    ).items
    for info in filter(None, infos):
        state.set_pod(info)
    return state


class _NoListener:
    """Nothing follows the changes of a cache that is read once."""

    def on_change(self) -> None: ...
    def on_group_changed(self, group: GroupKey) -> None: ...
    def on_reservation_found(self, group: GroupKey, reservation: Reservation) -> None: ...
    def request_cycle_after(self, delay_s: float) -> None: ...


async def _fill(client: ApiClient, informer: Informer[Any]) -> bool:
    """Read the objects of an informer; False: they are not served or must not be read."""
    with suppress(NotFound, Forbidden):
        await informer.fill(
            (await client.list(informer.resource, transform=informer.transform)).items
        )
        return True
    return False


async def _fill_all(client: ApiClient, informers: Iterable[Informer[Any]]) -> bool:
    """Read the objects of all informers, up to the first one that cannot be read."""
    for informer in informers:
        if not await _fill(client, informer):
            return False
    return True


async def list_if_readable(client: ApiClient, resource: Resource[T]) -> list[T]:
    """Return all objects of a kind, none if it is not served or must not be read."""
    try:
        return (await client.list(resource)).items
    except (NotFound, Forbidden):
        return []


async def read_deployed_settings(client: ApiClient) -> SchedulerSettings:
    """Return the settings of the scheduler that the chart or the plain manifests have installed.

    Without its ConfigMap, or without the permission to read it, these are the defaults.

    Raises:
        ConfigurationError: the configuration cannot be read.
    """
    try:
        config_map = await client.get(CONFIG_MAPS, CONFIG_MAP, CONFIG_NAMESPACE)
    except (NotFound, Forbidden):
        return SchedulerSettings()
    return read_configuration(config_map.data.get(CONFIG_KEY, "")).apply_to(SchedulerSettings())


async def _read_storage(client: ApiClient, feed: SchedulerInformers) -> None:
    """Read claims, volumes and classes; if one kind must not be read, the cycle ignores claims."""
    if not await _fill_all(client, feed.storage):
        return
    feed.start_using_storage()
    await _fill(client, CSINodeInformer(client, feed.state, _ignore).informer)
    capacity = StorageCapacityInformers(client, feed.state, _ignore)
    for version in capacity.versions:
        if await _fill_all(client, (version, capacity.drivers)):
            capacity.start_using()
            return


async def _read_devices(client: ApiClient, state: SchedulerCache) -> None:
    """Read claims, classes and devices; if one kind must not be read, pods with claims wait."""
    devices = DeviceInformers(client, state, _ignore)
    if await _fill_all(client, (devices.claims, devices.classes, devices.slices)):
        for version in devices.taint_rules:
            await _fill(client, version)
        devices.start_using()


def _ignore() -> None:
    """Nothing follows the changes."""
