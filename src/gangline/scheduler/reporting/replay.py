"""Reads a live cluster once into a scheduler cache, to repeat a cycle for ``gangline explain``."""

from contextlib import suppress
from typing import Any, TypeVar

from gangline.api.core.devices import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from gangline.api.meta.objects import Object
from gangline.api.meta.resource import Resource
from gangline.api.quantity import QuantityError
from gangline.api.resources import (
    CONFIG_MAPS,
    HYPERNODES,
    KUBERNETES_POD_GROUPS,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    PRIORITY_CLASSES,
    QUEUES,
    RESOURCE_QUOTAS,
    STORAGE_CLASSES,
)
from gangline.api.volcano.scheduling import DEFAULT_QUEUE
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import Forbidden, NotFound
from gangline.scheduler.apply.reservation_store import read_reservation
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import (
    attach_limits,
    budget_info,
    claim_info,
    class_names,
    group_info,
    hypernode_info,
    node_info,
    pod_info,
    queue_info,
    read_capacities,
    read_protected_run_time,
    storage_class_info,
    volume_info,
)
from gangline.scheduler.cache.convert_devices import (
    device_claim_info,
    device_class_info,
    slice_info,
    taint_rule_info,
)
from gangline.scheduler.cache.convert_placement import quota_info
from gangline.scheduler.cache.kubernetes_groups import kubernetes_group_info
from gangline.scheduler.cache.node_table import DEFAULT_WEIGHTS
from gangline.scheduler.plugins.scores import ScoreWeights
from gangline.scheduler.plugins.volumes import StorageState
from gangline.scheduler.queueing.queue_tree import QueueHierarchy
from gangline.scheduler.settings import SchedulerSettings
from gangline.scheduler.types import NodeName, PodGroupInfo, PodInfo, QueueInfo
from gangline.scheduler.volcano_config import read_configuration
from gangline.scheduler.wire import (
    BETA_STORAGE_CAPACITIES,
    CSI_DRIVERS,
    CSI_NODES,
    IMAGED_PODS,
    LEAN_PODS,
    STORAGE_CAPACITIES,
    LeanPod,
    slim_pod,
)

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
    images = bool(weights.images)
    state = SchedulerCache(weights)
    state.queues[DEFAULT_QUEUE] = QueueInfo(DEFAULT_QUEUE)
    hierarchy = QueueHierarchy()
    for queue in await list_if_readable(client, QUEUES):
        state.queues[queue.metadata.name] = queue_info(queue)
        hierarchy.update(queue)
    if hierarchical:
        hierarchy.apply_to(state.queues)
    for node in (await client.list(NODES)).items:
        state.set_node(node_info(node, images=images))
    for hypernode in await list_if_readable(client, HYPERNODES):
        state.nodes.set_hypernode(hypernode_info(hypernode))
    for budget in await list_if_readable(client, POD_DISRUPTION_BUDGETS):
        facts = budget_info(budget)
        state.budgets[facts.key] = facts
    classes = await list_if_readable(client, PRIORITY_CLASSES)
    priorities = {
        name: priority_class.value
        for priority_class in classes
        for name in class_names(priority_class)
    }
    state.class_protection = {
        name: seconds
        for priority_class in classes
        if (seconds := read_protected_run_time(priority_class.metadata))
        for name in class_names(priority_class)
    }
    for group in await list_if_readable(client, POD_GROUPS):
        _add_group(state, group_info(group, priorities), group)
    for own_group in await list_if_readable(client, KUBERNETES_POD_GROUPS):
        _add_group(state, kubernetes_group_info(own_group, priorities), own_group)
    await _read_storage(client, state.storage)
    await _read_devices(client, state)
    for quota in await list_if_readable(client, RESOURCE_QUOTAS):
        in_namespace = state.quotas.setdefault(quota.metadata.namespace, {})
        in_namespace[quota.metadata.name] = quota_info(quota)
    namespaces = {
        namespace.metadata.name: namespace.metadata.labels
        for namespace in await list_if_readable(client, NAMESPACES)
    }

    def convert(pod: LeanPod) -> PodInfo | None:
        # As in the running scheduler, a pod with an invalid quantity is left out.
        with suppress(QuantityError):
            return pod_info(slim_pod(pod), priorities, answers_to, namespaces)
        return None

    # Each page is converted before the next one is read: all pods take four times the memory.
    lean_pods: Resource[Any] = IMAGED_PODS if images else LEAN_PODS
    for info in filter(None, (await client.list(lean_pods, transform=convert)).items):
        state.set_pod(info)
    return state


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


async def _read_storage(client: ApiClient, storage: StorageState) -> None:
    """Read claims, volumes and classes; if one kind must not be read, the cycle ignores claims."""
    try:
        claims = (await client.list(PERSISTENT_VOLUME_CLAIMS)).items
        volumes = (await client.list(PERSISTENT_VOLUMES)).items
        classes = (await client.list(STORAGE_CLASSES)).items
    except (NotFound, Forbidden):
        return
    storage.claims = {facts.key: facts for facts in map(claim_info, claims)}
    storage.volumes = {facts.name: facts for facts in map(volume_info, volumes)}
    storage.classes = {facts.name: facts for facts in map(storage_class_info, classes)}
    for node in await list_if_readable(client, CSI_NODES):
        if limits := attach_limits(node):
            storage.limits[NodeName(node.metadata.name)] = limits
    storage.synced = True
    for version in (STORAGE_CAPACITIES, BETA_STORAGE_CAPACITIES):
        with suppress(NotFound, Forbidden):
            capacities = (await client.list(version)).items
            drivers = (await client.list(CSI_DRIVERS)).items
            storage.capacities = read_capacities(drivers, capacities)
            return


async def _read_devices(client: ApiClient, state: SchedulerCache) -> None:
    """Read claims, classes and devices; if one kind must not be read, pods with claims wait."""
    try:
        claims = (await client.list(RESOURCE_CLAIMS)).items
        classes = (await client.list(DEVICE_CLASSES)).items
        slices = (await client.list(RESOURCE_SLICES)).items
    except (NotFound, Forbidden):
        return
    devices = state.devices
    for device_class in classes:
        devices.classes[device_class.metadata.name] = device_class_info(device_class)
    for published in slices:
        devices.set_slice(published.metadata.name, None, slice_info(published))
    for version in DEVICE_TAINT_RULES:
        for rule in await list_if_readable(client, version):
            if (selected := taint_rule_info(rule)) is not None:
                devices.rules[rule.metadata.name] = selected
    for claim in claims:
        info = device_claim_info(claim)
        state.set_device_claim(info.key, info)
    devices.synced = True
    state.devices_changed((None,))


def _add_group(state: SchedulerCache, facts: PodGroupInfo, stored: Object) -> None:
    state.set_group(facts)
    if (reservation := read_reservation(stored)) is not None:
        state.reservations[facts.key] = reservation
