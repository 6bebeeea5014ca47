"""Informers that keep the scheduler cache current, and those of CSI objects.

The CSI kinds are optional: attach limits are unlimited on nodes without a CSINode, and storage
capacity is considered only if the cluster serves all of its kinds.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from gangline.api.cluster.quota import ResourceQuota
from gangline.api.cluster.workload import KubernetesPodGroup
from gangline.api.core.core import (
    Namespace,
    PersistentVolume,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    PriorityClass,
    StorageClass,
)
from gangline.api.core.node import Node
from gangline.api.meta.objects import Object
from gangline.api.quantity import QuantityError
from gangline.api.resources import (
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
from gangline.api.volcano.scheduling import (
    DEFAULT_QUEUE,
    PodGroup,
    Queue,
)
from gangline.api.volcano.topology import HyperNode
from gangline.kube.client.client import ApiClient
from gangline.kube.informers.informer import Informer
from gangline.scheduler.apply.reservation_store import read_reservation
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import (
    attach_limits,
    budget_info,
    capacity_info,
    claim_info,
    class_names,
    group_info,
    have_same_shape,
    hypernode_info,
    node_info,
    pod_info,
    publishes_capacity,
    queue_info,
    read_protected_run_time,
    storage_class_info,
    volume_info,
)
from gangline.scheduler.cache.convert_placement import (
    has_namespace_selector,
    quota_info,
    slim_node,
    slim_node_with_images,
)
from gangline.scheduler.cache.kubernetes_groups import kubernetes_group_info
from gangline.scheduler.preemption.reservations import LOST_MEMBER_RESERVATION_S
from gangline.scheduler.queueing.queue_tree import QueueHierarchy
from gangline.scheduler.settings import SchedulerSettings
from gangline.scheduler.types import (
    GroupKey,
    NodeInfo,
    NodeName,
    PodGroupInfo,
    PodInfo,
    PodKey,
    QueueInfo,
    Reservation,
    group_name,
    is_kubernetes_group,
    kubernetes_group_key,
)
from gangline.scheduler.wire import (
    BETA_STORAGE_CAPACITIES,
    CSI_DRIVERS,
    CSI_NODES,
    IMAGED_PODS,
    LEAN_PODS,
    STORAGE_CAPACITIES,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    LeanPod,
    LeanPodSpec,
    slim_pod,
)

F = TypeVar("F")
K = TypeVar("K", bound=str)
log = logging.getLogger(__name__)


class CacheListener(Protocol):
    """What the informers call after they have updated the cache."""

    def on_change(self) -> None:
        """The next cycle may have another result."""

    def on_group_changed(self, group: GroupKey) -> None:
        """A group or one of its members has changed."""

    def on_reservation_found(self, group: GroupKey, reservation: Reservation) -> None:
        """A reservation is stored on a group."""

    def request_cycle_after(self, delay_s: float) -> None:
        """A cycle is due after this delay, even if nothing changes."""


class SchedulerInformers:
    """The informers, and the cache that they update.

    Args:
        listener: called after changes of the cache.
        clock: the time in seconds since the epoch.
    """

    def __init__(
        self,
        client: ApiClient,
        settings: SchedulerSettings,
        listener: CacheListener,
        clock: Callable[[], float] = time.time,
    ) -> None:
        # Kinds of many objects are first read from the server's watch cache. It may lack the last
        # moments. A start some moments earlier would, too: no pod can be bound twice.
        self.state = SchedulerCache(settings.weights)
        self.state.queues[DEFAULT_QUEUE] = QueueInfo(DEFAULT_QUEUE)
        self._scheduler_names = settings.scheduler_names
        self._hierarchy, self._hierarchical = QueueHierarchy(), settings.hierarchical
        self._listener, self._clock = listener, clock
        self._priorities: dict[str, int] = {}
        self._nodes: dict[NodeName, NodeInfo] = {}
        self._last_converted: tuple[LeanPodSpec, PodInfo] | None = None
        """Spec and value of the pod that was converted last."""
        self._reads_images = bool(settings.weights.images)
        """True if image locality has a weight."""
        kept = slim_node_with_images if self._reads_images else slim_node
        pods = IMAGED_PODS if self._reads_images else LEAN_PODS
        self.pods: Informer[LeanPod] = Informer(client, pods, transform=slim_pod, from_cache=True)
        self.groups: Informer[PodGroup] = Informer(client, POD_GROUPS)
        self._node_informer: Informer[Node] = Informer(
            client, NODES, transform=kept, from_cache=True
        )
        self.kubernetes_groups: Informer[KubernetesPodGroup] = Informer(
            client, KUBERNETES_POD_GROUPS
        )
        """PodGroups of Kubernetes itself; the loop runs it where the API server has the kind."""
        self.queues: Informer[Queue] = Informer(client, QUEUES)
        self._classes: Informer[PriorityClass] = Informer(client, PRIORITY_CLASSES)
        self._budgets: Informer[PodDisruptionBudget] = Informer(client, POD_DISRUPTION_BUDGETS)
        self.hypernodes: Informer[HyperNode] = Informer(client, HYPERNODES)
        self.quotas: Informer[ResourceQuota] = Informer(client, RESOURCE_QUOTAS)
        self._namespace_informer: Informer[Namespace] = Informer(client, NAMESPACES)
        self._namespaces: dict[str, Mapping[str, str]] = {}
        """Labels of namespaces, for pods that select others by them."""
        self._pods_with_namespace_selectors: set[PodKey] = set()
        """Pods whose terms select namespaces by labels."""
        self._claims: Informer[PersistentVolumeClaim] = Informer(
            client, PERSISTENT_VOLUME_CLAIMS, from_cache=True
        )
        self._volumes: Informer[PersistentVolume] = Informer(
            client, PERSISTENT_VOLUMES, from_cache=True
        )
        self._storage_classes: Informer[StorageClass] = Informer(client, STORAGE_CLASSES)
        self._storage_listeners: list[Callable[[], None]] = []
        self._add_listeners()
        self.required = (self.pods, self._node_informer, self._classes)
        """They must have synced before the first cycle."""
        self.optional = (self.groups, self.queues, self._budgets)
        """Of kinds that a cluster may not serve (yet); single pods do not need them."""
        self.additional = (self.hypernodes, self._namespace_informer)
        """No cycle waits for them: a cluster may not serve the kind, or not permit reading it."""
        self.storage = (self._claims, self._volumes, self._storage_classes)
        """Claims and volumes; if one cannot sync, cycles ignore claims."""

    def _add_listeners(self) -> None:
        self._claims.add_listener(self._on_claim)
        self._volumes.add_listener(self._on_volume)
        self._storage_classes.add_listener(self._on_storage_class)
        self.quotas.add_listener(self._on_quota)
        self._namespace_informer.add_listener(self._on_namespace)
        self.hypernodes.add_listener(self._on_hypernode)
        self._budgets.add_listener(self._on_budget)
        self._node_informer.add_listener(self._on_node)
        self.pods.add_listener(self._on_pod)
        self.groups.add_listener(self._on_group)
        self.kubernetes_groups.add_listener(self._on_kubernetes_group)
        self.queues.add_listener(self._on_queue)
        self._classes.add_listener(self._on_class)

    async def wait_for_storage(self) -> None:
        """Make cycles consider claims once all storage objects have been read."""
        for informer in self.storage:
            await informer.wait_for_sync()
        self.start_using_storage()

    def start_using_storage(self) -> None:
        """Make cycles consider claims: all storage objects have been read."""
        self.state.storage.synced = True
        self._storage_changed()

    def pod_group(self, key: GroupKey) -> PodGroup | KubernetesPodGroup | None:
        """Return the object of a gang; None if it has none."""
        namespace, name = group_name(key)
        groups = self.kubernetes_groups if is_kubernetes_group(key) else self.groups
        return groups.get(namespace, name)

    def add_storage_listener(self, listener: Callable[[], None]) -> None:
        self._storage_listeners.append(listener)

    def _storage_changed(self) -> None:
        self.state.storage_changed()
        self._notify_storage_listeners()
        self._listener.on_change()

    def _notify_storage_listeners(self) -> None:
        for listener in self._storage_listeners:
            listener()

    def _on_claim(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> None:
        facts = claim_info(new) if new is not None else None
        if _update(self.state.storage.claims, _key_of(new or old), facts):
            self._storage_changed()

    def _on_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        facts = volume_info(new) if new is not None else None
        if _update(self.state.storage.volumes, _name_of(new or old), facts):
            self._storage_changed()

    def _on_storage_class(self, old: StorageClass | None, new: StorageClass | None) -> None:
        facts = storage_class_info(new) if new is not None else None
        if _update(self.state.storage.classes, _name_of(new or old), facts):
            self._storage_changed()

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            assert old is not None
            name = NodeName(old.metadata.name)
            self._nodes.pop(name, None)
            self.state.remove_node(name)
            self._listener.on_change()
            return
        facts = node_info(new, images=self._reads_images)
        # Heartbeats change the object frequently, but not its value.
        if self._nodes.get(facts.name) != facts:
            self._nodes[facts.name] = facts
            self.state.set_node(facts)
            self._listener.on_change()

    def _on_pod(self, old: LeanPod | None, new: LeanPod | None) -> None:
        key = PodKey(_key_of(new or old))
        before = self.state.pods.get(key)
        facts = self.convert_pod(new, old, before) if new is not None else None
        if new is not None and has_namespace_selector(new.spec):
            self._pods_with_namespace_selectors.add(key)
        else:
            self._pods_with_namespace_selectors.discard(key)
        if facts is None:
            self.state.remove_pod(key)
        else:
            self.state.set_pod(facts)
        after = self.state.pods.get(key)
        if before == after:
            return
        if before is not None and before.holds_resources and _is_lost_member(before, after):
            self.state.record_lost_member(before, self._clock(), LOST_MEMBER_RESERVATION_S)
            self._listener.request_cycle_after(LOST_MEMBER_RESERVATION_S)
        if before is not None and before.claims:
            # A volume binding of a deleted pod must stop waiting.
            self._notify_storage_listeners()
        self._listener.on_change()
        for group in {facts.group for facts in (before, after) if facts and facts.group}:
            self._listener.on_group_changed(group)

    def convert_pod(
        self, pod: LeanPod, old: LeanPod | None = None, before: PodInfo | None = None
    ) -> PodInfo | None:
        """Convert a pod to PodInfo. Returns None if a resource quantity cannot be parsed.

        The API server refuses such quantities. A changed pod, and the pods of one gang, mostly have
        an unchanged spec; converting it again would be most of the work.
        """
        template = None
        if old is not None and before is not None and have_same_shape(pod.spec, old.spec):
            template = before
        elif self._last_converted is not None and have_same_shape(
            pod.spec, self._last_converted[0]
        ):
            template = self._last_converted[1]
        try:
            facts = pod_info(
                pod, self._priorities, self._scheduler_names, self._namespaces, template
            )
        except QuantityError as error:
            fields = {"namespace": pod.metadata.namespace, "pod": pod.metadata.name}
            log.warning("pod ignored: %s", error, extra=fields)
            return None
        self._last_converted = pod.spec, facts
        return facts

    def _on_group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        facts = group_info(new, self._priorities) if new is not None else None
        self._set_group(GroupKey(_key_of(new or old)), facts, old, new)

    def _on_kubernetes_group(
        self, old: KubernetesPodGroup | None, new: KubernetesPodGroup | None
    ) -> None:
        present = new or old
        assert present is not None
        facts = kubernetes_group_info(new, self._priorities) if new is not None else None
        metadata = present.metadata
        self._set_group(kubernetes_group_key(metadata.namespace, metadata.name), facts, old, new)

    def _set_group(
        self, key: GroupKey, facts: PodGroupInfo | None, old: Object | None, new: Object | None
    ) -> None:
        before = self.state.groups.get(key)
        if facts is None or new is None:
            self.state.remove_group(key)
        else:
            self.state.set_group(facts)
            if old is None and (reservation := read_reservation(new)) is not None:
                self.state.reservations.setdefault(key, reservation)
                self._listener.on_reservation_found(key, reservation)
            if facts.previous_nodes is not None:
                self._listener.request_cycle_after(
                    max(0.0, facts.previous_nodes.expires_at - self._clock())
                )
        self._listener.on_group_changed(key)
        if before != self.state.groups.get(key):
            self._listener.on_change()

    def _on_queue(self, old: Queue | None, new: Queue | None) -> None:
        before = dict(self.state.queues)
        if new is not None:
            self.state.queues[new.metadata.name] = queue_info(new)
            self._hierarchy.update(new)
        elif old is not None:
            self.state.queues.pop(old.metadata.name, None)
            self.state.queues.setdefault(DEFAULT_QUEUE, QueueInfo(DEFAULT_QUEUE))
            self._hierarchy.remove(old.metadata.name)
        if self._hierarchical:
            self._hierarchy.apply_to(self.state.queues)
        if before == self.state.queues:
            # This scheduler writes the status of the queue frequently.
            return
        self.state.derived.pending.clear()
        for key in self.state.groups:
            self._listener.on_group_changed(key)
        self._listener.on_change()

    def _on_quota(self, old: ResourceQuota | None, new: ResourceQuota | None) -> None:
        namespace, _, name = _key_of(new or old).partition("/")
        facts = quota_info(new) if new is not None else None
        if not _update(self.state.quotas.setdefault(namespace, {}), name, facts):
            return
        for key in self.state.groups:
            if key.startswith(f"{namespace}/"):
                self._listener.on_group_changed(key)
        self._listener.on_change()

    def _on_namespace(self, old: Namespace | None, new: Namespace | None) -> None:
        labels = new.metadata.labels if new is not None else None
        if not _update(self._namespaces, _name_of(new or old), labels):
            return
        for key in sorted(self._pods_with_namespace_selectors):
            namespace, _, pod_name = key.partition("/")
            if (pod := self.pods.get(namespace, pod_name)) is not None:
                self._on_pod(pod, pod)

    def _on_hypernode(self, old: HyperNode | None, new: HyperNode | None) -> None:
        if old is not None:
            self.state.nodes.remove_hypernode(old.metadata.name)
        if new is not None:
            self.state.nodes.set_hypernode(hypernode_info(new))
        self._listener.on_change()

    def _on_budget(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        if old is not None:
            self.state.budgets.pop(f"{old.metadata.namespace}/{old.metadata.name}", None)
        if new is not None:
            facts = budget_info(new)
            self.state.budgets[facts.key] = facts
            self._listener.on_change()

    def _on_class(self, old: PriorityClass | None, new: PriorityClass | None) -> None:
        protection = self.state.class_protection
        for name in class_names(old):
            self._priorities.pop(name, None)
            protection.pop(name, None)
        for name in class_names(new):
            assert new is not None
            self._priorities[name] = new.value
            if seconds := read_protected_run_time(new.metadata):
                protection[name] = seconds
        self._listener.on_change()
        for group in self.groups.items():
            self._on_group(group, group)
        for kubernetes_group in self.kubernetes_groups.items():
            self._on_kubernetes_group(kubernetes_group, kubernetes_group)
        for pod in self.pods.items():
            if pod.spec.priority is None:
                self._on_pod(pod, pod)


class CSINodeInformer:
    """Keeps attach limits in the cache current.

    Args:
        changed: called when the next cycle may have another result.
    """

    def __init__(
        self, client: ApiClient, state: SchedulerCache, changed: Callable[[], None]
    ) -> None:
        self._state, self._changed = state, changed
        self.informer: Informer[CSINode] = Informer(client, CSI_NODES, from_cache=True)
        self.informer.add_listener(self._on_node)

    def _on_node(self, old: CSINode | None, new: CSINode | None) -> None:
        name = NodeName(_name_of(new or old))
        limits = attach_limits(new) if new is not None else {}
        if _update(self._state.storage.limits, name, limits or None):
            self._state.storage_changed()
            self._changed()


class StorageCapacityInformers:
    """Keeps storage capacity in the cache current.

    Args:
        changed: called when the next cycle may have another result.
    """

    def __init__(
        self, client: ApiClient, state: SchedulerCache, changed: Callable[[], None]
    ) -> None:
        self._state, self._changed = state, changed
        self._capacities = state.storage.capacities
        self.drivers: Informer[CSIDriver] = Informer(client, CSI_DRIVERS)
        self.drivers.add_listener(self._on_driver)
        self.versions: tuple[Informer[CSIStorageCapacity], ...] = (
            Informer(client, STORAGE_CAPACITIES),
            Informer(client, BETA_STORAGE_CAPACITIES),
        )
        """One informer per version, the newest first: a cluster serves one of them, or none."""
        for informer in self.versions:
            informer.add_listener(self._on_capacity)

    def start_using(self) -> None:
        """Make cycles consider storage capacity: everything has been read."""
        self._capacities.synced = True
        self._notify()

    def _on_driver(self, old: CSIDriver | None, new: CSIDriver | None) -> None:
        name, drivers = _name_of(new or old), self._capacities.publishing_drivers
        if (new is not None and publishes_capacity(new)) != (name in drivers):
            drivers ^= {name}
            self._notify()

    def _on_capacity(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> None:
        facts = capacity_info(new) if new is not None else None
        if _update(self._capacities.facts, _key_of(new or old), facts):
            self._notify()

    def _notify(self) -> None:
        if self._capacities.synced:
            self._state.storage_changed()
            self._changed()


def _update(table: dict[K, F], key: K, value: F | None) -> bool:
    """Set an entry, or remove it (None); return whether the table has changed."""
    if table.get(key) == value:
        return False
    if value is None:
        del table[key]
    else:
        table[key] = value
    return True


def _name_of(present: Object | None) -> str:
    assert present is not None
    return present.metadata.name


def _key_of(present: Object | None) -> str:
    assert present is not None
    return f"{present.metadata.namespace}/{present.metadata.name}"


def _is_lost_member(before: PodInfo, after: PodInfo | None) -> bool:
    """Return whether a pod that held resources has ended without success."""
    if after is None:
        return True
    return after.uid != before.uid or after.phase == "Failed"
