"""Identity of this node for the rendezvous."""

import secrets

from gangline.elastic.agent.settings import AgentSettings, NodeIdentity
from gangline.elastic.launcher.hosted_master import own_address_towards
from gangline.elastic.launcher.rendezvous_config import RendezvousConfig

_ID_BITS = 31


def node_identity(
    settings: AgentSettings,
    config: RendezvousConfig,
    *,
    pod: str = "",
) -> NodeIdentity:
    """Return this node's identity. A node without a number draws a random one.

    Args:
        settings: the agent's settings.
        config: how the nodes find each other.
        pod: name of the pod; empty: the name of the host.
    """
    assert config.master_address is not None, "a single node needs no identity"
    return NodeIdentity(
        job=settings.run_id,
        master_address=config.master_address,
        node_id=secrets.randbits(_ID_BITS) if config.node_id is None else config.node_id,
        node_rank=-1 if config.node_id is None else config.node_rank,
        host=config.local_address or own_address_towards(config.master_address),
        local_world_size=settings.local_world_size,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        node_unit=config.node_unit,
        last_call_s=config.last_call_s,
        join_timeout_s=config.join_timeout_s,
        pod=pod or settings.node_name,
        witness_address=config.witness_address,
        connect_timeout_s=config.connect_timeout_s,
    )


def single_node_identity(settings: AgentSettings) -> NodeIdentity:
    """Return the identity of the only node of a job, for its reports."""
    return NodeIdentity(
        job=settings.run_id,
        master_address="",
        node_id=0,
        node_rank=0,
        host=settings.node_name,
        local_world_size=settings.local_world_size,
        min_nodes=1,
        max_nodes=1,
        node_unit=1,
        last_call_s=0.0,
        join_timeout_s=0.0,
        pod=settings.node_name,
    )
