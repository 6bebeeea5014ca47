"""A job's life on a real API server, with scripted kubelets."""

import pytest

from gangline.api.resources import POD_GROUPS, PODS, PYTORCH_JOBS, SERVICES
from gangline.kube.errors import NotFound
from integration.operator.cluster import NAMESPACE, Scene, pytorch_stage, reported

stage = pytorch_stage

SELECTOR = "training.kubeflow.org/job-name=train"
RUNNING = {"master-0": "Running", "worker-0": "Running"}


async def test_a_job_gets_its_pods_services_and_group_and_succeeds(stage: Scene) -> None:
    await stage.start_operator()
    await stage.submit(1, 2)
    await stage.until_condition("Running")
    assert set(await stage.pods()) == {"train-master-0", "train-worker-0", "train-worker-1"}
    services = await stage.client.list(SERVICES, NAMESPACE, labels=SELECTOR)
    assert {s.metadata.name for s in services.items} == set(await stage.pods())
    assert (await stage.client.get(POD_GROUPS, "train", NAMESPACE)).spec.min_member == 3
    await stage.kubelets.end("train-master-0", 0)
    job = await stage.until_condition("Succeeded")
    assert job.status.completion_time
    assert reported(job) == ["(Running)", "Created", "Succeeded"]
    await stage.until_gone(POD_GROUPS, "train")


async def test_suspend_and_resume(stage: Scene) -> None:
    await stage.start_operator()
    await stage.submit(1, 1, suspend=True)
    await stage.until_condition("Suspended")
    assert not await stage.pods()
    for suspended, pods in ((False, RUNNING), (True, {}), (False, RUNNING)):
        change = {"spec": {"runPolicy": {"suspend": suspended}}}
        await stage.client.patch(PYTORCH_JOBS, "train", change, NAMESPACE)
        await stage.until_pods(pods)
    await stage.until_condition("Running")


async def test_scaling_by_the_subresource(stage: Scene) -> None:
    await stage.start_operator()
    await stage.submit(1, 1)
    await stage.until_pods(RUNNING)
    for replicas in (3, 1):
        await stage.client.patch(
            PYTORCH_JOBS, "train", {"spec": {"replicas": replicas}}, NAMESPACE, subresource="scale"
        )
        workers = {f"worker-{index}": "Running" for index in range(replicas)}
        await stage.until_pods({"master-0": "Running", **workers})
    services = await stage.client.list(SERVICES, NAMESPACE, labels=SELECTOR)
    assert len(services.items) == 2


async def test_job_deleted_and_recreated_immediately_gets_its_own_pods(stage: Scene) -> None:
    await stage.start_operator()
    await stage.submit(1, 1)
    await stage.until_pods(RUNNING)
    old = await stage.pods()
    await stage.client.delete(PYTORCH_JOBS, "train", NAMESPACE, propagation="Background")
    await stage.until_gone(PYTORCH_JOBS, "train")
    fresh = await stage.submit(1, 1)
    # This server has no garbage collector: the test itself deletes the old job's objects.
    for name in old:
        await stage.client.delete(PODS, name, NAMESPACE)
        await stage.client.delete(SERVICES, name, NAMESPACE)
    await stage.client.delete(POD_GROUPS, "train", NAMESPACE)

    async def own() -> bool:
        owners = {pod.metadata.owner_references[0].uid for pod in (await stage.pods()).values()}
        return owners == {fresh.metadata.uid} and len(await stage.pods()) == 2

    await stage.until(own, "all pods are the new job's")
    job = await stage.until_condition("Running")
    assert job.metadata.uid == fresh.metadata.uid


async def test_groups_are_made_as_soon_as_the_cluster_knows_them(
    bare_stage: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.operator.main.LOOK_FOR_GROUPS_S", 0.05)
    stage = bare_stage
    await stage.install("kubeflow.org_pytorchjobs")
    await stage.start_operator()
    await stage.submit(1, 0, name="before")
    await stage.until_condition("Running", "before")
    assert (await stage.pods("before"))["before-master-0"].spec.scheduler_name != "gangline"
    await stage.install("scheduling.volcano.sh_podgroups")

    async def grouped() -> bool:
        try:
            return bool(await stage.client.get(POD_GROUPS, "before", NAMESPACE))
        except NotFound:
            return False

    await stage.until(grouped, "the job has a group")
    await stage.submit(1, 0, name="after")
    await stage.until_condition("Running", "after")
    assert (await stage.pods("after"))["after-master-0"].spec.scheduler_name == "gangline"
