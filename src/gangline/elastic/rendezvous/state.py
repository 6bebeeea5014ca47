"""State of a rendezvous: parameters, waiting nodes, members of the world, and nodes that left.

All of it is persisted, so that a new master continues where the old one ended.
"""

import msgspec

from gangline.elastic.protocol.messages import Join, WorldInfo


class RendezvousParameters(msgspec.Struct, frozen=True, array_like=True):
    """Rendezvous parameters of a job; the first Join sets them."""

    min_nodes: int
    max_nodes: int
    node_unit: int
    last_call_s: float
    join_timeout_s: float

    @classmethod
    def from_join(cls, join: Join) -> "RendezvousParameters":
        """Read them from a Join, and correct contradictions."""
        unit = max(1, join.node_unit)
        lowest = max(1, join.min_nodes)
        return cls(lowest, max(lowest, join.max_nodes), unit, join.last_call_s, join.join_timeout_s)

    @property
    def problem(self) -> str:
        """Why no world can ever form; empty if one can."""
        if self.largest_size:
            return ""
        return (
            f"there is no multiple of {self.node_unit} (node unit) between {self.min_nodes} and "
            f"{self.max_nodes} nodes"
        )

    @property
    def largest_size(self) -> int:
        """Size of the largest possible world."""
        return self.usable_size(self.max_nodes)

    def usable_size(self, count: int) -> int:
        """Return the size of the largest world of ``count`` nodes; 0 if there is none."""
        size = min(count, self.max_nodes)
        size -= size % self.node_unit
        return size if size >= self.min_nodes else 0

    @property
    def smallest_size(self) -> int:
        """Size of the smallest possible world: the minimum, rounded up to the unit."""
        return -(-self.min_nodes // self.node_unit) * self.node_unit


class WaitingNode(msgspec.Struct, array_like=True):
    """A node that waits for a world."""

    join: Join
    since: float


class MemberRecord(msgspec.Struct, array_like=True):
    """A node's membership in the current world."""

    incarnation: str
    number: int
    """Number of the Join; 0 if the membership is known from a heartbeat only."""
    is_finished: bool = False


class JoinRefusal(msgspec.Struct, array_like=True):
    """The refusal of a node's last Join."""

    incarnation: str
    number: int
    reason: str
    message: str


class RendezvousState(msgspec.Struct):
    """Everything that a rendezvous knows."""

    parameters: RendezvousParameters | None = None
    round: int = 0
    world: WorldInfo | None = None
    """The last world that formed, current or not."""
    members: dict[int, MemberRecord] = {}
    """Members that have not left it. Also nodes that report training in a world unknown to this
    master.
    """
    is_broken: bool = False
    """True if the members are ordered to stop and join again."""
    broken_at: float = 0.0
    waiting: dict[int, WaitingNode] = {}
    waiting_since: float | None = None
    """Time since which nodes wait for a world; None without waiting nodes."""
    last_arrival: float = 0.0
    gone: dict[int, str] = {}
    """Nodes that are dead or have left, with the reason. They are not waited for."""
    replaced: dict[int, int] = {}
    """Nodes whose rank another node has taken, with the id of that node."""
    former: dict[int, list[str]] = {}
    """Earlier agent processes of each node."""
    refusals: dict[int, JoinRefusal] = {}
    told: dict[int, float] = {}
    """Time of the last order to restart, for nodes that train on in a world that is over."""
    is_over: bool = False
    """True if all members of a world have finished: there will be no other one."""

    @property
    def is_standing(self) -> bool:
        """True if there is a world whose members need not restart."""
        return bool(self.members) and not self.is_broken
