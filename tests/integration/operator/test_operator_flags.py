"""The operator as a process: what its flags, logs, metrics and rights come to.

Takes 30 s: about seven operators start as processes.
"""

import asyncio
from collections import Counter
from contextlib import aclosing
from pathlib import Path

import pytest

from gangline.api.resources import (
    EVENTS,
    NAMESPACES,
    PODS,
    PYTORCH_JOBS,
    TF_JOBS,
)
from gangline.kube.errors import NotFound
from gangline.local.apiserver.server import ApiServer
from integration.operator.cluster import NAMESPACE, Scene
from integration.operator.process import apply, deployed, kubeconfig_of, operator
from unit.operator.builders import manifest

ACCOUNT = "gangline-system/gangline-operator"
LEAST = {"readNodes": False, "readClusterRuntimes": False}
RUNNING = {"master-0": "Running", "worker-0": "Running"}


@pytest.fixture
def admin(api_server: ApiServer) -> Path:
    return api_server.kubeconfig


async def make_namespace(stage: Scene, name: str) -> None:
    await stage.client.create(NAMESPACES, {"kind": "Namespace", "metadata": {"name": name}})


async def submit_to(stage: Scene, namespace: str) -> None:
    job = {**manifest(1, None), "metadata": {"name": "train"}}
    await stage.client.create(PYTORCH_JOBS, job, namespace)


async def until_running(stage: Scene, namespace: str) -> None:
    async def running() -> bool:
        job = await stage.client.get(PYTORCH_JOBS, "train", namespace)
        return any(c.type == "Running" and c.status == "True" for c in job.status.conditions)

    await stage.until(running, f"the job in {namespace} runs")


@pytest.mark.slow
async def test_rights_in_the_watched_namespaces_are_enough(
    stage: Scene, admin: Path, tmp_path: Path
) -> None:
    """The roles of two namespaces; nothing cluster-wide, not even the rights to read nodes."""
    for namespace in ("red", "blue", "green"):
        await make_namespace(stage, namespace)
        await submit_to(stage, namespace)
    for shipped in deployed(namespaces=["red", "blue"], operator=LEAST):
        assert not shipped["kind"].startswith("Cluster")
        await apply(stage.client, shipped)
    limited = await kubeconfig_of(stage.client, ACCOUNT, admin, tmp_path / "limited")
    async with operator(limited, "--namespace", "red", "-n", "blue"):
        await until_running(stage, "red")
        await until_running(stage, "blue")
        assert not (await stage.client.list(PODS, "green")).items
    async with operator(limited, environment={"KUBEFLOW_NAMESPACE": "blue"}):
        await stage.client.delete(PODS, "train-master-0", "blue")
        await stage.client.delete(PODS, "train-master-0", "red")

        async def back() -> bool:
            try:
                pod = await stage.client.get(PODS, "train-master-0", "blue")
            except NotFound:
                return False
            return pod.status.phase == "Running"

        await stage.until(back, "the pod is made anew")
        assert not (await stage.client.list(PODS, "red")).items


@pytest.mark.slow
async def test_without_rights_to_what_a_kind_alone_needs_the_others_run(
    stage: Scene, admin: Path, tmp_path: Path
) -> None:
    """ConfigMaps are for PaddleJobs and MPIJobs, autoscalers for few PyTorchJobs."""
    withheld = {"configmaps", "horizontalpodautoscalers", "serviceaccounts", "roles", "pods/exec"}
    for shipped in deployed():
        for rule in shipped.get("rules", []):
            rule["resources"] = [each for each in rule["resources"] if each not in withheld]
        if "rules" in shipped:
            shipped["rules"] = [rule for rule in shipped["rules"] if rule["resources"]]
        await apply(stage.client, shipped)
    limited = await kubeconfig_of(stage.client, ACCOUNT, admin, tmp_path / "limited")
    async with operator(limited):
        await stage.submit(1, 1)
        await stage.until_pods(RUNNING)
        await stage.until_condition("Running")


@pytest.mark.slow
async def test_a_kind_that_is_not_enabled_is_left_to_others(stage: Scene, admin: Path) -> None:
    template = {"spec": {"containers": [{"name": "tensorflow", "image": "x"}]}}
    tf_job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "other"},
        "spec": {"tfReplicaSpecs": {"Worker": {"replicas": 1, "template": template}}},
    }
    await stage.client.create(TF_JOBS, tf_job, NAMESPACE)
    async with operator(admin, "--enable-scheme", "pytorchjob", "--enable-scheme=MPIJob"):
        await stage.submit(1, 1)
        await stage.until_condition("Running")
        job = await stage.client.get(TF_JOBS, "other", NAMESPACE)
        assert job.status.conditions == []


@pytest.mark.slow
async def test_metrics_and_health_are_served_under_known_names(stage: Scene, admin: Path) -> None:
    async with operator(admin, "--kube-api-qps=500", "--kube-api-burst=50") as running:
        await stage.submit(1, 1)
        await stage.until_condition("Running")
        await stage.kubelets.end("train-master-0", 0)
        await stage.until_condition("Succeeded")
        by_job = 'framework="pytorch",job_namespace="default"'

        async def counted() -> bool:
            return await running.metric(f"training_operator_jobs_successful_total{{{by_job}}}") == 1

        await stage.until(counted, "the success is counted")
        assert await running.metric(f"training_operator_jobs_created_total{{{by_job}}}") == 1
        _, text = await running.page("/metrics")
        for name in (
            'workqueue_depth{name="jobs"}',
            'workqueue_work_duration_seconds_count{name="jobs"}',
            'workqueue_queue_duration_seconds_count{name="jobs"}',
            'workqueue_adds_total{name="jobs"}',
            'controller_runtime_reconcile_total{controller="jobs",result="success"}',
            'controller_runtime_reconcile_time_seconds_count{controller="jobs"}',
            'controller_runtime_max_concurrent_reconciles{controller="jobs"} 256.0',
            "rest_client_requests_total{",
            "rest_client_request_duration_seconds_count{",
            "rest_client_rate_limiter_duration_seconds_count{",
            "process_resident_memory_bytes",
        ):
            assert name in text, name
        assert "train-" not in text, "no label may name a job or a pod"
        assert (await running.page("/healthz"))[0] == 200
        assert (await running.page("/readyz"))[0] == 200


async def test_repeated_passes_emit_no_event_twice(stage: Scene) -> None:
    reported: Counter[str] = Counter()

    async def listen() -> None:
        async with aclosing(stage.client.watch(EVENTS, NAMESPACE)) as events:
            async for event in events:
                reported[event.object.reason] += 1

    listening = asyncio.create_task(listen())
    await stage.start_operator(resync_s=0.05)
    await stage.submit(1, 1, restart="ExitCode")
    await stage.until_pods(RUNNING)
    await stage.until_condition("Running")
    await stage.kubelets.end("train-worker-0", 137)

    async def restarted() -> bool:
        return (await stage.job()).status.restarts.total == 1

    await stage.until(restarted, "the worker is replaced")
    await stage.until_pods(RUNNING)
    await stage.client.patch(
        PYTORCH_JOBS, "train", {"spec": {"runPolicy": {"suspend": True}}}, NAMESPACE
    )
    await stage.until_condition("Suspended")
    await stage.client.patch(
        PYTORCH_JOBS, "train", {"spec": {"runPolicy": {"suspend": False}}}, NAMESPACE
    )
    await stage.until_pods(RUNNING)
    await stage.kubelets.end("train-master-0", 0)
    await stage.until_condition("Succeeded")

    async def complete() -> bool:
        return "PyTorchJobSucceeded" in reported

    await stage.until(complete, "the success is reported")
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    assert reported == {
        "SuccessfulCreatePod": 3,  # at first, in place of the worker, when resumed
        "SuccessfulDeletePod": 2,  # the failed worker, all when suspended
        "PyTorchJobRestarting": 1,
        "PyTorchJobSuspended": 1,
        "PyTorchJobResumed": 1,
        "PyTorchJobSucceeded": 1,
    }


@pytest.mark.slow
async def test_an_address_that_is_taken_ends_the_operator_with_its_name(
    stage: Scene, admin: Path
) -> None:
    async with operator(admin) as first:
        port = (await first.until_logged("serving"))["ports"]["/metrics"]
        address = f"127.0.0.1:{port}"
        async with operator(admin, f"--metrics-bind-address={address}") as second:
            assert await asyncio.wait_for(second.process.wait(), 30) != 0
        assert any(address in line and "/metrics" in line for line in second.lines)
