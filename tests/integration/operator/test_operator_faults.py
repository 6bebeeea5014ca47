"""Faults around the operator: kills, lost responses, conflicts, refusals, other owners.

Takes 47 s: the operator is killed before and after each of its writes.
"""

import asyncio
import itertools
from copy import deepcopy
from typing import Any

import pytest

from gangline.api import crd
from gangline.api.resources import PODS, PYTORCH_JOBS, SERVICES
from gangline.operator.engine import controller
from integration.operator.cluster import (
    NAMESPACE,
    Scene,
    install_definition,
    pytorch_stage,
    reported,
)
from integration.operator.faults import faulty

stage = pytorch_stage

RUNNING = {"master-0": "Running", "worker-0": "Running"}


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("how", ["stop", "hang"])
async def test_an_operator_killed_at_any_write_is_followed_by_one_that_finishes(
    stage: Scene, how: str
) -> None:
    """``stop``: just before the write takes effect; ``hang``: just after. Up to the clean-up."""
    for number in itertools.count(1):
        name = f"hit-{number}"

        def fault(_: object, count: int, number: int = number) -> str:
            return "" if count < number else how

        async with faulty(stage.client.config, fault) as (client, transport):
            await stage.start_operator(client)
            await stage.submit(1, 1, name=name, restart="ExitCode", cleanPodPolicy="All")
            has_ended = await _run_to_its_end(stage, name, transport.hanging)
            await stage.kill_operator()
        await stage.start_operator()
        assert await _run_to_its_end(stage, name, asyncio.Event())
        assert (await stage.job(name)).status.restarts.total == 0
        await stage.kill_operator()
        await stage.client.delete(PYTORCH_JOBS, name, NAMESPACE)
        if has_ended:
            break
    assert number > 8


async def _run_to_its_end(stage: Scene, name: str, hanging: asyncio.Event) -> bool:
    """End the master once the job runs; return whether its pods are gone, not if a write hangs."""
    master, worker = f"{name}-master-0", f"{name}-worker-0"

    async def settled() -> bool:
        pods = await stage.pods(name)
        types = reported(await stage.job(name))
        if "Running" in types and master in pods and pods[master].status.phase == "Running":
            assert set(pods) == {master, worker}
            await stage.kubelets.end(master, 0)
        return hanging.is_set() or ("Succeeded" in types and not pods)

    await stage.until(settled, "a write hangs or the job has ended without pods")
    return not hanging.is_set()


@pytest.mark.parametrize("how", ["before", "after"])
async def test_every_first_try_of_a_write_fails_and_the_job_runs(stage: Scene, how: str) -> None:
    tried: set[tuple[str, str, bytes | None]] = set()

    def fault(request, _: int) -> str:
        key = (request.method, request.path, request.body if request.method == "POST" else None)
        if key in tried:
            return ""
        tried.add(key)
        return how

    async with faulty(stage.client.config, fault) as (client, _):
        await stage.start_operator(client)
        await stage.submit(1, 1)
        await stage.until_condition("Running")
        await stage.kubelets.end("train-master-0", 0)
        await stage.until_condition("Succeeded")
        await stage.kill_operator()
    assert (await stage.job()).status.restarts.total == 0


@pytest.mark.parametrize("resource", [PODS, SERVICES], ids=["pod", "service"])
async def test_occupied_name_is_reported_and_used_once_free(stage: Scene, resource) -> None:
    spec = (
        {"containers": [{"name": "c", "image": "x"}]}
        if resource is PODS
        else {"clusterIP": "None", "ports": []}
    )
    squatter = {"metadata": {"name": "train-worker-0"}, "spec": spec}
    await stage.client.create(resource, squatter, NAMESPACE)
    await stage.start_operator()
    await stage.submit(1, 1)
    job = await stage.until_condition("Stalled")
    why = next(c.message for c in job.status.conditions if c.type == "Stalled")
    assert "train-worker-0 exists already and belongs to no controller" in why
    if resource is SERVICES:  # without it the ranks would never meet
        assert not (await stage.client.list(PODS, NAMESPACE)).items
    await stage.client.delete(resource, "train-worker-0", NAMESPACE, grace_seconds=0)
    await stage.until_pods(RUNNING)
    await stage.until_condition("Running")

    async def no_longer_stalled() -> bool:
        return not any(c.type == "Stalled" for c in (await stage.job()).status.conditions)

    await stage.until(no_longer_stalled, "the job is not stalled")


async def test_large_job_with_refused_pods_does_not_flood_the_api_server(stage: Scene) -> None:
    async with faulty(stage.client.config, lambda *_: "") as (client, transport):
        await stage.start_operator(client)
        spec = {
            "containers": [{"name": "pytorch", "image": "x"}],
            "priorityClassName": "no-such-class",
        }
        await stage.submit(1, 700, template=spec)
        job = await stage.until_condition("Stalled")
        assert "no-such-class" in job.status.conditions[-1].message
        pods = [r for r in transport.writes if r.method == "POST" and r.path.endswith("/pods")]
        assert 0 < len(pods) < 200
        assert not await stage.pods()


async def test_crd_that_drops_restarts_is_reported_without_flooding(
    bare_stage: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    stage = bare_stage
    foreign = deepcopy(crd.crd_manifests()["kubeflow.org_pytorchjobs"])
    schema = foreign["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["status"]["properties"]["restarts"]
    await install_definition(stage.client, foreign)
    async with faulty(stage.client.config, lambda *_: "") as (client, transport):
        await stage.start_operator(client)
        await stage.submit(1, 1, restart="ExitCode")
        await stage.until_pods(RUNNING)
        await stage.kubelets.end("train-worker-0", 137)

        async def expected() -> bool:
            return any("kubectl apply -f deploy/crds" in r.message for r in caplog.records)

        await stage.until(expected, "the log says what to do")
        job = await stage.until_condition("Stalled")
        assert controller.INCOMPLETE_CRD in [c.message for c in job.status.conditions]
        assert len(transport.writes) < 20


async def test_an_error_of_a_pass_is_a_condition_until_a_pass_succeeds(
    stage: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AttributeError("'list' object has no attribute 'get'")

    with monkeypatch.context() as broken:
        broken.setattr(controller, "plan_reconcile", fail)
        await stage.start_operator()
        await stage.submit(1, 0)
        job = await stage.until_condition("Stalled")
    (why,) = [c.message for c in job.status.conditions if c.type == "Stalled"]
    assert why.startswith(controller.RECONCILE_FAILED)
    assert "AttributeError: 'list' object" in why
    await stage.until_condition("Running")

    async def no_longer_stalled() -> bool:
        return not any(c.type == "Stalled" for c in (await stage.job()).status.conditions)

    await stage.until(no_longer_stalled, "the job is not stalled")


async def test_restarted_operator_runs_a_job_by_its_last_valid_specification(
    stage: Scene,
) -> None:
    await stage.start_operator()
    await stage.submit(None, 2, cleanPodPolicy="All")
    await stage.until_pods({"worker-0": "Running", "worker-1": "Running"})

    async def is_recorded() -> bool:
        return (await stage.job()).status.last_valid_spec is not None

    await stage.until(is_recorded, "the specification is recorded")
    await stage.kill_operator()
    worker: dict[str, Any] = {"pytorchReplicaSpecs": {"Worker": {"replicas": 9000}}}
    for change in (worker, {"runPolicy": {"suspend": True}}):
        await stage.client.patch(PYTORCH_JOBS, "train", {"spec": change}, NAMESPACE)
    await stage.start_operator()
    await stage.until_condition("Suspended")
    await stage.until_pods({})
    resume = {"spec": {"runPolicy": {"suspend": False}}}
    await stage.client.patch(PYTORCH_JOBS, "train", resume, NAMESPACE)
    await stage.until_pods({"worker-0": "Running", "worker-1": "Running"})
    job = await stage.until_condition("InvalidSpec")
    assert "9000" in next(c.message for c in job.status.conditions if c.type == "InvalidSpec")
    for name in ("train-worker-0", "train-worker-1"):
        await stage.kubelets.end(name, 0)
    await stage.until_condition("Succeeded")
    await stage.until_pods({})


async def test_a_job_that_changes_all_the_time_comes_to_its_end(stage: Scene) -> None:
    """Every status write may meet a conflict."""

    async def meddle() -> None:
        for number in itertools.count():
            change = {"metadata": {"annotations": {"number": str(number)}}}
            await stage.client.patch(PYTORCH_JOBS, "train", change, NAMESPACE)
            await asyncio.sleep(0.002)

    async def restarted() -> bool:
        job = await stage.job()
        return job.status.restarts.total == 1 and "Running" in reported(job)

    await stage.start_operator()
    await stage.submit(1, 1, restart="ExitCode")
    meddling = asyncio.create_task(meddle())
    try:
        await stage.until_pods(RUNNING)
        await stage.kubelets.end("train-worker-0", 137)
        await stage.until(restarted, "the restart is counted")
        await stage.until_pods(RUNNING)
        await stage.kubelets.end("train-master-0", 0)
        job = await stage.until_condition("Succeeded")
    finally:
        meddling.cancel()
        await asyncio.gather(meddling, return_exceptions=True)
    assert job.metadata.annotations["number"]
    assert job.status.restarts.total == 1
