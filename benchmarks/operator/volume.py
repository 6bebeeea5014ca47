"""1,000 jobs of five kinds with 4 pods each, from submission to the end, on a real Kubernetes.

There is no kubelet: a simulated one marks pods Running and later Succeeded, so that only the
operator and the API server are measured. Each run has three phases: all pods and services are
created, all pods start, all pods end. The first is compared with a bare loop of eight connections
that creates the same pods, services, PodGroups and ConfigMaps afterwards; jobs, statuses and events
are written by ours only. Runs of 100 and of 1,000 jobs show how each figure grows.
"""

import asyncio
import json
import math
import os
import re
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

from benchmarks import results
from benchmarks.cluster.connection import Connection, Target
from benchmarks.cluster.servers import (
    GANGLINE,
    install_definitions,
    kubernetes_processor_s,
    kubernetes_version,
    processor_s,
    real_kubernetes,
    settle,
)
from benchmarks.operator import mixed_jobs
from benchmarks.operator.creation import CONNECTIONS, OF_THE_SERVER, bare, create_all

SIZES = (100, 1000)
PATIENCE_S = 300
NEARLY = 0.85
"""From this share of the created objects on, the operator is polled frequently."""
MADE = {
    "PodGroup": "/apis/scheduling.volcano.sh/v1beta1/namespaces/{}/podgroups",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Pod": "/api/v1/namespaces/{}/pods",
    "Service": "/api/v1/namespaces/{}/services",
}
"""Kinds that the operator creates for a job, in this order, and their paths."""
MERGE = "application/merge-patch+json"
_WRITES = re.compile(r'gangline_operator_writes_total\{kind="(\w+)",verb="(\w+)"\} (\S+)')


@dataclass
class Figures:
    """The result of one run."""

    jobs: int
    made: dict[str, list[dict]]
    """All objects of the run, by kind."""
    created_s: float
    """Time until all pods and services exist."""
    pods_s: float
    """Time until all pods exist."""
    end_s: float
    """Time from the last pod's end to the last job's."""
    cpu_s: float
    cpu_at_creation_s: float
    """Part of ``cpu_s`` until all pods and services existed."""
    peak_mb: float
    live_mb: float
    """Memory while all pods run."""
    writes: Counter[str]
    writes_at_creation: Counter[str]
    kubernetes_s: Counter[str]
    """Processor seconds of Kubernetes' processes while the operator created everything."""
    bare_s: float = math.nan
    """Time of the bare loop for the same pods, services, PodGroups and ConfigMaps."""
    kubernetes_bare_s: Counter[str] = field(default_factory=Counter)
    """As ``kubernetes_s``, for the bare loop."""


class Operator:
    """The operator as a process, with its metrics."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self._port = 18080
        self._process = subprocess.Popen(
            [*GANGLINE, "operator", "--metrics-bind-address", f"127.0.0.1:{self._port}"],
            env=os.environ | {"KUBECONFIG": str(kubeconfig)},
            stderr=(folder / "operator.log").open("wb"),
        )

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)

    def cpu_s(self) -> float:
        return processor_s(self._process.pid)

    def memory_mb(self, field: str) -> float:
        """``VmRSS`` (current) or ``VmHWM`` (maximum)."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(rf"{field}:\s+(\d+) kB", status)
        assert found
        return int(found[1]) / 1024

    def writes(self) -> Counter[str]:
        """Write requests so far, by ``Kind verb``."""
        with urlopen(f"http://127.0.0.1:{self._port}/metrics") as answer:
            text = answer.read().decode()
        return Counter({f"{kind} {verb}": int(float(n)) for kind, verb, n in _WRITES.findall(text)})

    def wait(self) -> None:
        """Wait until it serves metrics."""
        while True:
            try:
                self.writes()
            except OSError:
                time.sleep(0.1)
                continue
            return


async def everything(target: Target, path: str) -> list[dict]:
    """All objects under ``path``."""
    connection = await Connection.open(target)
    code, answer = await connection.request("GET", path)
    connection.close()
    assert code == 200, answer[:300]
    return json.loads(answer)["items"]


async def until(
    target: Target, paths: Iterable[str], expected: int, claim=lambda item: True
) -> None:
    """Wait until ``expected`` objects meet the condition ``claim``."""
    listed = list(paths)
    while True:
        items = [item for path in listed for item in await everything(target, path)]
        if sum(map(claim, items)) >= expected:
            return
        await asyncio.sleep(0.5)


async def made_all(
    operator: Operator, before: Counter[str], expected: dict[str, int]
) -> tuple[float, float]:
    """Return the times when all pods, and all pods and services had been created.

    The operator's own count is polled, and finally checked with a list: a watch of a Kubernetes
    1.20
    API server occasionally stops sending when many objects are created.

    Raises:
        TimeoutError: not within ``PATIENCE_S``; contains the counts.
    """
    times: dict[str, float] = {}
    begun = time.monotonic()
    until_s = begun + PATIENCE_S
    while len(times) < len(expected):
        written = await asyncio.to_thread(operator.writes) - before
        now = time.monotonic()
        for kind, count in expected.items():
            if written[f"{kind} create"] >= count:
                times.setdefault(kind, now)
        if now > until_s:
            raise TimeoutError(f"expected {expected}, the operator has created {written}")
        # A poll costs the operator 10 ms, so polls are rare until it has nearly finished.
        done = sum(written[f"{kind} create"] for kind in expected) / sum(expected.values())
        await asyncio.sleep(0.1 if done > NEARLY else min(1.0, max(0.1, (now - begun) / 10)))
    return times["Pod"], max(times.values())


async def mark(target: Target, namespace: str, pods: list[dict], phase: str) -> None:
    """Simulate the kubelets of all pods."""
    pending = iter(enumerate(pods))

    async def worker() -> None:
        connection = await Connection.open(target)
        for number, pod in pending:
            name = pod["metadata"]["name"]
            ended = {"terminated": {"exitCode": 0}} if phase == "Succeeded" else {"running": {}}
            container = pod["spec"]["containers"][0]
            status = {
                "phase": phase,
                "podIP": f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
                "containerStatuses": [
                    {
                        "name": container["name"],
                        "image": container["image"],
                        "imageID": "",
                        "ready": phase == "Running",
                        "restartCount": 0,
                        "state": ended,
                    }
                ],
            }
            body = json.dumps({"status": status}).encode()
            path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
            code, answer = await connection.request("PATCH", path, body, MERGE)
            assert code == 200, answer[:300]
        connection.close()

    await asyncio.gather(*(worker() for _ in range(CONNECTIONS)))


async def run(target: Target, operator: Operator, kubeconfig: Path, jobs: int) -> Figures:
    """One run in its own namespaces; the bare loop follows when the operator has stopped."""
    ours = f"ours-{jobs}"
    await prepare(target, ours)
    expected_pods = jobs * mixed_jobs.PODS
    # An MSJob has one service, for its scheduler.
    expected_services = expected_pods - (jobs // 5) * (mixed_jobs.PODS - 1)
    cpu, writes = operator.cpu_s(), operator.writes()
    of_kubernetes = kubernetes_processor_s(kubeconfig)
    begun = time.monotonic()
    await create_all(target, [mixed_jobs.request(number, ours) for number in range(jobs)])
    expected = {"Pod": expected_pods, "Service": expected_services}
    pods_at, all_at = await made_all(operator, writes, expected)
    of_kubernetes = kubernetes_processor_s(kubeconfig) - of_kubernetes
    at_creation, cpu_at_creation = operator.writes() - writes, operator.cpu_s() - cpu
    made = {what: await everything(target, path.format(ours)) for what, path in MADE.items()}
    for kind, count in expected.items():
        assert len(made[kind]) == count, f"{len(made[kind])} of {count} {kind}s"
    pods = made["Pod"]
    await mark(target, ours, pods, "Running")
    await until(target, mixed_jobs.lists(ours), jobs, _runs)
    live_mb = operator.memory_mb("VmRSS")
    await mark(target, ours, pods, "Succeeded")
    ended = time.monotonic()
    await until(target, mixed_jobs.lists(ours), jobs, mixed_jobs.ended)
    end_s = time.monotonic() - ended
    await asyncio.sleep(5)  # events, groups
    return Figures(
        jobs=jobs,
        made=made,
        created_s=all_at - begun,
        pods_s=pods_at - begun,
        end_s=end_s,
        cpu_s=operator.cpu_s() - cpu,
        cpu_at_creation_s=cpu_at_creation,
        peak_mb=operator.memory_mb("VmHWM"),
        live_mb=live_mb,
        writes=operator.writes() - writes,
        writes_at_creation=at_creation,
        kubernetes_s=of_kubernetes,
    )


async def prepare(target: Target, namespace: str) -> None:
    """Create a namespace and wait until pods may be created in it."""
    body = json.dumps({"metadata": {"name": namespace}}).encode()
    await create_all(target, [("/api/v1/namespaces", body)])
    await until(target, [f"/api/v1/namespaces/{namespace}/serviceaccounts"], 1)


async def bare_loop(target: Target, kubeconfig: Path, figures: Figures) -> None:
    """Recreate the objects of a run job by job in another namespace, and record the time."""
    peer = f"bare-{figures.jobs}"
    await prepare(target, peer)
    requests: dict[str, list[tuple[str, bytes]]] = defaultdict(list)
    for kind, things in figures.made.items():
        for thing in things:
            if thing["metadata"]["name"] != "kube-root-ca.crt":
                request = MADE[kind].format(peer), _bare(thing, kind, peer)
                requests[_job_of(thing)].append(request)
    in_turn = [request for name in sorted(requests) for request in requests[name]]
    await asyncio.to_thread(settle, kubeconfig)
    of_kubernetes = kubernetes_processor_s(kubeconfig)
    begun = time.monotonic()
    await create_all(target, in_turn)
    figures.bare_s = time.monotonic() - begun
    figures.kubernetes_bare_s = kubernetes_processor_s(kubeconfig) - of_kubernetes


def _job_of(thing: dict) -> str:
    owners = thing["metadata"].get("ownerReferences", [])
    return owners[0]["name"] if owners else ""


def _bare(thing: dict, kind: str, namespace: str) -> bytes:
    if kind in ("ConfigMap", "PodGroup"):
        thing = {k: v for k, v in thing.items() if k in ("data", "spec", "apiVersion", "metadata")}
        metadata = {k: v for k, v in thing["metadata"].items() if k not in OF_THE_SERVER}
        complete = {"apiVersion": "v1", "kind": kind} | thing
        return json.dumps(complete | {"metadata": metadata | {"namespace": namespace}}).encode()
    made = json.loads(bare(thing, kind))
    made["metadata"]["namespace"] = namespace
    if made["spec"].get("clusterIP") != "None":
        made["spec"].pop("clusterIP", None)
    return json.dumps(made).encode()


def _runs(job: dict) -> bool:
    conditions = job.get("status", {}).get("conditions", [])
    return any(c["type"] == "Running" and c["status"] == "True" for c in conditions)


def show(figures: Figures) -> None:
    jobs, pods = figures.jobs, figures.jobs * mixed_jobs.PODS
    of_pods = sum(n for what, n in figures.writes.items() if what.split()[0] in ("Pod", "Service"))
    of_jobs = sum(figures.writes.values()) - of_pods
    print(f"{jobs} jobs of {mixed_jobs.PODS} pods, five kinds")
    print(
        f"  bare loop of {CONNECTIONS} connections: the same objects {figures.bare_s:.1f} s; "
        f"operator: pods {figures.pods_s:.1f} s, services too {figures.created_s:.1f} s"
    )
    print(f"  ratio of creation rates: {figures.bare_s / figures.created_s:.2f} (to reach: 0.70)")
    print(
        f"  until then the operator wrote {dict(sorted(figures.writes_at_creation.items()))} "
        f"and took {figures.cpu_at_creation_s:.1f} s of processor time, Kubernetes "
        f"{_shares(figures.kubernetes_s)}; with the bare loop {_shares(figures.kubernetes_bare_s)}"
    )
    print(f"  from the end of the last pod to that of the last job: {figures.end_s:.1f} s")
    print(
        f"  operator: {figures.cpu_s:.1f} s of processor time, "
        f"{1000 * figures.cpu_s / jobs:.1f} ms a job"
    )
    print(
        f"  memory: {figures.live_mb:.0f} MB with {pods} live pods, "
        f"{figures.peak_mb:.0f} MB at most"
    )
    print(
        f"  writes: {of_pods / pods:.2f} a pod (to reach: 2.5), {of_jobs / jobs:.2f} a job "
        f"(to reach: 6): {dict(sorted(figures.writes.items()))}"
    )


def _shares(spent: Counter[str]) -> str:
    return ", ".join(f"{name} {seconds:.1f}" for name, seconds in spent.items())


async def measure(kubeconfig: Path, operator: Operator) -> list[Figures]:
    target = await Target.of(kubeconfig)
    return [await run(target, operator, kubeconfig, jobs) for jobs in SIZES]


async def measure_bare(kubeconfig: Path, runs: list[Figures]) -> None:
    target = await Target.of(kubeconfig)
    for figures in runs:
        await bare_loop(target, kubeconfig, figures)


def main() -> None:
    with real_kubernetes() as kubeconfig, tempfile.TemporaryDirectory() as folder:
        install_definitions(kubeconfig)
        operator = Operator(kubeconfig, Path(folder))
        try:
            operator.wait()
            settle(kubeconfig)
            runs = asyncio.run(measure(kubeconfig, operator))
        finally:
            operator.stop()
        # Without the operator, which would watch the objects of the loop.
        asyncio.run(measure_bare(kubeconfig, runs))
    for figures in runs:
        show(figures)
    compared = {
        f"jobs_{each.jobs}": results.Figure(
            f"{each.jobs:,} jobs: until all of their pods and services exist",
            "s",
            each.created_s,
            {"bare loop": each.bare_s},
        )
        for each in runs
    }
    conditions = (
        f"jobs of five kinds and {mixed_jobs.PODS} pods; the loop has {CONNECTIONS} connections "
        "and creates the same objects, and nothing else"
    )
    results.write("operator_volume", conditions, compared, kubernetes_version())


if __name__ == "__main__":
    main()
