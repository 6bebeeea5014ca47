"""Identity of this node for the rendezvous."""

import secrets

from gangline.elastic.agent.place import Place
from gangline.elastic.agent.settings import AgentSettings
from gangline.elastic.launcher.host import own_address_towards
from gangline.elastic.launcher.meeting import CONNECT_TIMEOUT_S, Meeting

_ID_BITS = 31


def place_of(settings: AgentSettings, meet: Meeting, *, hosts: bool = False) -> Place:
    """Return this node's identity. A node without a number draws a random one.

    Args:
        settings: the agent's settings.
        meet: how the nodes find each other.
        hosts: True if this node runs the master, whose start takes time.
    """
    assert meet.address is not None, "one node has no place among others"
    is_known = meet.node_id is not None
    return Place(
        job=settings.run_id,
        master=meet.address,
        node_id=meet.node_id if meet.node_id is not None else secrets.randbits(_ID_BITS),
        node_rank=meet.node_rank if is_known else -1,
        host=meet.local_address or own_address_towards(meet.address),
        local_world_size=settings.local_world_size,
        min_nodes=meet.min_nodes,
        max_nodes=meet.max_nodes,
        node_unit=meet.node_unit,
        last_call_s=meet.last_call_s,
        join_timeout_s=meet.join_timeout_s,
        witness=meet.witness,
        connect_timeout_s=max(meet.connect_timeout_s, CONNECT_TIMEOUT_S if hosts else 0.0),
    )
