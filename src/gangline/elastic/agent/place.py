"""Who a node is, and whom it wants to meet."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Who this node is, and whom it wants to meet."""

    job: str
    master: str
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
    witness: str | None = None
    """host:port of the cluster's API server: a node that does not reach it either, when nobody else
    answers, gives its part up. None where nobody would take it over."""
