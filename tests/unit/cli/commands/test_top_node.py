"""``gangline top node`` and ``top job``: nodes, their GPUs and what measures them."""

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gangline.api.core.node import Node
from gangline.api.core.pod import Pod
from gangline.cli import main
from gangline.cli.commands.top_node import details_data, format_node, read_details
from gangline.cli.errors import ExitCode
from gangline.cli.render.nodes import (
    gpu_totals,
    node_data,
    node_table,
)
from gangline.sdk.nodes import GpuMode, NodeRow, read_nodes
from gangline.sdk.usage import GpuDevice, GpuUsage
from unit.cli.fake_api import FakeApi, pod_of_digits


def node(name: str, allocatable: dict[str, str], *, ready: bool = True, capacity: str = "") -> Node:
    condition = {"type": "Ready", "status": "True" if ready else "Unknown", "reason": "Lost"}
    given = {"cpu": "8", "memory": "32Gi", "pods": "110", **allocatable}
    status = {
        "allocatable": given,
        "capacity": given | ({"nvidia.com/gpu": capacity} if capacity else {}),
        "conditions": [condition | ({} if ready else {"message": "No heartbeat of the kubelet."})],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
    }
    return msgspec.convert({"metadata": {"name": name}, "status": status}, Node)


def pod(name: str, gpus: int, *, job: str = "", on: str = "n1", phase: str = "Running") -> Pod:
    owner = {"apiVersion": "v1", "kind": "PyTorchJob", "name": job, "uid": "u", "controller": True}
    metadata: dict[str, Any] = {"name": name, "namespace": "team"}
    if job:
        metadata |= {"labels": {"training.kubeflow.org/job-name": job}, "ownerReferences": [owner]}
    limits = {"cpu": "1500m", "memory": "4Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    spec = {"nodeName": on, "containers": [{"name": "c", "resources": {"limits": limits}}]}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": phase}}, Pod)


EIGHT = node("n1", {"nvidia.com/gpu": "7"}, capacity="8")
PODS = [
    pod("coredns", 0),
    pod("notebook", 1),
    pod("digits-worker-0", 2, job="digits"),
    pod("args-worker-0", 0, job="args"),
    pod("digits-worker-1", 2, job="digits", phase="Succeeded"),
    pod("elsewhere", 1, on="n2"),
]
GI = 2**30
BUSY = GpuUsage(
    {("team", "digits-worker-0"): 0.97},
    {"n1": 0.97},
    {
        "n1": (
            GpuDevice("0", "team", "digits-worker-0", 0.97, 15 * GI, 16 * GI),
            GpuDevice("1", "team", "digits-worker-0", 0.0, GI // 2, 16 * GI),
            GpuDevice("2", utilization=None),
        )
    },
)


def views() -> list[NodeRow]:
    return read_nodes([EIGHT], PODS)


@pytest.mark.parametrize(
    ("resources", "mode"),
    [
        ({}, GpuMode.NONE),
        ({"nvidia.com/gpu": "0"}, GpuMode.NONE),
        ({"nvidia.com/gpu": "8"}, GpuMode.EXCLUSIVE),
        ({"aliyun.com/gpu": "8", "nvidia.com/gpu": "8"}, GpuMode.TOPOLOGY),
        ({"aliyun.com/gpu-mem": "128"}, GpuMode.SHARE),
    ],
)
def test_the_mode_of_a_node_follows_from_what_it_advertises(
    resources: dict[str, str], mode: GpuMode
) -> None:
    assert read_nodes([node("n", resources)], [])[0].mode is mode


def test_sick_gpus_and_modes_have_columns_where_they_are_to_be_seen() -> None:
    plain = node_table(read_nodes([node("n", {})], [])).splitlines()[0]
    assert "UNHEALTHY" not in plain
    assert "GPU(Mode)" not in plain
    head, row = node_table(views(), modes=True).splitlines()
    assert head.split()[:8] == [
        "NAME", "IPADDRESS", "ROLE", "STATUS", "GPU(Total)", "GPU(Allocated)", "GPU(Mode)",
        "UNHEALTHY",
    ]  # fmt: skip
    assert row.split()[4:8] == ["7", "3", "exclusive", "1"]
    assert gpu_totals(views()).endswith("\n3/7 (42.9%)")
    assert node_data(views()[0])["unhealthyGPUs"] == 1


def test_the_pods_that_have_the_gpus_of_a_node_are_shown_with_their_jobs() -> None:
    (details,) = read_details(views(), PODS, None)
    assert [each.name for each in details.instances] == [
        "digits-worker-0", "notebook", "args-worker-0",
    ]  # fmt: skip
    shown = format_node(details)
    lines = [line.split() for line in shown.splitlines()]
    assert ["Type:", "exclusive"] in lines
    at = lines.index(["Instances:"])
    assert lines[at + 1] == [
        "NAMESPACE", "NAME", "STATUS", "GPU(Requested)", "JOB", "CPU(Requested)",
        "MEMORY(Requested)",
    ]  # fmt: skip
    assert lines[at + 2] == [
        "team", "digits-worker-0", "Running", "2", "pytorchjob/digits", "1.5", "4Gi",
    ]  # fmt: skip
    assert lines[at + 3][3:5] == ["1", "N/A"]
    assert "\nGPUs:" not in shown
    assert "Allocated/Total GPUs: 3/7 (42.9%)" in shown
    assert "Unhealthy/Total GPUs: 1/8 (12.5%)" in shown


def test_each_gpu_is_shown_where_something_measures_it() -> None:
    measured = [replace(view, gpus_used=0.97, cpu_used=2.5) for view in views()]
    (details,) = read_details(measured, PODS, BUSY)
    shown = format_node(details)
    assert re.search(r"STATUS +GPU\(Requested\) +GPU\(Allocated\) +JOB .* GPU\(Used\)\n", shown)
    assert re.search(r"digits-worker-0 +Running +2 +0,1 +pytorchjob/digits .* 0.97\n", shown)
    at = shown.index("GPUs:\n  INDEX")
    head, first, second, third = shown[at:].splitlines()[1:5]
    assert head.split()[:5] == [
        "INDEX", "MEMORY(Total)", "MEMORY(Allocated)", "MEMORY(Used)", "DUTY_CYCLE",
    ]  # fmt: skip
    assert first.split() == ["0", "16.0Gi", "16.0Gi", "15.0Gi", "97.0%", "team/digits-worker-0"]
    assert second.split()[:5] == ["1", "16.0Gi", "16.0Gi", "0.5Gi", "0.0%"]
    assert third.split() == ["2", "N/A", "0.0Gi", "N/A", "N/A", "N/A"]
    assert "Used/Total GPUs: 0.97/7" in shown
    assert "Used/Total GPU Memory: 15.5/32.0Gi" in shown
    assert "6/8 allocated, 2.50 used" in shown


def test_plain_data_of_a_node_holds_all_that_its_block_shows() -> None:
    (details,) = read_details(views(), PODS, BUSY)
    data = json.loads(json.dumps(details_data(details)))
    assert node_data(details.view).items() <= data.items()
    assert data["instances"][0] == {
        "namespace": "team", "name": "digits-worker-0", "status": "Running",
        "job": "pytorchjob/digits", "requestGPUs": 2, "requestMilliCPU": 1500,
        "requestMemoryBytes": 4 * GI, "usedGPUs": 0.97, "gpuIndexes": ["0", "1"],
    }  # fmt: skip
    assert data["gpus"][0] == {
        "index": "0", "totalMemoryBytes": 16 * GI, "allocatedMemoryBytes": 16 * GI,
        "usedMemoryBytes": 15 * GI, "dutyCycle": 0.97, "namespace": "team",
        "instance": "digits-worker-0",
    }  # fmt: skip


def test_lost_node_has_a_reason() -> None:
    (details,) = read_details(read_nodes([node("n", {}, ready=False)], []), [], None)
    shown = format_node(details)
    assert re.search(r"Status: +NotReady\nReason: +No heartbeat of the kubelet.\n", shown)
    assert "GPU Summary" not in shown
    assert details_data(details)["reason"] == "No heartbeat of the kubelet."


def test_an_unknown_mode_is_answered_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.run(["top", "node", "-m", "x"]) == ExitCode.USAGE
    result = capsys.readouterr().err
    assert "exclusive" in result
    assert "--gpu-mode" in result


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
