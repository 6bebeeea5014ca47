"""3,000 pending pods on many fake nodes of a real Kubernetes: when are all of them bound?

``python -m benchmarks.scheduler.bind [--nodes N ... --pods N --turns N]``

The nodes are objects without a kubelet. A scheduler runs and knows the nodes. It is stopped
(SIGSTOP) while the pods are created, then continued; the time until a watch has shown every pod on
a node is measured. Peers: kube-scheduler with raised client limits, and a bare client that only
binds pods to given nodes. The bare client and ours alternate, as the speed of the machine varies;
medians count.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

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
from benchmarks.operator.creation import create_all

PODS = 3_000
NODES = (1_000, 5_000)
GANG = 8
TURNS = 3
SCHEDULER_GROUPS = ("scheduling.volcano.sh", "topology.volcano.sh")
"""API groups of the resources that the scheduler reads. A real API server is busy for seconds after
each further CRD.
"""
BINDERS = 64
"""Connections of the bare client; our scheduler has as many bindings in flight."""
SETTLE_S = 5.0
"""Time after the start of a scheduler in which it reads the cluster state."""
GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces"


def node(index: int) -> bytes:
    """A node of 32 processors."""
    has = {"cpu": "32", "memory": "128Gi", "pods": "110"}
    status = {
        "capacity": has,
        "allocatable": has,
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    metadata = {"name": f"fake-{index:05d}", "labels": {"pool": "ab"[index % 2]}}
    return json.dumps({"metadata": metadata, "status": status}).encode()


def pod(index: int, scheduler: str, gangs: bool) -> bytes:
    """A pod of one processor; it tolerates all taints, as its node never reports."""
    metadata: dict[str, object] = {"name": f"p-{index:05d}"}
    if gangs:
        metadata["annotations"] = {"scheduling.k8s.io/group-name": f"g-{index // GANG}"}
    asks = {"requests": {"cpu": "1", "memory": "1Gi"}}
    spec = {
        "schedulerName": scheduler,
        "containers": [{"name": "c", "image": "none:1", "resources": asks}],
        "tolerations": [{"operator": "Exists"}],
    }
    return json.dumps({"metadata": metadata, "spec": spec}).encode()


def group(index: int) -> bytes:
    """The PodGroup of a gang."""
    return json.dumps(
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": f"g-{index}"},
            "spec": {"minMember": GANG},
        }
    ).encode()


async def open_namespaces(target: Target, names: list[str]) -> None:
    """Create namespaces; return when pods may be created in them."""
    made = [("/api/v1/namespaces", json.dumps({"metadata": {"name": n}}).encode()) for n in names]
    await create_all(target, made)
    connection = await Connection.open(target)
    for name in names:
        # Until the account of the namespace exists; before Kubernetes 1.24 also its token.
        path = f"/api/v1/namespaces/{name}/pods?dryRun=All"
        while (await connection.request("POST", path, pod(0, "none", gangs=False)))[0] != 201:
            await asyncio.sleep(0.1)
    connection.close()


async def prepare(target: Target, namespace: str, scheduler: str, pods: int, gangs: bool) -> None:
    """Create the pods to be bound, and their PodGroups."""
    if gangs:
        made = [(f"{GROUPS}/{namespace}/podgroups", group(n)) for n in range(pods // GANG)]
        await create_all(target, made)
    path = f"/api/v1/namespaces/{namespace}/pods"
    await create_all(target, [(path, pod(n, scheduler, gangs)) for n in range(pods)])


async def all_bound(
    target: Target, namespace: str, pods: int, begin: Callable[[], Awaitable[None]]
) -> float:
    """Seconds from ``begin`` until a watch has shown every pod on a node."""
    connection = await Connection.open(target)
    path = f"/api/v1/namespaces/{namespace}/pods?watch=true&fieldSelector=spec.nodeName!="
    await connection.watch(path)
    begun = time.monotonic()
    beginning = asyncio.ensure_future(begin())
    async for seen in connection.added():
        if seen >= pods:
            break
    took = time.monotonic() - begun
    connection.close()
    await beginning
    return took


async def bind_all(target: Target, namespace: str, nodes: int, pods: int) -> None:
    """Bind the pods to the nodes round-robin, over many connections."""
    pending = iter(range(pods))

    async def worker() -> None:
        connection = await Connection.open(target)
        for index in pending:
            body = {
                "metadata": {"name": f"p-{index:05d}"},
                "target": {"kind": "Node", "name": f"fake-{index % nodes:05d}"},
            }
            path = f"/api/v1/namespaces/{namespace}/pods/p-{index:05d}/binding"
            code, answer = await connection.request("POST", path, json.dumps(body).encode())
            if code != 201:
                raise ConnectionError(f"the binding answered {code}: {answer[:300]!r}")
        connection.close()

    await asyncio.gather(*(worker() for _ in range(BINDERS)))


async def clear(target: Target, namespace: str) -> None:
    """Delete the pods immediately, as there is no kubelet."""
    connection = await Connection.open(target)
    path = f"/api/v1/namespaces/{namespace}/pods"
    code = 504
    while code in (500, 504):  # a busy server may not delete all of them within its timeout
        code, answer = await connection.request("DELETE", path, b'{"gracePeriodSeconds":0}')
    if code != 200:
        raise ConnectionError(f"the deletion answered {code}: {answer[:300]!r}")
    connection.close()


@contextlib.contextmanager
def running(command: list[str], kubeconfig: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a scheduler."""
    process = subprocess.Popen(
        command,
        env=os.environ | {"KUBECONFIG": str(kubeconfig)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(30)


class Rate(NamedTuple):
    """How fast pods were bound."""

    per_s: float
    server_ms: float
    """Processor time of the API server for each pod."""
    store_ms: float
    """The same of etcd."""
    client_ms: float
    """The same of the scheduler. The bare client's contains the watch that counts the pods."""
    requests: Counter[str]
    """The requests that the server has answered meanwhile, by verb and resource."""

    def __str__(self) -> str:
        return (
            f"{self.per_s:,.0f} (API server {self.server_ms:.2f}, etcd {self.store_ms:.2f}, "
            f"client {self.client_ms:.2f} ms)"
        )


async def measured(
    target: Target,
    kubeconfig: Path,
    namespace: str,
    pods: int,
    begin: Callable[[], Awaitable[None]],
    client: int,
) -> Rate:
    """Bind by ``begin``; return the rate, and the processor times.

    ``client`` is the process id of the client.
    """

    def spent() -> list[float]:
        servers = kubernetes_processor_s(kubeconfig)
        return [servers["apiserver"], servers["etcd"], processor_s(client)]

    asked = await answered_requests(target)
    before = spent()
    took = await all_bound(target, namespace, pods, begin)
    server, store, own = (
        (now - then) / pods * 1000 for now, then in zip(spent(), before, strict=True)
    )
    asked = await answered_requests(target) - asked
    return Rate(pods / took, server, store, own, asked)


async def answered_requests(target: Target) -> Counter[str]:
    """Return how many requests the API server has answered, by verb and resource."""
    connection = await Connection.open(target)
    _, answer = await connection.request("GET", "/metrics")
    connection.close()
    counts: Counter[str] = Counter()
    for line in answer.decode().splitlines():
        if line.startswith("apiserver_request_total{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            what = f"{labels['resource']}/{labels['subresource']}".rstrip("/")
            counts[f"{labels['verb']} {what or '(no resource)'}"] += int(float(line.split()[-1]))
    return counts


async def scheduled(
    target: Target,
    kubeconfig: Path,
    namespace: str,
    process: subprocess.Popen[bytes],
    name: str,
    pods: int,
    gangs: bool,
) -> Rate:
    """Let a running scheduler bind the pods."""
    await asyncio.sleep(SETTLE_S)
    process.send_signal(signal.SIGSTOP)
    await prepare(target, namespace, name, pods, gangs)

    async def let_go() -> None:
        process.send_signal(signal.SIGCONT)

    measurements = await measured(target, kubeconfig, namespace, pods, let_go, process.pid)
    await asyncio.sleep(SETTLE_S)  # its last events and statuses
    await clear(target, namespace)
    return measurements


async def bare(target: Target, kubeconfig: Path, namespace: str, nodes: int, pods: int) -> Rate:
    """Let the bare client bind the pods."""
    await prepare(target, namespace, "none", pods, gangs=False)

    async def work() -> None:
        await bind_all(target, namespace, nodes, pods)

    measurements = await measured(target, kubeconfig, namespace, pods, work, os.getpid())
    await clear(target, namespace)
    return measurements


def measure(kubeconfig: Path, nodes: int, pods: int, turns: int) -> dict[str, results.Figure]:
    """Measure all of them with this number of nodes, in turn; print and return the medians."""
    target = asyncio.run(Target.of(kubeconfig))
    theirs = _kube_scheduler(target, kubeconfig, nodes, pods)
    binders: list[Rate] = []
    ours: dict[bool, list[Rate]] = {False: [], True: []}
    for turn in range(turns):
        settle(kubeconfig)
        namespace = f"bare-{nodes}-{turn}"
        binders.append(asyncio.run(bare(target, kubeconfig, namespace, nodes, pods)))
        for gangs, rates in ours.items():
            settle(kubeconfig)
            with running([*GANGLINE, "scheduler"], kubeconfig) as process:
                namespace = f"{'gangs' if gangs else 'alone'}-{nodes}-{turn}"
                work = scheduled(target, kubeconfig, namespace, process, "gangline", pods, gangs)
                rates.append(asyncio.run(work))
    binds = _median(binders)
    print(f"{pods:,} waiting pods on {nodes:,} fake nodes, bound per second until the last one:")
    print(f"  bare client of {BINDERS} connections: {binds:,.0f} ({_each(binders)})")
    print(f"  kube-scheduler: {theirs or 'not there'}")
    for what, rates in [("bare client", binders), *((_kind(g), r) for g, r in ours.items())]:
        asked = ", ".join(f"{n:,} {name}" for name, n in rates[-1].requests.most_common(8))
        print(f"  requests until the last one was bound, {what}: {asked}")
    for gangs, rates in ours.items():
        rate = _median(rates)
        beside = f", {rate / theirs.per_s:.2f} of kube-scheduler" if theirs else ""
        print(
            f"  ours, {_kind(gangs)}: {rate:,.0f} ({_each(rates)}); "
            f"{rate / binds:.2f} of the bare client{beside}"
        )
    sys.stdout.flush()
    alone = ours[False]
    peers: dict[str, results.Value | None] = {"bare client": binds}
    spent: dict[str, results.Value | None] = {}
    if theirs:
        peers["kube-scheduler"], spent["kube-scheduler"] = theirs.per_s, theirs.client_ms
    processor = results.Figure(
        f"processor time of the scheduler for a single pod, {nodes:,} nodes",
        "ms",
        median(rate.client_ms for rate in alone),
        spent,
    )
    return {f"processor_{nodes}": processor} | {
        f"{'gangs' if gangs else 'alone'}_{nodes}": results.Figure(
            f"pods {_kind(gangs)} bound per second, {nodes:,} nodes",
            "pods/s",
            _median(rates),
            peers,
            higher_is_better=True,
        )
        for gangs, rates in ours.items()
    }


def _kind(gangs: bool) -> str:
    return f"in gangs of {GANG}" if gangs else "alone"


def _median(rates: list[Rate]) -> float:
    return median(rate.per_s for rate in rates)


def _each(rates: list[Rate]) -> str:
    return ", ".join(map(str, rates))


def _kube_scheduler(target: Target, kubeconfig: Path, nodes: int, pods: int) -> Rate | None:
    """Let kube-scheduler bind the pods, once; None if it is not available."""
    program = KUBERNETES_BINARIES / "kube-scheduler"
    if not program.exists():
        return None
    with running(kube_scheduler_command(program, kubeconfig), kubeconfig) as process:
        name, namespace = "default-scheduler", f"kube-{nodes}"
        return asyncio.run(
            scheduled(target, kubeconfig, namespace, process, name, pods, gangs=False)
        )


def kube_scheduler_command(program: Path, kubeconfig: Path) -> list[str]:
    """The command of kube-scheduler without client-side rate limits, lease and ports."""
    described = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    # Until Kubernetes 1.23 it has a second port, without TLS.
    insecure = ["--port=0"] if " --port int" in described.stdout else []
    flags = ["--leader-elect=false", "--kube-api-qps=5000", "--kube-api-burst=10000"]
    return [str(program), f"--kubeconfig={kubeconfig}", *flags, "--secure-port=0", *insecure]


def stop_controllers(kubeconfig: Path) -> None:
    """Stop the controller manager: it would consider nodes without a kubelet lost."""
    os.kill(int((kubeconfig.parent / "kcm.pid").read_text()), signal.SIGTERM)


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES, help="increasing numbers")
    parser.add_argument("--pods", type=int, default=PODS)
    parser.add_argument("--turns", type=int, default=TURNS)
    given = parser.parse_args(arguments)
    if min(*given.nodes, given.pods // GANG, given.turns) < 1:
        parser.error(f"--nodes and --turns must be at least 1, and --pods at least {GANG}")
    there, figures = 0, dict[str, results.Figure]()
    with real_kubernetes() as kubeconfig:
        install_definitions(kubeconfig, *SCHEDULER_GROUPS)
        target = asyncio.run(Target.of(kubeconfig))
        turns = [f"{nodes}-{turn}" for nodes in given.nodes for turn in range(given.turns)]
        names = [f"{what}-{turn}" for turn in turns for what in ("bare", "alone", "gangs")]
        names += [f"kube-{nodes}" for nodes in given.nodes]
        asyncio.run(open_namespaces(target, names))
        stop_controllers(kubeconfig)
        for nodes in given.nodes:
            made = [("/api/v1/nodes", node(index)) for index in range(there, nodes)]
            asyncio.run(create_all(target, made))
            there = nodes
            figures |= measure(kubeconfig, nodes, given.pods, given.turns)
    turns = f"medians of {given.turns} runs in turn" if given.turns > 1 else "one run each"
    conditions = f"{given.pods:,} pending pods; {turns}, kube-scheduler with single pods only"
    results.write("scheduler_bind", conditions, figures, kubernetes_version())


if __name__ == "__main__":
    main(sys.argv[1:])
