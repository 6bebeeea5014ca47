"""Identity of a node, and the rendezvous parameters that it brings."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Identity of this node, and its rendezvous parameters."""

    job: str
    master_address: str
    node_id: int
    node_rank: int
    host: str
    local_world_size: int
    min_nodes: int
    max_nodes: int
    node_unit: int
    last_call_s: float
    join_timeout_s: float
    connect_timeout_s: float = 60.0
    topology: tuple[str, ...] = ()
    witness_address: str | None = None
    """host:port of the cluster's API server; None if no component would replace this node.

    A node that reaches neither the witness nor any other node ends.
    """
