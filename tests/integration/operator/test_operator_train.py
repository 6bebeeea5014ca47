"""The life of TrainJobs on a real API server.

``trainjob-N`` names a row of the acceptance table of TrainJobs.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from gangline.api.meta.resource import Resource
from gangline.api.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    POD_GROUPS,
    SERVICES,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
)
from gangline.api.trainer.builtin_runtimes import builtin_runtimes
from gangline.api.trainer.merge import merge
from gangline.local.custom_resources import install_runtimes
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
