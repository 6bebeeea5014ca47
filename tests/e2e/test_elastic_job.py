"""ElasticJobs as users write them: pods and the master are deleted, and jobs end.

Takes 25 s: pods are replaced, and all objects of a job are deleted.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from e2e.jobs import Manifest, until
from e2e.scenario import Scenario
from e2e.waiting import eventually
from gangline.api.core.pod import Pod
from gangline.api.meta.resource import Resource
from gangline.api.quantity import parse_quantity
from gangline.api.resources import (
    CONFIG_MAPS,
    ELASTIC_JOBS,
    NODES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SCALE_PLANS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
)

API = "elastic.iml.github.io/v1alpha1"
NAME = "torch-mnist-single-job-testing-1"
MASTER = f"elasticjob-{NAME}-dlrover-master"

LEFT_BEHIND: tuple[Resource[Any], ...] = (
    PODS,
    SERVICES,
    SECRETS,
    CONFIG_MAPS,
    ROLES,
    ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    SCALE_PLANS,
)


def elastic_job(scenario: Scenario, name: str, workers: int, mark: str, cpu: str) -> Manifest:
    """The job of a user's report, with another image and script; ``mark`` ends it."""
    command = f"set -- --network-check --nnodes=1:10 --max_restarts=10; {until(mark)}"
    shared = {"name": "shared", "hostPath": {"path": str(scenario.shared)}}
    worker = {
        "name": "main",
        "image": "busybox:1",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", command],
        "resources": {
            "limits": {"memory": "64Mi"},
            "requests": {"cpu": cpu, "memory": "16Mi"},
        },
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    }
    # The image has no Gangline: another program stands for the master.
    master = {
        "name": "main",
        "command": ["sh", "-c", "exec sleep 3600"],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
    }
    return {
        "apiVersion": API,
        "kind": "ElasticJob",
        "metadata": {"name": name, "labels": {"some-label": "some-value"}},
        "spec": {
            "distributionStrategy": "AllreduceStrategy",
            "optimizeMode": "cluster",
            "replicaSpecs": {
                "worker": {
                    "replicas": workers,
                    "template": {
                        "spec": {
                            "restartPolicy": "Always",
                            "terminationGracePeriodSeconds": 1,
                            "containers": [worker],
                            "volumes": [shared],
                        }
                    },
                },
                "dlrover-master": {
                    "template": {
                        "spec": {"terminationGracePeriodSeconds": 1, "containers": [master]}
                    }
                },
            },
        },
    }


def worker_name(number: int, job: str = NAME) -> str:
    return f"{job}-edljob-worker-{number}"


async def running(scenario: Scenario, job: str, *names: str) -> dict[str, Pod]:
    """The job's pods, once exactly these run."""

    def just_these(pods: Mapping[str, Pod]) -> bool:
        return {n for n, pod in pods.items() if pod.status.phase == "Running"} == set(names)

    return await scenario.pods_when(job, just_these, f"{sorted(names)} run")


async def delete(scenario: Scenario, pod: str) -> None:
    await scenario.client.delete(PODS, pod, scenario.namespace)


@pytest.mark.timeout(1200)
async def test_a_users_job_outlives_a_worker_and_its_master_and_leaves_nothing(
    scenario: Scenario,
) -> None:
    elastic = scenario.of(ELASTIC_JOBS)
    await elastic.submit(elastic_job(scenario, NAME, 5, "trained", "10m"))
    workers = [worker_name(number) for number in range(5)]
    first = await running(elastic, NAME, f"{MASTER}-0", *workers)
    variables = {each.name for each in first[workers[0]].spec.containers[0].env}
    assert {"DLROVER_MASTER_ADDR", "NODE_RANK", "GANGLINE_JOB_SECRET"} <= variables

    await delete(elastic, worker_name(3))
    workers[3] = worker_name(5)
    second = await running(elastic, NAME, f"{MASTER}-0", *workers)
    assert second[workers[3]].metadata.labels["elasticjob.dlrover/rank-index"] == "3"

    await delete(elastic, f"{MASTER}-0")
    third = await running(elastic, NAME, f"{MASTER}-1", *workers)
    for name in workers:
        assert third[name].metadata.uid == second[name].metadata.uid, "no worker was touched"

    elastic.let("trained")
    assert await elastic.outcome(NAME) == "Succeeded"
    job = await elastic.job(NAME)
    assert job.status.phase == "Succeeded"
    assert job.status.restarts.total == 0, "nothing failed"
    await elastic.pods_when(NAME, lambda pods: set(pods) == set(workers), "the master is gone")
    await elastic.delete(NAME)
    await eventually(
        nothing_left(elastic, job.metadata.uid), "nothing of the job is left", patience_s=600.0
    )


def nothing_left(elastic: Scenario, uid: str) -> Any:
    """Return a condition: the job and all of its objects are deleted.

    The watches of Kubernetes 1.20, of its garbage collector too, fall silent for minutes. An object
    that names the deleted job as its owner and has no finalizer counts as deleted there:
    the collector needs nothing else.
    """

    def awaits_collector(item: Any) -> bool:
        meta = item.metadata
        owners = {owner.uid for owner in meta.owner_references}
        return elastic.cluster.kind == "kubernetes" and owners == {uid} and not meta.finalizers

    async def probe() -> bool:
        for resource in (ELASTIC_JOBS, *LEFT_BEHIND):
            listing = await elastic.client.list(resource, elastic.namespace)
            left = (item for item in listing.items if NAME in item.metadata.name)
            if not all(awaits_collector(item) for item in left):
                return False
        return True

    return probe


@pytest.mark.embedded_only("fills the nodes of the cluster")
async def test_as_many_workers_train_as_find_room(scenario: Scenario) -> None:
    nodes = await scenario.client.list(NODES)
    cpu = parse_quantity(nodes.items[0].status.allocatable["cpu"]).milli
    elastic, name = scenario.of(ELASTIC_JOBS), "squeezed"
    count = len(nodes.items)
    # More than half of a node each: one per node.
    written = elastic_job(scenario, name, count + 2, "squeezed", f"{cpu * 6 // 10}m")
    await elastic.submit(written)

    def full(pods: Mapping[str, Pod]) -> bool:
        at_work = [n for n, pod in pods.items() if pod.status.phase == "Running"]
        return len(pods) == count + 3 and len(at_work) == count + 1

    await elastic.pods_when(name, full, "those that fit run, the others wait")
    elastic.let("squeezed")
    assert await elastic.outcome(name) == "Succeeded"
