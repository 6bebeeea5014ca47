"""An operator with failing requests, broken watches, a jumping clock, a second operator."""

import contextlib
import signal
from collections import Counter
from collections.abc import AsyncIterator

import pytest

import set_clock
from e2e.clusters import ClusterUnderTest
from e2e.jobs import fails_first, job, replica, until
from e2e.proxy import FaultyProxy
from e2e.scenario import Scenario, condition
from e2e.waiting import eventually
from gangline.api.resources import LEASES, PODS, SERVICES
from gangline.kube.errors import AlreadyExists, NotFound

FOREVER = "sleep 3600"


@pytest.fixture
async def proxy(cluster: ClusterUnderTest) -> AsyncIterator[FaultyProxy]:
    """A proxy for the API server, used only by the operator."""
    proxy = FaultyProxy(cluster.component_config("operator"))
    await proxy.start()
    try:
        yield proxy
    finally:
        cluster.stop_component("operator", signal.SIGKILL)
        await proxy.stop()


def through(scenario: Scenario, proxy: FaultyProxy) -> None:
    """Let the operator use the proxy."""
    scenario.cluster.stop_component("operator")
    scenario.cluster.start_component("operator", proxy.kubeconfig(scenario.shared))


@pytest.mark.parametrize("effect", ["refuse", "lie"])
async def test_every_first_write_of_an_object_fails_and_nothing_is_made_twice(
    scenario: Scenario, proxy: FaultyProxy, effect: str
) -> None:
    seen: Counter[str] = Counter()

    def once(method: str, path: str) -> int | None:
        seen[f"{method} {path}"] += 1
        return 500 if seen[f"{method} {path}"] % 2 else None

    setattr(proxy.plan, effect, once)
    through(scenario, proxy)
    shared = str(scenario.shared)
    await scenario.submit(
        job("stubborn", replica(fails_first(), shared=shared), replica("true", 2, shared=shared))
    )
    assert await scenario.outcome("stubborn") == "Succeeded"
    pods = await scenario.pods("stubborn")
    assert set(pods) == {"stubborn-master-0", "stubborn-worker-0", "stubborn-worker-1"}
    assert seen


async def test_creations_that_are_always_refused_stall_one_job_and_no_other(
    scenario: Scenario, proxy: FaultyProxy
) -> None:
    pods = f"/api/v1/namespaces/{scenario.namespace}/pods"
    refused: set[str] = set()

    def always(method: str, path: str) -> int | None:
        if method == "POST" and path == pods:
            refused.add(path)
            return 403
        return None

    proxy.plan.refuse = always
    through(scenario, proxy)
    await scenario.submit(job("unwelcome", replica("true")))
    stalled = await scenario.job_when(
        "unwelcome", lambda job: condition(job, "Stalled") == "True", "says that it cannot go on"
    )
    told = next(c for c in stalled.status.conditions if c.type == "Stalled")
    assert "unwelcome-master-0" in told.message
    proxy.plan.refuse = lambda method, path: None
    await scenario.submit(job("welcome", replica("true")))
    assert await scenario.outcome("welcome") == "Succeeded"
    assert await scenario.outcome("unwelcome") == "Succeeded"
    assert refused


async def test_conflicts_on_status_writes_lose_no_restart(
    scenario: Scenario, proxy: FaultyProxy
) -> None:
    conflicts: Counter[str] = Counter()

    def conflict(method: str, path: str) -> int | None:
        if not path.endswith("/status"):
            return None
        conflicts[path] += 1
        return 409 if conflicts[path] % 4 else None

    proxy.plan.refuse = conflict
    through(scenario, proxy)
    command = fails_first(137)
    await scenario.submit(
        job("contested", replica(command, restart="ExitCode", shared=str(scenario.shared)))
    )
    assert await scenario.outcome("contested") == "Succeeded"
    assert (await scenario.job("contested")).status.restarts.total == 1
    assert sum(conflicts.values()) > 4


async def test_watches_that_are_cut_every_second_hide_nothing(
    scenario: Scenario, proxy: FaultyProxy
) -> None:
    proxy.plan.cut_watches_s = 1.0
    through(scenario, proxy)
    shared = str(scenario.shared)
    worker = replica(fails_first(137), 2, restart="ExitCode", shared=shared)
    await scenario.submit(
        job("blinking", replica(until("done"), shared=shared), worker, cleanPodPolicy="All")
    )
    await scenario.job_when(
        "blinking",
        lambda job: job.status.restarts.total == 2 and _succeeded(job, "Worker") == 2,
        "both workers failed once and ended well",
    )
    scenario.let("done")
    assert await scenario.outcome("blinking") == "Succeeded"
    await scenario.pods_when("blinking", lambda pods: not pods, "all pods are gone")


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


async def test_a_service_of_somebody_else_is_named_and_left_alone(scenario: Scenario) -> None:
    taken = {"metadata": {"name": "crowded-master-0"}, "spec": {"ports": [{"port": 80}]}}
    theirs = await scenario.client.create(SERVICES, taken, scenario.namespace)
    await scenario.submit(job("crowded", replica(until("go"), shared=str(scenario.shared))))
    stalled = await scenario.job_when(
        "crowded", lambda job: condition(job, "Stalled") == "True", "says what is in its way"
    )
    told = next(c for c in stalled.status.conditions if c.type == "Stalled")
    assert "Service crowded-master-0 exists already" in told.message
    found = await scenario.client.get(SERVICES, "crowded-master-0", scenario.namespace)
    assert found.metadata.uid == theirs.metadata.uid
    await scenario.client.delete(SERVICES, "crowded-master-0", scenario.namespace)
    await scenario.job_when("crowded", lambda job: condition(job, "Stalled") != "True", "goes on")
    scenario.let("go")
    assert await scenario.outcome("crowded") == "Succeeded"


async def test_a_job_deleted_and_made_again_within_a_second_starts_anew(
    scenario: Scenario,
) -> None:
    first = await scenario.submit(job("phoenix", replica(FOREVER), replica(FOREVER)))
    await scenario.running("phoenix", 2)
    await scenario.delete("phoenix")
    second = await eventually(_created(scenario, first.metadata.uid), "the name is free")
    pods = await scenario.pods_when(
        "phoenix",
        lambda pods: (
            len(pods) == 2
            and all(
                pod.status.phase == "Running"
                and pod.metadata.controller
                and pod.metadata.controller.uid == second
                for pod in pods.values()
            )
        ),
        "both pods are the new job's",
    )
    assert len(pods) == 2


@pytest.mark.parametrize("step", ["+3600", "-3600"])
async def test_a_clock_that_jumps_by_an_hour_harms_no_job(
    scenario: Scenario, proxy: FaultyProxy, step: str
) -> None:
    clock = scenario.shared / "clock"
    scenario.cluster.stop_component("operator")
    scenario.cluster.start_component(
        "operator",
        # The proxy uses plain HTTP: for a clock an hour back, a new certificate is not valid yet.
        proxy.kubeconfig(scenario.shared),
        environment=set_clock.variables(clock),
    )
    shared = str(scenario.shared)
    worker = replica(fails_first(137), 2, restart="ExitCode", shared=shared)
    await scenario.submit(job("timeless", replica(until("done"), shared=shared), worker))
    await scenario.job_when(
        "timeless", lambda job: job.status.restarts.total == 2, "both workers have failed once"
    )
    clock.write_text(step)
    await scenario.job_when(
        "timeless", lambda job: _succeeded(job, "Worker") == 2, "both workers are back"
    )
    scenario.let("done")
    assert await scenario.outcome("timeless") == "Succeeded"
    assert (await scenario.job("timeless")).status.restarts.total == 2


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


def _succeeded(job: object, role: str) -> int:
    counted = job.status.replica_statuses.get(role)
    return counted.succeeded if counted else 0


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


def _created(scenario: Scenario, former: str):
    async def attempt() -> str | None:
        try:
            made = await scenario.submit(job("phoenix", replica(FOREVER), replica(FOREVER)))
        except AlreadyExists:
            return None
        assert made.metadata.uid != former
        return made.metadata.uid

    return attempt
