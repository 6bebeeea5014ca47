"""``gangline explain`` on a real API server repeats the cycle of the current cluster."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gangline.api.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    CONFIG_MAPS,
    NAMESPACES,
    NODES,
    POD_GROUPS,
    PODS,
    PRIORITY_CLASSES,
    PYTORCH_JOBS,
    QUEUES,
)
from gangline.api.trainer.builtin_runtimes import builtin_runtimes
from gangline.cli import main
from gangline.cli.errors import ExitCode
from gangline.kube.client.client import ApiClient
from gangline.local import custom_resources
from gangline.local.apiserver.server import ApiServer
from gangline.scheduler.reporting.live import explain_jobs
from gangline.scheduler.settings import SchedulerSettings
from gangline.sdk.jobs import JOB_NAME_LABEL


async def add_node(client: ApiClient, name: str, cpu: str) -> None:
    await client.create(NODES, {"metadata": {"name": name}})
    has = {"cpu": cpu, "memory": "8Gi", "pods": "10"}
    status = {"allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]}
    await client.patch(NODES, name, {"status": status}, subresource="status")


async def add_gang(client: ApiClient, name: str, size: int, cpu: str) -> None:
    spec = {"minMember": size, "queue": "team"}
    await client.create(POD_GROUPS, {"metadata": {"name": name}, "spec": spec}, "default")
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    for index in range(size):
        metadata = {
            "name": f"{name}-{index}",
            "annotations": {"scheduling.k8s.io/group-name": name},
        }
        pod = {"schedulerName": "gangline", "containers": [container]}
        await client.create(PODS, {"metadata": metadata, "spec": pod}, "default")


@pytest.fixture
async def waiting(client: ApiClient) -> None:
    """A gang of 3 pods that fits 2 of, in a queue of its own."""
    await custom_resources.install_definitions(client)
    await client.create(QUEUES, {"metadata": {"name": "team"}, "spec": {"weight": 2}})
    await add_node(client, "large", "4")
    await add_node(client, "small", "1")
    await add_gang(client, "job", 3, "2")


@pytest.mark.usefixtures("waiting")
async def test_a_gang_is_explained_by_the_name_of_its_group_and_of_its_pods(
    client: ApiClient, api_server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    async def explain(*arguments: str, code: ExitCode = ExitCode.DONE) -> str:
        line = ["explain", *arguments, "--kubeconfig", str(api_server.kubeconfig)]
        assert await asyncio.to_thread(main.run, line) == code
        return capsys.readouterr().out

    (told,) = json.loads(await explain("job", "-o", "json"))
    assert (told["kind"], told["name"], told["state"]) == ("PodGroup", "default/job", "waits")
    assert told["message"].startswith("2 of the gang's 3")
    assert told["queues"][0]["name"] == "team"
    nodes = {alike["why"]: alike["nodes"] for alike in told["needs"][0]["nodes"]}
    assert nodes == {"has enough free resources": ["large"], "Insufficient cpu": ["small"]}

    await explain("podgroup/", code=ExitCode.USAGE)
    # The dashboard explains several jobs by one reading; one whose pod is gone keeps no other.
    jobs = {"job": ("default", ["job-0"]), "gone": ("default", ["gone-0"])}
    explained = await explain_jobs(client, SchedulerSettings(), jobs, forecast=False)
    assert {name: each.message for name, (each,) in explained.items()} == {"job": told["message"]}

    shown = await explain("pod/job-1")
    assert shown.startswith("PodGroup default/job waits (NotEnoughResources)")
    assert "├─ Queue team" in shown
    assert "1 node(s): Insufficient cpu (at most free: cpu 1): small" in shown


@pytest.mark.usefixtures("waiting")
async def test_a_name_that_means_nothing_is_an_error(
    api_server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["explain", "nobody", "--kubeconfig", str(api_server.kubeconfig)]
    assert await asyncio.to_thread(main.run, line) == ExitCode.NOT_FOUND
    assert "nobody" in capsys.readouterr().err


@pytest.mark.usefixtures("waiting")
async def test_a_pod_whose_scheduler_does_not_exist_gets_no_node(
    client: ApiClient, api_server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {"schedulerName": "mine", "containers": [{"name": "c", "image": "i"}]}
    await client.create(PODS, {"metadata": {"name": "alone"}, "spec": spec}, "default")
    line = ["explain", "pod/alone", "--kubeconfig", str(api_server.kubeconfig)]
    assert await asyncio.to_thread(main.run, line) == ExitCode.DONE
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("Pod default/alone waits (NoScheduler)")
    assert "no scheduler of the name 'mine' has looked at it" in shown
    assert "gangline, volcano and default-scheduler" in shown
    assert "Expected start" not in shown
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    await client.patch(
        PODS, "alone", {"status": {"conditions": [condition]}}, "default", subresource="status"
    )
    assert await asyncio.to_thread(main.run, line) == ExitCode.DONE
    assert "gets its nodes now" in capsys.readouterr().out


@pytest.mark.usefixtures("waiting")
async def test_a_training_job_is_explained_by_its_name(
    client: ApiClient, api_server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    container = {"name": "pytorch", "image": "i"}
    replicas = {"Master": {"replicas": 1, "template": {"spec": {"containers": [container]}}}}
    body = {"metadata": {"name": "train"}, "spec": {"pytorchReplicaSpecs": replicas}}
    job = await client.create(PYTORCH_JOBS, body, "default")
    owner = {
        "apiVersion": PYTORCH_JOBS.api_version,
        "kind": PYTORCH_JOBS.kind,
        "name": "train",
        "uid": job.metadata.uid,
        "controller": True,
    }
    metadata = {
        "name": "train-master-0",
        "labels": {JOB_NAME_LABEL: "train"},
        "ownerReferences": [owner],
    }
    asks = {**container, "resources": {"requests": {"cpu": "64"}}}
    spec = {"schedulerName": "volcano", "containers": [asks]}
    line = ["explain", "train", "-T", "pytorch", "--kubeconfig", str(api_server.kubeconfig)]
    assert await asyncio.to_thread(main.run, line) == ExitCode.NOT_FOUND
    assert "has no pods" in capsys.readouterr().err
    await client.create(PODS, {"metadata": metadata, "spec": spec}, "default")
    assert await asyncio.to_thread(main.run, line) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert shown.startswith("Pod default/train-master-0 waits (NotEnoughResources)")
    assert "0/2 nodes are available: 2 Insufficient cpu." in shown
    assert "64 cpu requested" in " ".join(shown.split())


async def test_explain_uses_the_schedulers_configuration(
    client: ApiClient, api_server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From its ConfigMap, or a file: without preemption no pod is evicted for the urgent one."""
    await custom_resources.install_definitions(client)
    await add_node(client, "n", "4")
    await client.create(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 9})
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "4"}}}
    for name, further in (("low", {"nodeName": "n"}), ("urgent", {"priorityClassName": "high"})):
        spec = {"schedulerName": "gangline", "containers": [container], **further}
        await client.create(PODS, {"metadata": {"name": name}, "spec": spec}, "default")

    async def evicted(*arguments: str) -> list[str]:
        line = ["explain", "pod/urgent", "-o", "json", "--kubeconfig", str(api_server.kubeconfig)]
        assert await asyncio.to_thread(main.run, [*line, *arguments]) == ExitCode.DONE
        found: list[str] = json.loads(capsys.readouterr().out)[0]["evicted_for_it"]
        return found

    assert await evicted() == ["default/low"]
    file = tmp_path / "configuration.yaml"
    file.write_text('actions: "allocate"')
    assert await evicted("--scheduler-config", str(file)) == []
    namespace = "gangline-system"
    await client.create(NAMESPACES, {"metadata": {"name": namespace}})
    told = {"metadata": {"name": "gangline-scheduler"}, "data": {file.name: file.read_text()}}
    await client.create(CONFIG_MAPS, told, namespace)
    assert await evicted() == []
    broken = {"data": {file.name: "actions: juggle"}}
    await client.patch(CONFIG_MAPS, "gangline-scheduler", broken, namespace)
    line = ["explain", "pod/urgent", "--kubeconfig", str(api_server.kubeconfig)]
    assert await asyncio.to_thread(main.run, line) == ExitCode.USAGE
    assert "unknown action 'juggle'" in capsys.readouterr().err


@pytest.mark.usefixtures("waiting")
async def test_a_pending_gang_has_an_expected_start(
    api_server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["explain", "job", "-o", "json", "--kubeconfig", str(api_server.kubeconfig)]
    assert await asyncio.to_thread(main.run, line) == ExitCode.DONE
    (explanation,) = json.loads(capsys.readouterr().out)
    expected = explanation["expected"]
    assert (expected["place"], expected["queue"], expected["ahead"]) == (1, "team", [])
    assert expected["start"]["earliest_s"] is None, "it needs more nodes"
    (sooner,) = expected["sooner"]
    assert sooner["change"] == "with 1 instead of 3 pods"
    assert sooner["start"]["latest_s"] == 0.0
    line = ["explain", "job", "--no-forecast", "--kubeconfig", str(api_server.kubeconfig)]
    assert await asyncio.to_thread(main.run, line) == ExitCode.DONE
    assert "Expected start" not in capsys.readouterr().out


@pytest.mark.usefixtures("waiting")
async def test_a_job_is_explained_before_it_is_submitted(
    client: ApiClient, api_server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    def line(workers: int, *more: str) -> list[str]:
        options = ["--workers", str(workers), "--cpu", "2", "--image", "i", "--no-check"]
        target = ["--kubeconfig", str(api_server.kubeconfig), "--queue", "team"]
        return ["submit", "pytorch", "--name", "new", *options, *target, *more, "true"]

    fits = line(1, "--dry-run=schedule")
    assert await asyncio.to_thread(main.run, fits) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert shown.startswith("Job default/new gets its nodes now")
    assert "large: new-master-0" in shown
    large = line(4, "--dry-run=schedule")
    assert await asyncio.to_thread(main.run, large) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert shown.startswith("Job default/new waits (NotEnoughResources)")
    assert "Expected start: not within 30 days" in shown
    assert "place 2 in queue 'team'" in shown
    assert not (await client.list(PYTORCH_JOBS, "default")).items


def pytorch_job(name: str, **spec: Any) -> dict[str, Any]:
    """A job with one replica of 3 CPU, for which only the node ``large`` has capacity."""
    resources = {"requests": {"cpu": "3"}}
    container = {"name": "pytorch", "image": "i", "resources": resources}
    template = {"spec": {"containers": [container], **spec}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": template}}},
    }


@pytest.mark.usefixtures("waiting")
async def test_jobs_of_one_file_compete_with_each_other(
    api_server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "jobs.json"
    jobs = [pytorch_job("zeta"), pytorch_job("alpha")]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": jobs}))
    line = ["submit", "-f", str(file), "--kubeconfig", str(api_server.kubeconfig), "--no-check"]
    assert await asyncio.to_thread(main.run, [*line, "--dry-run=schedule"]) == ExitCode.DONE
    first, second = capsys.readouterr().out.split("\n\nJob ")
    assert first.startswith("Job default/zeta gets its nodes now")
    assert second.startswith("default/alpha waits (NotEnoughResources)")


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize(("team", "answer"), [("loud", "waits"), ("calm", "gets its nodes now")])
async def test_selector_of_namespaces_counts_before_a_job_is_submitted(
    client: ApiClient,
    api_server: ApiServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    team: str,
    answer: str,
) -> None:
    await client.create(NAMESPACES, {"metadata": {"name": "tenant", "labels": {"team": "loud"}}})
    noisy = {"nodeName": "large", "containers": [{"name": "c", "image": "i"}]}
    metadata = {"name": "noisy", "labels": {"app": "noisy"}}
    await client.create(PODS, {"metadata": metadata, "spec": noisy}, "tenant")
    term = {
        "labelSelector": {"matchLabels": {"app": "noisy"}},
        "namespaceSelector": {"matchLabels": {"team": team}},
        "topologyKey": "kubernetes.io/hostname",
    }
    for node in ("large", "small"):
        labels = {"metadata": {"labels": {"kubernetes.io/hostname": node}}}
        await client.patch(NODES, node, labels)
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    file = tmp_path / "job.json"
    file.write_text(json.dumps(pytorch_job("quiet", affinity=affinity)))
    line = ["submit", "-f", str(file), "--kubeconfig", str(api_server.kubeconfig), "--no-check"]
    assert await asyncio.to_thread(main.run, [*line, "--dry-run=schedule"]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert shown.startswith(f"Job default/quiet {answer}"), shown


@pytest.mark.usefixtures("waiting")
async def test_a_trainjob_is_explained_with_the_pods_of_its_runtime(
    client: ApiClient, api_server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    target = ["--kubeconfig", str(api_server.kubeconfig), "--no-check", "--dry-run=schedule"]
    line = ["submit", "train", "--name", "new", "--queue", "team", "--cpu", "2", *target, "true"]
    assert await asyncio.to_thread(main.run, line) == ExitCode.NOT_FOUND
    assert "no ClusterTrainingRuntime 'torch-distributed'" in capsys.readouterr().err
    runtime = next(
        each for each in builtin_runtimes() if each["metadata"]["name"] == "torch-distributed"
    )
    await client.create(CLUSTER_TRAINING_RUNTIMES, runtime)
    assert await asyncio.to_thread(main.run, line) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert shown.startswith("Job default/new gets its nodes now"), shown
    assert "large: new-node-0-0" in shown
