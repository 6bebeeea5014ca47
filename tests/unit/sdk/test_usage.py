"""GPU utilization by node and by pod from DCGM metrics; invalid metrics are ignored."""

from typing import Any

import pytest
from aiohttp import web

from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import ClusterConfig
from gangline.sdk.usage import (
    GpuDevice,
    GpuUsage,
    ResourceUsage,
    gpu_usage,
    parse_exporter,
    sum_exporters,
)

METRICS = """\
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-a",Hostname="n1"} 1980
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",Hostname="n1",namespace="team",pod="job-worker-0"} 50
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",Hostname="n1",namespace="team",pod="job-worker-0"} 100
DCGM_FI_DEV_GPU_UTIL{gpu="2",UUID="GPU-c",Hostname="n1",pod=""} 0
"""
RENAMED = """\
DCGM_FI_DEV_GPU_UTIL{gpu="0",namespace="gpu-operator",pod="exporter",exported_namespace="team",\
exported_pod="job-worker-1"} 25
"""
EXPECTED = GpuUsage(
    {("team", "job-worker-0"): 1.5, ("team", "job-worker-1"): 0.25},
    {"n1": 1.5, "n2": 0.25},
    {
        "n1": (
            GpuDevice("0", "team", "job-worker-0", 0.5),
            GpuDevice("1", "team", "job-worker-0", 1.0),
            GpuDevice("2", utilization=0.0),
        ),
        "n2": (GpuDevice("0", "team", "job-worker-1", 0.25),),
    },
)
MEMORY = """\
DCGM_FI_DEV_FB_USED{gpu="10",UUID="GPU-k"} 1024
DCGM_FI_DEV_FB_FREE{gpu="10",UUID="GPU-k"} 3000
DCGM_FI_DEV_FB_RESERVED{gpu="10",UUID="GPU-k"} 72
DCGM_FI_DEV_FB_USED_PERCENT{gpu="10",UUID="GPU-k"} 0.25
DCGM_FI_DEV_GPU_UTIL{gpu="10",UUID="GPU-k"} NaN
DCGM_FI_DEV_FB_USED{gpu="9",GPU_I_ID="3",UUID="GPU-j",namespace="team",pod="slice"} 5
"""


def test_exported_metrics_are_summed_by_node_and_pod() -> None:
    assert sum_exporters([("n1", METRICS), ("n2", RENAMED)]) == EXPECTED


@pytest.mark.parametrize("text", ["", "<html>", "DCGM_FI_DEV_GPU_UTIL{", "DCGM_FI_DEV_GPU_UTIL x"])
def test_lines_that_are_no_metric_are_ignored(text: str) -> None:
    assert sum_exporters([("n1", text), ("n2", RENAMED)]).nodes == {"n2": 0.25}


def test_each_gpu_has_memory_and_pod() -> None:
    assert parse_exporter(MEMORY) == (
        GpuDevice("9/3", "team", "slice", memory_used_bytes=5 << 20),
        GpuDevice("10", memory_used_bytes=1 << 30, memory_total_bytes=4 << 30),
    )
    assert sum_exporters([("n1", MEMORY)]).nodes == {}  # memory in use says not how busy it is


def test_all_pods_of_shared_gpu_are_reported() -> None:
    shared = [
        f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="G",vgpu="{n}",namespace="team",pod="p{n}"}} 40\n'
        for n in range(2)
    ]
    found = sum_exporters([("n1", "".join(shared))])
    assert found.pods == {("team", "p0"): 0.4, ("team", "p1"): 0.4}


@pytest.mark.parametrize(
    ("gpus", "total"), [((None, None), None), ((0.5, None), 0.5), ((0.5, 1.0), 1.5)]
)
def test_usage_of_gpus_adds_up_where_it_is_known(
    gpus: tuple[float | None, float | None], total: float | None
) -> None:
    assert (ResourceUsage(gpus=gpus[0]) + ResourceUsage(gpus=gpus[1])).gpus == total


def exporter(name: str, node: str, phase: str = "Running") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "gpu-operator", "uid": name},
        "spec": {"nodeName": node},
        "status": {"phase": phase},
    }


async def read_gpu_usage(answers: dict[str, str], pods: list[dict[str, Any]]) -> GpuUsage | None:
    """Ask a server that has these exporters behind its proxy."""

    async def listed(request: web.Request) -> web.Response:
        found = pods if request.query["labelSelector"].startswith("app in") else []
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": found})

    async def proxied(request: web.Request) -> web.Response:
        name = request.match_info["place"].removesuffix(":9400")
        if name not in answers:
            raise web.HTTPServiceUnavailable(text="no route to host")
        return web.Response(text=answers[name])

    app = web.Application()
    path = "/api/v1/namespaces/gpu-operator/pods/{place}/proxy/metrics"
    app.add_routes([web.get("/api/v1/pods", listed), web.get(path, proxied)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with ApiClient(ClusterConfig(server)) as client:
            return await gpu_usage(client)
    finally:
        await runner.cleanup()


async def test_exporters_are_read_through_the_api_server() -> None:
    pods = [exporter("a", "n1"), exporter("b", "n2"), exporter("c", "n3"),
            exporter("d", "n4", "Pending")]  # fmt: skip
    assert await read_gpu_usage({"a": METRICS, "b": RENAMED}, pods) == EXPECTED


async def test_a_cluster_without_exporters_measures_nothing() -> None:
    assert await read_gpu_usage({}, []) is None
    assert await read_gpu_usage({}, [exporter("a", "n1")]) is None
