"""The start of a scheduler in a full cluster of a real Kubernetes: when is the first pod bound?

The nodes are objects without a kubelet and hold many pods; gangs wait. Measured are the time from
the start of the process to the first and to the last binding, its phases (from its log), its
processor time and its memory. Peers: kube-scheduler, and a bare client that only reads the same
list of pods, in protobuf from the watch cache. Nodes and pods are written to etcd directly:
150,000 creations would take a quarter of an hour. ``GANGLINE_BENCHMARK_PODS`` is the number
of pods.
"""

import asyncio
import json
import os
import re
import statistics
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import IO, NamedTuple

from benchmarks import results
from benchmarks.cluster.connection import Connection, Target
from benchmarks.cluster.servers import (
    GANGLINE,
    KUBERNETES_BINARIES,
    install_definitions,
    kubernetes_processor_s,
    kubernetes_version,
    processor_s,
    real_kubernetes,
    settle,
)
from benchmarks.cluster.stored_copies import Store, copies
from benchmarks.operator.creation import create_all
from benchmarks.scheduler import bind

PODS = int(os.environ.get("GANGLINE_BENCHMARK_PODS", "150000"))
PODS_PER_NODE = 30
WAITING = 800
"""Pods, in gangs."""
NODES = max(-(-PODS // PODS_PER_NODE), WAITING // 2)
"""Enough for the waiting pods too: each node has room for two more."""
TURNS = 3
FULL, WAIT = "full", "waiting"
PROTOBUF = "application/vnd.kubernetes.protobuf"
LIST = "/api/v1/pods?resourceVersion=0"


class Start(NamedTuple):
    """One start of a scheduler."""

    first_s: float
    last_s: float
    processor_s: float
    server_s: float
    """Processor time of the API server meanwhile."""
    peak_mib: float
    log: str

    def __str__(self) -> str:
        return (
            f"first binding {self.first_s:.1f} s, all {WAITING} {self.last_s:.1f} s, processor "
            f"{self.processor_s:.1f} s (API server {self.server_s:.1f} s), {self.peak_mib:.0f} MiB"
            f"{self.log}"
        )


def running_pod() -> bytes:
    """The first pod on the nodes; its gang does not exist any more."""
    body = json.loads(bind.pod(0, "none", gangs=True))
    texts = names(0)
    body["metadata"] |= {
        "name": texts["pod"],
        "annotations": {"scheduling.k8s.io/group-name": texts["gang"]},
    }
    body["spec"]["nodeName"] = texts["node"]
    return json.dumps(body).encode()


def names(index: int) -> dict[str, str]:
    """The names in a running pod, as long for each of them."""
    return {
        "pod": f"r-{index:06d}",
        "gang": f"former-{index // bind.GANG:05d}",
        "node": f"fake-{index // PODS_PER_NODE:05d}",
    }


async def fill(target: Target) -> None:
    """Store the nodes and the pods on them."""
    began = time.monotonic()
    connection = await Connection.open(target)
    store = Store()
    for index in range(2):  # the nodes alternate
        first = json.loads(await _created(connection, "/api/v1/nodes", bind.node(index)))
        name, uid = first["metadata"]["name"], first["metadata"]["uid"]
        key = f"/registry/minions/{name}"
        others = ({name: f"fake-{other:05d}"} for other in range(index + 2, NODES, 2))
        store.put(copies(key, store.get(key), uid, others))
    path = f"/api/v1/namespaces/{FULL}/pods"
    uid = json.loads(await _created(connection, path, running_pod()))["metadata"]["uid"]
    present = names(0)
    key = f"/registry/pods/{FULL}/{present['pod']}"
    changes = (
        {present[what]: name for what, name in names(index).items()} for index in range(1, PODS)
    )
    store.put(copies(key, store.get(key), uid, changes))
    last = f"{path}/{names(PODS - 1)['pod']}?resourceVersion=0"
    while (await connection.request("GET", last))[0] != 200:
        await asyncio.sleep(0.2)
    connection.close()
    print(f"filled in {time.monotonic() - began:.0f} s", flush=True)


async def _created(connection: Connection, path: str, body: bytes) -> bytes:
    code, answer = await connection.request("POST", path, body)
    if code != 201:
        raise ConnectionError(f"POST {path} answered {code}: {answer[:300]!r}")
    return answer


async def add_waiting(target: Target, scheduler: str) -> None:
    """Create the pods that wait."""
    groups = [
        (f"{bind.GROUPS}/{WAIT}/podgroups", bind.group(n)) for n in range(WAITING // bind.GANG)
    ]
    await create_all(target, groups)
    path = f"/api/v1/namespaces/{WAIT}/pods"
    await create_all(target, [(path, bind.pod(n, scheduler, True)) for n in range(WAITING)])


async def remove_waiting(target: Target) -> None:
    """Delete them with their groups."""
    await bind.clear(target, WAIT)
    connection = await Connection.open(target)
    await connection.request("DELETE", f"{bind.GROUPS}/{WAIT}/podgroups")
    connection.close()


async def read_list(target: Target) -> tuple[float, int]:
    """Seconds and bytes of the list of pods for a client that only reads it."""
    headers = target.headers.replace("application/json", PROTOBUF)
    connection = await Connection.open(replace(target, headers=headers))
    begun = time.monotonic()
    code, answer = await connection.request("GET", LIST)
    took = time.monotonic() - begun
    connection.close()
    if code != 200:
        raise ConnectionError(f"the list answered {code}: {answer[:300]!r}")
    return took, len(answer)


async def start(target: Target, kubeconfig: Path, command: list[str], name: str) -> Start:
    """Start a scheduler, and wait until it has bound all waiting pods."""
    await add_waiting(target, name)
    settle(kubeconfig)
    connection = await Connection.open(target)
    path = f"/api/v1/namespaces/{WAIT}/pods?watch=true&fieldSelector=spec.nodeName!="
    await connection.watch(path)
    before = kubernetes_processor_s(kubeconfig)["apiserver"]
    with tempfile.TemporaryFile() as output:
        begun = time.monotonic()
        process = _launch(command, kubeconfig, output)
        try:
            first = last = 0.0
            async for seen in connection.added():
                last = time.monotonic() - begun
                first = first or (last if seen else 0.0)
                if seen >= WAITING:
                    break
            spent = processor_s(process.pid)
            server = kubernetes_processor_s(kubeconfig)["apiserver"] - before
            peak_mib = _peak_mib(process.pid)
        finally:
            process.terminate()
            process.wait(30)
        output.seek(0)
        phases = [line for line in output.read().decode().splitlines() if "started" in line]
    connection.close()
    await remove_waiting(target)
    return Start(first, last, spent, server, peak_mib, f"; {phases[0]}" if phases else "")


def _launch(command: list[str], kubeconfig: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    environment = os.environ | {"KUBECONFIG": str(kubeconfig)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=log)


def _peak_mib(pid: int) -> float:
    """The most memory that a process has used so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    [peak_kib] = re.findall(r"VmHWM:\s+(\d+)", status)
    return int(peak_kib) / 1024


def main() -> None:
    with real_kubernetes() as kubeconfig:
        install_definitions(kubeconfig, *bind.SCHEDULER_GROUPS)
        target = asyncio.run(Target.of(kubeconfig))
        asyncio.run(bind.open_namespaces(target, [FULL, WAIT]))
        bind.stop_controllers(kubeconfig)
        asyncio.run(fill(target))
        settle(kubeconfig)
        print(f"{PODS:,} pods on {NODES:,} nodes:")
        commands = {"gangline": [*GANGLINE, "scheduler"]}
        if (program := KUBERNETES_BINARIES / "kube-scheduler").exists():
            commands["default-scheduler"] = bind.kube_scheduler_command(program, kubeconfig)
        firsts: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(TURNS):
            took, size = asyncio.run(read_list(target))
            print(f"  bare client: {took:.1f} s for {size / 2**20:.0f} MiB")
            for name, command in commands.items():
                if turn and name != "gangline":
                    continue
                phases = asyncio.run(start(target, kubeconfig, command, name))
                print(f"  {name}: {phases}", flush=True)
                firsts[name].append(phases.first_s)
    medians = {name: statistics.median(taken) for name, taken in firsts.items()}
    figure = results.Figure(
        "from the start of a scheduler to its first binding",
        "s",
        medians.pop("gangline"),
        {name.replace("default-", "kube-"): taken for name, taken in medians.items()},
    )
    conditions = f"{PODS:,} running pods on {NODES:,} nodes; median of {TURNS} starts, peers one"
    results.write("scheduler_start", conditions, {"first_binding": figure}, kubernetes_version())


if __name__ == "__main__":
    main()
