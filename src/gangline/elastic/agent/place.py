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
