"""What a rendezvous remembers: parameters, who waits, who is in the world, who is gone.

All of it can be written down and read again, so that a new master goes on where the old one died.
"""

import msgspec

from gangline.elastic.protocol.messages import Join, World


class Parameters(msgspec.Struct, frozen=True, array_like=True):
    """What the agents of a job agree on; the first Join brings it."""

    min_nodes: int
    max_nodes: int
    node_unit: int
    last_call_s: float
    join_timeout_s: float

    @classmethod
    def of(cls, join: Join) -> "Parameters":
        """Read them, mended where they contradict themselves."""
        unit = max(1, join.node_unit)
        lowest = max(1, join.min_nodes)
        return cls(lowest, max(lowest, join.max_nodes), unit, join.last_call_s, join.join_timeout_s)

    @property
    def problem(self) -> str:
        """Why no world can ever form; empty if one can."""
        if self.most:
            return ""
        return (
            f"there is no multiple of {self.node_unit} (node unit) between {self.min_nodes} and "
            f"{self.max_nodes} nodes"
        )

    @property
    def most(self) -> int:
        """The size of the largest world."""
        return self.usable(self.max_nodes)

    def usable(self, count: int) -> int:
        """How many of so many nodes can make a world; 0: none."""
        size = min(count, self.max_nodes)
        size -= size % self.node_unit
        return size if size >= self.min_nodes else 0

    @property
    def least(self) -> int:
        """The size of the smallest world: the minimum, rounded up to the unit."""
        return -(-self.min_nodes // self.node_unit) * self.node_unit


class Seat(msgspec.Struct, array_like=True):
    """A node that waits for a world."""

    join: Join
    since: float


class Stay(msgspec.Struct, array_like=True):
    """A node's membership in the world that stands."""

    incarnation: str
    number: int
    """Of the Join that brought it in; 0 if this is known from a heartbeat alone."""
    is_finished: bool = False


class Refusal(msgspec.Struct, array_like=True):
    """What the last wish of a node was answered with."""

    incarnation: str
    number: int
    reason: str
    message: str


class RendezvousState(msgspec.Struct):
    """All of it."""

    parameters: Parameters | None = None
    round: int = 0
    world: World | None = None
    """The last one that was formed, whether it still stands or not."""
    members: dict[int, Stay] = {}
    """Who of it has not left it. Also nodes that say they train in a world that we forgot."""
    is_broken: bool = False
    """The members are told to stop and join again."""
    broken_at: float = 0.0
    waiting: dict[int, Seat] = {}
    waiting_since: float | None = None
    """Since when there are nodes without a world."""
    last_arrival: float = 0.0
    gone: dict[int, str] = {}
    """Nodes that are known to be dead or have left: why. Nobody waits for them."""
    replaced: dict[int, int] = {}
    """Nodes whose rank another node has taken: that node."""
    former: dict[int, list[str]] = {}
    """Agent processes of a node that another one has followed."""
    refusals: dict[int, Refusal] = {}
    told: dict[int, float] = {}
    """When nodes that train on in a world that is over were told so last."""
    is_over: bool = False
    """All members of a world have finished: there will be no other."""

    @property
    def is_standing(self) -> bool:
        """Whether there is a world whose members need not restart."""
        return bool(self.members) and not self.is_broken
