"""Pods that do not end, and a second operator.

Takes 15 s: pods that do not end, and the lease of a killed operator, are waited for.
"""

import contextlib
import signal

from e2e.jobs import job, replica, until
from e2e.scenario import Scenario
from e2e.waiting import eventually
from gangline.api.resources import LEASES, PODS
from gangline.kube.errors import NotFound

FOREVER = "sleep 3600"


async def test_a_pod_that_never_ends_terminating_holds_up_its_own_replica_only(
    scenario: Scenario,
) -> None:
    worker = replica(FOREVER, 2)
    worker["template"]["metadata"] = {"finalizers": ["example.com/hold"]}
    await scenario.submit(job("held", replica(FOREVER), worker))
    free = {"metadata": {"finalizers": None}}
    try:
        before = await scenario.running("held", 3)
        await scenario.client.delete(PODS, "held-worker-0", scenario.namespace, grace_seconds=0)
        # A job created and deleted meanwhile shows that the operator has observed the deletion.
        await scenario.submit(job("passing", replica("true")))
        assert await scenario.outcome("passing") == "Succeeded"
        held = await scenario.pods("held")
        assert {pod.metadata.uid for pod in held.values()} == {
            pod.metadata.uid for pod in before.values()
        }
        assert held["held-worker-0"].metadata.deletion_timestamp is not None
        await scenario.client.patch(PODS, "held-worker-0", free, scenario.namespace)
        after = await scenario.pods_when(
            "held",
            lambda pods: (
                "held-worker-0" in pods
                and pods["held-worker-0"].status.phase == "Running"
                and pods["held-worker-0"].metadata.uid != before["held-worker-0"].metadata.uid
            ),
            "the worker is made anew once it can be",
        )
        for calm in ("held-master-0", "held-worker-1"):
            assert after[calm].metadata.uid == before[calm].metadata.uid
    finally:
        await scenario.delete("held")
        await eventually(_freed(scenario, "held"), "all pods are gone")


async def test_of_two_operators_one_works_and_the_other_takes_over_when_it_is_killed(
    scenario: Scenario,
) -> None:
    cluster = scenario.cluster
    cluster.stop_component("operator")
    flags = ["--leader-elect", "--leader-election-namespace=gangline-system"]
    copies = {
        name: cluster.start_component("operator", arguments=flags, copy=name) for name in "ab"
    }
    try:
        await scenario.submit(
            job("handed-over", replica(until("done"), shared=str(scenario.shared)))
        )
        before = await scenario.running("handed-over", 1)
        lease = await scenario.client.get(LEASES, "gangline-operator", "gangline-system")
        leader = next(
            name
            for name, component in copies.items()
            if "operator starts" in component.log.read_text()
        )
        cluster.stop_component(f"operator{leader}", signal.SIGKILL)
        scenario.let("done")
        assert await scenario.outcome("handed-over") == "Succeeded"
        after = await scenario.pods("handed-over")
        assert {p.metadata.uid for p in after.values()} == {p.metadata.uid for p in before.values()}
        taken = await scenario.client.get(LEASES, "gangline-operator", "gangline-system")
        assert taken.spec.holder_identity != lease.spec.holder_identity
    finally:
        for name in "ab":
            if f"operator{name}" in cluster.components:
                cluster.stop_component(f"operator{name}")


def _freed(scenario: Scenario, name: str):
    async def attempt() -> bool:
        pods = await scenario.pods(name)
        for pod in pods:
            with contextlib.suppress(NotFound):
                await scenario.client.patch(
                    PODS, pod, {"metadata": {"finalizers": None}}, scenario.namespace
                )
        return not pods

    return attempt
