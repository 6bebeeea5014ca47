"""PaddleJobs and MSJobs on a real API server: status, finalizers, addresses."""

from typing import Any

import pytest

from gangline.api.meta.resource import Resource
from gangline.api.resources import PODS, SERVICES
from gangline.kube.errors import NotFound
from integration.operator.cluster import NAMESPACE, Scene
from unit.operator import paddle_jobs
from unit.operator.kubeflow_jobs import replica

PADDLE: Resource[Any] = Resource(dict, "batch.paddlepaddle.org", "v1", "paddlejobs", "PaddleJob")
MINDSPORE: Resource[Any] = Resource(dict, "mindspore.gitee.com", "v1", "msjobs", "MSJob")


class Job:
    """One job as plain data, with what belongs to it."""

    def __init__(self, stage: Scene, resource: Resource[Any]) -> None:
        self.stage, self.client = stage, stage.client
        self.resource = resource

    async def submit(self, written: dict[str, Any]) -> None:
        meta = {"name": "train", "finalizers": written["metadata"].get("finalizers", [])}
        written = {**written, "metadata": meta}
        await self.client.create(self.resource, written, NAMESPACE)

    async def status(self) -> dict[str, Any]:
        found = await self.client.get(self.resource, "train", NAMESPACE)
        status: dict[str, Any] = found.get("status") or {}
        return status

    async def until_holds(self, type_: str) -> str:
        """Wait until a condition holds; return its message."""

        async def holds() -> str:
            listed = (await self.status()).get("conditions") or []
            found = (c for c in listed if c["type"] == type_ and c["status"] == "True")
            return next((str(c["message"]) for c in found), "")

        await self.stage.until(holds, f"the job is {type_}")
        return await holds()

    async def until_pods(self, *names: str) -> None:
        async def there() -> bool:
            return {f"train-{name}" for name in names} == await self.pods()

        await self.stage.until(there, f"the pods are {names}")

    async def pods(self) -> set[str]:
        return {pod.metadata.name for pod in (await self.client.list(PODS, NAMESPACE)).items}


@pytest.fixture
async def paddle(stage: Scene) -> Job:
    await stage.start_operator()
    return Job(stage, PADDLE)


async def test_job_completes_with_its_workers_and_keeps_its_status(paddle: Job) -> None:
    await paddle.submit(paddle_jobs.manifest(ps=1, worker=1, intranet="Service"))
    await paddle.until_holds("Running")
    running = await paddle.status()
    assert (running["phase"], running["mode"]) == ("Running", "PS")
    assert running["ps"]["running"] == 1
    assert running["ps"]["refs"][0]["name"] == "train-ps-0"
    await paddle.stage.kubelets.end("train-worker-0", 0)
    await paddle.until_holds("Succeeded")
    await paddle.until_pods()
    ended = await paddle.status()
    assert (ended["phase"], ended["worker"]) == ("Completed", {"succeeded": 1})


async def test_a_job_with_upstreams_finalizer_can_be_deleted(paddle: Job) -> None:
    written = paddle_jobs.manifest(worker=1)
    written["metadata"]["finalizers"] = ["finalizers.paddlepaddle.org"]
    await paddle.submit(written)
    await paddle.until_pods("worker-0")
    await paddle.client.delete(PADDLE, "train", NAMESPACE)

    async def gone() -> bool:
        try:
            await paddle.status()
        except NotFound:
            return True
        return False

    await paddle.stage.until(gone, "the job is gone")


async def test_mindspore_workers_get_the_address_of_the_schedulers_service(
    stage: Scene,
) -> None:
    await stage.start_operator()
    job = Job(stage, MINDSPORE)
    roles = {"scheduler": replica("mindspore", 1), "Worker": replica("mindspore", 2)}
    await job.submit({"metadata": {}, "spec": {"msReplicaSpecs": roles}})
    await job.until_pods("scheduler-0", "worker-0", "worker-1")
    service = await stage.client.get(SERVICES, "train-scheduler-0", NAMESPACE)
    for name in ("train-worker-0", "train-worker-1"):
        pod = await stage.client.get(PODS, name, NAMESPACE)
        reported = {each.name: each.value for each in pod.spec.containers[0].env}
        assert reported["MS_SCHED_HOST"] == service.spec.cluster_ip
        assert reported["MS_WORKER_NUM"] == "2"
    await job.until_holds("Running")
    await stage.kubelets.end("train-worker-0", 0)
    await job.until_holds("Succeeded")
    await job.until_pods("worker-0")
