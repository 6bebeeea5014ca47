"""The evaluator of preemption, called directly: what counts as ending, and who may wait for it."""

import pytest

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.placement.scratch import Placement, ScratchAllocation
from gangline.scheduler.preemption.preempt import EvictionPolicy, PreemptionEvaluator
from gangline.scheduler.queueing.gangs import PendingGang, pending_gangs
from gangline.scheduler.queueing.queue_tree import QueueTree
from gangline.scheduler.types.types import NodeName, QueueInfo
from unit.scheduler.builders import cluster, group, node, pod, request

NOW = 100.0


def evaluator(state: SchedulerCache, policy: EvictionPolicy | None = None) -> PreemptionEvaluator:
    tree = QueueTree(state.queues, state.nodes, state.usage, state.pending_usage)
    return PreemptionEvaluator(state, tree, policy or EvictionPolicy(), NOW, lambda _: False)


def only_pending(state: SchedulerCache) -> PendingGang:
    (found,), _ = pending_gangs(state, NOW)
    return found


@pytest.mark.parametrize("ends", [True, False])
def test_reservation_fits_its_queue_once_the_ending_pods_of_the_queue_have_ended(
    ends: bool,
) -> None:
    state = cluster(
        node("n", cpu=8),
        QueueInfo("q", capability=request(cpu=4, pods=0)),
        group("old", 1, queue="q"),
        pod("old-0", cpu=4, group="old", on="n", is_terminating=ends),
        group("new", 1, queue="q"),
        pod("new-0", cpu=4, group="new"),
    )
    waits = only_pending(state)
    row, demand = state.nodes.rows[NodeName("n")], state.nodes.demand(request(cpu=4))
    placements = [Placement(waits.pending, row, demand)]
    scratch = ScratchAllocation(state.nodes)
    assert evaluator(state).still_fits(scratch, waits, placements) is ends


@pytest.mark.parametrize("owed", [True, False])
def test_gang_waits_for_ending_pods_by_a_reservation_only_if_it_may_evict(owed: bool) -> None:
    """Else any gang would hold resources that others of its rank are waiting for, too."""
    deserved = request(cpu=2, pods=0) if owed else request(cpu=8, pods=0)
    state = cluster(
        node("n0", cpu=4),
        node("n1", cpu=4),
        QueueInfo("a", deserved=request(cpu=6, pods=0)),
        QueueInfo("b", deserved=deserved),
        group("runs", 1, queue="b"),
        pod("runs-0", cpu=4, group="runs", on="n0"),
        group("ends", 1, queue="b"),
        pod("ends-0", cpu=4, group="ends", on="n1", is_terminating=True),
        group("wants", 1, queue="a"),
        pod("wants-0", cpu=4, group="wants"),
    )
    found = evaluator(state).find_victims(ScratchAllocation(state.nodes), only_pending(state))
    assert (found is not None) is owed
    if found is not None:
        assert found.victims == ()
        assert [each.row for each in found.placements] == [state.nodes.rows[NodeName("n1")]]
