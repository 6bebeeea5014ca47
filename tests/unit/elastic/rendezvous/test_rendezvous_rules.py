"""When a world forms, its members and their order, and the replies to other nodes."""

import random

import msgspec
import pytest

from gangline.elastic.protocol.messages import Join, RequestRefused, RestartCommand, WorldInfo
from gangline.elastic.rendezvous import STOP_TIMEOUT_S, Rendezvous, RendezvousState

LAST_CALL_S = 5.0
TIMEOUT_S = 600.0


def a_join(node: int, number: int = 1, **fields: object) -> Join:
    join = Join(
        node_id=node, incarnation=f"i{node}", number=number, node_rank=node, min_nodes=2,
        max_nodes=4, last_call_s=LAST_CALL_S, join_timeout_s=TIMEOUT_S, host=f"h{node}",
        store_port=1000 + number,
    )  # fmt: skip
    return msgspec.structs.replace(join, **fields)


def come(rendezvous: Rendezvous, join: Join, now: float = 0.0) -> WorldInfo | RequestRefused | None:
    rendezvous.join(join, now)
    return rendezvous.answer(join)


def a_world(*nodes: int, **fields: object) -> tuple[Rendezvous, WorldInfo]:
    """A rendezvous whose first world has formed of these nodes."""
    rendezvous = Rendezvous()
    for node in nodes:
        come(rendezvous, a_join(node, **fields))
    rendezvous.tick(LAST_CALL_S)
    world = rendezvous.answer(a_join(nodes[0], **fields))
    assert isinstance(world, WorldInfo)
    assert nodes_of(world) == sorted(nodes)
    return rendezvous, world


def nodes_of(world: object) -> list[int]:
    assert isinstance(world, WorldInfo), world
    return [member.node_id for member in world.members]


def restarted_nodes(rendezvous: Rendezvous) -> set[int]:
    orders, rendezvous.orders = rendezvous.orders, []
    assert all(isinstance(order, RestartCommand) for _, order in orders)
    return {node for node, _ in orders}


def test_with_the_minimum_the_last_call_is_waited_for() -> None:
    rendezvous = Rendezvous()
    come(rendezvous, a_join(0), now=0.0)
    come(rendezvous, a_join(1), now=3.0)
    assert rendezvous.deadline() == 3.0 + LAST_CALL_S
    rendezvous.tick(7.9)
    assert rendezvous.answer(a_join(0)) is None
    rendezvous.tick(8.0)
    assert nodes_of(rendezvous.answer(a_join(0))) == [0, 1]


def test_nodes_known_to_be_dead_are_not_waited_for() -> None:
    rendezvous = Rendezvous()
    for node in (0, 1):
        come(rendezvous, a_join(node))
    rendezvous.leave(2, 0.0, "its pod is gone")
    assert rendezvous.answer(a_join(0)) is None
    rendezvous.leave(3, 0.0, "its pod is gone")
    assert nodes_of(rendezvous.answer(a_join(0))) == [0, 1]


def test_world_continues_if_the_workers_of_its_first_node_do() -> None:
    rendezvous, _ = a_world(1, 2)
    rendezvous.leave(2, 1.0, "lost")
    world = come(rendezvous, a_join(1, 2, continues=True), now=1.1)
    assert world is None  # the minimum is two nodes
    world = come(rendezvous, a_join(0), now=2.0)
    assert isinstance(world, WorldInfo)
    assert (nodes_of(world), world.continues, world.store_port) == ([1, 0], True, 1002)

    rendezvous, _ = a_world(1, 2)
    rendezvous.leave(1, 1.0, "the first node is lost")
    come(rendezvous, a_join(2, 2, continues=True), now=1.1)
    world = come(rendezvous, a_join(0), now=2.0)
    assert isinstance(world, WorldInfo)
    assert not world.continues


def test_survivors_form_a_world_without_any_last_call() -> None:
    rendezvous, _ = a_world(0, 1, 2, 3)
    rendezvous.leave(3, 100.0, "killed")
    assert restarted_nodes(rendezvous) == {0, 1, 2}
    answers = [come(rendezvous, a_join(node, 2), 100.1) for node in (0, 1, 2)]
    assert answers[:2] == [None, None]
    assert nodes_of(answers[2]) == [0, 1, 2]


def test_members_that_live_are_waited_for_while_they_stop() -> None:
    rendezvous, _ = a_world(0, 1, 2, 3)
    rendezvous.leave(3, 100.0, "killed")
    come(rendezvous, a_join(0, 2), 100.0)
    come(rendezvous, a_join(1, 2), 100.0)
    rendezvous.tick(100.0 + LAST_CALL_S + 1)
    assert rendezvous.answer(a_join(0, 2)) is None
    rendezvous.tick(100.0 + STOP_TIMEOUT_S)
    assert nodes_of(rendezvous.answer(a_join(0, 2))) == [0, 1]


def test_timeout_names_missing_ranks() -> None:
    rendezvous = Rendezvous()
    come(rendezvous, a_join(0, min_nodes=3), 0.0)
    come(rendezvous, a_join(2, min_nodes=3), 0.0)
    assert rendezvous.tick(TIMEOUT_S)
    answer = rendezvous.answer(a_join(0, min_nodes=3))
    assert isinstance(answer, RequestRefused)
    assert answer.reason == "RendezvousFailed"
    assert "only 2 of at least 3 nodes" in answer.message
    assert "missing: rank 1, 3" in answer.message


def test_worlds_are_multiples_of_the_unit_and_the_rest_are_spares() -> None:
    rendezvous, _ = a_world(0, 1, node_unit=2)
    assert come(rendezvous, a_join(2, node_unit=2), 50.0) is None
    assert restarted_nodes(rendezvous) == set()
    assert "spare" in rendezvous.waiting_message().message
    come(rendezvous, a_join(3, node_unit=2), 51.0)
    assert restarted_nodes(rendezvous) == {0, 1}


def test_finishing_world_does_not_restart_for_a_new_node() -> None:
    rendezvous, world = a_world(0, 1)
    rendezvous.finish(0, "i0", world.round)
    assert come(rendezvous, a_join(2), 50.0) is None
    assert restarted_nodes(rendezvous) == set()


def test_the_job_is_over_when_all_have_finished() -> None:
    rendezvous, world = a_world(0, 1)
    assert rendezvous.finish(0, "i0", world.round)
    assert rendezvous.finished_answer(0, world.round) is False
    assert rendezvous.finish(1, "i1", world.round)
    assert rendezvous.finished_answer(0, world.round) is True
    late = come(rendezvous, a_join(2), 50.0)
    assert isinstance(late, RequestRefused)
    assert late.reason == "JobOver"


def test_finished_node_is_notified_when_world_breaks() -> None:
    rendezvous, world = a_world(0, 1, 2)
    rendezvous.finish(0, "i0", world.round)
    rendezvous.leave(2, 50.0, "killed")
    assert rendezvous.finished_answer(0, world.round) is None


def test_finished_node_may_leave() -> None:
    rendezvous, world = a_world(0, 1)
    rendezvous.leave(0, 50.0, "done", succeeded=True)
    assert restarted_nodes(rendezvous) == set()
    rendezvous.finish(1, "i1", world.round)
    assert rendezvous.finished_answer(1, world.round) is True


def test_a_node_takes_the_rank_of_another_one() -> None:
    rendezvous, _ = a_world(0, 1)
    assert come(rendezvous, a_join(7, node_rank=1), 50.0) is None
    assert restarted_nodes(rendezvous) == {0, 1}
    late = come(rendezvous, a_join(1, 2), 50.1)
    assert isinstance(late, RequestRefused)
    assert late.reason == "Superseded"
    world = come(rendezvous, a_join(0, 2), 50.2)
    assert nodes_of(world) == [0, 7]


def test_the_store_is_where_the_first_node_offered_it_this_time() -> None:
    rendezvous, world = a_world(0, 1)
    assert (world.store_host, world.store_port) == ("h0", 1001)
    come(rendezvous, a_join(0, 2), 50.0)
    again = come(rendezvous, a_join(1, 2), 50.0)
    assert isinstance(again, WorldInfo)
    assert (again.store_port, again.round) == (1002, world.round + 1)


@pytest.mark.parametrize(
    ("places", "order"),
    [
        pytest.param({}, [0, 1, 2, 3], id="by rank without topology"),
        pytest.param({0: "a", 1: "b", 2: "a", 3: "b"}, [0, 2, 1, 3], id="racks together"),
        pytest.param({0: "b", 1: "a", 2: "b", 3: "a"}, [0, 2, 1, 3], id="names do not matter"),
    ],
)
def test_near_nodes_get_ranks_side_by_side(places: dict[int, str], order: list[int]) -> None:
    rendezvous = Rendezvous()
    answer = None
    for node in (2, 0, 3, 1):
        topology = ("zone", places[node]) if places else ()
        answer = come(rendezvous, a_join(node, topology=topology))
    assert nodes_of(answer) == order


def test_master_without_memory_adopts_world_from_heartbeats() -> None:
    rendezvous = Rendezvous()
    for node in range(3):
        rendezvous.record_heartbeat(node, f"i{node}", 5, 0.0)
    come(rendezvous, a_join(0, 2, round_seen=5), 10.0)
    assert restarted_nodes(rendezvous) == {1, 2}
    come(rendezvous, a_join(1, 2, round_seen=5), 10.1)
    world = come(rendezvous, a_join(2, 2, round_seen=5), 10.2)
    rendezvous.tick(10.2 + LAST_CALL_S)
    world = rendezvous.answer(a_join(2, 2))
    assert isinstance(world, WorldInfo)
    assert (world.round, nodes_of(world)) == (6, [0, 1, 2])


def test_node_declared_dead_by_mistake_returns() -> None:
    rendezvous, world = a_world(0, 1, 2)
    rendezvous.leave(2, 50.0, "silent")
    come(rendezvous, a_join(0, 2), 50.1)
    come(rendezvous, a_join(1, 2), 50.2)
    restarted_nodes(rendezvous)
    rendezvous.record_heartbeat(2, "i2", world.round, 51.0)
    assert restarted_nodes(rendezvous) == {2}
    come(rendezvous, a_join(2, 2), 51.5)
    assert restarted_nodes(rendezvous) == {0, 1}


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
