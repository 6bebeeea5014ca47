"""What one agent knows of the round that it is in, and how restarts in it are agreed upon.

Pure: decides what to answer to peers. Attempts of a round only ever rise; whoever proposes one that
is known already is told the one that stands.
"""

from dataclasses import dataclass, field

from gangline.elastic.agent.peers import Failed, Go, Heard, PeerMessage
from gangline.elastic.agent.world import World
from gangline.elastic.protocol.messages import Member
from gangline.elastic.protocol.messages import World as WorldMessage


@dataclass(slots=True)
class Round:
    """A round, and the attempt in it that stands now."""

    world: WorldMessage
    node_id: int
    go: Go = field(init=False)
    """The latest attempt that is agreed upon."""

    def __post_init__(self) -> None:
        world = self.world
        self.go = Go(world.round, world.attempt, world.store_host, world.store_port)

    @property
    def me(self) -> Member:
        """This node's place."""
        return next(each for each in self.world.members if each.node_id == self.node_id)

    @property
    def leader(self) -> Member:
        """Who decides where the next store is: the node of rank 0, which opens it."""
        return self.world.members[0]

    @property
    def leads(self) -> bool:
        """Whether that is this node."""
        return self.leader.node_id == self.node_id

    @property
    def others(self) -> list[Member]:
        """All members but this one."""
        return [each for each in self.world.members if each.node_id != self.node_id]

    def attempt_world(self, restarts_before: int) -> World:
        """Return what workers of the attempt that stands are told.

        Args:
            restarts_before: those of the job before this round.
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
        """As the leader: decide on the attempt after ``attempt``; None if that was done before."""
        if attempt < self.go.attempt:
            return None
        self.go = replace_go(self.go, self.go.attempt + 1, store_port, reason)
        return self.go

    def hear(self, message: PeerMessage) -> PeerMessage:
        """Take a ``Go`` of the leader; anything of another round changes nothing."""
        newer = isinstance(message, Go) and message.round == self.go.round
        if newer and isinstance(message, Go) and message.attempt > self.go.attempt:
            self.go = message
        return Heard(self.go.round, self.go.attempt)

    def is_news(self, message: Failed) -> bool:
        """Whether a failure is of the attempt that stands."""
        return message.round == self.go.round and message.attempt >= self.go.attempt


def replace_go(go: Go, attempt: int, store_port: int, reason: str) -> Go:
    """Return the next attempt of the same round on the same host."""
    return Go(go.round, attempt, go.store_host, store_port, reason)
