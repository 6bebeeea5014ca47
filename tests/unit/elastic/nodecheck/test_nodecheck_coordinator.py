"""Coordinator of checks: nodes that gather, are lost, return and repeat messages."""

import random

import msgspec
import pytest

from gangline.elastic.nodecheck.coordinator import CheckCoordinator, UnknownCheckError
from gangline.elastic.protocol.messages import (
    CheckGroup,
    CheckRequest,
    CheckResult,
    CheckVerdict,
)


def request(node: int, nodes: int = 4, incarnation: str = "a", **fields: object) -> CheckRequest:
    return CheckRequest(
        node_id=node,
        incarnation=incarnation,
        host=f"10.0.0.{node}",
        store_port=1000 + node,
        nodes=nodes,
        **fields,  # type: ignore[arg-type]
    )


def result(message: CheckRequest, group: CheckGroup, *, passed: bool) -> CheckResult:
    return CheckResult(
        node_id=message.node_id,
        incarnation=message.incarnation,
        check=message.check,
        round=group.round,
        passed=passed,
        compute_s=0.1,
        collective_s=0.1,
        store_port=message.store_port + 100 * (group.round + 1),
    )


def played(
    coordinator: CheckCoordinator,
    arrivals: list[CheckRequest],
    faulty: set[int],
    *,
    now: float = 0.0,
    chance: random.Random | None = None,
) -> dict[int, CheckVerdict]:
    """Deliver messages in random order, with repetitions, until all nodes have verdicts."""
    chance = chance or random.Random(0)
    requests: dict[int, CheckRequest | CheckResult] = {one.node_id: one for one in arrivals}
    started = {one.node_id: one for one in arrivals}
    verdicts: dict[int, CheckVerdict] = {}
    for turn in range(10_000):
        if not requests:
            return verdicts
        node = chance.choice(sorted(requests))
        coordinator.receive(requests[node], now)
        answer = coordinator.answer(requests[node])
        if isinstance(answer, CheckVerdict):
            verdicts[node] = answer
            del requests[node]
        elif isinstance(answer, CheckGroup):
            members = {one.node_id for one in answer.members}
            requests[node] = result(started[node], answer, passed=not members & faulty)
        elif turn % 500 == 499 and coordinator.deadline is not None:
            now = max(now, coordinator.deadline)
            coordinator.tick(now)
    raise AssertionError(f"no verdict for {sorted(requests)}")


@pytest.mark.parametrize("seed", range(40))
def test_random_orders_and_repeats_end_in_the_right_verdict_for_all(seed: int) -> None:
    chance = random.Random(seed)
    nodes = chance.randint(3, 12)
    faulty = set(chance.sample(range(nodes), chance.randint(0, (nodes - 1) // 2)))
    coordinator = CheckCoordinator()
    verdicts = played(coordinator, [request(n, nodes) for n in range(nodes)], faulty, chance=chance)
    assert {node for node, one in verdicts.items() if not one.passed} == faulty
    assert all(set(one.faulty) == faulty for one in verdicts.values())


def test_groups_name_members_in_order_and_the_store_of_the_first() -> None:
    coordinator = CheckCoordinator()
    arrivals = [request(n, 2, node_rank=1 - n) for n in range(2)]
    for one in arrivals:
        coordinator.receive(one, 0.0)
    group = coordinator.answer(arrivals[0])
    assert isinstance(group, CheckGroup)
    assert [(one.node_id, one.rank) for one in group.members] == [(1, 0), (0, 1)]
    assert (group.store_host, group.store_port) == ("10.0.0.1", 1001)


def test_check_begins_after_last_call_with_the_minimum() -> None:
    coordinator = CheckCoordinator()
    arrivals = [request(n, 4, min_nodes=2, last_call_s=5.0) for n in range(3)]
    coordinator.receive(arrivals[0], 0.0)
    assert coordinator.deadline is None
    coordinator.receive(arrivals[1], 1.0)
    assert coordinator.deadline == 6.0
    coordinator.receive(arrivals[2], 2.0)
    assert coordinator.deadline == 7.0
    coordinator.receive(arrivals[2], 6.0)
    coordinator.tick(6.9)
    assert coordinator.answer(arrivals[0]) is None
    coordinator.tick(7.0)
    assert isinstance(coordinator.answer(arrivals[0]), CheckGroup)


def test_a_replaced_node_is_checked_while_the_others_train() -> None:
    coordinator = CheckCoordinator()
    played(coordinator, [request(n) for n in range(4)], {2})
    fresh = request(2, 4, "b", min_nodes=4, last_call_s=1.0)
    coordinator.receive(fresh, 100.0)
    assert coordinator.deadline == 101.0
    coordinator.tick(101.0)
    group = coordinator.answer(fresh)
    assert isinstance(group, CheckGroup)
    assert [one.node_id for one in group.members] == [2]
    coordinator.receive(result(fresh, group, passed=True), 102.0)
    verdict = coordinator.answer(fresh)
    assert isinstance(verdict, CheckVerdict)
    assert verdict.passed
    coordinator.remove_node(0, 103.0)
    coordinator.receive(request(5, 5, min_nodes=5), 104.0)
    assert coordinator.deadline is None


def test_silent_node_is_lost_after_timeout() -> None:
    coordinator = CheckCoordinator(round_timeout_s=60.0)
    arrivals = [request(n, 3) for n in range(3)]
    coordinator.receive(arrivals[2], 0.0)
    verdicts = played(coordinator, arrivals[:2], {2})
    assert all(set(one.faulty) == {2} and one.passed for one in verdicts.values())
    late = coordinator.answer(arrivals[2])
    assert isinstance(late, CheckVerdict)
    assert not late.passed


def test_replacing_process_is_checked_next() -> None:
    coordinator = CheckCoordinator()
    arrivals = [request(n, 2) for n in range(2)]
    for one in arrivals:
        coordinator.receive(one, 0.0)
    coordinator.receive(request(1, 2, "b", min_nodes=1), 1.0)
    verdicts = played(coordinator, [arrivals[0]], {1}, now=1.0)
    assert verdicts[0].passed, "the loss of its partner is no failure of the node"
    assert coordinator.deadline is not None
    coordinator.tick(coordinator.deadline)
    assert isinstance(coordinator.answer(request(1, 2, "b")), CheckGroup)


def test_results_of_another_master_s_check_are_refused() -> None:
    late = result(request(0), CheckGroup(round=1, members=()), passed=True)
    with pytest.raises(UnknownCheckError):
        CheckCoordinator().receive(late, 0.0)


def test_verdict_is_repeated_on_request() -> None:
    coordinator = CheckCoordinator()
    arrivals = [request(n, 3) for n in range(3)]
    verdicts = played(coordinator, arrivals, set())
    for one in arrivals:
        coordinator.receive(one, 5.0)
        assert coordinator.answer(one) == verdicts[one.node_id]
    assert coordinator.deadline is None
    later = [msgspec.structs.replace(one, check=2) for one in arrivals]
    assert all(one.passed for one in played(coordinator, later, set()).values())


def asking(message: CheckRequest, number: int) -> CheckRequest:
    return msgspec.structs.replace(message, testing=number, store_port=0)


def begun(nodes: int) -> tuple[CheckCoordinator, list[CheckRequest]]:
    """A check whose nodes all test in the first round."""
    coordinator = CheckCoordinator()
    arrivals = [request(n, nodes) for n in range(nodes)]
    for one in arrivals:
        coordinator.receive(one, 0.0)
    for one in arrivals:
        assert isinstance(coordinator.answer(one), CheckGroup)
        asked = asking(one, 0)
        coordinator.receive(asked, 0.0)
        assert coordinator.answer(asked) is None, "a node that tests gets no second group"
        assert not coordinator.is_test_obsolete(asked)
    return coordinator, arrivals


def test_partner_of_dead_node_is_notified_and_paired_again() -> None:
    coordinator, arrivals = begun(4)
    coordinator.remove_node(3, 1.0)
    in_vain = [coordinator.is_test_obsolete(asking(one, 0)) for one in arrivals]
    assert in_vain == [False, False, True, False]
    assert not coordinator.is_test_obsolete(arrivals[2]), "only a testing node is notified"
    for one in arrivals[:3]:
        group = CheckGroup(round=0, members=())
        coordinator.receive(result(one, group, passed=one.node_id != 2), 1.0)
    assert not coordinator.is_test_obsolete(asking(arrivals[2], 0)), "the round is over"
    group = coordinator.answer(arrivals[2])
    assert isinstance(group, CheckGroup)
    assert [one.node_id for one in group.members] == [0, 2]
    for one in (arrivals[0], arrivals[2]):
        coordinator.receive(result(one, group, passed=True), 2.0)
    verdict = coordinator.answer(arrivals[2])
    assert isinstance(verdict, CheckVerdict)
    assert verdict.passed
    assert "did not report" in verdict.faulty[3]
    assert set(verdict.faulty) == {3}


def test_partner_of_locally_failing_node_is_notified() -> None:
    coordinator, arrivals = begun(2)
    failed = result(arrivals[0], CheckGroup(round=0, members=()), passed=False)
    coordinator.receive(failed, 0.0)
    assert not coordinator.is_test_obsolete(asking(arrivals[1], 0)), "its partner may be the cause"
    coordinator, arrivals = begun(2)
    coordinator.receive(msgspec.structs.replace(failed, local=True), 0.0)
    assert coordinator.is_test_obsolete(asking(arrivals[1], 0))
    assert not coordinator.is_test_obsolete(asking(arrivals[0], 0)), "it has reported its result"


@pytest.mark.parametrize("seed", range(60))
def test_dying_nodes_delay_no_check_and_no_other_node_is_blamed(seed: int) -> None:
    chance = random.Random(seed)
    nodes = chance.randint(2, 9)
    coordinator = CheckCoordinator()
    requests: dict[int, CheckRequest | CheckResult] = {n: request(n, nodes) for n in range(nodes)}
    for one in requests.values():
        coordinator.receive(one, 0.0)
    faulty = set(chance.sample(range(nodes), chance.randint(0, (nodes - 1) // 3)))
    dying = set(chance.sample(range(nodes), chance.randint(0, nodes - 1)))
    lost: set[int] = set()
    verdicts: dict[int, CheckVerdict] = {}
    for _ in range(2000):
        living = sorted(requests.keys() - lost)
        if not living:
            break
        node = chance.choice(living)
        if node in dying and chance.random() < 0.2:
            lost.add(node)
            coordinator.remove_node(node, 0.0)
            continue
        coordinator.receive(requests[node], 0.0)
        answer = coordinator.answer(requests[node])
        if isinstance(answer, CheckVerdict):
            verdicts[node] = answer
            del requests[node]
        elif isinstance(answer, CheckGroup):
            members = {one.node_id for one in answer.members}
            asked = asking(request(node, nodes), answer.round)
            if members & lost:
                assert coordinator.is_test_obsolete(asked)
            passed = not members & (faulty | lost) or members == {node}
            requests[node] = result(request(node, nodes), answer, passed=passed)
    assert verdicts.keys() == requests.keys() ^ set(range(nodes)), "time alone was never needed"
    assert not requests.keys() - lost
    for one in verdicts.values():
        assert set(one.faulty) <= faulty | lost
    if not faulty:
        assert all(one.passed for one in verdicts.values())
