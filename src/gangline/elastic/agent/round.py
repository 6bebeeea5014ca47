"""An agent's state of its current round, and the rules for its attempts.

Invariant: attempts of a round only rise. A request for an attempt that is known already is answered
with the current order.
"""

from dataclasses import dataclass, field

from gangline.elastic.agent.peers import RestartRequest, RestartOrder, Ack, PeerMessage
from gangline.elastic.agent.world import WorldSpec
from gangline.elastic.protocol.messages import WorldMember
from gangline.elastic.protocol.messages import WorldInfo as WorldMessage


@dataclass(slots=True)
class RoundState:
    """A round, and the latest order in it."""

    world: WorldMessage
    node_id: int
    order: RestartOrder = field(init=False)
    """The latest agreed attempt."""

    def __post_init__(self) -> None:
        world = self.world
        self.order = RestartOrder(world.round, world.attempt, world.store_host, world.store_port)

    @property
    def member(self) -> WorldMember:
        return next(member for member in self.world.members if member.node_id == self.node_id)

    @property
    def leader(self) -> WorldMember:
        """The node of rank 0: it opens the store, so it decides where the next one is."""
        return self.world.members[0]

    @property
    def is_leader(self) -> bool:
        return self.leader.node_id == self.node_id

    @property
    def other_members(self) -> list[WorldMember]:
        return [member for member in self.world.members if member.node_id != self.node_id]

    def world_spec(self, restarts_before: int) -> WorldSpec:
        """Return the world of the current attempt for the workers.

        Args:
            restarts_before: restarts of the job before this round.
        """
        return WorldSpec(
            attempt=restarts_before + self.order.attempt,
            group_rank=self.member.group_rank,
            group_world_size=len(self.world.members),
            first_rank=self.member.first_rank,
            world_size=self.world.world_size,
            store_host=self.order.store_host,
            store_port=self.order.store_port,
            round=self.world.round,
        )

    def propose_restart(self, attempt: int, store_port: int, reason: str) -> RestartOrder | None:
        """As the leader, order the attempt after ``attempt``; None if there is a later order."""
        if attempt < self.order.attempt:
            return None
        self.order = next_order(self.order, self.order.attempt + 1, store_port, reason)
        return self.order

    def apply_message(self, message: PeerMessage) -> PeerMessage:
        """Apply an order of the leader; messages of another round change nothing."""
        newer = isinstance(message, RestartOrder) and message.round == self.order.round
        if newer and isinstance(message, RestartOrder) and message.attempt > self.order.attempt:
            self.order = message
        return Ack(self.order.round, self.order.attempt)

    def is_current_failure(self, message: RestartRequest) -> bool:
        """True if a failure belongs to the current attempt."""
        return message.round == self.order.round and message.attempt >= self.order.attempt


def next_order(order: RestartOrder, attempt: int, store_port: int, reason: str) -> RestartOrder:
    return RestartOrder(order.round, attempt, order.store_host, store_port, reason)
