"""Random clusters on which the real kube-scheduler decides, and this one must decide alike.

Takes two minutes: each pod waits for the scheduler, one after the other.
"""

from collections.abc import Iterator

import pytest

from integration.scheduler.kube_scheduler import (
    PROGRAMS,
    SCRIPTS,
    KubeScheduler,
    kube_scheduler,
)
from unit.scheduler.kube_scheduler import (
    filter_differences,
    filter_scene,
    our_preemption,
    preemption_scene,
)

SEEDS = range(1000, 1030)
"""Not those of the scenes that are recorded for the unit tests."""

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not ((SCRIPTS / "up").exists() and (PROGRAMS / "kube-scheduler").exists()),
        reason="there is no real Kubernetes (GANGLINE_REALKUBE, KUBE_BIN)",
    ),
]


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeScheduler]:
    with kube_scheduler(tmp_path_factory.mktemp("kubernetes")) as running:
        yield running


def test_pods_fit_on_the_same_nodes(scheduler: KubeScheduler) -> None:
    for seed in SEEDS:
        differences = list(filter_differences(scheduler.play(filter_scene(seed))))
        assert not differences, (seed, differences)


def test_evictions_happen_where_those_of_kube_scheduler_do_and_suffice(
    scheduler: KubeScheduler,
) -> None:
    """This scheduler may evict where the other one does not find that it could."""
    for seed in SEEDS:
        recorded = scheduler.preempt(scheduler.fill(preemption_scene(seed)))
        ours = our_preemption(recorded)
        assert ours.victims or not recorded["nominated"], (seed, recorded)
        if ours.victims:
            fits = scheduler.fits_without(scheduler.fill(recorded), ours.victims)
            assert ours.node in fits, (seed, ours, fits)
