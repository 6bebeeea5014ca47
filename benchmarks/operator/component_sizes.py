"""Memory and processor time of operator (with its webhook) and scheduler, by the size of a cluster.

Nodes are objects without a kubelet, on the embedded API server. PyTorchJobs of eight pods are
submitted until each node has one pod; all pods get nodes. Printed are the processor time until
then, the processor time per minute when nothing changes, and the memory at its highest and at the
end. ``GANGLINE_BENCHMARK_NODES`` lists the numbers of nodes.

From ``COPIED_NODES`` on, one job is run, and copies of its objects are put into the store of the
API server: the components then start beside all of them, and the processor time is that of the
start.
"""

import asyncio
import json
import os
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cluster.servers import GANGLINE, processor_s
from gangline.api.resources import NODES, PODS, PYTORCH_JOBS
from gangline.kube.client.client import ApiClient
from gangline.local import custom_resources
from gangline.local.apiserver.server import ApiServer, ApiServerSettings
from gangline.local.apiserver.storage.durable_files import Durability

SIZES = [int(each) for each in os.environ.get("GANGLINE_BENCHMARK_NODES", "100,1000").split(",")]
PODS_PER_JOB = 8
IN_FLIGHT = 8
IDLE_S = 30.0
COPIED_NODES = int(os.environ.get("GANGLINE_BENCHMARK_COPIED", "5000"))


@dataclass(frozen=True, slots=True)
class Component:
    """A running component."""

    name: str
    process: "subprocess.Popen[bytes]"

    @property
    def processor_s(self) -> float:
        return processor_s(self.process.pid)

    def memory_mib(self, field: str) -> float:
        """The value of a field of /proc/PID/status, such as ``VmHWM``."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
        return 0.0


def node(number: int) -> dict[str, Any]:
    return {
        "metadata": {"name": f"n{number:05}", "labels": {"kubernetes.io/hostname": f"n{number}"}},
        "status": {
            "capacity": {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"},
            "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def job(number: int) -> dict[str, Any]:
    requests = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "8"}
    container = {"name": "pytorch", "image": "x", "resources": {"limits": requests}}
    template = {"spec": {"containers": [container]}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": f"train-{number}"},
        "spec": {
            "pytorchReplicaSpecs": {
                "Master": {"replicas": 1, "template": template},
                "Worker": {"replicas": PODS_PER_JOB - 1, "template": template},
            }
        },
    }


async def in_parallel(count: int, work: Any) -> None:
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))


async def add_node(client: ApiClient, number: int) -> None:
    """Create a node that is ready."""
    manifest = node(number)
    await client.create(NODES, manifest)
    status = {"status": manifest["status"]}
    await client.patch(NODES, manifest["metadata"]["name"], status, subresource="status")


def kill(components: list[Component]) -> None:
    for each in components:
        each.process.kill()
        each.process.wait()


async def measure(nodes: int, folder: Path) -> None:
    """Measure one size and print it."""
    settings = ApiServerSettings(data=folder / "data", durability=Durability.PROCESS)
    server = ApiServer(settings)
    await server.start()
    components: list[Component] = []
    try:
        async with ApiClient(server.config) as client:
            await custom_resources.install_definitions(client)

            await in_parallel(nodes, lambda number: add_node(client, number))
            components += [
                start("operator", server, folder, "--webhook=on", "--webhook-namespace=kube-system",
                      "--webhook-bind-address=127.0.0.1:19443",
                      "--webhook-url=https://127.0.0.1:19443"),
                start("scheduler", server, folder),
            ]  # fmt: skip
            began = time.monotonic()

            async def submit(number: int) -> None:
                await client.create(PYTORCH_JOBS, job(number), "default")

            jobs = nodes // PODS_PER_JOB
            await in_parallel(jobs, submit)
            while True:
                unbound = await client.list(PODS, "default", fields="spec.nodeName=")
                all_pods = await client.list(PODS, "default") if not unbound.items else None
                if all_pods is not None and len(all_pods.items) == jobs * PODS_PER_JOB:
                    break
                await asyncio.sleep(1)
            took = time.monotonic() - began
            busy = {each.name: each.processor_s for each in components}
            await asyncio.sleep(5)
            before = {each.name: each.processor_s for each in components}
            await asyncio.sleep(IDLE_S)
            for each in components:
                idle = (each.processor_s - before[each.name]) * 60 / IDLE_S
                print(
                    f"{nodes} nodes, {jobs * PODS_PER_JOB} pods in {jobs} jobs ({took:.0f} s): "
                    f"{each.name}: processor {busy[each.name]:.1f} s, idle {idle:.2f} s/min, "
                    f"memory {each.memory_mib('VmHWM'):.0f} MiB at its highest, "
                    f"{each.memory_mib('VmRSS'):.0f} MiB at the end",
                    flush=True,
                )
    finally:
        kill(components)
        await server.stop()


async def measure_copies(nodes: int, folder: Path) -> None:
    """Run one job, copy its objects, and measure components that start beside all of them."""
    settings = ApiServerSettings(data=folder / "data", durability=Durability.PROCESS)
    server = ApiServer(settings)
    await server.start()
    components: list[Component] = []
    try:
        async with ApiClient(server.config) as client:
            await custom_resources.install_definitions(client)
            for number in range(PODS_PER_JOB):
                await add_node(client, number)
            components += [start(name, server, folder) for name in ("operator", "scheduler")]
            await client.create(PYTORCH_JOBS, job(0), "default")
            while True:
                pods = (await client.list(PODS, "default")).items
                if len(pods) == PODS_PER_JOB and all(pod.spec.node_name for pod in pods):
                    break
                await asyncio.sleep(1)
            await asyncio.sleep(5)
            kill(components)
            await copy_objects(server, nodes)
            stored = len((await client.list(PODS, "default")).items)
            assert stored == nodes // PODS_PER_JOB * PODS_PER_JOB, stored
            began = time.monotonic()
            components[:] = [start(name, server, folder) for name in ("operator", "scheduler")]
            await asyncio.sleep(1)
            while time.monotonic() - began < 120:
                before = [each.processor_s for each in components]
                await asyncio.sleep(10)
                if max(e.processor_s - b for e, b in zip(components, before, strict=True)) < 0.2:
                    break
            log = (folder / "scheduler.log").read_text().splitlines()
            print(*(line for line in log if " started " in line), sep="\n")
            for each in components:
                print(
                    f"{nodes} nodes, {stored} pods in {nodes // PODS_PER_JOB} jobs: {each.name}: "
                    f"processor {each.processor_s:.1f} s after the start, "
                    f"memory {each.memory_mib('VmHWM'):.0f} MiB at its highest, "
                    f"{each.memory_mib('VmRSS'):.0f} MiB at the end",
                    flush=True,
                )
    finally:
        kill(components)
        await server.stop()


async def copy_objects(server: ApiServer, nodes: int) -> None:
    """Copy the objects of the job and its nodes: names and uids of copies are their own."""
    kinds = ("nodes.", "pods.", "services.", "podgroups.scheduling.volcano.sh")
    originals = {
        name: [(key, json.loads(record.body), record) for key, record in cache.records.items()]
        for name in (*kinds, "pytorchjobs.kubeflow.org")
        if (cache := server.store.cache(name)) is not None
    }
    done = []
    for number in range(1, nodes // PODS_PER_JOB):
        uids: dict[str, str] = {}
        for name, objects in originals.items():
            for key, content, record in objects:
                is_of_job = "train-0" in key or name == "nodes."
                if not is_of_job:
                    continue
                text = json.dumps(content).replace("train-0", f"train-{number}")
                new_key = key.replace("train-0", f"train-{number}")
                for index in range(PODS_PER_JOB):
                    old, new = f"n{index:05}", f"n{number * PODS_PER_JOB + index:05}"
                    text, new_key = text.replace(f'"{old}"', f'"{new}"'), new_key.replace(old, new)
                for reference in [
                    content["metadata"],
                    *content["metadata"].get("ownerReferences", ()),
                ]:
                    old = reference["uid"]
                    text = text.replace(old, uids.setdefault(old, str(uuid.uuid4())))
                fields = {
                    field: new_key.rpartition("/")[2] if field == "metadata.name" else value
                    for field, value in record.fields.items()
                }
                obj = json.loads(text)
                if "spec.nodeName" in fields:
                    fields["spec.nodeName"] = obj["spec"].get("nodeName", "")
                index_of = (obj["metadata"].get("labels", {}), fields)
                done.append(server.store.stage(server.store.cache(name), new_key, obj, index_of))
        if len(done) > 500:
            await asyncio.gather(*done)
            done.clear()
    await asyncio.gather(*done)


def start(name: str, server: ApiServer, folder: Path, *options: str) -> Component:
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*GANGLINE, name, *options],
            env={**os.environ, "KUBECONFIG": str(server.kubeconfig)},
            stdout=log,
            stderr=log,
        )
    return Component(name, process)


def main() -> None:
    """Measure each size with a cluster of its own."""
    for nodes in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            run = measure if nodes < COPIED_NODES else measure_copies
            asyncio.run(run(nodes, Path(folder)))


if __name__ == "__main__":
    main()
