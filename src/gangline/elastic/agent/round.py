"""An agent's state of its current round, and the rules for its attempts.

Invariant: attempts of a round only rise. A request for an attempt that is known already is answered
with the current order.
"""

from dataclasses import dataclass, field

from gangline.elastic.agent.peers import Failed, Go, Heard, PeerMessage
from gangline.elastic.agent.world import World
from gangline.elastic.protocol.messages import Member
from gangline.elastic.protocol.messages import World as WorldMessage


@dataclass(slots=True)
class Round:
    """A round, and the latest order in it."""

    world: WorldMessage
    node_id: int
    go: Go = field(init=False)
    """The latest agreed attempt."""

    def __post_init__(self) -> None:
        world = self.world
        self.go = Go(world.round, world.attempt, world.store_host, world.store_port)

    @property
    def me(self) -> Member:
        return next(member for member in self.world.members if member.node_id == self.node_id)

    @property
    def leader(self) -> Member:
        """The node of rank 0: it opens the store, so it decides where the next one is."""
        return self.world.members[0]

    @property
    def leads(self) -> bool:
        return self.leader.node_id == self.node_id

    @property
    def others(self) -> list[Member]:
        return [member for member in self.world.members if member.node_id != self.node_id]

    def attempt_world(self, restarts_before: int) -> World:
        """Return the world of the current attempt for the workers.

        Args:
            restarts_before: restarts of the job before this round.
        """
        return World(
            attempt=restarts_before + self.go.attempt,
            group_rank=self.me.group_rank,
            group_world_size=len(self.world.members),
            first_rank=self.me.first_rank,
            world_size=self.world.world_size,
            store_host=self.go.store_host,
            store_port=self.go.store_port,
            round=self.world.round,
        )

    def propose(self, attempt: int, store_port: int, reason: str) -> Go | None:
        """As the leader, order the attempt after ``attempt``; None if there is a later order."""
        if attempt < self.go.attempt:
            return None
        self.go = replace_go(self.go, self.go.attempt + 1, store_port, reason)
        return self.go

    def hear(self, message: PeerMessage) -> PeerMessage:
        """Apply an order of the leader; messages of another round change nothing."""
        newer = isinstance(message, Go) and message.round == self.go.round
        if newer and isinstance(message, Go) and message.attempt > self.go.attempt:
            self.go = message
        return Heard(self.go.round, self.go.attempt)

    def is_news(self, message: Failed) -> bool:
        """True if a failure belongs to the current attempt."""
        return message.round == self.go.round and message.attempt >= self.go.attempt


def replace_go(go: Go, attempt: int, store_port: int, reason: str) -> Go:
    return Go(go.round, attempt, go.store_host, store_port, reason)
