"""1,000 jobs of five kinds with 4 pods each, from submission to the end, on a real Kubernetes.

There is no kubelet: a pretended one marks pods Running and later Succeeded, so that what is
measured is the operator and the API server. Each run has three phases: all pods and services are
made (timed against a bare loop of eight connections that makes the same objects afterwards: pods,
services, PodGroups, ConfigMaps; the jobs, their statuses and events are ours alone), all pods
start, all pods end. Runs of 100 and of 1,000 jobs show how each figure grows.
"""

import asyncio
import json
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from benchmarks import mixed_jobs
from benchmarks.connection import Connection, Target
from benchmarks.operator_creation import CONNECTIONS, OF_THE_SERVER, bare, create_all
from benchmarks.servers import GANGLINE, install_definitions, real_kubernetes

SIZES = (100, 1000)
PATIENCE_S = 300
MADE = {
    "Pod": "/api/v1/namespaces/{}/pods",
    "PodGroup": "/apis/scheduling.volcano.sh/v1beta1/namespaces/{}/podgroups",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Service": "/api/v1/namespaces/{}/services",
}
"""What the operator makes, and where."""
MERGE = "application/merge-patch+json"
_WRITES = re.compile(r'gangline_operator_writes_total\{kind="(\w+)",verb="(\w+)"\} (\S+)')


@dataclass(frozen=True)
class Figures:
    """What one run gave."""

    jobs: int
    created_s: float
    """Until all pods and services exist."""
    pods_s: float
    """Until all pods exist."""
    bare_s: float
    """The bare loop, for the same pods, services, PodGroups and ConfigMaps."""
    end_s: float
    """From the last pod's end to the last job's."""
    cpu_s: float
    cpu_at_creation_s: float
    """Of it, until all pods and services existed."""
    peak_mb: float
    live_mb: float
    """While all pods run."""
    writes: Counter[str]
    writes_at_creation: Counter[str]


class Operator:
    """The operator as a process, with its own account of what it did."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self._port = 18080
        self._process = subprocess.Popen(
            [*GANGLINE, "operator", "--metrics-bind-address", f"127.0.0.1:{self._port}"],
            env=os.environ | {"KUBECONFIG": str(kubeconfig)},
            stderr=(folder / "operator.log").open("wb"),
        )

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(30)

    def cpu_s(self) -> float:
        """Processor seconds so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self, field: str) -> float:
        """``VmRSS`` now, or ``VmHWM`` at most so far."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(rf"{field}:\s+(\d+) kB", status)
        assert found
        return int(found[1]) / 1024

    def writes(self) -> Counter[str]:
        """Requests that wrote, by ``Kind verb``."""
        with urlopen(f"http://127.0.0.1:{self._port}/metrics") as answer:
            text = answer.read().decode()
        return Counter({f"{kind} {verb}": int(float(n)) for kind, verb, n in _WRITES.findall(text)})

    def wait(self) -> None:
        """Until it serves."""
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


async def until(target: Target, paths: Iterable[str], wanted: int, claim=lambda item: True) -> None:
    """Wait until so many objects of which the claim holds are there."""
    listed = list(paths)
    while True:
        items = [item for path in listed for item in await everything(target, path)]
        if sum(map(claim, items)) >= wanted:
            return
        await asyncio.sleep(0.5)


async def made_all(
    target: Target, operator: Operator, before: Counter[str], wanted: dict[str, int], path: str
) -> tuple[float, float]:
    """The times when all pods, and all pods and services had been made.

    The operator's own count is asked, and checked with a list in the end: a watch of the API server
    of Kubernetes 1.20 now and then falls silent for good when much is made at once.

    Raises:
        TimeoutError: not within ``PATIENCE_S``; says how many there are.
    """
    times: dict[str, float] = {}
    until_s = time.monotonic() + PATIENCE_S
    while len(times) < len(wanted):
        written = await asyncio.to_thread(operator.writes)
        now = time.monotonic()
        for kind, count in wanted.items():
            if written[f"{kind} create"] - before[f"{kind} create"] >= count:
                times.setdefault(kind, now)
        if now > until_s:
            raise TimeoutError(f"wanted {wanted} under {path}, the operator has made {written}")
        await asyncio.sleep(0.1)
    for kind, count in wanted.items():
        there = len(await everything(target, f"{path}/{kind.lower()}s"))
        assert there == count, f"{there} of {count} {kind}s"
    return times["Pod"], max(times.values())


async def mark(target: Target, namespace: str, pods: list[dict], phase: str) -> None:
    """Pretend to be the kubelets of all pods."""
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


async def run(target: Target, operator: Operator, jobs: int) -> Figures:
    """One run, in namespaces of its own."""
    ours, peer = f"ours-{jobs}", f"bare-{jobs}"
    await create_all(
        target,
        [
            ("/api/v1/namespaces", json.dumps({"metadata": {"name": n}}).encode())
            for n in (ours, peer)
        ],
    )
    for namespace in (ours, peer):
        await until(target, [f"/api/v1/namespaces/{namespace}/serviceaccounts"], 1)
    core = f"/api/v1/namespaces/{ours}"
    pods_wanted = jobs * mixed_jobs.PODS
    # An MSJob has one service, for its scheduler.
    services_wanted = pods_wanted - (jobs // 5) * (mixed_jobs.PODS - 1)
    cpu, writes = operator.cpu_s(), operator.writes()
    begun = time.monotonic()
    await create_all(target, [mixed_jobs.request(number, ours) for number in range(jobs)])
    wanted = {"Pod": pods_wanted, "Service": services_wanted}
    pods_at, all_at = await made_all(target, operator, writes, wanted, core)
    pods_s, created_s = pods_at - begun, all_at - begun
    at_creation, cpu_at_creation = operator.writes() - writes, operator.cpu_s() - cpu
    made = {what: await everything(target, path.format(ours)) for what, path in MADE.items()}
    pods = made["Pod"]
    await mark(target, ours, pods, "Running")
    await until(target, mixed_jobs.lists(ours), jobs, _runs)
    live_mb = operator.memory_mb("VmRSS")
    await mark(target, ours, pods, "Succeeded")
    begun = time.monotonic()
    await until(target, mixed_jobs.lists(ours), jobs, mixed_jobs.ended)
    end_s = time.monotonic() - begun
    await asyncio.sleep(5)  # events, groups
    used, written = operator.cpu_s() - cpu, operator.writes() - writes
    requests = [
        (MADE[kind].format(peer), _bare(thing, kind, peer))
        for kind, things in made.items()
        for thing in things
        if thing["metadata"]["name"] != "kube-root-ca.crt"
    ]
    begun = time.monotonic()
    await create_all(target, requests)
    bare_s = time.monotonic() - begun
    peak = operator.memory_mb("VmHWM")
    return Figures(
        jobs,
        created_s,
        pods_s,
        bare_s,
        end_s,
        used,
        cpu_at_creation,
        peak,
        live_mb,
        written,
        at_creation,
    )


def _bare(thing: dict, kind: str, namespace: str) -> bytes:
    if kind in ("ConfigMap", "PodGroup"):
        thing = {k: v for k, v in thing.items() if k in ("data", "spec", "apiVersion", "metadata")}
        metadata = {k: v for k, v in thing["metadata"].items() if k not in OF_THE_SERVER}
        whole = {"apiVersion": "v1", "kind": kind} | thing
        return json.dumps(whole | {"metadata": metadata | {"namespace": namespace}}).encode()
    made = json.loads(bare(thing, kind))
    made["metadata"]["namespace"] = namespace
    if made["spec"].get("clusterIP") != "None":
        made["spec"].pop("clusterIP", None)
    return json.dumps(made).encode()


def _runs(job: dict) -> bool:
    told = job.get("status", {}).get("conditions", [])
    return any(c["type"] == "Running" and c["status"] == "True" for c in told)


def show(figures: Figures) -> None:
    """Print what a run gave."""
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
        f"and took {figures.cpu_at_creation_s:.1f} s of processor time"
    )
    print(f"  from the last pod's end to the last job's: {figures.end_s:.1f} s")
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


async def measure(kubeconfig: Path, operator: Operator) -> list[Figures]:
    """All runs, the smallest first."""
    target = await Target.of(kubeconfig)
    return [await run(target, operator, jobs) for jobs in SIZES]


def main() -> None:
    """Start a Kubernetes and the operator, measure, print."""
    with real_kubernetes() as kubeconfig, tempfile.TemporaryDirectory() as folder:
        install_definitions(kubeconfig)
        operator = Operator(kubeconfig, Path(folder))
        try:
            operator.wait()
            time.sleep(3)
            for figures in asyncio.run(measure(kubeconfig, operator)):
                show(figures)
        finally:
            operator.stop()


if __name__ == "__main__":
    main()
