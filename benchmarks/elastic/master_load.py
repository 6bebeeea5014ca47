"""A master with 1,000 simulated agents: joins, heartbeats, data shards, memory.

The agents are one process on the same machine, with one connection each, so half of the measured
work is theirs. The figures of DLRover's master were measured on a similar machine (its own client
in a loop, one call after the other); it is not run here.
"""

import asyncio
import os
import re
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop

from gangline.elastic.protocol.channel import JobSecret
from gangline.elastic.protocol.client import BlockingClient, ClientIdentity, MasterClient
from gangline.elastic.protocol.messages import Heartbeat, Join, ShardReply, ShardRequest, WorldInfo
from gangline.elastic.shards import dataset, events

AGENTS = 1000
PAIRS_EACH = 30
SEQUENTIAL_PAIRS = 2000
HEARTBEAT_ROUNDS = 5
RUNS = 7
PATIENCE_S = 120


@dataclass(frozen=True, slots=True)
class Figures:
    """The result of one run."""

    start_s: float
    idle_mb: float
    joins_s: float
    heartbeat_p50_ms: float
    heartbeat_p99_ms: float
    pairs_per_s: float
    sequential_pairs_per_s: float
    full_mb: float


def resident_mb(pid: int) -> float:
    """The resident set of a process in megabytes (10^6 bytes)."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found.group(1)) * 1024 / 1e6


def start_master(folder: Path, secret: str) -> tuple["subprocess.Popen[bytes]", int, float]:
    """Start a master with a journal in ``folder``; return it, its port and its start time."""
    port_file = folder / "port"
    began = time.perf_counter()
    master = subprocess.Popen(
        [sys.executable, "-m", "gangline.elastic.master", "--job-name", "bench", "--port", "0",
         "--journal", str(folder / "journal"), "--port-file", str(port_file),
         "--log-level", "warning"],
        env={**os.environ, "GANGLINE_JOB_SECRET": secret},
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    while not port_file.exists():
        time.sleep(0.002)
    return master, int(port_file.read_text()), time.perf_counter() - began


async def joins(clients: list[MasterClient]) -> float:
    """Seconds from the first Join until all agents have received the complete world."""

    async def join(client: MasterClient, wish: Join) -> None:
        """Join and check the own rank; discard the world, as a thousand of them would fill the
        memory.
        """
        world = await client.ask(wish, WorldInfo, timeout_s=PATIENCE_S)
        place = next(each for each in world.members if each.node_id == wish.node_id)
        assert (place.group_rank, len(world.members)) == (wish.node_rank, AGENTS), place

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for node, client in enumerate(clients):
            wish = Join(
                node_id=node, incarnation="a", number=1, node_rank=node, local_world_size=8,
                host=f"10.0.{node >> 8}.{node & 255}", agent_address=f"10.0.0.1:{node}",
                store_port=29500, min_nodes=AGENTS, max_nodes=AGENTS,
            )  # fmt: skip
            group.create_task(join(client, wish))
    return time.perf_counter() - began


async def heartbeats(clients: list[MasterClient]) -> list[float]:
    """Durations of heartbeats, sent evenly over each second."""
    taken: list[float] = []

    async def beat(node: int, client: MasterClient) -> None:
        await asyncio.sleep(node / len(clients))
        for _ in range(HEARTBEAT_ROUNDS):
            began = time.perf_counter()
            await client.call(Heartbeat(node_id=node, incarnation="a", round=1, step=1))
            passed = time.perf_counter() - began
            taken.append(passed)
            await asyncio.sleep(1.0 - passed)

    async with asyncio.TaskGroup() as group:
        for node, client in enumerate(clients):
            group.create_task(beat(node, client))
    return taken


async def pairs(clients: list[MasterClient]) -> float:
    """Shards fetched and reported per second, with a request each."""
    size = len(clients) * PAIRS_EACH
    table = dataset.Table(name="many", size=size * 100, shard_size=100)
    await clients[0].call(ShardRequest(event=events.RegisterDataset(table)))

    async def work(node: int, client: MasterClient) -> None:
        worker = f"{node}/0"
        for request in range(1, PAIRS_EACH + 1):
            take = events.TakeShards("many", worker, request)
            answer = (await client.ask(ShardRequest(event=take), ShardReply)).answer
            assert isinstance(answer, events.TakenShards), answer
            leases = tuple(shard.lease for shard in answer.shards)
            await client.call(ShardRequest(event=events.ShardReport("many", worker, done=leases)))

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for node, client in enumerate(clients):
            group.create_task(work(node, client))
    return size / (time.perf_counter() - began)


def sequential_pairs(address: str, secret: JobSecret) -> float:
    """The same by one program without an event loop, one call after the other."""
    with BlockingClient(address, secret) as client:
        table = dataset.Table(name="one", size=SEQUENTIAL_PAIRS * 100, shard_size=100)
        client.call(ShardRequest(event=events.RegisterDataset(table)))
        began = time.perf_counter()
        for request in range(1, SEQUENTIAL_PAIRS + 1):
            take = events.TakeShards("one", "w", request)
            answer = client.ask(ShardRequest(event=take), ShardReply).answer
            assert isinstance(answer, events.TakenShards), answer
            lease = answer.shards[0].lease
            client.call(ShardRequest(event=events.ShardReport("one", "w", done=(lease,))))
        return SEQUENTIAL_PAIRS / (time.perf_counter() - began)


async def measure() -> Figures:
    with tempfile.TemporaryDirectory() as name:
        text = secrets.token_hex(32)
        secret = JobSecret(bytes.fromhex(text))
        master, port, start_s = start_master(Path(name), text)
        try:
            idle_mb = resident_mb(master.pid)
            address = f"127.0.0.1:{port}"
            sequential = await asyncio.to_thread(sequential_pairs, address, secret)
            clients = [
                MasterClient(
                    address, secret, ClientIdentity("bench", node_id=node, incarnation="a")
                )
                for node in range(AGENTS)
            ]
            for client in clients:
                await client.__aenter__()
            for client in clients:
                await client.wait_connected(PATIENCE_S)
            joins_s = await joins(clients)
            beats = sorted(await heartbeats(clients))
            rate = await pairs(clients)
            full_mb = resident_mb(master.pid)
            for client in clients:
                await client.close()
        finally:
            master.kill()
            master.wait()
    return Figures(
        start_s, idle_mb, joins_s, statistics.median(beats) * 1e3,
        beats[int(len(beats) * 0.99)] * 1e3, rate, sequential, full_mb,
    )  # fmt: skip


def main() -> None:
    """Print the medians of all runs, and DLRover's figures."""
    runs = [uvloop.run(measure()) for _ in range(int(os.environ.get("RUNS", RUNS)))]

    def median(name: str) -> float:
        return statistics.median(getattr(run, name) for run in runs)

    print(f"a job's master and {AGENTS} simulated agents, medians of {len(runs)} runs")
    print(f"  start to open port         {median('start_s'):7.2f} s   (DLRover 1.39)")
    print(f"  memory, idle               {median('idle_mb'):7.0f} MB  (DLRover 117)")
    print(f"  memory, after all this     {median('full_mb'):7.0f} MB")
    print(f"  all joined, all have world {median('joins_s'):7.2f} s   (DLRover 0.68 + 0.67)")
    print(f"  heartbeat, median          {median('heartbeat_p50_ms'):7.2f} ms  (DLRover 0.49)")
    print(f"  heartbeat, 99 of 100       {median('heartbeat_p99_ms'):7.2f} ms  (DLRover 0.6)")
    print(f"  shards got and reported    {median('pairs_per_s'):7.0f} /s")
    one = median("sequential_pairs_per_s")
    print(f"  the same, one after other  {one:7.0f} /s  (DLRover 934)")


if __name__ == "__main__":
    main()
