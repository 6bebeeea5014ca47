"""Thousands of random histories: the rules hold for all orders of events."""

import random
from dataclasses import dataclass, field

import msgspec
import pytest

from gangline.elastic.protocol.messages import Join, RequestRefused, WorldInfo
from gangline.elastic.rendezvous import Rendezvous, RendezvousState

SHAPES = [
    pytest.param(2, 2, 1, True, id="two of two"),
    pytest.param(1, 2, 1, True, id="one to two"),
    pytest.param(2, 4, 1, False, id="two to four without ranks"),
    pytest.param(2, 6, 2, True, id="two to six by pairs"),
    pytest.param(3, 5, 1, True, id="three to five"),
]
HISTORIES = 240


@pytest.mark.parametrize(("lowest", "highest", "unit", "ranks"), SHAPES)
def test_worlds_agree_and_no_node_waits_endlessly(
    lowest: int, highest: int, unit: int, ranks: bool
) -> None:
    worlds = 0
    for seed in range(HISTORIES):
        stage = Stage(seed, lowest=lowest, highest=highest, unit=unit, ranks=ranks)
        try:
            for _ in range(stage.random.randrange(10, 120)):
                stage.step()
            stage.quiesce()
            stage.check_rest()
        except AssertionError as error:
            raise AssertionError(f"history {seed}: {error}") from error
        worlds += len(stage.worlds)
    assert worlds > HISTORIES, "most histories are to form worlds, some several"


SILENCE_S = 15.0
STOP_S = 5.0


@dataclass
class Agent:
    """One node's agent: what it requests and has received."""

    node: int
    incarnation: str
    rank: int
    number: int = 1
    world: WorldInfo | None = None
    wishes: bool = True
    """It waits for a world."""
    refused: str = ""
    lives: bool = True
    stopping_until: float = 0.0
    died_at: float = 0.0
    sent: list[Join] = field(default_factory=list)

    def wish(self) -> None:
        """Request a new world."""
        if not self.wishes:
            self.wishes = True
            self.number += 1


class Stage:
    """A job of ``lowest`` to ``highest`` nodes; every step is drawn from the seed."""

    def __init__(self, seed: int, *, lowest: int, highest: int, unit: int, ranks: bool) -> None:
        self.random = random.Random(seed)
        self.lowest, self.highest, self.unit, self.ranks = lowest, highest, unit, ranks
        self.rendezvous = Rendezvous()
        self.now = 100.0
        self.agents: dict[int, Agent] = {}
        self.next_node = 0
        self.worlds: dict[tuple[int, int], WorldInfo] = {}
        self.memories = 0
        """Masters that started without memory; only these may repeat round numbers."""
        for _ in range(highest):
            self.start_agent()

    # What can happen

    def start_agent(self, rank: int | None = None) -> None:
        node = self.next_node
        self.next_node += 1
        if rank is None:
            rank = node if self.ranks else -1
        self.agents[node] = Agent(node, f"i{node}", rank)

    def step(self) -> None:
        self.now += self.random.choice((0.0, 0.01, 0.1, 1.0, 3.0))
        act = self.random.choices(
            (
                self.ask,
                self.repeat_old,
                self.die,
                self.replace,
                self.restart_agent,
                self.fail,
                self.heartbeat,
                self.new_master,
                self.wrongly_dead,
                self.pass_time,
                self.finish,
            ),
            (60, 4, 4, 6, 2, 5, 15, 3, 2, 10, 3),
        )[0]
        act()
        self.deliver()

    def one(self, **values: bool) -> Agent | None:
        fitting = [
            agent
            for agent in self.agents.values()
            if agent.lives
            and not agent.refused
            and all(getattr(agent, name) == value for name, value in values.items())
        ]
        return self.random.choice(fitting) if fitting else None

    def join_of(self, agent: Agent) -> Join:
        return Join(
            node_id=agent.node,
            incarnation=agent.incarnation,
            number=agent.number,
            node_rank=agent.rank,
            local_world_size=1 + agent.node % 3,
            host=f"h{agent.node}",
            store_port=20000 + agent.number,
            round_seen=agent.world.round if agent.world else 0,
            min_nodes=self.lowest,
            max_nodes=self.highest,
            node_unit=self.unit,
        )

    def ask(self, agent: Agent | None = None) -> None:
        agent = agent or self.one(wishes=True)
        if agent is None or self.now < agent.stopping_until:
            return
        if not agent.sent or agent.sent[-1].number != agent.number:
            agent.sent.append(self.join_of(agent))
        self.hand_over(agent, is_reply_lost=self.random.random() < 0.2)

    def hand_over(self, agent: Agent, *, is_reply_lost: bool) -> None:
        join = agent.sent[-1]
        self.rendezvous.join(join, self.now)
        answer = self.rendezvous.answer(join)
        if not is_reply_lost:
            self.hear(agent, join, answer)

    def hear(self, agent: Agent, join: Join, answer: WorldInfo | RequestRefused | None) -> None:
        if join.number != agent.number or join.incarnation != agent.incarnation:
            return
        if isinstance(answer, RequestRefused):
            agent.refused, agent.wishes = answer.reason, False
        elif isinstance(answer, WorldInfo):
            self.check_world(answer)
            if agent.wishes:
                agent.world, agent.wishes = answer, False

    def repeat_old(self) -> None:
        agent = self.random.choice([*self.agents.values()])
        if agent.sent and agent.lives:
            self.rendezvous.join(self.random.choice(agent.sent), self.now)

    def die(self) -> None:
        agent = self.one()
        if agent is None:
            return
        agent.lives, agent.died_at = False, self.now
        if self.random.random() < 0.6:
            self.rendezvous.leave(agent.node, self.now, "killed")

    def replace(self) -> None:
        alive = [agent for agent in self.agents.values() if agent.lives and not agent.refused]
        if len(alive) >= self.highest + 2:
            return
        ranks = {agent.rank for agent in alive}
        free = [rank for rank in range(self.highest) if rank not in ranks]
        if not self.ranks:
            self.start_agent()
        elif free:
            self.start_agent(self.random.choice(free))

    def restart_agent(self) -> None:
        agent = self.one()
        if agent is not None:
            agent.incarnation += "x"
            agent.number, agent.world, agent.wishes, agent.sent = 1, None, True, []

    def fail(self) -> None:
        agent = self.one(wishes=False)
        if agent is not None and agent.world:
            agent.wish()

    def finish(self) -> None:
        agent = self.one(wishes=False)
        if agent is not None and agent.world:
            self.rendezvous.finish(agent.node, agent.incarnation, agent.world.round)

    def heartbeat(self, agent: Agent | None = None) -> None:
        agent = agent or self.one()
        if agent is not None and agent.world is not None and not agent.wishes:
            self.rendezvous.record_heartbeat(
                agent.node, agent.incarnation, agent.world.round, self.now
            )

    def new_master(self) -> None:
        """The master dies; the next one reads what was written."""
        if self.random.random() < 0.1:
            self.rendezvous = Rendezvous()  # even its journal is lost
            self.memories += 1
            for agent in self.agents.values():  # late messages arrive on the old connection
                agent.sent = agent.sent[-1:] if agent.wishes else []
            return
        kept = msgspec.msgpack.encode(self.rendezvous.state)
        self.deliver()
        self.rendezvous = Rendezvous(msgspec.msgpack.decode(kept, type=RendezvousState))

    def wrongly_dead(self) -> None:
        agent = self.one()
        if agent is not None:
            self.rendezvous.leave(agent.node, self.now, "silent")

    def pass_time(self) -> None:
        self.now += self.random.choice((1.0, 6.0, 20.0, 61.0))
        for agent in self.agents.values():
            if not agent.lives and self.now > agent.died_at + SILENCE_S:
                self.rendezvous.leave(agent.node, self.now, "silent")
        self.rendezvous.tick(self.now)

    def deliver(self) -> None:
        orders, self.rendezvous.orders = self.rendezvous.orders, []
        for node, order in orders:
            agent = self.agents[node]
            if self.random.random() < 0.1:
                continue  # it was busy and missed it
            if agent.lives and agent.world and agent.world.round <= order.round:
                agent.wish()
                agent.stopping_until = self.now + self.random.random() * STOP_S

    # What must hold

    def check_world(self, world: WorldInfo) -> None:
        first_world = self.worlds.setdefault((self.memories, world.round), world)
        assert first_world == world, "two worlds in a round"
        count = len(world.members)
        assert self.lowest <= count <= self.highest
        assert count % self.unit == 0
        assert [member.group_rank for member in world.members] == list(range(count))
        nodes = [member.node_id for member in world.members]
        assert len(set(nodes)) == count
        ranks = [member.node_rank for member in world.members if member.node_rank >= 0]
        assert len(set(ranks)) == len(ranks)
        first = 0
        for member in world.members:
            assert member.first_rank == first
            first += member.local_world_size
        assert world.store_host == f"h{nodes[0]}"

    def quiesce(self) -> None:
        """No more faults: all agents send, receive and wait until the job settles."""
        for _ in range(60):
            self.now += 7.0
            for agent in self.agents.values():
                if not agent.lives:
                    self.rendezvous.leave(agent.node, self.now, "silent")
                elif agent.wishes and not agent.refused:
                    self.ask(agent)
                else:
                    self.heartbeat(agent)
                self.deliver()
            self.rendezvous.tick(self.now)
            self.deliver()

    def check_rest(self) -> None:
        """Every live node trains in one world, is a spare, or was refused with a reason."""
        state = self.rendezvous.state
        alive = [agent for agent in self.agents.values() if agent.lives and not agent.refused]
        if not alive:
            return
        if state.is_over:
            # An agent that missed the end learns of it with its next request.
            assert all(
                agent.world or agent.refused for agent in self.agents.values() if agent.lives
            )
            return
        training = [agent for agent in alive if not agent.wishes]
        waiting = [agent for agent in alive if agent.wishes]
        assert len({agent.world.round for agent in training if agent.world}) <= 1
        if training and state.world is None:  # known from heartbeats only
            assert {agent.node for agent in training} == state.members.keys()
            assert not waiting
        elif training:
            assert state.world is not None
            assert state.parameters is not None
            done = {
                node
                for node, stay in state.members.items()
                if stay.is_finished and node in state.gone
            }
            assert {agent.node for agent in training} | done == {
                member.node_id for member in state.world.members
            }
            finishing = any(stay.is_finished for stay in state.members.values())
            assert finishing or state.parameters.usable_size(len(alive)) == len(training)
            assert len(waiting) == len(alive) - len(training)
        elif alive:
            assert state.parameters is not None
            assert state.parameters.usable_size(len(alive)) == 0
