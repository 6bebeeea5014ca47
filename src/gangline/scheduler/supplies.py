"""Counts on each node what the claims of pending pods need, as node resources.

Amounts are counted on demand, and again for all pending pods when nodes or claims have changed.
"""

from gangline.scheduler.attachments import needs_of, stocks, takings
from gangline.scheduler.demand import Stock
from gangline.scheduler.model import PodFacts
from gangline.scheduler.state import ClusterState
from gangline.scheduler.storage import Needs


def refresh(state: ClusterState) -> None:
    """Count what pending pods need again, if it may have changed."""
    if state.supplied or not state.storage.known:
        return
    state.supplied.add("")
    state.nodes.takings.clear()
    waiting = state.storage.waiting.values()
    for key in sorted({key for keys in waiting for key in keys}):
        needs_supplied(state, state.pods[key])


def needs_supplied(state: ClusterState, pod: PodFacts) -> Needs:
    """Return what a pod's claims require of its node, after counting it on all nodes."""
    needs = needs_of(state.storage, pod)
    if any(name not in state.supplied for name, _ in needs.request):
        listed = [node for node in state.nodes.facts if node is not None]
        supply = {
            name: {node: Stock(count) for node, count in counts.items()}
            for name, counts in state.storage.supply(pod, listed).items()
        }
        supply |= stocks(state.storage, pod, [node.name for node in listed], state.supplied)
        for name, counted in supply.items():
            state.nodes.supply(name, counted)
            state.supplied.add(name)
        state.nodes.takings |= takings(supply, state.nodes.columns)
    return needs
