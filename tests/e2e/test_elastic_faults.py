"""What breaks while an elastic job trains: processes, pods, nodes, links, clocks, the cluster."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.clusters import ClusterUnderTest
from e2e.elastic_training import Training, output
from e2e.scenario import Scenario
from gangline.api.resources import ELASTIC_JOBS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.embedded_only("reaches into processes and networks of pods"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="pods have networks of their own with root only"),
]


@pytest.fixture
def elastic(scenario: Scenario) -> Scenario:
    """The scenario, for elastic jobs."""
    return scenario.of(ELASTIC_JOBS)


def kill(*processes: int) -> None:
    """Kill processes, all at once."""
    assert processes
    for process in processes:
        os.kill(process, signal.SIGKILL)


@contextmanager
def frozen(cluster: ClusterUnderTest) -> Iterator[None]:
    """API server, nodes, names and service addresses answer nobody; pods run on."""
    process = cluster.components["up"].process
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


async def test_processes_that_die_or_hang_are_started_again_in_their_pods(
    elastic: Scenario,
) -> None:
    training = Training(elastic, "tough")
    await elastic.submit(training.manifest(2, "2", "--hang-timeout 3"))
    before = await training.running(0, 1)
    await training.goes_on(2, "both train")
    first, second = training.pod(0), training.pod(1)

    kill(training.worker(1))
    await training.started({first: 2, second: 2}, "one was killed")
    await training.goes_on(2, "and is back")

    os.kill(training.worker(1), signal.SIGSTOP)
    await training.started({first: 3, second: 3}, "one hangs")
    await training.goes_on(2, "and is back")
    told = await training.log(0) + await training.log(1)
    assert "rank 1 on " in told
    assert "No worker has made progress" in told

    elastic.cluster.stop_component("operator", signal.SIGKILL)
    kill(*training.masters(), training.worker(0), training.worker(1))
    await training.started({first: 4, second: 4}, "both and the master were killed at once")
    await training.goes_on(2, "without master and operator")
    elastic.cluster.start_component("operator")
    await training.running(0, 1, master=1)

    with frozen(elastic.cluster):
        kill(training.worker(0))
        await training.started({first: 5, second: 5}, "one was killed while nobody serves the API")
        await training.goes_on(2, "without the cluster")
    await training.goes_on(2, "the cluster is back")
    after = await training.running(0, 1, master=1)
    assert all(after[each].metadata.uid == before[each].metadata.uid for each in (first, second))
    assert training.starts == {first: 5, second: 5}
    job = await training.ends()
    assert job.status.restarts.total <= 1, "no more than the master's"


async def test_a_node_that_is_cut_off_is_missed_comes_back_and_is_replaced(
    elastic: Scenario,
) -> None:
    training = Training(elastic, "torn")
    await elastic.submit(training.manifest(3, "2:3"))
    before = await training.running(0, 1, 2)
    await training.goes_on(3, "all train")

    link = training.link(0)
    output("ip", "link", "set", link, "down")
    await training.goes_on(2, "the first node is cut off: the others go on")
    assert training.history[-1][2] != training.pod(0)
    output("ip", "link", "set", link, "up")
    await training.goes_on(3, "it is back")
    assert (await training.running(0, 1, 2)).keys() == before.keys()

    link = training.link(1)
    output("ip", "link", "set", link, "down")
    await training.goes_on(2, "the second node is cut off for good")
    after = await training.running(0, 2, 3)
    await training.goes_on(3, "another one has taken its place")
    lost = before[training.pod(1)].spec.node_name
    assert after[training.pod(3)].spec.node_name != lost
    await training.ends()
