"""The life of TrainJobs on a cluster: gangs, failures and limits.

Other rules of the life cycle are those of tests/integration/operator/test_operator_train.py.
"""

from collections.abc import Sequence
from typing import Any

from e2e.jobs import Manifest, template, until
from e2e.scenario import Scenario, condition
from e2e.waiting import eventually
from gangline.api.quantity import parse_quantity
from gangline.api.resources import (
    CONFIG_MAPS,
    NODES,
    PODS,
    SERVICES,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
)

STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
FOREVER = "sleep 3600"


def role(
    name: str, command: str, scenario: Scenario, *, cpu: str = "10m", **fields: Any
) -> Manifest:
    """A replicated job; those of the name ``node`` are the trainer step."""
    pod = template(command, shared=str(scenario.shared), cpu=cpu)["spec"]
    pod["containers"][0]["name"] = "node"
    pod["restartPolicy"] = fields.pop("restart", "OnFailure")
    depends = fields.pop("depends_on", [])
    return {
        "name": name,
        **({"dependsOn": depends} if depends else {}),
        "template": {
            "metadata": {"labels": STEP} if name == "node" else {},
            "spec": {"template": {"spec": pod}, **fields},
        },
    }


async def add_runtime(scenario: Scenario, roles: Sequence[Manifest], **job_set: Any) -> None:
    await scenario.client.create(
        TRAINING_RUNTIMES,
        {
            "apiVersion": TRAINING_RUNTIMES.api_version,
            "kind": TRAINING_RUNTIMES.kind,
            "metadata": {"name": "own"},
            "spec": {
                "mlPolicy": {"torch": {}},
                "template": {"spec": {"replicatedJobs": list(roles), **job_set}},
            },
        },
        scenario.namespace,
    )


def job(name: str, nodes: int = 2, **spec: Any) -> Manifest:
    return {
        "apiVersion": TRAIN_JOBS.api_version,
        "kind": TRAIN_JOBS.kind,
        "metadata": {"name": name},
        "spec": {
            "runtimeRef": {"name": "own", "kind": "TrainingRuntime"},
            "trainer": {"numNodes": nodes},
            **spec,
        },
    }


async def end(scenario: Scenario, name: str) -> str:
    """ "Complete" or "Failed", once the job has ended."""
    ends = ("Complete", "Failed")
    ended = await scenario.job_when(
        name, lambda found: any(condition(found, each) for each in ends), "has ended"
    )
    return next(each for each in ends if condition(ended, each) == "True")


async def test_two_tight_jobs_with_launchers_do_not_block_each_other(scenario: Scenario) -> None:
    nodes = await scenario.client.list(NODES)
    most = min(parse_quantity(node.status.allocatable["cpu"]).milli for node in nodes.items)
    # Each job needs all nodes of the cluster: one for its launcher, the others for its nodes. On a
    # single node it needs most of it, for a launcher and a node.
    pods = max(2, len(nodes.items))
    cpu = f"{most * (6 if len(nodes.items) > 1 else 4) // 10}m"
    waits = [{"name": "node", "status": "Ready"}]
    launcher = role("launcher", until("go"), scenario, cpu=cpu, depends_on=waits)
    success = {"operator": "All", "targetReplicatedJobs": ["launcher"]}
    await add_runtime(
        scenario, [role("node", FOREVER, scenario, cpu=cpu), launcher], successPolicy=success
    )
    scenario = scenario.of(TRAIN_JOBS)
    for name in ("first", "second"):
        await scenario.submit(job(name, pods - 1))
    await scenario.running("first", pods)
    waiting = await scenario.pods("second")
    assert not [pod for pod in waiting.values() if pod.spec.node_name]
    scenario.let("go")
    assert await end(scenario, "first") == "Complete"
    assert await end(scenario, "second") == "Complete"


async def test_failed_and_deleted_pods_of_a_node_come_back(scenario: Scenario) -> None:
    command = (
        "echo x >> /shared/$(hostname).starts; case $(hostname) in *-0-1) "
        "[ -e /shared/failed ] || { touch /shared/failed; exit 3; };; esac; " + until("finish")
    )
    await add_runtime(scenario, [role("node", command, scenario, restart="Never")])
    scenario = scenario.of(TRAIN_JOBS)
    await scenario.submit(job("hit"))
    await eventually(_starts(scenario, "hit-node-0-1", 2), "the failed node is replaced")
    before = await scenario.running("hit", 2)
    await scenario.client.delete(PODS, "hit-node-0-0", scenario.namespace, grace_seconds=0)
    await eventually(_starts(scenario, "hit-node-0-0", 2), "the deleted node is replaced")
    after = await scenario.running("hit", 2)
    assert after["hit-node-0-1"].metadata.uid == before["hit-node-0-1"].metadata.uid
    scenario.let("finish")
    assert await end(scenario, "hit") == "Complete"


async def test_deadline_and_time_to_live_end_a_job_with_all_its_objects(scenario: Scenario) -> None:
    await add_runtime(scenario, [role("node", FOREVER, scenario)], ttlSecondsAfterFinished=2)
    scenario = scenario.of(TRAIN_JOBS)
    await scenario.submit(job("brief", activeDeadlineSeconds=3))
    assert await end(scenario, "brief") == "Failed"
    await scenario.gone("brief")

    async def no_objects() -> bool:
        maps = (await scenario.client.list(CONFIG_MAPS, scenario.namespace)).items
        services = (await scenario.client.list(SERVICES, scenario.namespace)).items
        names = [each.metadata.name for each in (*maps, *services)]
        return not any(name.startswith("brief") for name in names)

    await eventually(no_objects, "the copy of the runtime and the service are gone")


def _starts(scenario: Scenario, pod: str, count: int) -> Any:
    async def probe() -> bool:
        path = scenario.shared / f"{pod}.starts"
        return path.exists() and path.read_text().count("x") >= count

    return probe
