"""Faults during an elastic training: processes, pods, nodes, links, clocks, the cluster.

Takes 40 s: each fault costs a start of PyTorch, and a silent node is waited for.
"""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

import set_clock
from e2e.clusters import ClusterUnderTest
from e2e.elastic_training import Training, output
from e2e.scenario import Scenario
from gangline.api.quantity import parse_quantity
from gangline.api.resources import ELASTIC_JOBS, NODES, PODS

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
    """Kill processes concurrently."""
    assert processes
    for process in processes:
        os.kill(process, signal.SIGKILL)


@contextmanager
def frozen(cluster: ClusterUnderTest) -> Iterator[None]:
    """API server, nodes, DNS and service addresses do not respond; pods continue."""
    process = cluster.components["up"].process
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def skewed(clock: Path) -> str:
    """A shell script that gives the node of rank 1 a clock that a file sets."""
    exported = " ".join(f"{name}={value}" for name, value in set_clock.variables(clock).items())
    return f'[ "$NODE_RANK" = 1 ] && export {exported};'


@asynccontextmanager
async def cordoned(elastic: Scenario, node: str) -> AsyncIterator[None]:
    """Cordon a node and evict its pods."""
    await elastic.client.patch(NODES, node, {"spec": {"unschedulable": True}})
    try:
        for pod in (await elastic.client.list(PODS, elastic.namespace)).items:
            if pod.spec.node_name == node and pod.status.phase == "Running":
                await elastic.client.evict(pod.metadata.name, elastic.namespace)
        yield
    finally:
        await elastic.client.patch(NODES, node, {"spec": {"unschedulable": None}})


async def test_processes_that_die_or_hang_are_started_again_in_their_pods(
    elastic: Scenario,
) -> None:
    training = Training(elastic, "tough")
    clock = training.folder / "clock"
    written = training.manifest(2, "2", "--hang-timeout 8", first=skewed(clock))
    await elastic.submit(written)
    before = await training.running(0, 1)
    await training.goes_on(2, "both train")
    first, second = training.pod(0), training.pod(1)

    for jump in ("+3600", "-3600"):
        jumped = clock.with_suffix(".new")
        jumped.write_text(jump)
        jumped.replace(clock)
        await training.goes_on(2, "a clock jumps")
    assert training.starts == {first: 1, second: 1}

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
    training = Training(elastic, "torn", silence_s=3)
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


async def test_pods_that_leave_are_missed_for_as_long_as_there_is_no_room(
    elastic: Scenario,
) -> None:
    nodes = (await elastic.client.list(NODES)).items
    # More than half of a node each: one per node.
    cpu = f"{parse_quantity(nodes[0].status.allocatable['cpu']).milli * 6 // 10}m"
    training = Training(elastic, "moving")
    await elastic.submit(training.manifest(3, "2:3", cpu=cpu))
    await training.running(0, 1, 2)
    await training.goes_on(3, "all train")

    elastic.cluster.stop_component("operator", signal.SIGKILL)
    process = training.worker(1)
    await training.delete(0)
    kill(process)
    await training.goes_on(2, "one pod was deleted, a process of another killed, no operator")
    elastic.cluster.start_component("operator")
    await training.running(1, 2, 3)
    await training.goes_on(3, "a new pod has the rank")

    os.kill(training.agent(1), signal.SIGHUP)
    placed = await training.running(2, 3, 4)
    await training.goes_on(3, "one agent hung up and was made anew")

    async with cordoned(elastic, placed[training.pod(2)].spec.node_name):
        await training.goes_on(2, "a node was drained: its pod waits for room")
    await training.goes_on(3, "there is room again")
    job = await training.ends()
    assert job.status.restarts.total == 1, "what the cluster or a user does is no failure"
