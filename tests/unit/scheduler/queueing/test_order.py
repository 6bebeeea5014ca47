"""The order of service, compared with one that looks at all queues each time."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from gangline.api.volcano.scheduling import ROOT_QUEUE
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cycle.cycle import run_cycle
from gangline.scheduler.preemption.preempt import EvictionPolicy
from gangline.scheduler.queueing.gangs import PendingGang, pending_gangs
from gangline.scheduler.queueing.order import (
    ORDER_BY_AGE,
    FairnessPolicy,
    QueueEntry,
    SchedulingOrder,
)
from gangline.scheduler.queueing.queue_tree import QueueAttributes, QueueTree
from gangline.scheduler.types import (
    CycleResult,
    GroupKey,
    NodeInfo,
    PodGroupInfo,
    PodInfo,
    PodKey,
    QueueInfo,
    Reservation,
)
from unit.scheduler.builders import cluster, group, node, pod, request
from unit.scheduler.oracle.check import check_result

HIERARCHY = (
    QueueInfo("a", weight=2),
    QueueInfo("a1", parent="a", priority=1),
    QueueInfo("a2", parent="a", weight=3),
    QueueInfo("b", deserved=request(cpu=6, pods=0)),
    QueueInfo("c", priority=2),
    QueueInfo("c1", parent="c"),
    QueueInfo("c2", parent="c"),
    QueueInfo("c3", parent="c1"),
)
LEAVES = ("a1", "a2", "b", "c2", "c3", "default")


class NaiveOrder:
    """The same order, without any memory of earlier ranks."""

    def __init__(self, gangs: list[PendingGang], tree: QueueTree) -> None:
        self.tree = tree
        entries = [
            QueueEntry(gang, not gang.needed, deque(gang.pending if not gang.needed else ()))
            for gang in gangs
        ]
        self.entries = entries

    def pop(self) -> QueueEntry | None:
        """Return the first of the urgent ones, else that of the best queue of each level."""
        urgent = [each for each in self.entries if each.gang.is_urgent and not each.is_extra]
        if urgent:
            found = min(urgent, key=lambda entry: entry.key)
        elif not self.entries:
            return None
        else:
            queue = self.tree.queues[ROOT_QUEUE]
            while below := [each for each in queue.children if self.listed(each)]:
                queue = min(below, key=self.rank)
            found = self.head(queue)
        self.entries.remove(found)
        return found

    def listed(self, queue: QueueAttributes) -> list[QueueEntry]:
        own = [each for each in self.entries if each.gang.queue == queue.info.name]
        return own + [entry for child in queue.children for entry in self.listed(child)]

    def head(self, queue: QueueAttributes) -> QueueEntry:
        below = [each for each in queue.children if self.listed(each)]
        if below:
            return self.head(min(below, key=self.rank))
        listed = self.listed(queue)
        if any(entry not in listed for entry in self.entries):
            # Beside other queues, gangs within the share come before those that borrow.
            return min(listed, key=lambda entry: (self.claim(queue, entry) == 2, entry.key))
        return min(listed, key=lambda entry: entry.key)

    def claim(self, queue: QueueAttributes, entry: QueueEntry) -> int:
        """Return whether the shares of a queue and its ancestors cover a request (0), cover it
        once the queue uses less (1), or do not cover it (2).
        """
        amounts = self.tree.request_vector(entry.requested)
        claims = []
        for each in queue.path():
            asked = [
                (amount, float(used), float(share))
                for amount, used, share in zip(amounts, each.used, each.fair_share, strict=True)
                if amount > 0
            ]
            within = all(used + amount <= share * (1 + 1e-9) for amount, used, share in asked)
            owed = all(
                amount <= share * (1 + 1e-9) and used < share for amount, used, share in asked
            )
            claims.append(0 if within else 1 if owed else 2)
        return max(claims)

    def rank(self, queue: QueueAttributes) -> tuple[object, ...]:
        entry = self.head(queue)
        claim = self.claim(queue, entry)
        return (claim, -queue.info.priority, queue.share, entry.key, queue.info.name)


def facts(seed: int) -> list[NodeInfo | PodInfo | PodGroupInfo | QueueInfo]:
    random = Random(seed)
    listed: list[NodeInfo | PodInfo | PodGroupInfo | QueueInfo] = [node("n", cpu=24), *HIERARCHY]
    for number in range(random.randint(1, 12)):
        name = f"g{number}"
        size = random.randint(1, 4)
        runs = random.choice([0, 0, 1, size])
        listed.append(
            group(
                name,
                random.randint(0, size),
                age=random.randint(0, 3),
                priority=random.choice([0, 0, 2]),
                queue=random.choice(LEAVES),
            )
        )
        cpu = random.choice([1, 1, 2])
        listed += [
            pod(f"{name}-{n}", cpu=cpu, group=name, on="n" if n < runs else None)
            for n in range(size)
        ]
    return listed


@pytest.mark.parametrize("seeds", [range(n, n + 15) for n in range(0, 120, 15)], ids=str)
def test_order_is_that_of_the_best_queue_of_each_level(seeds: range) -> None:
    served = 0
    for seed in seeds:
        state = cluster(*facts(seed))
        gangs, _ = pending_gangs(state, 0.0)
        tree = QueueTree(state.queues, state.nodes, state.usage, state.pending_usage)
        other = QueueTree(state.queues, state.nodes, state.usage, state.pending_usage)
        order, naive = SchedulingOrder(gangs, tree), NaiveOrder(list(gangs), other)
        random = Random(seed)
        while (entry := order.pop()) is not None:
            expected = naive.pop()
            assert (entry.gang.name, entry.is_extra) == (expected.gang.name, expected.is_extra)
            assert order.empty == (not naive.entries)
            served += 1
            if random.random() < 0.3:
                continue
            for each in (tree, other):
                each.add_usage(entry.gang.queue, each.request_vector(entry.requested))
            left = list(entry.gang.pending[entry.gang.needed :])
            if entry.is_extra:
                left = list(entry.remaining)[1:]
            if left:
                again = QueueEntry(entry.gang, True, deque(left))
                order.requeue(again)
                naive.entries.append(QueueEntry(entry.gang, True, deque(left)))
        assert naive.pop() is None
    assert served > 15


def test_usage_of_a_sibling_counts_for_the_share_of_their_parent() -> None:
    """After ``first`` the parent's share covers ``small`` and not the older ``large``."""
    amounts = {"first": 2, "large": 3, "small": 1}
    share = request(cpu=4, pods=0)
    state = cluster(
        node("n", cpu=24),
        QueueInfo("parent", deserved=share),
        *(QueueInfo(f"of-{name}", parent="parent", deserved=share) for name in amounts),
    )
    for age, (name, cpu) in enumerate(amounts.items()):
        state.set_group(group(name, 1, age=age, queue=f"of-{name}"))
        state.set_pod(pod(f"{name}-0", cpu=cpu, group=name))
    tree = QueueTree.of(state)
    order = SchedulingOrder(pending_gangs(state, 0.0)[0], tree)
    served = []
    while (entry := order.pop()) is not None:
        served.append(entry.gang.name)
        tree.add_usage(entry.gang.queue, tree.request_vector(entry.requested))
    assert served == ["d/first", "d/small", "d/large"]


Facts = NodeInfo | PodInfo | PodGroupInfo | QueueInfo
GANGS, NAMESPACES = FairnessPolicy(gangs=True), FairnessPolicy(namespaces=True)


@dataclass(frozen=True)
class Job:
    """A gang of pods of one CPU."""

    name: str
    """``namespace/name``."""
    size: int = 1
    at: int = 0
    runs: int = 0
    """How many of its pods run."""
    memory: float = 0
    priority: int = 0
    queue: str = "default"
    minimum: int | None = None

    def facts(self, on: str = "n") -> list[Facts]:
        """Return its group and pods; those that run are on one node."""
        minimum = self.size if self.minimum is None else self.minimum
        facts = group(self.name, minimum, self.at, priority=self.priority, queue=self.queue)
        pods = [
            pod(f"{index}", cpu=1, memory=self.memory, age=self.at, on=on if runs else None)
            for index in range(self.size)
            for runs in [index < self.runs]
        ]
        key = GroupKey(self.name)
        named: list[Facts] = [
            changed(each, key=PodKey(f"{key}-{index}"), group=key, uid=f"{key}-{index}")
            for index, each in enumerate(pods)
        ]
        return [replace(facts, key=key), *named]


def world(cpu: int, jobs: Sequence[Job], *more: Facts, memory: float = 64) -> list[Facts]:
    return [node("n", cpu=cpu, memory=memory), *more, *(f for job in jobs for f in job.facts())]


def served(state: SchedulerCache, fairness: FairnessPolicy) -> list[str]:
    """Return the placed gangs in order; the oracle checks the result."""
    decision = decided(state, fairness)
    return list(dict.fromkeys(str(binding.group) for binding in decision.bindings))


def decided(state: SchedulerCache, fairness: FairnessPolicy, now: float = 0.0) -> CycleResult:
    decision = run_cycle(state, now, EvictionPolicy(fairness=fairness))
    check_result(state, decision, now)
    return decision


HAS = Job("a/has", 2, runs=2)


@pytest.mark.parametrize(
    ("cpu", "jobs", "by_age", "by_share"),
    [
        pytest.param(
            3,
            [HAS, Job("a/new", at=1), Job("b/new", at=2)],
            ["a/new"],
            ["b/new"],
            id="who uses less comes first",
        ),
        pytest.param(
            3,
            [HAS, Job("a/new", at=1, priority=1), Job("b/new", at=2)],
            ["a/new"],
            ["a/new"],
            id="priority goes before shares",
        ),
        pytest.param(
            5,
            [
                Job("a/has", 2, at=9, runs=2),
                Job("b/has", 2, at=0, runs=2),
                Job("b/new", at=4),
                Job("a/new", at=5),
            ],
            ["b/new"],
            ["a/new"],
            id="nothing counts against a gang that came after it",
        ),
        pytest.param(
            8,
            [
                Job("a/has", 2, runs=2),
                Job("b/has", 1, runs=1, memory=40),
                Job("b/new", 5, at=1),
                Job("a/new", 5, at=2),
            ],
            ["b/new"],
            ["a/new"],
            id="the resource counts of which most is used",
        ),
        pytest.param(
            3,
            [Job("a/has", 2, runs=2, queue="q"), Job("a/new", at=1), Job("b/new", at=2)],
            ["a/new"],
            ["a/new"],
            id="what another queue pays for does not count",
        ),
        pytest.param(
            9,
            [*(Job(f"a/{n}", at=n) for n in (1, 2, 3)), Job("b/1", at=4), Job("b/2", at=5)],
            ["a/1", "a/2", "a/3", "b/1", "b/2"],
            ["a/1", "b/1", "a/2", "b/2", "a/3"],
            id="all that is handed out adds up",
        ),
        pytest.param(
            7,
            [
                Job("a/young", 3, at=9, runs=3),
                Job("a/old", 1, at=1, runs=1),
                Job("b/has", 2, at=0, runs=2),
                Job("b/new", at=6),
                Job("a/new", at=7),
            ],
            ["b/new"],
            ["a/new"],
            id="only the older ones count, in whatever order they were seen",
        ),
    ],
)
def test_namespace_with_the_smallest_share_is_served_first(
    cpu: int, jobs: list[Job], by_age: list[str], by_share: list[str]
) -> None:
    things = world(cpu, jobs, QueueInfo("q"))
    assert served(cluster(*things), ORDER_BY_AGE) == by_age
    assert served(cluster(*things), NAMESPACES) == by_share


def test_pods_without_a_gang_count_for_their_namespace_unless_others_placed_them() -> None:
    jobs = [Job("d/new", at=1), Job("e/new", at=2)]
    alone = pod("alone", cpu=1, on="n")
    assert served(cluster(*world(2, jobs, alone)), NAMESPACES) == ["e/new"]
    foreign = changed(alone, is_ours=False)
    assert served(cluster(*world(2, jobs, foreign)), NAMESPACES) == ["d/new"]


def test_pods_whose_group_was_deleted_are_charged_to_no_namespace() -> None:
    jobs = [HAS, Job("a/new", at=1), Job("b/new", at=2)]
    state = cluster(*world(3, jobs))
    state.remove_group(GroupKey("a/has"))
    assert served(state, NAMESPACES) == ["a/new"]


def test_reservation_outranks_smaller_shares() -> None:
    jobs = [Job("a/has", 1, runs=1), Job("b/has", 2, at=1, runs=2), Job("a/large", 4, at=2)]
    state = cluster(*world(5, jobs))
    first = decided(state, NAMESPACES)
    assert not first.bindings
    assert list(first.reservations) == ["a/large"]
    state.reservations = dict(first.reservations)
    for each in Job("c/new", 1, at=3).facts():
        state.set_pod(each) if isinstance(each, PodInfo) else state.set_group(each)  # type: ignore[arg-type]
    # It fits, and its namespace has no usage.
    later = decided(state, NAMESPACES)
    assert not later.bindings
    assert list(later.reservations) == ["a/large"]
    # Had nothing been promised, it would go first.
    state.reservations = {}
    assert served(state, NAMESPACES) == ["c/new"]


def test_a_promise_is_kept_though_another_of_its_namespace_stands_before_it() -> None:
    jobs = [Job("a/endless", 9, at=1), Job("a/large", 3, at=2), Job("b/new", 1, at=3)]
    state = cluster(*world(4, [Job("a/has", 2, runs=2), *jobs]))
    state.reservations = {
        "a/large": Reservation(tuple((PodKey(f"a/large-{n}"), "n") for n in range(3)))
    }  # type: ignore[misc]
    decision = decided(state, NAMESPACES)
    assert "a/large" in decision.reservations
    assert not decision.bindings


@pytest.mark.parametrize(("fairness", "gets"), [(ORDER_BY_AGE, "a/more"), (GANGS, "a/less")])
def test_pods_beyond_a_minimum_go_to_the_gang_that_uses_least(
    fairness: FairnessPolicy, gets: str
) -> None:
    jobs = [
        Job("a/more", 4, at=1, runs=3, minimum=1),
        Job("a/less", 4, at=2, runs=1, minimum=1),
    ]
    assert served(cluster(*world(5, jobs)), fairness) == [gets]


@st.composite
def shared_clusters(draw: st.DrawFn) -> list[Facts]:
    names = st.sampled_from("abc")
    jobs = []
    for index in range(draw(st.integers(0, 9))):
        size = draw(st.integers(1, 4))
        jobs.append(
            Job(
                f"{draw(names)}/j{index}",
                size,
                at=draw(st.integers(0, 3)),
                runs=draw(st.sampled_from([0, 0, size, draw(st.integers(0, size))])),
                priority=draw(st.integers(0, 1)),
                queue=draw(st.sampled_from(["default", "q"])),
                minimum=draw(st.integers(0, size)),
            )
        )
    return world(draw(st.integers(1, 12)), jobs, QueueInfo("q"))


@given(shared_clusters(), st.randoms(use_true_random=False))
def test_the_order_in_which_things_are_seen_changes_no_fair_decision(
    things: list[Facts], random: Random
) -> None:
    both = FairnessPolicy(gangs=True, namespaces=True)
    shuffled = list(things)
    random.shuffle(shuffled)
    assert decided(cluster(*things), both) == decided(cluster(*shuffled), both)


@given(shared_clusters(), st.integers(1, 3))
def test_a_large_gang_starts_however_many_small_ones_of_poorer_namespaces_come(
    things: list[Facts], length: int
) -> None:
    """Each cycle the oldest running gang ends and two gangs arrive; no gang starves."""
    state = cluster(*things, *Job("a/large", 4, at=2).facts())
    state.set_node(node("n", cpu=12, memory=64))
    last = 0
    for cycle in range(60):
        decision = decided(state, NAMESPACES, float(cycle))
        state.reservations = dict(decision.reservations)
        for binding in decision.bindings:
            state.assume(binding.pod, binding.node)
            state.set_pod(changed(state.pods[binding.pod], phase="Running"))
        if any(binding.group == "a/large" for binding in decision.bindings):
            return
        running = sorted(
            (state.groups[GroupKey(name)].created, name) for name in state.placed_members
        )
        for _, name in running[:1]:
            for key in list(state.placed_members[name]):
                state.set_pod(changed(state.pods[key], phase="Succeeded"))
        for namespace in "ab":
            last += 1
            for each in Job(f"{namespace}/s{last}", length, at=10 + last).facts():
                state.set_pod(each) if isinstance(each, PodInfo) else state.set_group(each)  # type: ignore[arg-type]
    raise AssertionError("it waits for ever")
