"""Evictions wait for a save until the answer, the deadline, or the withdrawal."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from gangline.scheduler.preemption.save_first import (
    SaveOutcome,
    SaveRequests,
    StoredSaveRequest,
)
from gangline.scheduler.types import GangId, GroupKey, NodeName, PodEviction, PodKey

WAIT_S = 30.0
VICTIM = GroupKey("d/low")


def eviction(pod: str, group: str = VICTIM, beneficiary: str = "d/high") -> PodEviction:
    return PodEviction(
        PodKey(pod), f"uid-{pod}", NodeName("a"), GroupKey(group), GangId(beneficiary), ""
    )


class World:
    """A gang whose two pods are to be evicted, and what the scheduler knows of it."""

    def __init__(self) -> None:
        self.requests = SaveRequests()
        self.answered = ""
        self.waiting = {"d/high"}
        self.gone: set[str] = set()
        self.evictions = [eviction("d/low-0"), eviction("d/low-1")]

    def ask(self, now: float = 0.0, name: str = "first") -> None:
        assert self.requests.begin(VICTIM, self.evictions, now, WAIT_S, name) is not None

    def settle(self, now: float) -> list[SaveOutcome]:
        return self.requests.settle(
            now,
            answered_id=lambda group: self.answered,
            is_waiting=self.waiting.__contains__,
            is_present=lambda each: each.pod not in self.gone,
        )


def test_nothing_is_evicted_before_answer_and_deadline() -> None:
    world = World()
    world.ask()
    assert world.settle(0.0) == world.settle(WAIT_S - 0.001) == []
    assert world.requests.next_deadline() == WAIT_S
    (outcome,) = world.settle(WAIT_S)
    assert outcome == SaveOutcome(VICTIM, evict=tuple(world.evictions))
    assert world.requests.next_deadline() is None


def test_the_answer_to_this_request_ends_the_wait_and_an_older_one_does_not() -> None:
    world = World()
    world.ask()
    world.answered = "older"
    assert world.settle(1.0) == []
    world.answered = "first"
    (outcome,) = world.settle(2.0)
    assert outcome.evict == tuple(world.evictions)
    assert world.settle(WAIT_S) == [], "pods are evicted once"


def test_the_request_stays_until_the_evicted_pods_are_gone() -> None:
    world = World()
    world.ask()
    world.answered = "first"
    (outcome,) = world.settle(1.0)
    assert not outcome.is_closed
    world.gone = {"d/low-0"}
    assert world.settle(2.0) == []
    world.gone = {"d/low-0", "d/low-1"}
    assert world.settle(3.0) == [SaveOutcome(VICTIM, is_closed=True)]
    assert not world.requests.open


def test_evictions_are_withdrawn_when_their_beneficiary_does_not_wait() -> None:
    world = World()
    world.ask()
    world.waiting = set()
    expected = SaveOutcome(VICTIM, withdraw=tuple(world.evictions), is_closed=True)
    assert world.settle(1.0) == [expected]
    assert not world.requests.open


def test_a_second_beneficiary_joins_the_request_and_keeps_its_part() -> None:
    world = World()
    world.ask()
    third = eviction("d/low-2", beneficiary="d/other")
    world.waiting.add("d/other")
    assert world.requests.begin(VICTIM, [third], 5.0, WAIT_S, "second") is None
    world.waiting = {"d/other"}
    assert world.settle(6.0) == [SaveOutcome(VICTIM, withdraw=tuple(world.evictions))]
    assert world.settle(WAIT_S) == [SaveOutcome(VICTIM, evict=(third,))]


def test_a_victim_that_ends_by_itself_closes_the_request() -> None:
    world = World()
    world.ask()
    world.gone = {"d/low-0", "d/low-1"}
    assert world.settle(1.0) == [SaveOutcome(VICTIM, is_closed=True)]


def test_a_refused_eviction_does_not_keep_the_request_open() -> None:
    world = World()
    world.ask()
    world.settle(WAIT_S)
    for each in world.evictions:
        world.requests.undone(VICTIM, each)
    assert world.settle(WAIT_S + 1) == [SaveOutcome(VICTIM, is_closed=True)]


@pytest.mark.parametrize(
    ("deadline", "left_s"),
    [(1010.0, 10.0), (5000.0, WAIT_S), (900.0, 0.0)],
    ids=["rest", "clock back", "clock ahead"],
)
def test_a_restarted_scheduler_continues_the_request(deadline: float, left_s: float) -> None:
    world = World()
    stored = StoredSaveRequest("stored", deadline, "d/high")
    assert world.requests.resume(VICTIM, world.evictions, stored, 100.0, WAIT_S, 1000.0)
    assert world.requests.open[VICTIM].id == "stored"
    assert world.requests.next_deadline() == 100.0 + left_s


def test_the_request_for_another_beneficiary_is_not_continued() -> None:
    world = World()
    stored = StoredSaveRequest("stored", 1010.0, "d/another")
    assert not world.requests.resume(VICTIM, world.evictions, stored, 0.0, WAIT_S, 1000.0)


@pytest.mark.parametrize("seed", range(40))
def test_random_histories_evict_each_pod_once_and_only_when_the_wait_is_over(seed: int) -> None:
    random, requests = Random(seed), SaveRequests()
    asked: dict[str, tuple[str, float]] = {}
    answered: dict[str, str] = {}
    waiting = {f"d/c{index}" for index in range(3)}
    present: dict[str, PodEviction] = {}
    pending: set[str] = set()
    evicted: Counter[str] = Counter()
    written: Counter[str] = Counter()
    now, count = 0.0, 0
    for _ in range(400):
        now += random.choice([0.0, 0.5, 3.0, 12.0])
        group = GroupKey(f"d/g{random.randrange(3)}")
        match random.randrange(6):
            case 0 | 1:
                count += 1
                each = eviction(f"d/p{count}", group, f"d/c{random.randrange(3)}")
                waiting.add(each.beneficiary)
                present[each.pod] = each
                pending.add(each.pod)
                new = f"r{count}"
                if requests.begin(group, [each], now, WAIT_S, new) is not None:
                    assert group not in asked, "two requests at a time"
                    asked[group] = (new, now + WAIT_S)
                    written[new] += 1
            case 2 if group in asked:
                answered[group] = asked[group][0]
            case 3:
                answered[group] = "of another time"
            case 4:
                waiting.discard(f"d/c{random.randrange(3)}")
            case 5 if present:
                present.pop(random.choice(sorted(present)))
        for outcome in requests.settle(
            now,
            answered_id=lambda key: answered.get(key, ""),
            is_waiting=waiting.__contains__,
            is_present=lambda each: present.get(each.pod) == each,
        ):
            name, deadline = asked[outcome.group]
            for each in outcome.evict:
                assert now >= deadline or answered.get(outcome.group) == name
                assert each.beneficiary in waiting
                evicted[each.pod] += 1
                pending.discard(each.pod)
            for each in outcome.withdraw:
                assert each.beneficiary not in waiting
                assert not evicted[each.pod]
                pending.discard(each.pod)
            if outcome.is_closed:
                del asked[outcome.group]
        held = {each.pod for one in requests.open.values() for each in one.evictions}
        assert held == pending & present.keys(), "each decision is held, evicted or withdrawn"
    assert evicted
    assert set(evicted.values()) == {1}
    assert set(written.values()) == {1}


def taken_by(beneficiary: str, *pods: str) -> dict[PodKey, PodEviction]:
    reason = f"preempted by {beneficiary}"
    return {
        PodKey(pod): replace(eviction(pod, beneficiary=beneficiary), reason=reason) for pod in pods
    }


def test_evictions_go_to_the_gang_that_displaces_the_beneficiary() -> None:
    """Those of the same gang, too, that it does not need: they may have to end together."""
    world = World()
    world.ask()
    world.waiting = {"d/high", "d/higher"}
    awaited = taken_by("d/higher", "d/low-0")
    assert world.requests.transfer({GangId("d/high")}, awaited, world.waiting.__contains__) == [
        (VICTIM, "d/higher")
    ]
    world.waiting = {"d/higher"}
    assert world.settle(0.0) == []
    (outcome,) = world.settle(WAIT_S)
    assert [(each.pod, each.beneficiary, each.reason) for each in outcome.evict] == [
        ("d/low-0", "d/higher", "preempted by d/higher"),
        ("d/low-1", "d/higher", "preempted by d/higher"),
    ]
    assert not outcome.withdraw


def test_evictions_that_no_reservation_needs_are_withdrawn_from_a_displaced_gang() -> None:
    """Also if it has a new reservation elsewhere."""
    world = World()
    world.ask()
    assert world.requests.transfer({GangId("d/high")}, {}, world.waiting.__contains__) == []
    (outcome,) = world.settle(1.0)
    assert [each.pod for each in outcome.withdraw] == ["d/low-0", "d/low-1"]
    assert outcome.is_closed


def test_displaced_gang_that_needs_the_same_pods_again_stays_their_beneficiary() -> None:
    world = World()
    world.ask()
    awaited = taken_by("d/high", "d/low-1")
    assert world.requests.transfer({GangId("d/high")}, awaited, world.waiting.__contains__) == []
    assert world.settle(1.0) == []
    (outcome,) = world.settle(WAIT_S)
    assert [each.pod for each in outcome.evict] == ["d/low-0", "d/low-1"]


def test_evictions_of_a_gang_that_was_placed_elsewhere_go_to_the_one_that_awaits_the_pods() -> None:
    world = World()
    world.ask()
    world.waiting = {"d/next"}
    changed = world.requests.transfer(
        set(), taken_by("d/next", "d/low-0", "d/low-1"), world.waiting.__contains__
    )
    assert changed == [(VICTIM, "d/next")]
    assert world.settle(1.0) == []


def test_evictions_of_a_waiting_beneficiary_are_not_transferred() -> None:
    world = World()
    world.ask()
    before = list(world.requests.open[VICTIM].evictions)
    world.waiting |= {"d/other"}
    awaited = taken_by("d/other", "d/low-0")
    assert world.requests.transfer(set(), awaited, world.waiting.__contains__) == []
    assert world.requests.open[VICTIM].evictions == before
