"""The gangs of TrainJobs on a cluster.

Other rules of the life cycle are those of tests/integration/operator/test_operator_train.py.
"""

from e2e.jobs import Manifest, template, until
from e2e.scenario import Scenario, condition
from gangline.api.quantity import parse_quantity
from gangline.api.resources import NODES, TRAIN_JOBS, TRAINING_RUNTIMES

STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def role(name: str, command: str, scenario: Scenario, cpu: str) -> Manifest:
    """A replicated job; that of the name ``node`` is the trainer step."""
    pod = template(command, shared=str(scenario.shared), cpu=cpu)["spec"]
    pod["containers"][0]["name"] = "node"
    labels = STEP if name == "node" else {}
    return {
        "name": name,
        "template": {"metadata": {"labels": labels}, "spec": {"template": {"spec": pod}}},
    }


def job(name: str, nodes: int) -> Manifest:
    return {
        "apiVersion": TRAIN_JOBS.api_version,
        "kind": TRAIN_JOBS.kind,
        "metadata": {"name": name},
        "spec": {
            "runtimeRef": {"name": "own", "kind": "TrainingRuntime"},
            "trainer": {"numNodes": nodes},
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
    launcher = role("launcher", until("go"), scenario, cpu)
    launcher["dependsOn"] = [{"name": "node", "status": "Ready"}]
    job_set = {
        "replicatedJobs": [role("node", "sleep 3600", scenario, cpu), launcher],
        "successPolicy": {"operator": "All", "targetReplicatedJobs": ["launcher"]},
    }
    runtime = {
        "apiVersion": TRAINING_RUNTIMES.api_version,
        "kind": TRAINING_RUNTIMES.kind,
        "metadata": {"name": "own"},
        "spec": {"mlPolicy": {"torch": {}}, "template": {"spec": job_set}},
    }
    await scenario.client.create(TRAINING_RUNTIMES, runtime, scenario.namespace)
    scenario = scenario.of(TRAIN_JOBS)
    for name in ("first", "second"):
        await scenario.submit(job(name, pods - 1))
    await scenario.running("first", pods)
    waiting = await scenario.pods("second")
    assert not [pod for pod in waiting.values() if pod.spec.node_name]
    scenario.let("go")
    assert await end(scenario, "first") == "Complete"
    assert await end(scenario, "second") == "Complete"
