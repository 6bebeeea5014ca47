"""Nodes that take ranks from others, in random order."""

import random

import msgspec
import pytest

from gangline.elastic.protocol.messages import Join
from gangline.elastic.rendezvous import Rendezvous, RendezvousState

NODES, RANKS, STEPS = 8, 6, 120


@pytest.mark.parametrize("seed", range(50))
def test_a_node_takes_its_rank_from_all_that_have_it(seed: int) -> None:
    chance, rendezvous, taken = random.Random(seed), Rendezvous(), 0
    for step in range(1, STEPS):
        if chance.random() < 0.05:  # another master reads what this one wrote
            kept = msgspec.msgpack.encode(rendezvous.state)
            rendezvous = Rendezvous(msgspec.msgpack.decode(kept, type=RendezvousState))
        if chance.random() < 0.1:
            rendezvous.leave(chance.randrange(NODES), step, "dead")
            continue
        join = Join(
            node_id=chance.randrange(NODES * (1 + step // 20)), incarnation="i", number=step,
            node_rank=chance.randrange(-1, RANKS), min_nodes=2, max_nodes=4, last_call_s=3.0,
        )  # fmt: skip
        losers = {*have(rendezvous, join.node_rank)} - {join.node_id}
        before = dict(rendezvous.state.replaced)
        if rendezvous.join(join, step):
            expected = {**{node: join.node_id for node in losers}, **before}
            assert rendezvous.state.replaced == expected
            taken += len(losers)
        rendezvous.tick(step)
    assert taken


def have(rendezvous: Rendezvous, rank: int) -> list[int]:
    """Search all nodes."""
    state = rendezvous.state
    if rank < 0:
        return []
    members = state.world.members if state.world else ()
    waiting = [node for node, seat in state.waiting.items() if seat.join.node_rank == rank]
    return [*waiting, *(one.node_id for one in members if one.node_rank == rank)]
