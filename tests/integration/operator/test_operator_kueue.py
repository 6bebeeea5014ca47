"""Jobs of every kind under Kueue: admitted, resized, evicted, admitted elsewhere, delegated.

Takes 23 s: ten kinds are admitted twice each.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from gangline.api import crd
from gangline.api.core.pod import Pod
from gangline.api.meta.resource import Resource
from gangline.api.resources import PODS, SERVICES
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import NotFound
from gangline.local import custom_resources
from gangline.local.apiserver.server import ApiServer
from gangline.local.custom_resources import install_runtimes
from integration.operator.cluster import NAMESPACE, Scene, install_definition
from integration.operator.kueue import (
    Integration,
    Json,
    Kueue,
    PodSetInfo,
    Workload,
    connect,
    kueue,
    merge_patch,
)
from unit.operator.kinds import KINDS, KindUnderTest

ROLE = "training.kubeflow.org/replica-type"
WORKLOAD = "kueue.x-k8s.io/workload"
TAINTED = {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}
SPOT = PodSetInfo(
    labels={"kueue.x-k8s.io/podset": "main"},
    annotations={WORKLOAD: "job-train"},
    node_selector={"pool": "spot"},
    tolerations=[TAINTED],
)
RESERVED = PodSetInfo(annotations={WORKLOAD: "job-train"}, node_selector={"pool": "reserved"})
# Kueue reads the pods of a TrainJob from its runtime, and changes them by a patch of the runtime.
JOBS = {n: k for n, k in KINDS.items() if k.framework.kind.kind != "TrainJob"}
MULTI_KUEUE = "kueue.x-k8s.io/multikueue"


def integration(kind: KindUnderTest) -> Integration:
    """Where Kueue finds the jobs of a kind."""
    plural = kind.framework.kind.resource.plural
    elastic = kind.framework.kind.kind == "ElasticJob"
    return Integration(
        f"/apis/{kind.api_version}/namespaces/{NAMESPACE}/{plural}",
        kind.specs,
        kind.all_roles,
        ("suspend",) if elastic else ("runPolicy", "suspend"),
    )


def job(kind: KindUnderTest, name: str = "train", **policy: Any) -> Json:
    """A job whose pods are bound from the start, so that deleted ones get time to end."""
    written = {**kind.job(2, **policy), "metadata": {"name": name}}
    where = integration(kind)
    for role in where.roles:
        where.role_specs(written)[role]["template"]["spec"]["nodeName"] = "n1"
    return written


def replicas_on(pods: Mapping[str, Pod], roles: tuple[str, ...], flavor: PodSetInfo) -> int:
    """The number of a job's running replicas; all of them have what the flavor adds."""
    named = {role.lower() for role in roles}
    found = [pod for pod in pods.values() if pod.metadata.labels.get(ROLE) in named]
    for pod in found:
        assert pod.spec.node_selector == flavor.node_selector
        assert flavor.labels.items() <= pod.metadata.labels.items()
        assert flavor.annotations.items() <= pod.metadata.annotations.items()
        tolerated = [t.key for t in pod.spec.tolerations]
        assert ("spot" in tolerated) is bool(flavor.tolerations)
    return sum(pod.status.phase == "Running" for pod in found)


@pytest.mark.parametrize("kind", JOBS.values(), ids=JOBS)
async def test_kueue_admits_resizes_and_evicts_a_job(
    stage: Scene, api_server: ApiServer, kind: KindUnderTest
) -> None:
    roles = kind.all_roles
    total = sum(count for _, count in kind.roles) + 2

    async def runs(count: int, flavor: PodSetInfo) -> None:
        async def all_run() -> bool:
            pods = await stage.pods()
            ending = any(pod.metadata.deletion_timestamp for pod in pods.values())
            return not ending and replicas_on(pods, roles, flavor) == count

        await stage.until(all_run, f"{count} replicas run")

    await stage.start_operator()
    async with kueue(api_server.kubeconfig, integration(kind)) as queue:
        await queue.create(job(kind, backoffLimit=0))
        written = queue.kind.pod_sets(await queue.job("train"))
        await queue.until("train", lambda pending: not pending.admission, "the workload exists")
        await until_suspended(stage, queue.kind)
        assert not await stage.pods()

        await queue.admit(SPOT)
        await runs(total, SPOT)
        await queue.until("train", lambda admitted: admitted.pods_ready, "the pods are ready")

        # A user adds a worker: Kueue stops the job, and admits a new workload.
        stored = await queue.job("train")
        change = merge_patch(stored, kind.scale(stored, 3))
        await queue.call("PATCH", f"{queue.kind.path}/train", change)
        await queue.until("train", lambda new: has_workers(new, kind, 3), "it has a new workload")
        await runs(total + 1, SPOT)
        await queue.until("train", lambda admitted: admitted.pods_ready, "the pods are ready")

        stage.kubelets.holding_on = True
        await queue.evict("train")
        await queue.until("train", lambda evicted: not evicted.admission, "its quota is free")
        evicted = await queue.job("train")
        assert "startTime" not in evicted["status"]
        written[kind.scaled]["count"] = 3
        assert queue.kind.pod_sets(evicted) == written

        # It is admitted elsewhere while its pods save their last checkpoint.
        former = await stage.pods()
        ending = [pod for pod in former.values() if pod.metadata.deletion_timestamp]
        assert len(ending) == len(former) > total
        await queue.admit(RESERVED)
        await until_suspended(stage, queue.kind, "resumes when its former pods have ended")
        assert uids(await stage.pods()) == uids(former)
        stage.kubelets.holding_on = False
        for name in former:
            await stage.kubelets.end(name, 143)
        await runs(total + 1, RESERVED)
        assert not uids(await stage.pods()) & uids(former)
        status = (await queue.job("train"))["status"]
        assert not status["restarts"].get("total"), "an eviction is no failure"
        for name in await stage.pods():
            with suppress(NotFound):  # cleaned up, since the job has succeeded
                await stage.kubelets.end(name, 0)
        await queue.until("train", lambda ended: ended.finished == "Succeeded", "it succeeds")


def has_workers(workload: Workload, kind: KindUnderTest, count: int) -> bool:
    return bool(workload.admission) and workload.pod_sets[kind.scaled]["count"] == count


def uids(pods: Mapping[str, Pod]) -> set[str]:
    return {pod.metadata.uid for pod in pods.values()}


async def until_suspended(
    stage: Scene, kind: Integration, message: str = "", name: str = "train"
) -> None:
    async def suspended() -> bool:
        found = await stage.client.request_json("GET", f"{kind.path}/{name}")
        listed = found.get("status", {}).get("conditions", [])
        held = [c for c in listed if (c["type"], c["status"]) == ("Suspended", "True")]
        return bool(held) and message in held[0]["message"]

    await stage.until(suspended, f"{name} is suspended")


async def test_job_that_multikueue_runs_elsewhere_is_left_to_it(
    stage: Scene, api_server: ApiServer
) -> None:
    remote = {"Worker": {"active": 2, "selector": "a=b"}}
    condition = {
        "type": "Succeeded",
        "status": "True",
        "reason": "Done",
        "message": "elsewhere",
        "lastUpdateTime": "2026-01-01T00:00:00Z",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    await stage.start_operator()
    for number, kind in enumerate(JOBS.values()):
        async with kueue(api_server.kubeconfig, integration(kind)) as queue:
            away, here = f"away-{number}", f"here-{number}"
            await queue.create(job(kind, away, managedBy=MULTI_KUEUE, ttlSecondsAfterFinished=0))
            before = await queue.job(away)
            await queue.admit(PodSetInfo())
            await queue.until(away, lambda wl: bool(wl.admission), "it is admitted")
            await queue.create(job(kind, here))
            await until_pods(stage.client, here)
            seen = await queue.job(away)
            assert "status" not in seen, kind.name
            assert seen["metadata"].get("annotations") == before["metadata"].get("annotations")
            status = {"replicaStatuses": remote, "conditions": [condition]}
            await queue.copy_status(away, status)
            await queue.evict(here)
            await until_suspended(stage, queue.kind, name=here)
            stored = await queue.job(away)
            kept = stored["status"]
            writers = {entry["manager"] for entry in stored["metadata"]["managedFields"]}
            assert writers == {"kueue"}, kind.name
            assert kept["conditions"] == [condition], kind.name
            assert kept["replicaStatuses"]["Worker"]["active"] == 2
    owned = [*(await listed(stage.client, PODS)), *(await listed(stage.client, SERVICES))]
    assert not [name for name in owned if name.startswith("away-")]


async def listed(client: ApiClient, resource: Resource[Any]) -> list[str]:
    return [item.metadata.name for item in (await client.list(resource, NAMESPACE)).items]


async def until_pods(client: ApiClient, name: str) -> None:
    async with asyncio.timeout(20):
        while not [pod for pod in await listed(client, PODS) if name in pod]:
            await asyncio.sleep(0.02)


async def test_kueue_admits_and_evicts_a_trainjob_by_its_patch_of_the_runtime(
    stage: Scene, api_server: ApiServer
) -> None:
    """As ``trainjob_controller.go``: the patch changes only while the job is suspended.

    Its manager watches JobSets too, and ends where the kind is not served.
    """
    await install_definition(stage.client, crd.job_set_manifest())
    await install_runtimes(stage.client)
    await stage.start_operator()
    jobs = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{NAMESPACE}/trainjobs"

    async with connect(api_server.kubeconfig) as session:
        client = Kueue(session, Integration(jobs, "", ()))

        async def patch(**spec: Any) -> None:
            await client.call("PATCH", f"{jobs}/train", {"spec": spec})

        async def admit(flavor: PodSetInfo) -> None:
            await patch(runtimePatches=[runtime_patch(flavor)])
            await patch(suspend=False)

        async def runs(flavor: PodSetInfo) -> None:
            async def all_run() -> bool:
                return replicas_on(await stage.pods(), ("node",), flavor) == 2

            await stage.until(all_run, "its nodes run")
            await stage.until(active, "it is active")

        async def active() -> bool:
            steps = (await client.job("train")).get("status", {}).get("jobsStatus", [])
            return any(step["active"] for step in steps)

        async def inactive() -> bool:
            return not await active()

        trainer = {"numNodes": 2}
        spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer, "suspend": True}
        await client.call(
            "POST",
            jobs,
            {
                "apiVersion": "trainer.kubeflow.org/v1alpha1",
                "kind": "TrainJob",
                "metadata": {"name": "train", "labels": {"kueue.x-k8s.io/queue-name": "team"}},
                "spec": {**spec, "runtimePatches": [runtime_patch(None)]},
            },
        )
        await until_suspended(stage, client.kind)
        assert not await stage.pods()
        # Kueue refuses a job whose runtime has no kind, and counts pods by the replicas of a job.
        stored = (await client.job("train"))["spec"]
        assert stored["runtimeRef"]["kind"] == "ClusterTrainingRuntime"
        assert stored["managedBy"] == "trainer.kubeflow.org/trainjob-controller"
        runtimes = "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes"
        runtime = await client.call("GET", f"{runtimes}/deepspeed-distributed")
        replicated = runtime["spec"]["template"]["spec"]["replicatedJobs"]
        assert [entry["replicas"] for entry in replicated] == [1, 1]
        await admit(SPOT)
        await runs(SPOT)
        before = await stage.pods()
        assert {p.metadata.labels["jobset.sigs.k8s.io/jobset-name"] for p in before.values()} == {
            "train"
        }
        await patch(suspend=True)
        await stage.until(inactive, "it is not active")
        await patch(runtimePatches=[runtime_patch(None)])
        await admit(RESERVED)
        await runs(RESERVED)
        assert not uids(await stage.pods()) & uids(before)
        for name in await stage.pods():
            await stage.kubelets.end(name, 0)

        async def complete() -> bool:
            listed = (await client.job("train"))["status"].get("conditions", [])
            return ("Complete", "True") in {(each["type"], each["status"]) for each in listed}

        await stage.until(complete, "it completes")


async def test_definition_of_the_jobset_project_is_not_replaced(client: ApiClient) -> None:
    theirs = crd.job_set_manifest()
    theirs["spec"]["names"]["shortNames"] = ["js"]
    await install_definition(client, theirs)
    await custom_resources.install_definitions(client)
    stored = await client.get(custom_resources.DEFINITIONS, theirs["metadata"]["name"])
    assert stored["spec"]["names"]["shortNames"] == ["js"]


def runtime_patch(flavor: PodSetInfo | None) -> Json:
    """Kueue's entry in ``spec.runtimePatches``; empty without a flavor."""
    template: Json = {"spec": {}}
    if flavor:
        pod: Json = {"spec": {}}
        flavor.restore(pod)
        template = {
            "spec": {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": pod}}}]}
        }
    return {"manager": "kueue.x-k8s.io/manager", "trainingRuntimeSpec": {"template": template}}
