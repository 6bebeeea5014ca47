"""Can one user slow the others down? Requests of one user while another one attacks.

``python -m benchmarks.cluster.isolation [ATTACK ...]``

One process attacks as a user without administrator rights (``attacks``); this process sends GETs of
a small object as another user, and measures them. A node of the cluster renews its lease meanwhile.
At the end, 200 clients put load on the cluster, and its memory after a minute without them is
compared with that before. ``GANGLINE_BENCHMARK_UP`` names another command that starts the cluster,
such as ``gangline up`` of an earlier version.
"""

import asyncio
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from benchmarks.cluster.attacks import ATTACKS, CONFIG_MAPS, impersonating, prepare
from benchmarks.cluster.connection import Connection, Target
from benchmarks.cluster.servers import FAKE_CLUSTER, embedded

SAMPLES = 200
INTERVAL_S = 0.05
ANSWER_TIMEOUT_S = 60.0
LIMIT_S = 120.0
"""Longest time of one attack: fewer samples are taken if the server does not answer in it."""
WARM_UP_S = 2.0
PROBE = "/api/v1/namespaces/default"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
P99_BOUND_MS = 250
CLIENTS, LOAD_S, REST_S = 200, 20, 60
MEMORY_BOUND = 1.3


@dataclass(frozen=True, slots=True)
class Latencies:
    """The GETs during one attack."""

    seconds: list[float]
    failures: int
    lease_age_s: float
    """The greatest time since the last renewal of a node's lease."""
    memory_mb: float
    """The greatest resident set of the cluster."""

    def row(self, name: str) -> str:
        """Return the row of the table."""
        ordered = sorted(self.seconds) or [float("nan")]
        p50 = statistics.median(ordered) * 1000
        p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000
        return (
            f"  {name:18} {len(self.seconds):5d} {p50:9.1f} {p99:9.1f} {ordered[-1] * 1000:9.1f} "
            f"{self.failures:9d} {self.lease_age_s:9.1f} {self.memory_mb:10.0f}"
        )


def resident_mb(pid: int) -> float:
    """Memory of a process and its children in megabytes (10^6 bytes)."""
    main = psutil.Process(pid)
    return sum(p.memory_info().rss for p in (main, *main.children(recursive=True))) / 1e6


async def get(target: Target, connection: Connection | None, path: str) -> tuple[Connection, bytes]:
    """Return the answer to a GET, on the given connection or a new one."""
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        connection = connection or await Connection.open(target)
        code, answer = await connection.request("GET", path)
    if code != 200:
        raise ConnectionError(f"answered {code}")
    return connection, answer


def oldest_lease_s(answer: bytes) -> float:
    """Return the time since the last renewal of the lease that was not renewed for longest."""
    renewals = [lease["spec"]["renewTime"] for lease in json.loads(answer)["items"]]
    now = datetime.now(UTC)
    return max((now - datetime.fromisoformat(at)).total_seconds() for at in renewals)


async def measure(target: Target, pid: int) -> Latencies:
    """Send ``SAMPLES`` GETs and measure each."""
    seconds: list[float] = []
    failures, lease_age, memory = 0, 0.0, resident_mb(pid)
    connection: Connection | None = None
    deadline = time.monotonic() + LIMIT_S
    while len(seconds) < SAMPLES and time.monotonic() < deadline:
        begun = time.monotonic()
        try:
            connection, _ = await get(target, connection, PROBE)
        except (OSError, EOFError, TimeoutError):
            connection, failures = None, failures + 1
        seconds.append(time.monotonic() - begun)
        if len(seconds) % 20 == 0 and connection is not None:
            memory = max(memory, resident_mb(pid))
            with_leases = await get(target, connection, LEASES)
            lease_age = max(lease_age, oldest_lease_s(with_leases[1]))
        await asyncio.sleep(max(0.0, INTERVAL_S - (time.monotonic() - begun)))
    if connection is not None:
        connection.close()
    return Latencies(seconds, failures, lease_age, memory)


async def under_attack(kubeconfig: Path, name: str, pid: int) -> Latencies:
    """Measure while an attack runs."""
    target = impersonating(await Target.of(kubeconfig), "alice")
    command = [sys.executable, "-m", "benchmarks.cluster.attacks", str(kubeconfig), name]
    # An attacker has a machine of its own: here it only uses what the cluster and we leave.
    attacker = await asyncio.create_subprocess_exec(
        "nice", "-n", "19", *command, stderr=subprocess.DEVNULL
    )
    try:
        await asyncio.sleep(WARM_UP_S)
        return await measure(target, pid)
    finally:
        if attacker.returncode is None:
            attacker.kill()
        else:
            print(f"  {name}: the attack has ended early", flush=True)
        await attacker.wait()


async def load(target: Target) -> None:
    """One client: it lists, creates, and deletes."""
    name = f"load-{id(asyncio.current_task())}"
    body = json.dumps({"metadata": {"name": name}, "data": {"text": "x" * 20_000}}).encode()
    try:
        connection = await Connection.open(target)
    except OSError:
        return
    try:
        while True:
            await connection.request("GET", CONFIG_MAPS)
            await connection.request("POST", CONFIG_MAPS, body)
            await connection.request("DELETE", f"{CONFIG_MAPS}/{name}")
    except (OSError, EOFError):
        await asyncio.sleep(1)
    finally:
        connection.close()


async def memory_after_load(kubeconfig: Path, pid: int) -> None:
    """Print the memory before, during and after the load of ``CLIENTS`` clients."""
    target = impersonating(await Target.of(kubeconfig), "alice")
    await asyncio.sleep(REST_S / 2)
    before = most = resident_mb(pid)
    clients = [asyncio.create_task(load(target)) for _ in range(CLIENTS)]
    for _ in range(LOAD_S):
        await asyncio.sleep(1)
        most = max(most, resident_mb(pid))
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    await asyncio.sleep(REST_S)
    after = resident_mb(pid)
    print(
        f"memory: {before:.0f} MB before {CLIENTS} clients, {most:.0f} MB at most, "
        f"{after:.0f} MB {REST_S} s after them: {after / before:.2f} "
        f"(to reach: at most {MEMORY_BOUND})"
    )


async def run(kubeconfig: Path, pid: int, names: list[str]) -> None:
    """Measure all attacks, then the memory."""
    admin = await Target.of(kubeconfig)
    await prepare(admin)
    print(f"GETs of one user while another one attacks (to reach: p99 under {P99_BOUND_MS} ms)")
    print("  attack             GETs    p50 ms    p99 ms    max ms  failures   lease s  memory MB")
    print((await measure(impersonating(admin, "alice"), pid)).row("none"), flush=True)
    for name in names:
        print((await under_attack(kubeconfig, name, pid)).row(name), flush=True)
    await memory_after_load(kubeconfig, pid)


def main() -> None:
    names = [name for name in sys.argv[1:] if name in ATTACKS] or list(ATTACKS)
    program = shlex.split(os.environ.get("GANGLINE_BENCHMARK_UP", "")) or FAKE_CLUSTER
    with embedded("--nodes", "1", "--cpus", "10", program=program) as (kubeconfig, process):
        asyncio.run(run(kubeconfig, process.pid, names))


if __name__ == "__main__":
    main()
