"""The order of service, compared with one that looks at all queues each time."""

from collections import deque
from random import Random

import pytest

from gangline.api.volcano.scheduling import ROOT_QUEUE
from gangline.scheduler.queueing.gangs import PendingGang, pending_gangs
from gangline.scheduler.queueing.order import QueueEntry, SchedulingOrder
from gangline.scheduler.queueing.queue_tree import QueueAttributes, QueueTree
from gangline.scheduler.types.types import NodeInfo, PodGroupInfo, PodInfo, QueueInfo
from unit.scheduler.builders import cluster, group, node, pod, request

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
        return min(self.listed(queue), key=lambda entry: entry.key)

    def rank(self, queue: QueueAttributes) -> tuple[object, ...]:
        entry = self.head(queue)
        amount = self.tree.request_vector(entry.requested)
        borrows = queue.would_exceed_fair_share(amount)
        return (borrows, -queue.info.priority, queue.share, entry.key, queue.info.name)


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
            assert expected is not None
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


def test_minimum_of_a_gang_is_served_before_pods_that_an_older_gang_does_not_need() -> None:
    state = cluster(
        node("n", cpu=1),
        group("older", 0, age=0),
        pod("older-0", group="older"),
        group("newer", 1, age=1),
        pod("newer-0", group="newer"),
    )
    gangs, _ = pending_gangs(state, 0.0)
    tree = QueueTree(state.queues, state.nodes, state.usage, state.pending_usage)
    order = SchedulingOrder(gangs, tree)
    first = order.pop()
    assert first is not None
    assert first.gang.name == "d/newer"
