"""The life of TrainJobs on a real API server.

``trainjob-N`` names a row of the acceptance table of TrainJobs.

Takes 22 s: the runtimes are installed for each test.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from gangline.api.meta.resource import Resource
from gangline.api.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    CONFIG_MAPS,
    PERSISTENT_VOLUME_CLAIMS,
    POD_GROUPS,
    SECRETS,
    SERVICES,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
)
from gangline.api.trainer.builtin_runtimes import builtin_runtimes
from gangline.api.trainer.merge import merge
from gangline.local.custom_resources import install_runtimes
from gangline.sdk.client import JobClient
from gangline.sdk.job_editor import JobEditor
from gangline.sdk.jobs import JobState
from gangline.sdk.manifests import effective_manifest
from integration.operator.cluster import NAMESPACE, Scene

JOBS: Resource[Any] = Resource(
    dict, TRAIN_JOBS.group, TRAIN_JOBS.version, TRAIN_JOBS.plural, TRAIN_JOBS.kind
)
RUNTIMES: Resource[Any] = Resource(
    dict,
    TRAINING_RUNTIMES.group,
    TRAINING_RUNTIMES.version,
    TRAINING_RUNTIMES.plural,
    TRAINING_RUNTIMES.kind,
)
SHARED: Resource[Any] = Resource(
    dict,
    CLUSTER_TRAINING_RUNTIMES.group,
    CLUSTER_TRAINING_RUNTIMES.version,
    CLUSTER_TRAINING_RUNTIMES.plural,
    CLUSTER_TRAINING_RUNTIMES.kind,
    namespaced=False,
)
COPY = "train-runtime-snapshot"


@pytest.fixture
async def trainer(stage: Scene) -> Scene:
    """A cluster with the shipped runtimes, stored without loss, and a running operator."""
    await install_runtimes(stage.client)
    listed = await stage.client.list(SHARED)
    stored = {each["metadata"]["name"]: each["spec"] for each in listed.items}
    written = {each["metadata"]["name"]: each["spec"] for each in builtin_runtimes()}
    assert stored == {name: merge(stored[name], spec) for name, spec in written.items()}
    await stage.start_operator()
    return stage


async def submit(stage: Scene, runtime: str = "torch-distributed", **spec: Any) -> dict[str, Any]:
    ref = spec.pop("ref", {"name": runtime})
    written = {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {"name": "train"},
        "spec": {"runtimeRef": ref, **spec},
    }
    created: dict[str, Any] = await stage.client.create(JOBS, written, NAMESPACE)
    return created


async def status(stage: Scene) -> dict[str, Any]:
    job = await stage.client.get(JOBS, "train", NAMESPACE)
    found: dict[str, Any] = job.get("status") or {}
    return found


async def until(stage: Scene, phase: str) -> dict[str, Any]:
    """Wait for a phase; return the status."""

    async def holds() -> bool:
        return bool((await status(stage)).get("gangline", {}).get("phase") == phase)

    await stage.until(holds, f"the job is {phase}")
    return await status(stage)


def own_runtime(name: str, image: str, **job_set: Any) -> dict[str, Any]:
    """A namespaced runtime of one job."""
    pod = {"containers": [{"name": "node", "image": image}]}
    label = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    node = {
        "name": "node",
        "template": {"metadata": {"labels": label}, "spec": {"template": {"spec": pod}}},
    }
    return {
        "apiVersion": RUNTIMES.api_version,
        "kind": RUNTIMES.kind,
        "metadata": {"name": name},
        "spec": {
            "mlPolicy": {"torch": {}},
            "template": {"spec": {"replicatedJobs": [node], **job_set}},
        },
    }


OWN = {"name": "own", "kind": "TrainingRuntime"}


async def images(stage: Scene) -> Mapping[str, str]:
    return {name: pod.spec.containers[0].image for name, pod in (await stage.pods()).items()}


async def test_job_runs_and_completes_with_all_its_nodes(trainer: Scene) -> None:
    await submit(trainer, trainer={"numNodes": 2})
    await trainer.until_pods({"node-0-0": "Running", "node-0-1": "Running"})
    running = await until(trainer, "Running")
    assert "conditions" not in running
    assert running["gangline"]["nodesReady"] == 2
    services = await trainer.client.list(SERVICES, NAMESPACE)
    assert "train" in {each.metadata.name for each in services.items}
    group = await trainer.client.get(POD_GROUPS, "train", NAMESPACE)
    assert group.spec.min_task_member == {"node": 2}
    for index in range(2):
        await trainer.kubelets.end(f"train-node-0-{index}", 0)
    ended = await until(trainer, "Succeeded")
    assert [(each["type"], each["status"]) for each in ended["conditions"]] == [
        ("Complete", "True")
    ]
    assert [each["succeeded"] for each in ended["jobsStatus"]] == [1]


async def test_commands_see_the_job_like_others(trainer: Scene) -> None:
    await submit(trainer, trainer={"numNodes": 2, "image": "mine:1"})
    jobs = JobClient(trainer.client)
    assert (await jobs.get("train", NAMESPACE)).desired == 2
    await until(trainer, "Running")
    job = await jobs.get("train", NAMESPACE)
    assert (job.state, job.desired, job.running) == (JobState.RUNNING, 2, 2)
    assert [each.qualified_name for each in await jobs.list(NAMESPACE)] == ["trainjob/train"]
    effective = await effective_manifest(trainer.client, job)
    (role,) = effective["replicatedJobs"]
    container = role["template"]["spec"]["containers"][0]
    assert (effective["runtime"], role["replicas"], container["image"]) == (
        f"configmap/{COPY}",
        2,
        "mine:1",
    )
    assert {"name": "PET_NNODES", "value": "2"} in container["env"]
    editor = JobEditor(jobs)
    assert await editor.suspend("train", NAMESPACE)
    await until(trainer, "Suspended")
    assert (await jobs.get("train", NAMESPACE)).state is JobState.SUSPENDED
    await jobs.delete("train", NAMESPACE)
    await trainer.until_gone(JOBS, "train")


async def test_suspended_job_keeps_its_runtime_and_runs_again(trainer: Scene) -> None:
    """trainjob-5: the runtime is created after the job, which waits for it."""
    await submit(trainer, ref=OWN, trainer={"numNodes": 2})
    await until(trainer, "Pending")
    await trainer.client.create(RUNTIMES, own_runtime("own", "first:1"), NAMESPACE)
    await until(trainer, "Running")
    await trainer.client.patch(JOBS, "train", {"spec": {"suspend": True}}, NAMESPACE)
    suspended = await until(trainer, "Suspended")
    assert await trainer.pods() == {}
    assert [each["type"] for each in suspended["conditions"]] == ["Suspended"]
    await trainer.until_gone(POD_GROUPS, "train")
    await trainer.client.delete(RUNTIMES, "own", NAMESPACE)
    await trainer.client.patch(JOBS, "train", {"spec": {"suspend": False}}, NAMESPACE)
    resumed = await until(trainer, "Running")
    assert "conditions" not in resumed
    assert set((await images(trainer)).values()) == {"first:1"}


async def test_nodes_of_an_elastic_runtime_join_and_leave(trainer: Scene) -> None:
    runtime = own_runtime("own", "node:1")
    runtime["spec"]["mlPolicy"]["torch"] = {"elasticPolicy": {"minNodes": 1, "maxNodes": 3}}
    await trainer.client.create(RUNTIMES, runtime, NAMESPACE)
    await submit(trainer, ref=OWN, trainer={"numNodes": 2})
    await trainer.until_pods({"node-0-0": "Running", "node-0-1": "Running"})
    first = await trainer.pods()
    editor = JobEditor(JobClient(trainer.client))
    assert await editor.scale("train", NAMESPACE, lambda before: before + 1) == (2, 3)
    await trainer.until_pods({f"node-0-{index}": "Running" for index in range(3)})
    # No webhook runs: the operator refuses what is out of range, and keeps the nodes.
    await editor.scale("train", NAMESPACE, lambda _: 4)

    async def is_refused() -> bool:
        message = (await status(trainer)).get("gangline", {}).get("message", "")
        return "spec.trainer.numNodes: 4 is not within elasticPolicy" in message

    await trainer.until(is_refused, "the range is reported")
    await editor.scale("train", NAMESPACE, lambda _: 1)
    await trainer.until_pods({"node-0-0": "Running"})
    (node,) = (await trainer.pods()).values()
    assert node.metadata.uid == first["train-node-0-0"].metadata.uid
    group = await trainer.client.get(POD_GROUPS, "train", NAMESPACE)
    assert group.spec.min_task_member == {"node": 1}
    shown = (await status(trainer))["gangline"]
    assert (shown["nodeRange"], shown["roles"]["node"]["replicas"]) == (
        {"minNodes": 1, "maxNodes": 3},
        1,
    )


async def test_later_runtime_does_not_reach_a_job(trainer: Scene) -> None:
    """trainjob-5: also one that is queued: the copy is stored when the job is first seen."""
    await trainer.client.create(RUNTIMES, own_runtime("own", "first:1"), NAMESPACE)
    await submit(trainer, ref=OWN, suspend=True)
    await until(trainer, "Suspended")
    changed = own_runtime("own", "second:1")["spec"]
    await trainer.client.patch(RUNTIMES, "own", {"spec": changed}, NAMESPACE)
    await trainer.client.patch(JOBS, "train", {"spec": {"suspend": False}}, NAMESPACE)
    await until(trainer, "Running")
    assert await images(trainer) == {"train-node-0-0": "first:1"}
    await trainer.kubelets.end("train-node-0-0", 137)

    async def replaced() -> bool:
        pods = await trainer.pods()
        return bool(pods) and all(pod.status.phase == "Running" for pod in pods.values())

    await trainer.until(replaced, "the failed pod has a successor")
    assert await images(trainer) == {"train-node-0-0": "first:1"}


async def test_trainer_starts_after_its_initializers(trainer: Scene) -> None:
    """trainjob-7: the group of the second phase does not count the first one's pods."""
    await submit(trainer, "torchtune-llama3.2-1b")
    first = {"dataset-initializer-0-0": "Running", "model-initializer-0-0": "Running"}
    await trainer.until_pods(first)
    await until(trainer, "Initializing")
    claims = await trainer.client.list(PERSISTENT_VOLUME_CLAIMS, NAMESPACE)
    assert [each.metadata.name for each in claims.items] == ["initializer-train"]
    await trainer.kubelets.end("train-dataset-initializer-0-0", 0)
    await trainer.kubelets.end("train-model-initializer-0-0", 0)
    ended = dict.fromkeys(first, "Succeeded")
    await trainer.until_pods({**ended, "node-0-0": "Running"})
    group = await trainer.client.get(POD_GROUPS, "train", NAMESPACE)
    assert group.spec.min_task_member == {"node": 1}


async def test_rules_decide_which_failures_restart_all_pods_and_which_end_the_job(
    trainer: Scene,
) -> None:
    freely = {"name": "lost", "action": "RestartJobSetAndIgnoreMaxRestarts"}
    ends = {"name": "wrong", "action": "FailJobSet", "targetReplicatedJobs": ["first"]}
    runtime = own_runtime("own", "a:1", failurePolicy={"maxRestarts": 0, "rules": [ends, freely]})
    jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    pod = {"containers": [{"name": "first", "image": "a:1"}]}
    jobs.insert(0, {"name": "first", "template": {"spec": {"template": {"spec": pod}}}})
    await trainer.client.create(RUNTIMES, runtime, NAMESPACE)
    await submit(trainer, ref=OWN)
    both = {"first-0-0": "Running", "node-0-0": "Running"}
    await trainer.until_pods(both)
    before = {name: pod.metadata.uid for name, pod in (await trainer.pods()).items()}
    await trainer.kubelets.end("train-node-0-0", 1)

    async def restarted() -> bool:
        pods = await trainer.pods()
        new = {
            name: pod.metadata.uid
            for name, pod in pods.items()
            if not pod.metadata.deletion_timestamp
        }
        return new.keys() == before.keys() and not set(new.values()) & set(before.values())

    await trainer.until(restarted, "both pods are new")
    await trainer.until_pods(both)
    restarts = (await until(trainer, "Running"))["gangline"]["restarts"]
    assert (restarts.get("total", 0), restarts["generation"]) == (0, 1)
    await trainer.kubelets.end("train-first-0-0", 1)
    failed = await until(trainer, "Failed")
    assert failed["gangline"]["restarts"]["generation"] == 1


async def test_launcher_joins_its_nodes_and_ends_the_job(trainer: Scene) -> None:
    await submit(trainer, "deepspeed-distributed", trainer={"numNodes": 2})
    await trainer.until_pods({"node-0-0": "Running", "launcher-0-0": "Running"})
    host_file = await trainer.client.get(CONFIG_MAPS, "train-mpi-hostfile", NAMESPACE)
    assert host_file.data["hostfile"].splitlines() == [
        "train-launcher-0-0.train slots=1",
        "train-node-0-0.train slots=1",
    ]
    secrets = await trainer.client.list(SECRETS, NAMESPACE)
    assert [each.type for each in secrets.items] == ["kubernetes.io/ssh-auth"]
    await trainer.kubelets.end("train-launcher-0-0", 0)
    await until(trainer, "Succeeded")
    await trainer.until_pods({"launcher-0-0": "Succeeded"})


async def test_job_set_of_upstream_keeps_its_job(trainer: Scene) -> None:
    """trainjob-11: a job that upstream's operator runs gets no second pods."""
    await trainer.kill_operator()
    await submit(trainer)
    counts = {"ready": 1, "succeeded": 0, "failed": 0, "active": 1, "suspended": 0}
    running = {"jobsStatus": [{"name": "node", **counts}]}
    change = {"status": running}
    await trainer.client.patch(JOBS, "train", change, NAMESPACE, subresource="status")
    await trainer.start_operator()
    written = {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {"name": "other"},
        "spec": {"runtimeRef": {"name": "torch-distributed"}},
    }
    await trainer.client.create(JOBS, written, NAMESPACE)

    async def second_runs() -> bool:
        return bool(await trainer.pods("other"))

    await trainer.until(second_runs, "a job that was created later has pods")
    assert await trainer.pods() == {}
    assert await status(trainer) == running


async def test_operator_that_is_killed_continues_until_the_job_is_deleted(trainer: Scene) -> None:
    """trainjob-4 and trainjob-8: restarts stay counted, and an ended job is not trained again."""
    runtime = own_runtime("own", "a:1", ttlSecondsAfterFinished=0)
    await trainer.client.create(RUNTIMES, runtime, NAMESPACE)
    await submit(trainer, ref=OWN, trainer={"numNodes": 2})
    await until(trainer, "Running")
    await trainer.kubelets.end("train-node-0-1", 1)

    async def counted() -> bool:
        return bool((await status(trainer))["gangline"].get("restarts", {}).get("total") == 1)

    await trainer.until(counted, "the restart is counted")
    await trainer.kill_operator()
    await trainer.start_operator()
    await trainer.until_pods({"node-0-0": "Running", "node-0-1": "Running"})
    await until(trainer, "Running")
    assert (await status(trainer))["gangline"]["restarts"]["total"] == 1
    for index in range(2):
        await trainer.kubelets.end(f"train-node-0-{index}", 0)
    await trainer.until_gone(JOBS, "train")
