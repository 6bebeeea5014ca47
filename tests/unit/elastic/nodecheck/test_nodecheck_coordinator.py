"""Coordinator of checks: nodes that gather, are lost, return and repeat messages."""

import random

import msgspec
import pytest

from gangline.elastic.nodecheck.coordinator import CheckCoordinator, UnknownCheckError
from gangline.elastic.protocol.check_messages import (
    CheckGroup,
    CheckRequest,
    CheckResult,
    CheckVerdict,
)


def wanted(node: int, nodes: int = 4, incarnation: str = "a", **words: object) -> CheckRequest:
    return CheckRequest(
        node_id=node,
        incarnation=incarnation,
        host=f"10.0.0.{node}",
        store_port=1000 + node,
        nodes=nodes,
        **words,  # type: ignore[arg-type]
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
    conductor: CheckCoordinator,
    arrivals: list[CheckRequest],
    faulty: set[int],
    *,
    now: float = 0.0,
    chance: random.Random | None = None,
) -> dict[int, CheckVerdict]:
    """Deliver messages in random order, with repetitions, until all nodes have verdicts."""
    chance = chance or random.Random(0)
    says: dict[int, CheckRequest | CheckResult] = {one.node_id: one for one in arrivals}
    started = {one.node_id: one for one in arrivals}
    verdicts: dict[int, CheckVerdict] = {}
    for turn in range(10_000):
        if not says:
            return verdicts
        node = chance.choice(sorted(says))
        conductor.receive(says[node], now)
        answer = conductor.answer(says[node])
        if isinstance(answer, CheckVerdict):
            verdicts[node] = answer
            del says[node]
        elif isinstance(answer, CheckGroup):
            members = {one.node_id for one in answer.members}
            says[node] = result(started[node], answer, passed=not members & faulty)
        elif turn % 500 == 499 and conductor.deadline is not None:
            now = max(now, conductor.deadline)
            conductor.tick(now)
    raise AssertionError(f"no verdict for {sorted(says)}")


@pytest.mark.parametrize("seed", range(40))
def test_random_orders_and_repeats_end_in_the_right_verdict_for_all(seed: int) -> None:
    chance = random.Random(seed)
    nodes = chance.randint(3, 12)
    faulty = set(chance.sample(range(nodes), chance.randint(0, (nodes - 1) // 2)))
    conductor = CheckCoordinator()
    verdicts = played(conductor, [wanted(n, nodes) for n in range(nodes)], faulty, chance=chance)
    assert {node for node, one in verdicts.items() if not one.passed} == faulty
    assert all(set(one.faulty) == faulty for one in verdicts.values())


def test_groups_name_members_in_order_and_the_store_of_the_first() -> None:
    conductor = CheckCoordinator()
    arrivals = [wanted(n, 2, node_rank=1 - n) for n in range(2)]
    for one in arrivals:
        conductor.receive(one, 0.0)
    group = conductor.answer(arrivals[0])
    assert isinstance(group, CheckGroup)
    assert [(one.node_id, one.rank) for one in group.members] == [(1, 0), (0, 1)]
    assert (group.store_host, group.store_port) == ("10.0.0.1", 1001)


def test_check_begins_after_last_call_with_the_minimum() -> None:
    conductor = CheckCoordinator()
    arrivals = [wanted(n, 4, min_nodes=2, last_call_s=5.0) for n in range(3)]
    conductor.receive(arrivals[0], 0.0)
    assert conductor.deadline is None
    conductor.receive(arrivals[1], 1.0)
    assert conductor.deadline == 6.0
    conductor.receive(arrivals[2], 2.0)
    assert conductor.deadline == 7.0
    conductor.receive(arrivals[2], 6.0)
    conductor.tick(6.9)
    assert conductor.answer(arrivals[0]) is None
    conductor.tick(7.0)
    assert isinstance(conductor.answer(arrivals[0]), CheckGroup)


def test_a_replaced_node_is_checked_while_the_others_train() -> None:
    conductor = CheckCoordinator()
    played(conductor, [wanted(n) for n in range(4)], {2})
    fresh = wanted(2, 4, "b", min_nodes=4, last_call_s=1.0)
    conductor.receive(fresh, 100.0)
    assert conductor.deadline == 101.0
    conductor.tick(101.0)
    group = conductor.answer(fresh)
    assert isinstance(group, CheckGroup)
    assert [one.node_id for one in group.members] == [2]
    conductor.receive(result(fresh, group, passed=True), 102.0)
    verdict = conductor.answer(fresh)
    assert isinstance(verdict, CheckVerdict)
    assert verdict.passed
    conductor.remove_node(0, 103.0)
    conductor.receive(wanted(5, 5, min_nodes=5), 104.0)
    assert conductor.deadline is None


def test_lost_node_does_not_delay_the_check() -> None:
    conductor = CheckCoordinator()
    arrivals = [wanted(n) for n in range(4)]
    for one in arrivals:
        conductor.receive(one, 0.0)
    for one in arrivals[:3]:
        group = conductor.answer(one)
        assert isinstance(group, CheckGroup)
        conductor.receive(result(one, group, passed=one.node_id < 2), 0.0)
    conductor.remove_node(3, 1.0)
    group = conductor.answer(arrivals[2])
    assert isinstance(group, CheckGroup)
    assert group.round == 1
    for one in arrivals[:3]:
        again = conductor.answer(one)
        if isinstance(again, CheckGroup):
            passed = 3 not in {m.node_id for m in again.members}
            conductor.receive(result(one, again, passed=passed), 1.0)
    verdict = conductor.answer(arrivals[2])
    while isinstance(verdict, CheckGroup):
        for one in arrivals[:3]:
            again = conductor.answer(one)
            if isinstance(again, CheckGroup):
                passed = 3 not in {m.node_id for m in again.members}
                conductor.receive(result(one, again, passed=passed), 1.0)
        verdict = conductor.answer(arrivals[2])
    assert isinstance(verdict, CheckVerdict)
    assert verdict.passed
    assert "did not report" in verdict.faulty[3]


def test_silent_node_is_lost_after_timeout() -> None:
    conductor = CheckCoordinator(round_timeout_s=60.0)
    arrivals = [wanted(n, 3) for n in range(3)]
    for one in arrivals:
        conductor.receive(one, 0.0)
    says = dict(enumerate(arrivals))
    now = 0.0
    while True:
        for one in arrivals[:2]:
            answer = conductor.answer(one)
            if isinstance(answer, CheckGroup):
                passed = 2 not in {m.node_id for m in answer.members}
                conductor.receive(result(one, answer, passed=passed), now)
        answer = conductor.answer(says[0])
        if isinstance(answer, CheckVerdict):
            break
        assert conductor.deadline is not None
        now = conductor.deadline
        conductor.tick(now)
    assert set(answer.faulty) == {2}
    assert answer.passed
    late = conductor.answer(says[2])
    assert isinstance(late, CheckVerdict)
    assert not late.passed


def test_replacing_process_is_checked_next() -> None:
    conductor = CheckCoordinator()
    arrivals = [wanted(n, 2) for n in range(2)]
    for one in arrivals:
        conductor.receive(one, 0.0)
    conductor.receive(wanted(1, 2, "b", min_nodes=1), 1.0)
    verdicts = played(conductor, [arrivals[0]], {1}, now=1.0)
    assert verdicts[0].passed, "the loss of its partner is no failure of the node"
    assert conductor.deadline is not None
    conductor.tick(conductor.deadline)
    assert isinstance(conductor.answer(wanted(1, 2, "b")), CheckGroup)


def test_results_of_another_master_s_check_are_refused() -> None:
    said = result(wanted(0), CheckGroup(round=1, members=()), passed=True)
    with pytest.raises(UnknownCheckError):
        CheckCoordinator().receive(said, 0.0)


def test_verdict_is_repeated_on_request() -> None:
    conductor = CheckCoordinator()
    arrivals = [wanted(n, 3) for n in range(3)]
    verdicts = played(conductor, arrivals, set())
    for one in arrivals:
        conductor.receive(one, 5.0)
        assert conductor.answer(one) == verdicts[one.node_id]
    assert conductor.deadline is None
    later = [msgspec.structs.replace(one, check=2) for one in arrivals]
    assert all(one.passed for one in played(conductor, later, set()).values())


def asking(message: CheckRequest, number: int) -> CheckRequest:
    return msgspec.structs.replace(message, testing=number, store_port=0)


def begun(nodes: int) -> tuple[CheckCoordinator, list[CheckRequest]]:
    """A check whose nodes all test in the first round."""
    conductor = CheckCoordinator()
    arrivals = [wanted(n, nodes) for n in range(nodes)]
    for one in arrivals:
        conductor.receive(one, 0.0)
    for one in arrivals:
        assert isinstance(conductor.answer(one), CheckGroup)
        asked = asking(one, 0)
        conductor.receive(asked, 0.0)
        assert conductor.answer(asked) is None, "a node that tests gets no second group"
        assert not conductor.is_test_obsolete(asked)
    return conductor, arrivals


def test_partner_of_dead_node_is_notified_and_paired_again() -> None:
    conductor, arrivals = begun(4)
    conductor.remove_node(3, 1.0)
    in_vain = [conductor.is_test_obsolete(asking(one, 0)) for one in arrivals]
    assert in_vain == [False, False, True, False]
    assert not conductor.is_test_obsolete(arrivals[2]), "only a testing node is notified"
    for one in arrivals[:3]:
        group = CheckGroup(round=0, members=())
        conductor.receive(result(one, group, passed=one.node_id != 2), 1.0)
    assert not conductor.is_test_obsolete(asking(arrivals[2], 0)), "the round is over"
    group = conductor.answer(arrivals[2])
    assert isinstance(group, CheckGroup)
    assert [one.node_id for one in group.members] == [0, 2]
    for one in (arrivals[0], arrivals[2]):
        conductor.receive(result(one, group, passed=True), 2.0)
    verdict = conductor.answer(arrivals[2])
    assert isinstance(verdict, CheckVerdict)
    assert verdict.passed
    assert set(verdict.faulty) == {3}


def test_of_two_nodes_the_one_that_is_left_is_tested_alone() -> None:
    conductor, arrivals = begun(2)
    conductor.remove_node(1, 1.0)
    assert conductor.is_test_obsolete(asking(arrivals[0], 0))
    conductor.receive(result(arrivals[0], CheckGroup(round=0, members=()), passed=False), 1.0)
    group = conductor.answer(arrivals[0])
    assert isinstance(group, CheckGroup)
    assert [one.node_id for one in group.members] == [0]
    conductor.receive(result(arrivals[0], group, passed=True), 2.0)
    verdict = conductor.answer(arrivals[0])
    assert isinstance(verdict, CheckVerdict)
    assert verdict.passed


def test_partner_of_locally_failing_node_is_notified() -> None:
    conductor, arrivals = begun(2)
    failed = result(arrivals[0], CheckGroup(round=0, members=()), passed=False)
    conductor.receive(failed, 0.0)
    assert not conductor.is_test_obsolete(asking(arrivals[1], 0)), "its partner may be the cause"
    conductor, arrivals = begun(2)
    conductor.receive(msgspec.structs.replace(failed, local=True), 0.0)
    assert conductor.is_test_obsolete(asking(arrivals[1], 0))
    assert not conductor.is_test_obsolete(asking(arrivals[0], 0)), "it has reported its result"


@pytest.mark.parametrize("seed", range(60))
def test_dying_nodes_delay_no_check_and_no_other_node_is_blamed(seed: int) -> None:
    chance = random.Random(seed)
    nodes = chance.randint(2, 9)
    conductor = CheckCoordinator()
    says: dict[int, CheckRequest | CheckResult] = {n: wanted(n, nodes) for n in range(nodes)}
    for one in says.values():
        conductor.receive(one, 0.0)
    faulty = set(chance.sample(range(nodes), chance.randint(0, (nodes - 1) // 3)))
    dying = set(chance.sample(range(nodes), chance.randint(0, nodes - 1)))
    lost: set[int] = set()
    verdicts: dict[int, CheckVerdict] = {}
    for _ in range(2000):
        living = sorted(says.keys() - lost)
        if not living:
            break
        node = chance.choice(living)
        if node in dying and chance.random() < 0.2:
            lost.add(node)
            conductor.remove_node(node, 0.0)
            continue
        conductor.receive(says[node], 0.0)
        answer = conductor.answer(says[node])
        if isinstance(answer, CheckVerdict):
            verdicts[node] = answer
            del says[node]
        elif isinstance(answer, CheckGroup):
            members = {one.node_id for one in answer.members}
            asked = asking(wanted(node, nodes), answer.round)
            if members & lost:
                assert conductor.is_test_obsolete(asked)
            passed = not members & (faulty | lost) or members == {node}
            says[node] = result(wanted(node, nodes), answer, passed=passed)
    assert verdicts.keys() == says.keys() ^ set(range(nodes)), "time alone was never needed"
    assert not says.keys() - lost
    for one in verdicts.values():
        assert set(one.faulty) <= faulty | lost
    if not faulty:
        assert all(one.passed for one in verdicts.values())
