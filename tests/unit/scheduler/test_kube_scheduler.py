"""Decisions are those of kube-scheduler 1.20 on recorded clusters."""

import pytest

from unit.scheduler.kube_scheduler import Json, filter_differences, our_preemption, read_scenes

SCENES = read_scenes()


@pytest.mark.parametrize("recorded", SCENES["filters"], ids=range(len(SCENES["filters"])))
def test_pods_fit_on_the_nodes_on_which_kube_scheduler_lets_them_fit(recorded: Json) -> None:
    assert not list(filter_differences(recorded))


@pytest.mark.parametrize("recorded", SCENES["preemption"], ids=range(len(SCENES["preemption"])))
def test_pods_are_evicted_where_kube_scheduler_evicts_pods(recorded: Json) -> None:
    ours = our_preemption(recorded)
    assert bool(ours.victims) == bool(recorded["nominated"])
    assert len(ours.victims) <= len(recorded["victims"])
