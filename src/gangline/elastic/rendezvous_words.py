"""What nodes that wait are told: what for, and in the end who did not come. Pure."""

from gangline.elastic.protocol.messages import Waiting
from gangline.elastic.rendezvous_state import RendezvousState

_GONE_NAMED = 8
_MISSING_NAMED = 64


def waiting(state: RendezvousState) -> Waiting:
    """Say what is waited for."""
    least = state.parameters.least if state.parameters else 0
    if state.is_standing:
        message = f"the world of round {state.round} stands; this node is a spare"
    elif state.members:
        message = f"nodes {sorted(state.members)} stop their workers first"
    else:
        message = f"{len(state.waiting)} of at least {least} nodes are here"
    return Waiting(
        message=message,
        present=len(state.waiting),
        wanted=least,
        missing=_missing(state)[:_MISSING_NAMED],
    )


def given_up(state: RendezvousState) -> str:
    """Say that the minimum did not come in time, and who is missing."""
    assert state.parameters is not None
    parts = [
        f"after {state.parameters.join_timeout_s:g} s only {len(state.waiting)} of at least "
        f"{state.parameters.least} nodes are here"
    ]
    if missing := _missing(state):
        parts.append(f"missing: rank {', '.join(map(str, missing[:_MISSING_NAMED]))}")
    gone = sorted(state.gone.keys() - state.replaced.keys())
    parts += [f"gone: node {node} ({state.gone[node]})" for node in gone[:_GONE_NAMED]]
    return "; ".join(parts)


def _missing(state: RendezvousState) -> tuple[int, ...]:
    """Ranks below the maximum that nobody has who waits, if nodes have ranks."""
    if state.parameters is None:
        return ()
    here = {seat.join.node_rank for seat in state.waiting.values()}
    if -1 in here:
        return ()
    return tuple(rank for rank in range(state.parameters.max_nodes) if rank not in here)
