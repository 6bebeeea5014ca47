"""Creates per second and watch latency of the embedded API server, compared with kube-apiserver.

Eight clients create ConfigMaps of about 1 kB at full speed while 100 watchers watch all of them.
Then, at half that rate, the time from the create request to the watcher's receipt is measured.
Clients and watchers are two separate processes, the same for both servers, over TLS.

Both servers are measured twice: without fsync (etcd's ``--unsafe-no-fsync``, our durability
``process``), and with it (etcd's default, our durability ``disk``).
"""

import asyncio
import json
import multiprocessing
import re
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from benchmarks import results
from benchmarks.cluster.connection import Connection, Target
from benchmarks.cluster.servers import embedded, kubernetes_version, real_kubernetes

CLIENTS = 8
WATCHERS = 100
SAMPLED_WATCHERS = 5
SECONDS = 8.0
TURNS, TURN_S = 12, 1.5
OPTIONS = ("--without", "operator", "--without", "scheduler", "--durability")
COLLECTION = "/api/v1/namespaces/default/configmaps"
MEASURED = (
    ("creates", "objects created per second", "objects/s"),
    ("watch_p50", "from a request to the watcher at half of the own maximum rate, p50", "ms"),
    ("watch_p99", "from a request to the watcher at half of the own maximum rate, p99", "ms"),
)
SENT_AT = re.compile(rb'"sent":"(\d+)"')


def body(name: str) -> bytes:
    """A ConfigMap that contains its time of sending."""
    data = {"sent": str(time.time_ns()), "filler": "x" * 800}
    return json.dumps({"metadata": {"name": name}, "data": data}).encode()


async def _watch(target: Target, sampled: bool, latencies: list[float], counts: list[int]) -> None:
    connection = await Connection.open(target)
    await connection.watch(f"{COLLECTION}?watch=true")
    counts.append(0)
    place = len(counts) - 1
    async for seen, piece in connection.count():
        counts[place] = seen
        if sampled:
            now = time.time_ns()
            latencies += [(now - int(sent)) / 1e6 for sent in SENT_AT.findall(piece)]


async def _watchers(kubeconfig: Path, pipe: Pipe) -> None:
    target = await Target.of(kubeconfig)
    latencies: list[float] = []
    counts: list[int] = []
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_watch(target, number < SAMPLED_WATCHERS, latencies, counts))
            for number in range(WATCHERS)
        ]
        while len(counts) < WATCHERS:
            await asyncio.sleep(0.05)
        pipe.send("ready")
        while (word := await asyncio.to_thread(pipe.recv)) != "end":
            if word == "forget":
                latencies.clear()
            pipe.send((sorted(latencies), min(counts), max(counts)))
        for task in tasks:
            task.cancel()


def watchers(kubeconfig: Path, pipe: Pipe) -> None:
    """The process of the watchers: answers ``forget`` and ``record`` with the latencies measured so
    far.
    """
    asyncio.run(_watchers(kubeconfig, pipe))


async def _create_all_out(target: Target, prefix: str, until: float) -> int:
    connection = await Connection.open(target)
    count = 0
    while time.monotonic() < until:
        code, answer = await connection.request("POST", COLLECTION, body(f"{prefix}-{count}"))
        if code != 201:
            raise ConnectionError(f"create answered {code}: {answer[:300]!r}")
        count += 1
    connection.close()
    return count


async def _create_paced(target: Target, prefix: str, rate: float, until: float) -> None:
    connection = await Connection.open(target)
    count, start = 0, time.monotonic()
    while (now := time.monotonic()) < until:
        if (due := start + count / rate) > now:
            await asyncio.sleep(due - now)
        await connection.request("POST", COLLECTION, body(f"{prefix}-{count}"))
        count += 1
    connection.close()


async def _measure(kubeconfig: Path, pipe: Pipe) -> tuple[float, float, float]:
    target = await Target.of(kubeconfig)
    until = time.monotonic() + SECONDS
    counts = await asyncio.gather(
        *(_create_all_out(target, f"top{number}", until) for number in range(CLIENTS))
    )
    rate = sum(counts) / SECONDS
    await asyncio.sleep(2)  # until the watchers have caught up
    pipe.send("forget")
    _, least, _ = pipe.recv()
    if least < sum(counts):
        print(f"  a watcher saw only {least} of {sum(counts)} creates two seconds later")
    until = time.monotonic() + SECONDS
    await asyncio.gather(
        *(
            _create_paced(target, f"half{number}", rate / 2 / CLIENTS, until)
            for number in range(CLIENTS)
        )
    )
    pipe.send("record")
    latencies, _, _ = pipe.recv()
    return rate, latencies[len(latencies) // 2], latencies[int(len(latencies) * 0.99)]


def measure(kubeconfig: Path) -> tuple[float, float, float]:
    """Creates per second; p50 and p99 of the watch latency in ms at half that rate."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=watchers, args=(kubeconfig, there), daemon=True)
    process.start()
    here.recv()
    try:
        return asyncio.run(_measure(kubeconfig, here))
    finally:
        process.kill()


async def _measure_share(plain: Path, synced: Path) -> tuple[float, float]:
    """Creates per second of one server, and the share of it that another reaches.

    Short runs in turn: what else the machine does then slows both.
    """
    targets = [await Target.of(plain), await Target.of(synced)]
    rates: list[list[float]] = [[], []]
    for turn in range(TURNS):
        for target, measured in zip(targets, rates, strict=True):
            until = time.monotonic() + TURN_S
            clients = (
                _create_all_out(target, f"turn{turn}-{number}", until) for number in range(CLIENTS)
            )
            measured.append(sum(await asyncio.gather(*clients)) / TURN_S)
    return sum(rates[0]) / TURNS, sum(rates[1]) / sum(rates[0])


def main() -> None:
    print(f"{CLIENTS} clients, {WATCHERS} watchers, ConfigMaps of 1 kB, TLS")
    figures: dict[str, results.Figure] = {}
    for durability in ("process", "disk"):
        with real_kubernetes(fsync=durability == "disk") as kubeconfig:
            peer = measure(kubeconfig)
        with embedded(*OPTIONS, durability) as (kubeconfig, _):
            ours = measure(kubeconfig)
        synced = "fsync" if durability == "disk" else "no fsync"
        for name, (rate, median, last) in (("kube-apiserver + etcd", peer), ("embedded", ours)):
            print(
                f"  {f'{name}, {synced}':32} {rate:7.0f} creates/s; watch latency at half of that: "
                f"p50 {median:.1f} ms, p99 {last:.1f} ms"
            )
        print(f"  ratio of creates/s, {synced}: {ours[0] / peer[0]:.2f} (goal: 0.50)")
        figures |= {
            f"{key}_{durability}": results.Figure(
                f"{what}, {synced}", unit, ours[at], {"kube-apiserver": peer[at]}, key == "creates"
            )
            for at, (key, what, unit) in enumerate(MEASURED)
        }
    with embedded(*OPTIONS, "process") as (plain, _), embedded(*OPTIONS, "disk") as (synced, _):
        without, share = asyncio.run(_measure_share(plain, synced))
    print(
        f"  embedded, no watchers, in turn: {without:.0f} creates/s without fsync; "
        f"with fsync {share:.2f} of that (goal: 0.70)"
    )
    conditions = f"{CLIENTS} clients create ConfigMaps of 1 kB, {WATCHERS} watchers, TLS"
    results.write("api_server", conditions, figures, kubernetes_version())


if __name__ == "__main__":
    main()
