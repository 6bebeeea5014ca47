"""Messages to waiting nodes: what they wait for, and which nodes are missing after the timeout."""

from gangline.elastic.protocol.messages import JoinPending
from gangline.elastic.rendezvous.state import RendezvousState

_MAX_GONE_LISTED = 8
_MAX_MISSING_LISTED = 64


def waiting_message(state: RendezvousState) -> JoinPending:
    least = state.parameters.smallest_size if state.parameters else 0
    if state.is_standing:
        message = f"the world of round {state.round} is complete; this node is a spare"
    elif state.members:
        message = f"nodes {sorted(state.members)} stop their workers first"
    else:
        message = f"{len(state.waiting)} of at least {least} nodes have joined"
    return JoinPending(
        message=message,
        present=len(state.waiting),
        wanted=least,
        missing=_missing(state)[:_MAX_MISSING_LISTED],
    )


def timeout_message(state: RendezvousState) -> str:
    """Return the message of a timeout, with the missing nodes."""
    assert state.parameters is not None
    parts = [
        f"after {state.parameters.join_timeout_s:g} s only {len(state.waiting)} of at least "
        f"{state.parameters.smallest_size} nodes have joined"
    ]
    if missing := _missing(state):
        parts.append(f"missing: rank {', '.join(map(str, missing[:_MAX_MISSING_LISTED]))}")
    gone = sorted(state.gone.keys() - state.replaced.keys())
    parts += [f"lost: node {node} ({state.gone[node]})" for node in gone[:_MAX_GONE_LISTED]]
    return "; ".join(parts)


def _missing(state: RendezvousState) -> tuple[int, ...]:
    """Ranks below the maximum without a waiting node; empty if nodes have no ranks."""
    if state.parameters is None:
        return ()
    here = {seat.join.node_rank for seat in state.waiting.values()}
    if -1 in here:
        return ()
    return tuple(rank for rank in range(state.parameters.max_nodes) if rank not in here)
