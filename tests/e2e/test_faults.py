"""Faults: a restarted API server, a lost node.

Takes 25 s: a lost node is waited for.
"""

import asyncio

import pytest

from e2e.jobs import job, replica, until
from e2e.scenario import Scenario
from gangline.api.resources import NODES


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
