"""What facts for the Brain cost: step time, the master's processor, their size, writes.

Everything is compared with itself in one run: two equal models train in turn, one of them
reporting, and one master gets heartbeats in turn with and without reports. Steps are measured in
processor time of one thread, which other load of the machine hardly changes.
"""

import asyncio
import itertools
import os
import secrets
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import uvloop
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from benchmarks.elastic.master_load import AGENTS, PATIENCE_S, joins, start_master
from gangline.elastic.master.facts.collector import FactsCollector
from gangline.elastic.master.facts.publication import PUBLISH_EVERY_S
from gangline.elastic.master.segments.document import ReportedJob, encode_facts
from gangline.elastic.master.state.goodput import GoodputAccount
from gangline.elastic.progress import PROGRESS_VARIABLE, ReportedShape, StepTimes
from gangline.elastic.protocol.channel import JobSecret
from gangline.elastic.protocol.client import ClientIdentity, MasterClient
from gangline.elastic.protocol.messages import (
    Heartbeat,
    NodeReport,
    NodeResources,
    WorldInfo,
    WorldMember,
)
from gangline.elastic.trainer.loader import ElasticDataLoader, ElasticDistributedSampler
from gangline.elastic.trainer.trainer import ElasticTrainer

WIDTHS = (32, 768)
"""A small model, whose steps show the added time, and a larger one, which shows the ratio."""
BATCH, BLOCK_STEPS, BLOCKS = 64, 50, 30
"""A block holds one measurement of noise, as every 50 steps do."""
LOAD_S, LOAD_ROUNDS = 10, 4
REPORT_EVERY_S = 5
EPOCH_MS = 1_700_000_000_000


# Step time


def training(reports: bool, width: int, folder: Path) -> Any:
    """Return a generator that trains a block for each element; it yields seconds per step."""
    path = folder / f"progress-{reports}"
    os.environ.pop(PROGRESS_VARIABLE, None)
    if reports:
        os.environ[PROGRESS_VARIABLE] = str(path)
    layers = [torch.nn.Linear(width, width), torch.nn.ReLU()] * 4
    model = DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.Linear(width, 1)))
    data = TensorDataset(torch.randn(BATCH * BLOCK_STEPS, width))
    sampler = ElasticDistributedSampler(data, global_batch_size=BATCH)
    loader: Any = ElasticDataLoader(data, BATCH // 2, sampler)
    trainer = ElasticTrainer(model, loader)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=1e-6))
    os.environ.pop(PROGRESS_VARIABLE, None)
    for epoch in itertools.count():
        began = time.process_time()
        with trainer.epoch(epoch):
            for (records,) in loader:
                with trainer.step():
                    optimizer.zero_grad()
                    model(records).mean().backward()
                    optimizer.step()
        yield (time.process_time() - began) / BLOCK_STEPS


def step_times(width: int) -> list[tuple[float, float]]:
    """Seconds per step without and with reports, in alternating blocks."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        plain, reporting = training(False, width, Path(name)), training(True, width, Path(name))
        for each in (plain, reporting):
            next(each)
        pairs = []
        for number in range(BLOCKS):
            if number % 2:
                second, first = next(reporting), next(plain)
            else:
                first, second = next(plain), next(reporting)
            pairs.append((first, second))
        dist.destroy_process_group()
    return pairs


# The master


def processor_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def report(node: int, step: int) -> NodeReport:
    """A complete report of a node with eight GPUs."""
    return NodeReport(
        batch_size=8, accumulation=4, compute_s=0.4, sync_s=0.08, data_s=0.002, grad_sqr=1e-4,
        grad_var=98.7, device_peak_bytes=(71_000_000_000,) * 8, global_batch=256_000,
        device_model="NVIDIA H100 80GB HBM3", step_times=StepTimes(max(1, step), 0.5, 0.1),
        model=ReportedShape(7_000_000_000, 32, 4096, 32, 32_000, 4096),
        pod=f"train-edljob-worker-{node}", memory_peak_bytes=90_000_000_000, tuning_version=3,
    )  # fmt: skip


async def load(clients: list[MasterClient], pid: int, *, reports: bool, first: int) -> float:
    """Share of a processor that the master uses for a heartbeat a second of each agent."""

    async def beat(node: int, client: MasterClient) -> None:
        await asyncio.sleep(node / len(clients))
        for second in range(LOAD_S):
            began = time.perf_counter()
            step = (first + second) * 2 + 1
            is_due = reports and (second + node) % REPORT_EVERY_S == 0
            await client.call(
                Heartbeat(
                    node_id=node, incarnation="a", round=1, step=step, first_step=1,
                    phase="training", resources=NodeResources(7.5, 80_000_000_000),
                    node=report(node, step) if is_due else None,
                )
            )  # fmt: skip
            await asyncio.sleep(max(0.0, 1.0 - (time.perf_counter() - began)))

    before, began = processor_s(pid), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for node, client in enumerate(clients):
            group.create_task(beat(node, client))
    return (processor_s(pid) - before) / (time.perf_counter() - began)


async def master_loads() -> list[tuple[float, float]]:
    """Use of a processor without and with reports, in turn."""
    with tempfile.TemporaryDirectory() as name:
        text = secrets.token_hex(32)
        secret = JobSecret(bytes.fromhex(text))
        master, port, _ = start_master(Path(name), text)
        try:
            address = f"127.0.0.1:{port}"
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
            await joins(clients)
            await load(clients, master.pid, reports=True, first=0)
            pairs = []
            for number in range(LOAD_ROUNDS):
                first = (2 * number + 1) * LOAD_S
                plain = await load(clients, master.pid, reports=False, first=first)
                reporting = await load(clients, master.pid, reports=True, first=first + LOAD_S)
                pairs.append((plain, reporting))
            for client in clients:
                await client.close()
        finally:
            master.kill()
            master.wait()
    return pairs


# Size and writes


@dataclass(slots=True)
class Publication:
    """What a job of many nodes publishes in two hours of steady training."""

    largest_bytes: int = 0
    writes: int = 0
    minutes: float = 0.0
    digest_us: float = 0.0
    """Processor time of the digest for each heartbeat with a report."""


def publication(nodes: int, seconds: int) -> Publication:
    """Simulate a job on a virtual clock."""
    members = tuple(WorldMember(node, node, node, 8, node * 8, f"h{node}") for node in range(nodes))
    world = WorldInfo(round=1, members=members, store_host="", store_port=1)
    state = SimpleNamespace(world=world, is_broken=False, members=dict.fromkeys(range(nodes)))
    persistent = SimpleNamespace(account=GoodputAccount(), attempts={})
    core: Any = SimpleNamespace(
        rendezvous=SimpleNamespace(state=state), state=SimpleNamespace(persistent=persistent)
    )
    clock = 0.0
    checks: Any = SimpleNamespace(ended=0, outcomes={})
    facts = FactsCollector(
        core, lambda: clock, checks, lambda: 1_700_000_000_000 + int(clock * 1e3)
    )
    found, published, not_before, observed = Publication(minutes=seconds / 60), 0, 0.0, 0
    spent_s = 0.0
    for second in range(0, seconds, REPORT_EVERY_S):
        clock = float(second)
        heartbeats = [
            Heartbeat(
                node_id=node, round=1, step=second * 2 + 1, first_step=1,
                node=report(node, second * 2), resources=NodeResources(7.5, 1),
            )
            for node in range(nodes)
        ]  # fmt: skip
        began = time.perf_counter()
        for heartbeat in heartbeats:
            facts.observe(heartbeat)
        spent_s, observed = spent_s + time.perf_counter() - began, observed + nodes
        if facts.changes != published and clock >= not_before:
            published, not_before = facts.changes, clock + PUBLISH_EVERY_S
            written = encode_facts(ReportedJob("train", "team", "u" * 36), facts.content())
            found.largest_bytes = max(found.largest_bytes, len(written))
            found.writes += 1
    found.digest_us = spent_s / observed * 1e6
    return found


def main() -> None:
    """Print ratios and shares."""
    for width in WIDTHS:
        pairs = step_times(width)
        ratios = sorted(second / first for first, second in pairs)
        step_ms = statistics.median(first for first, _ in pairs) * 1e3
        more_us = statistics.median(second - first for first, second in pairs) * 1e6
        low, high = ratios[len(ratios) // 4], ratios[-len(ratios) // 4]
        print(f"a step of {step_ms:.2f} ms, {len(pairs)} pairs of blocks of {BLOCK_STEPS} steps")
        print(f"  more with reports          {more_us:7.0f} us")
        ratio = f"{statistics.median(ratios):7.4f}    (quartiles {low:.4f}, {high:.4f})"
        print(f"  with / without reports     {ratio}")
    loads = uvloop.run(master_loads())
    plain = statistics.median(first for first, _ in loads)
    more = statistics.median(second - first for first, second in loads)
    print(f"a master of {AGENTS} agents, a heartbeat a second, {len(loads)} pairs of {LOAD_S} s")
    print(f"  processor without reports  {plain:7.1%}")
    print(f"  more with reports          {more:7.1%}    (ratio {1 + more / plain:.3f})")
    for nodes, seconds in ((16, 7200), (AGENTS, 1800)):
        found = publication(nodes, seconds)
        print(f"facts of {nodes} nodes in {found.minutes:.0f} minutes of steady training")
        print(f"  largest                    {found.largest_bytes / 1024:7.1f} KiB")
        print(f"  writes                     {found.writes / found.minutes:7.2f} a minute")
        print(f"  digest of a report         {found.digest_us:7.1f} us")


if __name__ == "__main__":
    main()
