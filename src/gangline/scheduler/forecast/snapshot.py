"""Copies of the scheduler cache, for forecasts that change them."""

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.plugins.volumes import StorageState


def copy_state(state: SchedulerCache) -> SchedulerCache:
    """Return a copy that shares no table with the original; values are immutable and shared."""
    copied = SchedulerCache(state.nodes.weights)
    copied.queues = dict(state.queues)
    copied.class_protection = dict(state.class_protection)
    copied.budgets = dict(state.budgets)
    copied.quotas = {namespace: dict(quotas) for namespace, quotas in state.quotas.items()}
    _copy_storage(state.storage, copied.storage)
    for hypernode in state.nodes.hypernodes.values():
        copied.nodes.set_hypernode(hypernode)
    for row in sorted(state.nodes.rows.values()):
        node = state.nodes.infos[row]
        if node is not None:
            copied.set_node(node)
    for group in state.groups.values():
        copied.set_group(group)
    for pod in state.pods.values():
        copied.set_pod(pod)
    copied.reservations = dict(state.reservations)
    return copied


def _copy_storage(known: StorageState, copied: StorageState) -> None:
    copied.claims, copied.volumes = dict(known.claims), dict(known.volumes)
    copied.classes, copied.synced = dict(known.classes), known.synced
    copied.limits = {node: dict(limits) for node, limits in known.limits.items()}
    copied.capacities = known.capacities
