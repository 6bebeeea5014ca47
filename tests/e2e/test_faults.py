"""Faults: pods, the operator at any step, the API server, a node."""

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest

from e2e.clusters import ClusterUnderTest, Component
from e2e.jobs import job, replica, until
from e2e.proxy import FaultyProxy, Plan, kill
from e2e.scenario import Scenario
from e2e.waiting import eventually
from gangline.api.resources import NODES, PODS, SERVICES

FOREVER = "sleep 3600"
MOST_WRITES = 40


@pytest.fixture
async def proxy(cluster: ClusterUnderTest) -> AsyncIterator[FaultyProxy]:
    """A proxy for the cluster's API server."""
    proxy = FaultyProxy(cluster.component_config("operator"))
    await proxy.start()
    try:
        yield proxy
    finally:
        cluster.stop_component("operator", signal.SIGKILL)  # it may still use the proxy
        await proxy.stop()


async def test_a_deleted_worker_pod_comes_back(scenario: Scenario) -> None:
    await scenario.submit(job("robbed", replica(FOREVER), replica(FOREVER, 2)))
    before = await scenario.running("robbed", 3)
    await scenario.client.delete(PODS, "robbed-worker-1", scenario.namespace, grace_seconds=0)
    after = await scenario.pods_when(
        "robbed",
        lambda pods: (
            "robbed-worker-1" in pods
            and pods["robbed-worker-1"].status.phase == "Running"
            and pods["robbed-worker-1"].metadata.uid != before["robbed-worker-1"].metadata.uid
        ),
        "a new worker-1 runs",
    )
    for calm in ("robbed-master-0", "robbed-worker-0"):
        assert after[calm].metadata.uid == before[calm].metadata.uid


def _harm(proxy: FaultyProxy, when: str, number: int, operator: Component, name: str) -> None:
    """Kill the operator before or after its write of this number for a job."""
    plan = Plan(about=name)
    (plan.before if when == "before" else plan.after)[number] = kill(operator.process.pid)
    proxy.plan = plan


EACH_STEP = pytest.mark.parametrize(
    "when",
    [
        pytest.param(
            "before",
            marks=pytest.mark.embedded_only("a server knows nothing of what was never sent"),
        ),
        "after",
    ],
)


@EACH_STEP
@pytest.mark.timeout(900)
async def test_an_operator_killed_at_each_step_of_creation_comes_back(
    scenario: Scenario, proxy: FaultyProxy, when: str
) -> None:
    kubeconfig = proxy.kubeconfig(scenario.shared)
    scenario.cluster.stop_component("operator", signal.SIGKILL)
    operator = scenario.cluster.start_component("operator", kubeconfig)
    number = 1
    while number <= MOST_WRITES:
        name = f"hit-{number:02}"
        _harm(proxy, when, number, operator, name)
        await scenario.submit(job(name, replica(FOREVER), replica(FOREVER, 1)))
        if not await _killed_or_quiet(scenario, operator, name):
            break
        operator = scenario.cluster.start_component("operator", kubeconfig)
        wanted = {f"{name}-master-0", f"{name}-worker-0"}
        await scenario.pods_when(name, lambda pods, wanted=wanted: set(pods) == wanted, "all exist")
        await eventually(_services(scenario, name, wanted), "each pod has its service")
        await scenario.delete(name)
        number += 1
    assert 4 < number <= MOST_WRITES, "the number of writes of a job's creation"


@EACH_STEP
@pytest.mark.timeout(900)
async def test_an_operator_killed_at_each_step_of_clean_up_comes_back(
    scenario: Scenario, proxy: FaultyProxy, when: str
) -> None:
    kubeconfig = proxy.kubeconfig(scenario.shared)
    scenario.cluster.stop_component("operator", signal.SIGKILL)
    operator = scenario.cluster.start_component("operator", kubeconfig)
    number = 1
    while number <= MOST_WRITES:
        name = f"bye-{number:02}"
        manifest = job(
            name,
            replica(until(name), shared=str(scenario.shared)),
            replica(FOREVER, 1),
            cleanPodPolicy="All",
        )
        proxy.plan = Plan()
        await scenario.submit(manifest)
        await scenario.running(name, 2)
        await scenario.job_when(
            name,
            lambda job: any(c.type == "Running" for c in job.status.conditions),
            "is told to run",
        )
        _harm(proxy, when, number, operator, name)
        scenario.let(name)

        async def settled(name: str = name, operator: Component = operator) -> bool:
            return not operator.alive or not await scenario.pods(name)

        await eventually(settled, "the operator is killed or all pods are gone")
        survived = operator.alive
        if not survived:
            operator = scenario.cluster.start_component("operator", kubeconfig)
        assert await scenario.outcome(name) == "Succeeded"
        await scenario.pods_when(name, lambda pods: not pods, "all pods are gone")
        await scenario.delete(name)
        if survived:
            break
        number += 1
    assert 1 < number <= MOST_WRITES, "the number of writes of a job's clean-up"


async def test_a_job_that_lived_without_an_operator_is_told_its_end(scenario: Scenario) -> None:
    shared = str(scenario.shared)
    await scenario.submit(
        job("alone", replica(until("go"), shared=shared), replica(until("go"), shared=shared))
    )
    await scenario.running("alone", 2)
    scenario.cluster.stop_component("operator", signal.SIGKILL)
    scenario.let("go")
    await scenario.pods_when(
        "alone",
        lambda pods: all(pod.status.phase == "Succeeded" for pod in pods.values()),
        "all pods have succeeded",
    )
    scenario.cluster.start_component("operator")
    assert await scenario.outcome("alone") == "Succeeded"


async def test_a_job_submitted_and_deleted_without_an_operator_leaves_nothing(
    scenario: Scenario,
) -> None:
    scenario.cluster.stop_component("operator", signal.SIGKILL)
    await scenario.submit(job("unseen", replica(FOREVER)))
    await scenario.delete("unseen")
    await scenario.gone("unseen")
    scenario.cluster.start_component("operator")
    await scenario.submit(job("seen", replica("true")))
    assert await scenario.outcome("seen") == "Succeeded"
    assert not await scenario.pods("unseen")


@pytest.mark.timeout(600)
async def test_a_restart_of_the_api_server_loses_no_job(scenario: Scenario) -> None:
    shared = str(scenario.shared)
    await scenario.submit(
        job("kept", replica(until("go"), shared=shared), replica(until("go"), shared=shared))
    )
    await scenario.running("kept", 2)
    await asyncio.to_thread(scenario.cluster.restart_api_server)
    scenario.let("go")
    assert await scenario.outcome("kept") == "Succeeded"
    await scenario.submit(job("next", replica("true")))
    assert await scenario.outcome("next") == "Succeeded"


@pytest.mark.embedded_only("its nodes can be stopped; a lone real node cannot be spared")
@pytest.mark.timeout(600)
async def test_a_lost_node_costs_its_pods_and_not_the_job(scenario: Scenario) -> None:
    shared = str(scenario.shared)
    roles = replica(until("go"), shared=shared), replica(until("go"), 2, shared=shared)
    for role in roles:
        role["template"]["spec"]["tolerations"] = [
            {"key": f"node.kubernetes.io/{taint}", "effect": "NoExecute", "operator": "Exists"}
            | {"tolerationSeconds": 1}
            for taint in ("unreachable", "not-ready")
        ]
    await scenario.submit(job("moved", *roles))
    before = await scenario.running("moved", 3)
    lost = before["moved-worker-1"].spec.node_name
    await scenario.client.patch(
        NODES, lost, {"metadata": {"annotations": {"gangline.dev/stopped": "true"}}}
    )
    try:
        await scenario.pods_when(
            "moved",
            lambda pods: (
                len(pods) == 3
                and all(
                    pod.status.phase == "Running" and pod.spec.node_name != lost
                    for pod in pods.values()
                )
            ),
            f"all pods run on other nodes than {lost}",
        )
    finally:
        await scenario.client.patch(
            NODES, lost, {"metadata": {"annotations": {"gangline.dev/stopped": None}}}
        )
    scenario.let("go")
    assert await scenario.outcome("moved") == "Succeeded"


def _services(scenario: Scenario, name: str, wanted: set[str]):
    async def probe() -> bool:
        listing = await scenario.client.list(SERVICES, scenario.namespace)
        names = {service.metadata.name for service in listing.items}
        return {each for each in names if each.startswith(f"{name}-")} == wanted

    return probe


async def _killed_or_quiet(scenario: Scenario, operator: Component, name: str) -> bool:
    """Whether the fault occurred; otherwise the job runs, and there was no such write."""

    async def settled() -> bool:
        if not operator.alive:
            return True
        current = await scenario.job(name)
        return any(c.type == "Running" and c.status == "True" for c in current.status.conditions)

    await eventually(settled, "the operator is killed or the job runs")
    return not operator.alive
