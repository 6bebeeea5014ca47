"""Who has a rank, so that a node that comes with it finds the other without asking all.

A thousand nodes come one after the other; were each compared with all that are there, half of the
time that a large job needs to come together would be spent on that. Holds nothing that does not
follow from the state, so it is not written down.
"""

from gangline.elastic.protocol.messages import Join, World
from gangline.elastic.rendezvous_state import RendezvousState


class RankHolders:
    """Finds by rank who waits and who is in the last world.

    Of nodes that wait at most one has a rank, since each takes it from the other. What is noted of
    them may be outdated and counts only as far as the state still says so.
    """

    def __init__(self, state: RendezvousState) -> None:
        self._state = state
        self._waiting = {seat.join.node_rank: node for node, seat in state.waiting.items()}
        self._world: World | None = None
        self._members: dict[int, int] = {}

    def took(self, join: Join) -> None:
        """Note the rank of a node that waits."""
        self._waiting[join.node_rank] = join.node_id

    def of(self, rank: int) -> list[int]:
        """Return the nodes that have a rank; none where it is below 0, which many may have."""
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
            self._world, self._members = world, {one.node_rank: one.node_id for one in members}
        return self._members
