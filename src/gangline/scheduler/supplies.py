"""What nodes have for the claims of pods that wait, counted on the nodes as resources.

It is counted when somebody asks for it, and again for all who wait when nodes or claims change.
"""

from gangline.scheduler.attachments import needs_of, stocks, takings
from gangline.scheduler.demand import Stock
from gangline.scheduler.model import PodFacts
from gangline.scheduler.state import ClusterState
from gangline.scheduler.storage import Needs


def refresh(state: ClusterState) -> None:
    """Count again what those who wait ask for, if it may have changed since."""
    if state.supplied or not state.storage.known:
        return
    state.supplied.add("")
    state.nodes.takings.clear()
    waiting = state.storage.waiting.values()
    for key in sorted({key for keys in waiting for key in keys}):
        needs_supplied(state, state.pods[key])


def needs_supplied(state: ClusterState, pod: PodFacts) -> Needs:
    """Return what a pod's claims ask of its node; what nodes have of it is counted."""
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
