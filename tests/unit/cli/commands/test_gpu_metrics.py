"""``get -g``: each GPU of each replica in Arena's columns and keys, from DCGM metrics."""

import asyncio
import json

import pytest

from gangline.cli import main
from gangline.cli.errors import ExitCode
from unit.cli.fake_api import FakeApi, pod_of_digits

JOBS = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
EXPORTER = "/api/v1/namespaces/gpu-operator/pods/exporter"
METRICS = "".join(
    f'DCGM_FI_DEV_{metric}{{gpu="{n}",UUID="G{n}",namespace="default",pod="digits-master-0"}} {v}\n'
    for n, values in ((0, (98, 15641, 635)), (3, (0, 4, 16272)))
    for metric, v in zip(("GPU_UTIL", "FB_USED", "FB_FREE"), values, strict=True)
)


@pytest.fixture
def api(api: FakeApi) -> FakeApi:
    """A cluster with a job of two replicas, the second of which still waits."""
    limits = {"limits": {"nvidia.com/gpu": "2"}}
    containers = [{"name": "c", "image": "i", "resources": limits}]
    spec = {"replicas": 1, "template": {"spec": {"containers": containers}}}
    api.add(f"{JOBS}/digits", spec={"pytorchReplicaSpecs": {"Master": spec, "Worker": spec}})
    for role, phase in (("master", "Running"), ("worker", "Pending")):
        pod = pod_of_digits(f"{role}-0", phase=phase)
        pod["spec"] = {"nodeName": "n1" if phase == "Running" else "", "containers": containers}
        api.add_pod(pod)
    labels = {"labels": {"app": "nvidia-dcgm-exporter"}}
    api.add(EXPORTER, metadata=labels, spec={"nodeName": "n1"}, status={"phase": "Running"})
    return api


async def typed(*args: str) -> int:
    return await asyncio.to_thread(main.run, list(args))


def rows_of(shown: str) -> list[list[str]]:
    return [line.split() for line in shown[shown.index("\nGPUs:\n") :].splitlines()[2:]]


async def test_each_gpu_of_a_replica_has_a_row(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.pages[f"{EXPORTER}:9400/proxy/metrics"] = METRICS
    assert await typed("get", "-g", "digits") == ExitCode.DONE
    head, *rows = rows_of(capsys.readouterr().out)
    assert head == [
        "INSTANCE", "NODE", "GPU(Requested)", "GPU(IndexId)", "GPU(DutyCycle)", "GPU",
        "Memory(Used/Total)",
    ]  # fmt: skip
    assert rows[:3] == [
        ["digits-master-0", "n1", "2", "0", "98.0%", "15641.0/16276.0(MiB)"],
        ["digits-master-0", "n1", "2", "3", "0.0%", "4.0/16276.0(MiB)"],
        ["digits-worker-0", "N/A", "2", "N/A", "N/A", "N/A"],
    ]
    assert rows[-1] == ["Allocated/Requested:", "2/4"]


async def test_plain_data_has_the_gpus_of_each_replica_by_their_numbers(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.pages[f"{EXPORTER}:9400/proxy/metrics"] = METRICS
    assert await typed("get", "-g", "digits", "-o", "json") == ExitCode.DONE
    master, worker = json.loads(capsys.readouterr().out)["instances"]
    assert master["gpuMetrics"]["0"] == {
        "gpuDutyCycle": 98.0, "usedGPUMemory": 15641 << 20, "totalGPUMemory": 16276 << 20,
    }  # fmt: skip
    assert set(master["gpuMetrics"]) == {"0", "3"}
    assert worker["gpuMetrics"] == {}
    assert await typed("get", "digits", "-o", "json") == ExitCode.DONE
    assert "gpuMetrics" not in capsys.readouterr().out


async def test_without_a_source_gpus_are_counted_alone(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await typed("get", "-g", "digits") == ExitCode.DONE
    rows = rows_of(capsys.readouterr().out)
    assert rows[1] == ["digits-master-0", "n1", "2", "N/A", "N/A", "N/A"]


async def test_the_nodes_command_asks_the_same_source(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    status = {"allocatable": {"nvidia.com/gpu": "4"}, "capacity": {"nvidia.com/gpu": "4"}}
    api.add("/api/v1/nodes/n1", status=status)
    assert await typed("top", "node", "-d", "--metric", "-o", "json") == ExitCode.DONE
    result = capsys.readouterr()
    assert "GPUs on n1" in result.err
    api.pages[f"{EXPORTER}:9400/proxy/metrics"] = METRICS
    assert await typed("top", "node", "-d", "--metric", "-m", "e", "-o", "json") == ExitCode.DONE
    result = capsys.readouterr()
    assert not result.err
    (node,) = json.loads(result.out)
    assert node["usedGPUs"] == 0.98
    assert [each["index"] for each in node["gpus"]] == ["0", "3"]
    assert node["instances"][0]["gpuIndexes"] == ["0", "3"]
    assert await typed("top", "node", "-m", "none", "-o", "json") == ExitCode.DONE
    assert json.loads(capsys.readouterr().out) == []


async def test_the_gpus_of_a_replica_stand_in_its_row_beside_what_it_uses(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await typed("top", "job", "digits") == ExitCode.DONE
    assert "DeviceIndex" not in capsys.readouterr().out
    api.pages[f"{EXPORTER}:9400/proxy/metrics"] = METRICS
    assert await typed("top", "job", "digits") == ExitCode.DONE
    shown = capsys.readouterr().out
    head, master, worker = [
        line.split() for line in shown[shown.index("Instances:") :].splitlines()[1:4]
    ]
    assert head == [
        "NAME", "STATUS", "GPU(Requested)", "NODE", "GPU(DeviceIndex)", "GPU(DutyCycle)",
        "GPU_MEMORY(Used/Total)", "CPU(Used)", "MEMORY(Used)", "GPU(Used)",
    ]  # fmt: skip
    assert master[2:7] == ["2", "n1", "0,3", "98.0%,0.0%", "15645.0/32552.0(MiB)"]
    assert master[-1] == "0.98"
    assert worker[3:7] == ["N/A"] * 4
    assert await typed("top", "job", "digits", "-o", "json") == ExitCode.DONE
    (job,) = json.loads(capsys.readouterr().out)
    assert job["usedGPUs"] == 0.98
    assert set(job["instances"][0]["gpuMetrics"]) == {"0", "3"}
