"""Jobs of batch/v1 against a real API server with the controllers; pods exist only as objects."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gangline.api.core.pod import Pod
from gangline.api.resources import PODS
from gangline.kube.client.client import ApiClient, PatchKind
from gangline.kube.errors import Invalid, NotFound
from gangline.local.controllers.jobs.plan import FINALIZER
from integration.cluster.embedded import EmbeddedCluster, until

NS = "default"
JOBS = f"/apis/batch/v1/namespaces/{NS}/jobs"
Json = dict[str, Any]


def job(name: str, command: list[str] | None = None, **spec: Any) -> Json:
    container = {"name": "c", "image": "any", **({"command": command} if command else {})}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {"metadata": {"name": name}, "spec": {"template": template, **spec}}


async def create(client: ApiClient, body: Json) -> Json:
    created: Json = await client.request_json("POST", JOBS, body=body)
    return created


async def read(client: ApiClient, name: str) -> Json:
    found: Json = await client.request_json("GET", f"{JOBS}/{name}")
    return found


async def change(client: ApiClient, name: str, **spec: Any) -> None:
    merge = PatchKind.MERGE.value
    await client.request_json("PATCH", f"{JOBS}/{name}", body={"spec": spec}, content_type=merge)


def conditions(found: Json) -> set[str]:
    listed = found.get("status", {}).get("conditions", [])
    return {each["type"] for each in listed if each["status"] == "True"}


async def pods_of(client: ApiClient, name: str) -> list[Pod]:
    return (await client.list(PODS, NS, labels=f"job-name={name}")).items


def has_active(client: ApiClient, name: str, count: int) -> Callable[[], Awaitable[list[Pod]]]:
    async def check() -> list[Pod]:
        found = [
            pod
            for pod in await pods_of(client, name)
            if pod.status.phase == "Pending" and not pod.metadata.deletion_timestamp
        ]
        return found if len(found) == count else []

    return check


def reaches(client: ApiClient, name: str, condition: str) -> Callable[[], Awaitable[Json | None]]:
    async def check() -> Json | None:
        found = await read(client, name)
        return found if condition in conditions(found) else None

    return check


async def end(client: ApiClient, pod: Pod, phase: str = "Succeeded") -> None:
    """End a pod as its kubelet would."""
    patch = {"status": {"phase": phase}}
    await client.patch(
        PODS, pod.metadata.name, patch, NS, kind=PatchKind.MERGE, subresource="status"
    )


async def test_pods_run_until_enough_have_succeeded(controllers: ApiClient) -> None:
    created = await create(controllers, job("sum", completions=3, parallelism=2))
    uid = created["metadata"]["uid"]
    label = "batch.kubernetes.io/controller-uid"
    assert created["spec"]["selector"] == {"matchLabels": {label: uid}}
    assert created["spec"]["backoffLimit"] == 6
    first = await until(has_active(controllers, "sum", 2))
    assert {pod.metadata.labels[label] for pod in first} == {uid}
    assert all(FINALIZER in pod.metadata.finalizers for pod in first)
    for pod in first:
        await end(controllers, pod)
        # Deleted before it is counted: the finalizer keeps it until it is.
        await controllers.delete(PODS, pod.metadata.name, NS)
    (last,) = await until(has_active(controllers, "sum", 1))
    await end(controllers, last)
    found = await until(reaches(controllers, "sum", "Complete"))
    assert found["status"]["succeeded"] == 3
    assert found["status"]["uncountedTerminatedPods"] == {}
    assert conditions(found) == {"SuccessCriteriaMet", "Complete"}
    assert [p.metadata.finalizers for p in await pods_of(controllers, "sum")] == [[]]


async def test_indexes_suspension_and_expiry(controllers: ApiClient) -> None:
    body = job("parts", completions=3, parallelism=3, completionMode="Indexed", suspend=True)
    await create(controllers, body)
    await until(reaches(controllers, "parts", "Suspended"))
    assert await pods_of(controllers, "parts") == []
    await change(controllers, "parts", suspend=False)
    pods = await until(has_active(controllers, "parts", 3))
    index = "batch.kubernetes.io/job-completion-index"
    assert sorted(pod.metadata.annotations[index] for pod in pods) == ["0", "1", "2"]
    for pod in pods:
        if pod.metadata.annotations[index] != "1":
            await end(controllers, pod)

    async def counted() -> bool:
        return (await read(controllers, "parts"))["status"].get("completedIndexes") == "0,2"

    await until(counted)
    await change(controllers, "parts", ttlSecondsAfterFinished=0)
    for pod in await until(has_active(controllers, "parts", 1)):
        await end(controllers, pod)

    async def expired() -> bool:
        try:
            await read(controllers, "parts")
        except NotFound:
            return await pods_of(controllers, "parts") == []
        return False

    await until(expired)


async def test_wrong_jobs_and_changes_are_refused(client: ApiClient) -> None:
    body = job("wrong", completionMode="Indexed", parallelism=2, backoffLimit=-1)
    body["spec"]["template"]["spec"]["restartPolicy"] = "Always"
    with pytest.raises(Invalid) as refused:
        await create(client, body)
    assert {cause.field for cause in refused.value.causes} == {
        "spec.completions",
        "spec.backoffLimit",
        "spec.template.spec.restartPolicy",
    }
    with pytest.raises(Invalid, match="not auto-generated"):
        await create(client, job("selecting", selector={"matchLabels": {"a": "b"}}))
    await create(client, job("fixed", completions=2))
    await change(client, "fixed", parallelism=2)
    with pytest.raises(Invalid, match="field is immutable"):
        await change(client, "fixed", completions=3)
    with pytest.raises(Invalid, match="field is immutable"):
        await change(client, "fixed", template={"spec": {"terminationGracePeriodSeconds": 1}})


@pytest.mark.slow
async def test_a_job_runs_on_a_cluster(shared_cluster: EmbeddedCluster) -> None:
    script = "import os; print('index', os.environ['JOB_COMPLETION_INDEX'])"
    body = job(
        "real", ["python3", "-c", script], completions=2, parallelism=2, completionMode="Indexed"
    )
    async with shared_cluster.client() as client:
        await create(client, body)
        found = await until(reaches(client, "real", "Complete"))
        assert found["status"]["completedIndexes"] == "0,1"
        logs = [
            line
            for pod in await pods_of(client, "real")
            async for line in client.logs(pod.metadata.name, NS)
        ]
        assert sorted(logs) == [b"index 0", b"index 1"]
        await client.request_json(
            "DELETE", f"{JOBS}/real", body={"propagationPolicy": "Background"}
        )
