"""An index of nodes by rank, so that a join finds the node of the same rank without a search.

Comparing each of a thousand joins with all present nodes would take half of the time that a large
job needs to form its world. The index follows from the state, so it is not persisted.
"""

from gangline.elastic.protocol.messages import Join, WorldInfo
from gangline.elastic.rendezvous.state import RendezvousState


class RankIndex:
    """Finds waiting nodes and members of the last world by rank.

    At most one waiting node has a rank, because a new one replaces the old one. Entries may be
    outdated and are checked against the state.
    """

    def __init__(self, state: RendezvousState) -> None:
        self._state = state
        self._waiting = {seat.join.node_rank: node for node, seat in state.waiting.items()}
        self._world: WorldInfo | None = None
        self._members: dict[int, int] = {}

    def add(self, join: Join) -> None:
        self._waiting[join.node_rank] = join.node_id

    def nodes_of(self, rank: int) -> list[int]:
        """Return the nodes with a rank; empty for a negative one, which many nodes may have."""
        if rank < 0:
            return []
        found = []
        node = self._waiting.get(rank)
        seat = self._state.waiting.get(node) if node is not None else None
        if node is not None and seat is not None and seat.join.node_rank == rank:
            found.append(node)
        member = self._members_by_rank().get(rank)
        return found if member is None else [*found, member]

    def _members_by_rank(self) -> dict[int, int]:
        world = self._state.world
        if world is not self._world:
            members = world.members if world is not None else ()
            self._world, self._members = (
                world,
                {member.node_rank: member.node_id for member in members},
            )
        return self._members
