"""Counts on each node what the claims of pending pods need, as node resources.

Amounts are counted on demand, and again for all pending pods when nodes or claims have changed.
"""

from gangline.scheduler.attachments import (
    volume_requirements_of,
    count_attachments,
    attachment_columns,
)
from gangline.scheduler.demand import CountedResource
from gangline.scheduler.model import PodInfo
from gangline.scheduler.state import SchedulerCache
from gangline.scheduler.storage import VolumeRequirements


def refresh_counted_resources(state: SchedulerCache) -> None:
    """Count what pending pods need again, if it may have changed."""
    if state.counted_resources or not state.storage.synced:
        return
    state.counted_resources.add("")
    state.nodes.attachment_columns.clear()
    waiting = state.storage.waiting_pods.values()
    for key in sorted({key for keys in waiting for key in keys}):
        count_requirements(state, state.pods[key])


def count_requirements(state: SchedulerCache, pod: PodInfo) -> VolumeRequirements:
    """Return what a pod's claims require of its node, after counting it on all nodes."""
    needs = volume_requirements_of(state.storage, pod)
    if any(name not in state.counted_resources for name, _ in needs.request):
        listed = [node for node in state.nodes.infos if node is not None]
        supply = {
            name: {node: CountedResource(count) for node, count in counts.items()}
            for name, counts in state.storage.count_free_volumes(pod, listed).items()
        }
        supply |= count_attachments(
            state.storage, pod, [node.name for node in listed], state.counted_resources
        )
        for name, counted in supply.items():
            state.nodes.set_counted_resource(name, counted)
            state.counted_resources.add(name)
        state.nodes.attachment_columns |= attachment_columns(supply, state.nodes.columns)
    return needs
