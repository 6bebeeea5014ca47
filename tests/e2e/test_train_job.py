"""TrainJob: PyTorch processes of a runtime learn digits together, and are resized.

Takes 80 s: nodes import PyTorch, and initializers fetch before they start.
"""

import importlib.util
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from e2e.clusters import ClusterUnderTest
from e2e.git_server import address_of_machine
from e2e.helm_release import app_version, built_images
from e2e.jobs import Manifest
from e2e.kubernetes_cluster import Kubernetes
from e2e.scenario import Scenario, condition
from e2e.waiting import eventually
from gangline.api.core.pod import Pod
from gangline.api.resources import (
    PERSISTENT_VOLUMES,
    SECRETS,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
)
from storage_servers import BucketHandler, HubHandler, StorageServer

SCRIPT = Path(__file__).parents[2] / "examples" / "pytorch" / "digits.py"
SUMS = Path(__file__).parent / "elastic_gloo.py"
DEPLOY = Path(__file__).parents[2] / "deploy"
STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def runtime(pod: Manifest, **torch: Any) -> Manifest:
    """A runtime whose nodes run torchrun."""
    job = {
        "name": "node",
        "template": {"metadata": {"labels": STEP}, "spec": {"template": {"spec": pod}}},
    }
    return {
        "apiVersion": TRAINING_RUNTIMES.api_version,
        "kind": TRAINING_RUNTIMES.kind,
        "metadata": {"name": "digits"},
        "spec": {"mlPolicy": {"torch": torch}, "template": {"spec": {"replicatedJobs": [job]}}},
    }


def job(**spec: Any) -> Manifest:
    return {
        "apiVersion": TRAIN_JOBS.api_version,
        "kind": TRAIN_JOBS.kind,
        "metadata": {"name": "digits"},
        "spec": {"runtimeRef": {"name": "digits", "kind": "TrainingRuntime"}, **spec},
    }


async def accuracy(scenario: Scenario) -> float:
    """The accuracy that the first node prints."""
    logs = scenario.client.logs("digits-node-0-0", scenario.namespace)
    text = "".join([line.decode() async for line in logs])
    found = re.search(r"test accuracy (\d\.\d+)", text)
    assert found is not None, text
    return float(found.group(1))


@pytest.mark.timeout(300)
async def test_two_nodes_of_a_runtime_train_digits_together(scenario: Scenario) -> None:
    pod = scenario.cluster.python(SCRIPT, "--checkpoint", "/shared/digits.pt", "--steps", "200")
    container = pod["containers"][0]
    container["name"] = "node"
    container["command"] = ["python", "-m", "torch.distributed.run", *container["command"][1:]]
    container.setdefault("volumeMounts", []).append({"name": "shared", "mountPath": "/shared"})
    pod.setdefault("volumes", []).append(
        {"name": "shared", "hostPath": {"path": str(scenario.shared)}}
    )
    await scenario.client.create(TRAINING_RUNTIMES, runtime(pod), scenario.namespace)
    scenario = scenario.of(TRAIN_JOBS)
    await scenario.submit(job(trainer={"numNodes": 2, "numProcPerNode": 1}))
    done = await scenario.job_when(
        "digits",
        lambda found: condition(found, "Complete") or condition(found, "Failed"),
        "has ended",
        240,
    )
    assert condition(done, "Complete") == "True", done.status
    pods = await scenario.pods("digits")
    assert sorted(pods) == ["digits-node-0-0", "digits-node-0-1"]
    assert await accuracy(scenario) >= 0.9


@pytest.mark.timeout(600)
async def test_nodes_join_and_leave_a_running_training(scenario: Scenario) -> None:
    folder = scenario.shared / "sums"
    folder.mkdir()
    pod = scenario.cluster.python(SUMS, str(folder))
    (container,) = pod["containers"]
    container["name"] = "node"
    container["command"] = ["python", "-m", "torch.distributed.run", *container["command"][1:]]
    container["volumeMounts"].append({"name": "shared", "mountPath": str(folder)})
    container["env"].append({"name": "PET_RDZV_CONF", "value": "last_call_timeout=1"})
    pod["volumes"].append({"name": "shared", "hostPath": {"path": str(folder)}})
    elastic = runtime(pod, elasticPolicy={"minNodes": 1, "maxNodes": 3})
    await scenario.client.create(TRAINING_RUNTIMES, elastic, scenario.namespace)
    scenario = scenario.of(TRAIN_JOBS)
    await scenario.submit(job(trainer={"numNodes": 2, "numProcPerNode": 1}))
    history = folder / "history"

    async def trains_with(nodes: int) -> dict[str, Pod]:
        """Wait until a step has so many ranks; return the pods."""

        async def probe() -> bool:
            return history.exists() and history.read_text().endswith(f" {nodes}\n")

        await eventually(probe, f"{nodes} nodes train", 240)
        pods = await scenario.pods("digits")
        assert sorted(pods) == [f"digits-node-0-{index}" for index in range(nodes)]
        return pods

    started = await trains_with(2)
    for nodes in (3, 1):
        await scenario.patch("digits", {"spec": {"trainer": {"numNodes": nodes}}})
        resized = await trains_with(nodes)
        for name in resized.keys() & started.keys():
            assert resized[name].metadata.uid == started[name].metadata.uid
            assert [s.restart_count for s in resized[name].status.container_statuses] == [0]
    (folder / "end").touch()
    await scenario.job_when("digits", lambda found: condition(found, "Complete"), "is complete")
    steps = [int(line.split()[0]) for line in history.read_text().splitlines()]
    assert steps == list(range(1, len(steps) + 1))


def test_definitions_and_runtimes_are_applied_by_the_client(cluster: ClusterUnderTest) -> None:
    """trainjob-1: client-side apply stores the complete object in an annotation, which is limited.

    A second one changes nothing: the server stores what the files have.
    """
    files = [*DEPLOY.glob("crds/trainer.*.yaml"), *DEPLOY.glob("runtimes/*.yaml")]
    assert len(files) == 11
    command = ["kubectl", "--kubeconfig", str(cluster.kubeconfig), "apply"]
    command += [f"--filename={file}" for file in files]
    for expected in ({"created", "configured", "unchanged"}, {"unchanged"}):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert len(lines) == len(files), lines
        assert {line.rpartition(" ")[2] for line in lines} <= expected, lines


TRAINS_ON_WHAT_WAS_FETCHED = """
import json, numpy, torch
settings = json.load(open("/workspace/model/config.json"))
table = numpy.loadtxt("/workspace/dataset/digits.csv.gz", delimiter=",", dtype="float32")
table = torch.from_numpy(table)
images, labels = table[:, :64] / 16, table[:, 64].long()
torch.manual_seed(0)
model = torch.nn.Linear(64, settings["classes"])
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for _ in range(100):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images[360:]), labels[360:]).backward()
    optimizer.step()
right = (model(images[:360]).argmax(1) == labels[:360]).float().mean()
print(f"test accuracy {right:.3f}", flush=True)
"""


def fetching_runtime(cluster: ClusterUnderTest, image: str) -> Manifest:
    """A runtime whose node starts after its initializers, which share a claim with it."""
    mount = {"name": "initializer", "mountPath": "/workspace"}
    steps = ("dataset-initializer", "model-initializer")
    pods: dict[str, Manifest] = {}
    for name in steps:
        command = ["gangline", "initialize", name.partition("-")[0]]
        container = {"name": name, "image": image, "command": command, "volumeMounts": [mount]}
        pods[name] = {
            "containers": [{**container, "imagePullPolicy": "IfNotPresent"}],
            "terminationGracePeriodSeconds": 1,
        }
    pods["node"] = cluster.python(SCRIPT)
    node = pods["node"]["containers"][0]
    node |= {"name": "node", "command": ["python", "-c", TRAINS_ON_WHAT_WAS_FETCHED]}
    node["volumeMounts"] = [*node.get("volumeMounts", []), mount]
    jobs = []
    for name, pod in pods.items():
        step = "trainer" if name == "node" else name
        job: Manifest = {
            "name": name,
            "template": {
                "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": step}},
                "spec": {"template": {"spec": pod}},
            },
        }
        if name == "node":
            job["dependsOn"] = [{"name": each, "status": "Complete"} for each in steps]
        jobs.append(job)
    storage = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"metadata": {"name": "initializer"}, "spec": storage}
    job_set = {"replicatedJobs": jobs, "volumeClaimPolicies": [{"templates": [claim]}]}
    made = runtime({})
    made["spec"] = {"mlPolicy": {"torch": {}}, "template": {"spec": job_set}}
    return made


def source(uri: str, server: StorageServer, secret: str) -> Manifest:
    url = f"http://{address_of_machine()}:{server.server_address[1]}"
    env = [{"name": "ENDPOINT", "value": url}]
    return {"storageUri": uri, "env": env, "secretRef": {"name": secret}}


@pytest.fixture
async def initializer_image(scenario: Scenario, tmp_path: Path) -> str:
    """The image of initializers, and storage for a claim, which Kubernetes alone does not make."""
    cluster = scenario.cluster
    if not isinstance(cluster, Kubernetes):
        return "gangline/examples-pytorch:1"
    image = f"gangline-initializer:{app_version()}"
    cluster.load(built_images(tmp_path) / "gangline-initializer.tar", image)
    folder = scenario.shared / "claim"
    folder.mkdir()
    folder.chmod(0o777)  # the image has a user of its own
    volume = {
        "metadata": {"name": scenario.namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": str(folder)},
            "claimRef": {"namespace": scenario.namespace, "name": "initializer-digits"},
        },
    }
    await scenario.client.create(PERSISTENT_VOLUMES, volume)
    return image


@pytest.mark.last
@pytest.mark.timeout(900)
async def test_node_trains_on_what_initializers_fetched(
    scenario: Scenario, initializer_image: str
) -> None:
    """Data of a private repository and the configuration in a bucket, with keys from Secrets."""
    package = importlib.util.find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    digits = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    hub = StorageServer(HubHandler, {"datasets/team/digits/digits.csv.gz": digits.read_bytes()})
    bucket = StorageServer(BucketHandler, {"team/net/config.json": b'{"classes": 10}'})
    hub.token, bucket.token = "token-of-the-hub", "key-of-the-bucket"
    secrets = {
        "hub": {"ACCESS_TOKEN": hub.token},
        "bucket": {"ACCESS_KEY_ID": bucket.token, "SECRET_ACCESS_KEY": "secret"},
    }
    for name, values in secrets.items():
        written = {"metadata": {"name": name}, "stringData": values}
        await scenario.client.create(SECRETS, written, scenario.namespace)
    runtime = fetching_runtime(scenario.cluster, initializer_image)
    await scenario.client.create(TRAINING_RUNTIMES, runtime, scenario.namespace)
    scenario = scenario.of(TRAIN_JOBS)
    with hub.running(), bucket.running():
        initializer = {
            "dataset": source("hf://team/digits", hub, "hub"),
            "model": source("s3://team/net", bucket, "bucket"),
        }
        await scenario.submit(job(initializer=initializer))
        done = await scenario.job_when(
            "digits",
            lambda found: condition(found, "Complete") or condition(found, "Failed"),
            "has ended",
            240,
        )
    assert condition(done, "Complete") == "True", done.status
    assert [name for name, _ in hub.served] == ["datasets/team/digits/digits.csv.gz"]
    assert await accuracy(scenario) >= 0.9
