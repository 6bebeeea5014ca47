"""Adoption of foreign and orphaned objects: none is created again.

Takes 15 s: 12 API servers with all definitions.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from gangline.api.meta.resource import Resource
from gangline.api.resources import PADDLE_JOBS, POD_GROUPS, PODS, PYTORCH_JOBS, SERVICES
from gangline.operator.model import labels
from integration.operator.cluster import NAMESPACE, Scene
from integration.operator.faults import FaultyTransport, faulty
from unit.operator import paddle_jobs
from unit.operator.builders import manifest

JobManifest = dict[str, Any]
Labelling = Callable[[JobManifest, str, int], dict[str, str]]
"""Labels that an upstream operator gives to what belongs to a replica."""

MASTER_AND_WORKERS = {"master": 1, "worker": 2}


def a_paddle_job() -> JobManifest:
    written = paddle_jobs.manifest(worker=2, cleanPodPolicy="Never", intranet="Service")
    finalizers = ["finalizers.paddlepaddle.org"]
    return {**written, "metadata": {"name": "train", "finalizers": finalizers}}


def a_pytorch_job() -> JobManifest:
    return {**manifest(1, 2), "metadata": {"name": "train"}}


def kubeflow_labels(job: JobManifest, role: str, index: int) -> dict[str, str]:
    """The labels of today's training operator."""
    values = ("train", "pytorchjob-controller", role, str(index))
    names = ("job-name", "operator-name", "replica-type", "replica-index")
    return {f"training.kubeflow.org/{name}": v for name, v in zip(names, values, strict=True)}


def old_labels(job: JobManifest, role: str, index: int) -> dict[str, str]:
    """The labels from before labels had a prefix."""
    return {
        "group-name": job["apiVersion"].partition("/")[0],
        "job-name": "train",
        "replica-type": role,
        "replica-index": str(index),
    }


def paddle_labels(job: JobManifest, role: str, index: int) -> dict[str, str]:
    """The labels of PaddleJob's operator, none of which names the job."""
    return {"paddle-res-name": f"train-{role}-{index}", "paddle-res-type": role}


@dataclass
class Left:
    """A job and the objects that an upstream operator created for it."""

    stage: Scene
    uids: dict[str, str]

    async def pods(self) -> dict[str, Any]:
        listing = await self.stage.client.list(PODS, NAMESPACE)
        return {pod.metadata.name: pod for pod in listing.items}

    async def assert_untouched(self) -> None:
        pods = await self.pods()
        assert {name: pod.metadata.uid for name, pod in pods.items()} == self.uids


async def leave(
    stage: Scene, job: JobManifest, replicas: dict[str, int], labelling: Labelling
) -> Left:
    """Submit a job and create its pods and services, as an upstream operator would."""
    group, version = job["apiVersion"].split("/")
    resource: Resource[Any] = Resource(dict, group, version, f"{job['kind'].lower()}s", job["kind"])
    stored = await stage.client.create(resource, job, NAMESPACE)
    owner = {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": "train",
        "uid": stored["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    container = {"name": job["kind"].removesuffix("Job").lower(), "image": "x"}
    uids = {}
    for role, index in (
        (role, index) for role, count in replicas.items() for index in range(count)
    ):
        own, name = labelling(stored, role, index), f"train-{role}-{index}"
        bare = {"name": name, "ownerReferences": [owner]}
        labelled = {**bare, "labels": own}
        pod = {
            "metadata": labelled,
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }
        uids[name] = (await stage.client.create(PODS, pod, NAMESPACE)).metadata.uid
        of_paddle = labelling is paddle_labels
        service = {
            "metadata": bare if of_paddle else labelled,
            "spec": {
                "clusterIP": "None",
                "selector": {"paddle-res-name": name} if of_paddle else own,
                "ports": [{"name": "p-0", "port": 36000}],
            },
        }
        await stage.client.create(SERVICES, service, NAMESPACE)
    left = Left(stage, uids)

    async def running() -> bool:
        return all(pod.status.phase == "Running" for pod in (await left.pods()).values())

    await stage.until(running, "the pods run")
    return left


@asynccontextmanager
async def writes_of_operator(stage: Scene, **settings: Any) -> AsyncIterator[FaultyTransport]:
    """Run the operator and record its writes."""
    async with faulty(stage.client.config, lambda *_: "") as (client, transport):
        await stage.start_operator(client, **settings)
        yield transport
        await stage.kill_operator()


def made_or_removed(transport: FaultyTransport) -> list[str]:
    """Creations and deletions of pods and services, even if they were refused."""
    touched = ("/pods", "/services", "/configmaps")
    return [
        f"{request.method} {request.path}"
        for request in transport.writes
        if request.method in ("POST", "DELETE") and any(kind in request.path for kind in touched)
    ]


@pytest.mark.parametrize("gang", ["auto", "off"])
@pytest.mark.parametrize("labelling", [kubeflow_labels, old_labels])
async def test_a_running_job_of_kubeflow_is_taken_over_as_it_is(
    stage: Scene, labelling: Labelling, gang: str
) -> None:
    left = await leave(stage, a_pytorch_job(), MASTER_AND_WORKERS, labelling)
    async with writes_of_operator(stage, gang_scheduling=gang) as transport:
        await stage.until_condition("Running")
        await left.assert_untouched()
        await stage.kubelets.end("train-master-0", 0)
        await stage.until_condition("Succeeded")
        await left.assert_untouched()
    assert made_or_removed(transport) == []


async def test_a_replacement_of_an_old_pod_is_found_under_its_name(stage: Scene) -> None:
    """The service selected by old labels, which the new pod does not have."""
    written = a_pytorch_job()
    for role in written["spec"]["pytorchReplicaSpecs"].values():
        role["restartPolicy"] = "ExitCode"
    left = await leave(stage, written, MASTER_AND_WORKERS, old_labels)
    async with writes_of_operator(stage):
        await stage.until_condition("Running")
        await stage.kubelets.end("train-worker-1", 137)

        async def replaced() -> bool:
            pod = (await left.pods()).get("train-worker-1")
            return pod is not None and pod.metadata.uid != left.uids["train-worker-1"]

        await stage.until(replaced, "a new worker")
        found = await stage.client.get(SERVICES, "train-worker-1", NAMESPACE)
        own = labels.replica_labels("train", "pytorchjob-controller", "worker", 1)
        assert found.spec.selector == own

        # The gang contains the others, so the new pod does not wait for ever.
        async def together() -> bool:
            pods = (await left.pods()).values()
            return {pod.metadata.annotations.get(labels.POD_GROUP_ANNOTATION) for pod in pods} == {
                "train"
            }

        await stage.until(together, "all pods are of one gang")


async def test_an_old_service_changes_only_after_its_pod(stage: Scene) -> None:
    """Or it would select nothing in between: here the first write for each pod fails."""
    left = await leave(stage, a_pytorch_job(), MASTER_AND_WORKERS, old_labels)
    refused: set[str] = set()

    def fault(request: Any, _: int) -> str:
        path: str = request.path
        if "/pods/" not in path or path in refused:
            return ""
        refused.add(path)
        return "before"

    async with faulty(stage.client.config, fault) as (client, transport):
        await stage.start_operator(client, gang_scheduling="off")
        await stage.until_condition("Running")

        async def all_ours() -> bool:
            found = await stage.client.list(SERVICES, NAMESPACE, labels=labels.JOB_NAME)
            return len(found.items) == len(left.uids)

        await stage.until(all_ours, "the services are ours")
        await stage.kill_operator()
    await left.assert_untouched()
    paths = [request.path for request in transport.writes if request.method == "PATCH"]
    for name in left.uids:
        prefix = f"/api/v1/namespaces/{NAMESPACE}"
        pods = [place for place, path in enumerate(paths) if path == f"{prefix}/pods/{name}"]
        assert len(pods) >= 2, "one that failed, one that did not"
        assert pods[1] < paths.index(f"{prefix}/services/{name}")


async def orphan(stage: Scene) -> dict[str, str]:
    """Delete a job so that what it has stays, and wait until nobody owns that."""
    await stage.client.delete(PYTORCH_JOBS, "train", NAMESPACE)
    await stage.until_gone(PYTORCH_JOBS, "train")
    pods = await stage.pods()
    for resource, names in ((PODS, pods), (SERVICES, pods), (POD_GROUPS, ["train"])):
        for name in names:
            patch = {"metadata": {"ownerReferences": None}}
            await stage.client.patch(resource, name, patch, NAMESPACE)
    return {name: pod.metadata.uid for name, pod in pods.items()}


async def test_orphans_are_taken_by_the_job_that_comes_under_their_jobs_name(stage: Scene) -> None:
    """As after ``kubectl delete --cascade=orphan`` and ``kubectl create``."""
    await stage.start_operator()
    await stage.submit(1, 2)
    await stage.until_condition("Running")
    uids = await orphan(stage)
    job = await stage.submit(1, 2)
    await stage.until_condition("Running")

    async def owned() -> bool:
        found = [
            *(await stage.pods()).values(),
            *(await stage.client.list(SERVICES, NAMESPACE, labels=labels.JOB_NAME)).items,
            await stage.client.get(POD_GROUPS, "train", NAMESPACE),
        ]
        owners = [item.metadata.controller for item in found]
        return len(found) == 7 and all(o and o.uid == job.metadata.uid for o in owners)

    await stage.until(owned, "the new job owns all")
    assert {name: pod.metadata.uid for name, pod in (await stage.pods()).items()} == uids
    await stage.kubelets.end("train-master-0", 0)
    await stage.until_condition("Succeeded")


async def test_orphans_that_have_ended_are_not_taken(stage: Scene) -> None:
    """The new job shall run, and not have succeeded because another one did."""
    await stage.start_operator()
    await stage.submit(1, 0)
    await stage.until_condition("Running")
    uids = await orphan(stage)
    await stage.kubelets.end("train-master-0", 0)
    await stage.submit(1, 0)
    job = await stage.until_condition("Stalled")
    assert not any(c.type == "Succeeded" for c in job.status.conditions)
    await stage.client.delete(PODS, "train-master-0", NAMESPACE, uid=uids["train-master-0"])
    await stage.until_condition("Running")


async def test_a_job_that_is_being_deleted_takes_nothing(stage: Scene) -> None:
    await stage.start_operator()
    await stage.submit(1, 0)
    await stage.until_condition("Running")
    await orphan(stage)
    held = {"metadata": {"finalizers": ["example.com/hold"]}}
    written = {**a_pytorch_job(), "metadata": {"name": "train", **held["metadata"]}}
    written["spec"]["runPolicy"] = {"managedBy": "kueue.x-k8s.io/multikueue"}
    await stage.client.create(PYTORCH_JOBS, written, NAMESPACE)
    await stage.client.delete(PYTORCH_JOBS, "train", NAMESPACE)
    # The completed life of another job shows that the operator has processed earlier events.
    await stage.submit(1, 0, name="later")
    await stage.until_condition("Running", "later")
    pod = await stage.client.get(PODS, "train-master-0", NAMESPACE)
    assert pod.metadata.controller is None
    release = {"metadata": {"finalizers": None}}
    await stage.client.patch(PYTORCH_JOBS, "train", release, NAMESPACE)


async def test_operator_killed_during_adoption_continues_where_it_was(
    stage: Scene,
) -> None:
    left = await leave(stage, a_paddle_job(), {"worker": 2}, paddle_labels)
    for number in range(1, 6):

        def fault(_: object, count: int, number: int = number) -> str:
            return "" if count < number else "hang"

        async with faulty(stage.client.config, fault) as (client, transport):
            await stage.start_operator(client)
            try:
                async with asyncio.timeout(2):
                    await transport.hanging.wait()
            except TimeoutError:
                break
            finally:
                await stage.kill_operator()
    await stage.start_operator()

    async def phase() -> bool:
        found = await stage.client.get(PADDLE_JOBS, "train", NAMESPACE)
        return found.status.phase == "Running"

    await stage.until(phase, "the job runs")
    await left.assert_untouched()
    services = await stage.client.list(SERVICES, NAMESPACE, labels=labels.JOB_NAME)
    assert {s.metadata.name for s in services.items} == set(left.uids)
