"""10,000 nodes and 100,000 pods from creation to running, and what then happens to them.

``python -m benchmarks.scheduler.end_to_end [--small] [--nodes N --pods N --churn-minutes M ...]``

The API server, the scheduler, the kubelets of all nodes (``fake_kubelets``) and the clients of this
benchmark are one process each. It measures the embedded API server and, where there is one, a real
Kubernetes, in these phases:

1. The nodes are created; then the pods, in gangs, as fast as the server takes them. With
   ``--placed`` the pods are on their nodes before the scheduler starts: on the embedded server they
   are in its state file (``stored_state``), which takes seconds. The phases that follow are the
   same.
2. Churn: jobs end and are deleted, and others come, at a steady rate.
3. A backlog of pods, bound by a bare client that decides nothing and by our scheduler, in turn. The
   kubelets write nothing meanwhile, so that the two differ in the client only.
4. The scheduler starts again beside all pods (with ``--placed`` before the churn).
5. Nodes are lost together; other pods replace those that ran there.
6. A job of higher priority, larger than what is free, preempts.

Latencies of requests are those that the server itself reports; all other times are those at which
the watch of the kubelets has shown a change.
"""

import argparse
import asyncio
import contextlib
import json
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from statistics import median

import uvloop

from benchmarks import results
from benchmarks.cluster.connection import Clients, Target
from benchmarks.cluster.servers import (
    KUBERNETES_BINARIES,
    embedded,
    install_definitions,
    kubernetes_version,
    processor_s,
    real_kubernetes,
    real_kubernetes_scripts,
    settle,
)
from benchmarks.operator.creation import create_all
from benchmarks.scheduler import bind, fake_kubelets, stored_state
from benchmarks.scheduler.fake_kubelets import BOUND, RUNNING
from benchmarks.scheduler.jobs import NAMESPACE, Job, node, node_name, numbered_job, pod
from benchmarks.scheduler.observations import (
    Histograms,
    Measured,
    SchedulerProcess,
    Timeline,
    Usage,
    memory_mib,
    share,
)

URGENT = "urgent"
CREATORS = 8
"""Connections that create and delete."""
EMBEDDED, KUBERNETES = "embedded", "kubernetes"
RENEWALS_PER_S = 250
"""The most leases that are renewed each second on the embedded server."""
SHOWN_EVERY_S = 60.0
"""Interval between the figures of a long phase."""
MILLI = 1000


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is run; see ``--help``."""

    nodes: int
    pods: int
    gang: int
    churn_s: float
    churn_rate: float
    lost: int
    preempting: int
    backlog: int
    turns: int
    placed: bool
    """Whether the first pods are created on their nodes, not scheduled."""
    lease_s: float
    """Interval between renewals of the lease of a node, 10 seconds as kubelets have it; 0: none."""

    @property
    def pods_per_node(self) -> int:
        """Processors of a node: some stay free even without the nodes that are lost."""
        return math.ceil(self.pods * 1.03 / (self.nodes - self.lost))


SMALL = Sizes(200, 2_000, 8, 15.0, 40.0, 10, 400, 400, 1, False, 10.0)
FULL = Sizes(10_000, 100_000, 8, 900.0, 100.0, 500, 20_000, 3_000, 3, False, 10.0)


class Run:
    """One server with its cluster: runs the phases and prints what each has measured."""

    def __init__(
        self,
        name: str,
        sizes: Sizes,
        kubeconfig: Path,
        servers: Mapping[str, int],
        scheduler: SchedulerProcess,
    ) -> None:
        self.name, self.sizes, self.scheduler = name, sizes, scheduler
        self._kubeconfig, self._servers = kubeconfig, servers
        self._live: deque[Job] = deque()
        """Running jobs, the oldest first."""
        self._serial = 0
        self.figures: dict[str, results.Figure] = {}

    async def run(self, target: Target, pipe: Pipe, kubelets: int) -> None:
        self._target, self._pipe = target, pipe
        self._clients, self._kubelets = Clients(target, CREATORS), kubelets
        self._timeline = Timeline(pipe)
        if self.sizes.placed:
            await self.place()
            await self.restart()
        else:
            await self.fill()
        if self.sizes.churn_s:
            await self.churn()
        if self.sizes.turns:
            await self.compare()
        if not self.sizes.placed:
            await self.restart()
        if self.sizes.lost:
            await self.lose_nodes()
        if self.sizes.preempting:
            await self.preempt()
        self._show_ends()

    def _figure(
        self,
        key: str,
        what: str,
        unit: str,
        value: float,
        peers: dict[str, results.Value | None] | None = None,
        *,
        higher: bool = False,
    ) -> None:
        self.figures[f"{self.name}_{key}"] = results.Figure(
            f"{self.name}: {what}", unit, value, peers or {}, higher_is_better=higher
        )

    async def _usage(self, counters: dict[str, float] | None = None) -> Usage:
        _, answer = await self._clients.send("GET", "/metrics")
        counters = counters or await asyncio.to_thread(self.scheduler.counters)
        pids = {
            **self._servers,
            "scheduler": self.scheduler.pid,
            "kubelets": self._kubelets,
            "clients": os.getpid(),
        }
        spent = {name: processor_s(pid) for name, pid in pids.items()}
        return Usage(time.monotonic(), spent, Histograms(answer.decode()), counters)

    @contextlib.asynccontextmanager
    async def _phase(
        self, title: str, counters: dict[str, float] | None = None, pods: int = 0
    ) -> AsyncIterator[Measured]:
        """Measure what happens inside; print it at the end.

        Args:
            title: its name.
            counters: those of the scheduler at the start, if it is stopped and cannot answer.
            pods: the pods that are bound meanwhile, if not by the scheduler.
        """
        measured = Measured()
        before = await self._usage(counters)
        progress = asyncio.create_task(self._show_progress(title))
        try:
            yield measured
        finally:
            progress.cancel()
        after = await self._usage()
        measured.took_s = after.at - before.at
        counters = {name: value - before.scheduler[name] for name, value in after.scheduler.items()}
        measured.bindings = pods or counters["bindings"]
        measured.deciding_s = counters["cycle_s"] - counters["apply_s"]
        measured.requests = after.requests.since(before.requests)
        measured.processor_ms = {
            name: (spent - before.processor_s[name]) * MILLI / max(1, measured.bindings)
            for name, spent in after.processor_s.items()
        }
        spent = ", ".join(f"{name} {ms:.2f}" for name, ms in measured.processor_ms.items())
        asked = "; ".join(
            f"{verb} {count:,}, {p50 * MILLI:.1f}, {p99 * MILLI:.0f}"
            for verb, (count, p50, p99) in measured.requests.items()
        )
        print(f"  {title}: {measured.took_s:.1f} s, {measured.bindings:,.0f} pods bound")
        print(f"    processor time for each bound pod, ms: {spent}")
        print(f"    requests by verb: number, p50, p99 in ms: {asked}")
        if measured.deciding_s and not pods:
            rate = measured.bindings / measured.deciding_s
            print(
                f"    decisions: {rate:,.0f} pods for each second of {counters['cycles']:,.0f} "
                f"cycles, which took {measured.deciding_s:.2f} s"
            )
        sys.stdout.flush()

    async def _show_progress(self, title: str) -> None:
        begun, line = time.monotonic(), self._timeline
        while True:
            await asyncio.sleep(SHOWN_EVERY_S)
            print(
                f"    {title}, {time.monotonic() - begun:.0f} s: so far {len(line.created):,} pods "
                f"created, {len(line.running):,} running, {len(line.removed):,} removed",
                flush=True,
            )

    def _show_waits(self, keys: Sequence[str]) -> tuple[float, float]:
        """Print how long pods waited; return p50 and p99 from creation to binding."""
        line = self._timeline
        bound = line.waits(line.bound, keys)
        running = line.waits(line.running, keys)
        p50, p99 = share(bound, 0.5), share(bound, 0.99)
        print(
            f"    from creation to binding p50 {p50:.3f} s, p99 {p99:.3f} s; to running p50 "
            f"{share(running, 0.5):.3f} s, p99 {share(running, 0.99):.3f} s",
            flush=True,
        )
        return p50, p99

    def _new_job(self, namespace: str = NAMESPACE) -> Job:
        self._serial += 1
        return numbered_job(self._serial, self.sizes.gang, namespace)

    async def _create(self, job: Job, nodes: Iterator[str] | None = None) -> None:
        """Create a job: its group, then its pods one after the other, on ``nodes`` if given."""
        path = f"{bind.GROUPS}/{job.namespace}/podgroups"
        await self._clients.send("POST", path, job.group())
        for key in job.keys:
            await self._create_pod(job, key, next(nodes) if nodes is not None else "")

    async def _create_pod(self, job: Job, key: str, on_node: str = "") -> None:
        namespace, _, name = key.partition("/")
        body = pod(name, job.name, "gangline", job.priority_class, on_node)
        await self._clients.send("POST", f"/api/v1/namespaces/{namespace}/pods", body)
        self._timeline.created[key] = time.monotonic()

    async def _create_jobs(self, jobs: Iterable[Job]) -> None:
        await self._all(self._create, jobs)

    async def _all(self, work: Callable, items: Iterable) -> None:
        """Do the work for all items, ``CREATORS`` at a time."""
        pending = iter(items)

        async def worker() -> None:
            for item in pending:
                await work(item)

        await asyncio.gather(*(worker() for _ in range(CREATORS)))

    async def _end(self, job: Job) -> None:
        """Let the pods of a job succeed, and delete it, as the TTL of a job does."""
        status = json.dumps({"status": {"phase": "Succeeded"}}).encode()
        for key in job.keys:
            namespace, _, name = key.partition("/")
            path = f"/api/v1/namespaces/{namespace}/pods/{name}"
            form = "application/merge-patch+json"
            await self._clients.send("PATCH", f"{path}/status", status, form)
        await self._delete(job)

    async def _delete(self, job: Job) -> None:
        for key in job.keys:
            await self._delete_pod(key)
        path = f"{bind.GROUPS}/{job.namespace}/podgroups/{job.name}"
        await self._clients.send("DELETE", path)

    async def _delete_pod(self, key: str) -> None:
        namespace, _, name = key.partition("/")
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        await self._clients.send("DELETE", path, b'{"gracePeriodSeconds":0}')

    def _first_jobs(self) -> list[Job]:
        jobs = [self._new_job() for _ in range(self.sizes.pods // self.sizes.gang)]
        self._live += jobs
        return jobs

    async def place(self) -> None:
        """Create the pods on their nodes, one after the other on each."""
        jobs, nodes = self._first_jobs(), cycle(map(node_name, range(self.sizes.nodes)))
        keys = [key for job in jobs for key in job.keys]
        begun = time.monotonic()
        if self.name != EMBEDDED:
            await self._all(lambda job: self._create(job, nodes), jobs)
        created = time.monotonic()
        running = await self._timeline.wait(RUNNING, keys)
        print(
            f"  {len(keys):,} pods on their nodes: created after {created - begun:.1f} s, running "
            f"after {running - begun:.1f} s",
            flush=True,
        )

    async def fill(self) -> None:
        jobs = self._first_jobs()
        keys = [key for job in jobs for key in job.keys]
        async with self._phase("fill") as measured:
            begun = time.monotonic()
            await self._create_jobs(jobs)
            created = time.monotonic()
            bound = await self._timeline.wait(BOUND, keys)
            running = await self._timeline.wait(RUNNING, keys)
        rate = len(keys) / (bound - begun)
        print(
            f"    {len(keys):,} pods: created after {created - begun:.1f} s, bound after "
            f"{bound - begun:.1f} s ({rate:,.0f}/s), running after {running - begun:.1f} s"
        )
        p50, p99 = self._show_waits(keys)
        self._figure("bound", "pods created, bound and running a second", "pods/s",
                     len(keys) / (running - begun), higher=True)  # fmt: skip
        self._figure("fill_p50", "from creation to binding at full speed, p50", "s", p50)
        self._figure("fill_p99", "from creation to binding at full speed, p99", "s", p99)
        self._figure("fill_api", "p99 of the slowest verb, at full speed", "s", measured.worst_p99)
        for name, ms in measured.processor_ms.items():
            self._figure(f"fill_{name}", f"processor time of {name} for each pod", "ms", ms)

    async def churn(self) -> None:
        sizes = self.sizes
        count = int(sizes.churn_s * sizes.churn_rate / sizes.gang)
        made: list[Job] = []
        # A server that is slower than the rate gets fewer jobs, not more of them at a time: then
        # thousands of gangs would wait for their pods, and the scheduler with them.
        slots = asyncio.Semaphore(CREATORS)

        async def turn_over(ending: Job, coming: Job) -> None:
            await asyncio.gather(self._end(ending), self._create(coming))
            slots.release()

        async with self._phase("churn") as measured, asyncio.TaskGroup() as tasks:
            due = begun = time.monotonic()
            while len(made) < count and time.monotonic() < begun + sizes.churn_s:
                await slots.acquire()
                job = self._new_job()
                made.append(job)
                tasks.create_task(turn_over(self._live.popleft(), job))
                self._live.append(job)
                due += sizes.gang / sizes.churn_rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))
        keys = [key for job in made for key in job.keys]
        await self._timeline.wait(RUNNING, keys)
        p50, p99 = self._show_waits(keys)
        rate = len(keys) / measured.took_s
        print(
            f"    {len(keys):,} pods ended and came, {rate:.0f}/s; planned: {sizes.churn_rate:g}/s"
        )
        self._figure("churn_p50", "from creation to binding in churn, p50", "s", p50)
        self._figure("churn_p99", "from creation to binding in churn, p99", "s", p99)
        self._figure("churn_api", "p99 of the slowest verb in churn", "s", measured.worst_p99)
        if measured.deciding_s:
            rate = measured.bindings / measured.deciding_s
            what = "pods decided in churn for each second of cycles"
            self._figure("decisions", what, "pods/s", rate, higher=True)

    async def compare(self) -> None:
        """Bind the same number of pods by the bare client and by ours, in turn."""
        bare: list[float] = []
        ours: list[float] = []
        jobs = self.sizes.backlog // self.sizes.gang
        await self._all(self._end, [self._live.popleft() for _ in range(jobs)])
        for turn in range(self.sizes.turns):
            bare.append(await self._bind_bare(jobs * self.sizes.gang, f"bare-{turn}"))
            ours.append(await self._bind_ours(jobs, f"ours-{turn}"))
        print(f"  backlog of {jobs * self.sizes.gang:,} pods, bound a second:")
        for name, rates in (("bare client", bare), ("ours", ours)):
            print(f"    {name}: {', '.join(f'{rate:,.0f}' for rate in rates)}")
        print(f"    ratio of the medians: {median(ours) / median(bare):.2f} (goal: 0.9)")
        self._figure("backlog", "pods of a backlog bound a second", "pods/s", median(ours),
                     {"bare client": median(bare)}, higher=True)  # fmt: skip
        refill = [self._new_job() for _ in range(jobs)]
        await self._create_jobs(refill)
        self._live += refill
        await self._timeline.wait(RUNNING, [key for job in refill for key in job.keys])

    async def _bind_bare(self, count: int, namespace: str) -> float:
        path = f"/api/v1/namespaces/{namespace}/pods"
        names = [f"p-{index:05d}" for index in range(count)]
        await create_all(self._target, [(path, pod(name, "", "none")) for name in names])
        async with self._phase(f"backlog {namespace}", pods=count):
            with self._paused():
                begun = time.monotonic()
                await bind.bind_all(self._target, namespace, self.sizes.nodes, count)
                last = await self._timeline.wait(BOUND, [f"{namespace}/{name}" for name in names])
        await self._all(self._delete_pod, [f"{namespace}/{name}" for name in names])
        return count / (last - begun)

    async def _bind_ours(self, jobs: int, namespace: str) -> float:
        made = [self._new_job(namespace) for _ in range(jobs)]
        keys = [key for job in made for key in job.keys]
        await asyncio.sleep(bind.SETTLE_S)  # the last events and statuses
        counters = await asyncio.to_thread(self.scheduler.counters)
        os.kill(self.scheduler.pid, signal.SIGSTOP)
        await self._create_jobs(made)
        async with self._phase(f"backlog {namespace}", counters):
            with self._paused():
                begun = time.monotonic()
                os.kill(self.scheduler.pid, signal.SIGCONT)
                last = await self._timeline.wait(BOUND, keys)
        await self._all(self._delete, made)
        return len(keys) / (last - begun)

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        """The kubelets write nothing meanwhile."""
        self._pipe.send(("pause", True))
        try:
            yield
        finally:
            self._pipe.send(("pause", False))

    async def restart(self) -> None:
        """Start the scheduler beside all pods, with one job that waits."""
        self.scheduler.stop()
        [ended, job] = self._live.popleft(), self._new_job()
        await self._end(ended)
        await self._create(job)
        begun = time.monotonic()
        self.scheduler.start()
        first = await self._timeline.wait(BOUND, job.keys)
        self._live.append(job)
        peak = memory_mib(self.scheduler.pid)[1]
        spent = processor_s(self.scheduler.pid)
        print(
            f"  start of the scheduler: first binding after {first - begun:.1f} s, processor "
            f"{spent:.1f} s, {peak:.0f} MiB; {self.scheduler.started()}",
            flush=True,
        )
        what = "from the start of the scheduler to its first binding"
        self._figure("start", what, "s", first - begun)
        self._figure("start_memory", "memory of a scheduler that has started", "MiB", peak)

    async def lose_nodes(self) -> None:
        lost = [node_name(index) for index in range(self.sizes.lost)]
        losing = set(lost)
        victims = [key for key, node in self._timeline.nodes.items() if node in losing]
        replaced: list[str] = []

        async def replace(key: str) -> None:
            await self._delete_pod(key)
            namespace, _, name = key.partition("/")
            group, _, index = name.rpartition("-")
            job, again = Job(namespace, group, self.sizes.gang), f"{namespace}/{group}-r{index}"
            replaced.append(again)
            await self._create_pod(job, again)

        async with self._phase("loss"):
            begun = time.monotonic()
            self._pipe.send(("lose", lost))
            await self._all(
                lambda name: self._clients.send("DELETE", f"/api/v1/nodes/{name}"), lost
            )
            await self._all(replace, victims)
            bound = await self._timeline.wait(BOUND, replaced)
            running = await self._timeline.wait(RUNNING, replaced)
        self._show_waits(replaced)
        print(
            f"    {len(lost):,} nodes with {len(victims):,} pods lost: replaced and bound after "
            f"{bound - begun:.1f} s, running after {running - begun:.1f} s",
            flush=True,
        )
        what = f"{len(lost):,} nodes lost, until all of their pods run elsewhere"
        self._figure("loss", what, "s", running - begun)

    async def preempt(self) -> None:
        body = {"metadata": {"name": URGENT}, "value": 1000}
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        await self._clients.send("POST", path, json.dumps(body).encode())
        job = Job(NAMESPACE, URGENT, self.sizes.preempting, URGENT)
        line = self._timeline
        before = len(line.removed)
        async with self._phase("preemption"):
            begun = time.monotonic()
            path = f"{bind.GROUPS}/{job.namespace}/podgroups"
            await self._clients.send("POST", path, job.group())
            await self._all(lambda key: self._create_pod(job, key), job.keys)
            complete = time.monotonic()
            bound = await line.wait(BOUND, job.keys)
            running = await line.wait(RUNNING, job.keys)
        first = min(line.bound[key] for key in job.keys)
        ended = sorted(line.removed.values())[before:]
        print(
            f"    {job.pods:,} pods created in {complete - begun:.1f} s; from then on the first "
            f"is bound after {first - complete:.1f} s, all after {bound - complete:.1f} s, running "
            f"after {running - complete:.1f} s; {len(ended):,} pods preempted",
            flush=True,
        )
        if ended:
            took_s = max(ended[-1] - complete, ended[-1] - ended[0])
            print(f"    preempted in {took_s:.1f} s, {len(ended) / took_s:.0f}/s", flush=True)
        what = f"a job of {job.pods:,} pods that preempts, until all of them run"
        self._figure("preemption", what, "s", running - complete)

    def _show_ends(self) -> None:
        processes = {**self._servers, "scheduler": self.scheduler.pid, "kubelets": self._kubelets}
        for name, pid in processes.items():
            now, peak = memory_mib(pid)
            print(f"  memory of {name}: {now:.0f} MiB, {peak:.0f} MiB at most")
            if name != "kubelets":
                self._figure(f"memory_{name}", f"most memory of {name}", "MiB", peak)
        restarts = self.scheduler.watch_restarts()
        print(f"  watches of the scheduler that were restarted: {restarts or 'none'}", flush=True)


def measure(
    name: str, sizes: Sizes, kubeconfig: Path, servers: Mapping[str, int]
) -> dict[str, results.Figure]:
    """Run all phases on a server; return the figures."""
    print(
        f"{name}: {sizes.nodes:,} nodes of {sizes.pods_per_node} processors, {sizes.pods:,} pods "
        f"in gangs of {sizes.gang}, leases renewed every {sizes.lease_s:g} s"
    )
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    names = [node_name(index) for index in range(sizes.nodes)]
    with tempfile.TemporaryDirectory() as folder:
        scheduler = SchedulerProcess(kubeconfig, Path(folder, "scheduler.log"))
        run = Run(name, sizes, kubeconfig, servers, scheduler)
        target = asyncio.run(Target.of(kubeconfig))
        if not (sizes.placed and name == EMBEDDED):
            begun = time.monotonic()
            nodes = [
                ("/api/v1/nodes", node(index, sizes.pods_per_node)) for index in range(sizes.nodes)
            ]
            uvloop.run(create_all(target, nodes))
            print(f"  {sizes.nodes:,} nodes created in {time.monotonic() - begun:.1f} s")
        kubelets = context.Process(
            target=fake_kubelets.run, args=(kubeconfig, names, sizes.lease_s, there), daemon=True
        )
        kubelets.start()
        try:
            here.recv()
            assert kubelets.pid is not None
            pids = {**servers, "kubelets": kubelets.pid}
            if not sizes.placed:
                scheduler.start()
                pids["scheduler"] = scheduler.pid
            print(f"  processes: {pids}", flush=True)
            uvloop.run(run.run(target, here, kubelets.pid))
        except BaseException:
            print(f"  the scheduler's log ends with:\n{scheduler.last_lines()}", flush=True)
            raise
        finally:
            kubelets.kill()
            scheduler.stop()
    return run.figures


def prepare(kubeconfig: Path, sizes: Sizes) -> None:
    """Create the namespaces."""
    turns = [f"{what}-{turn}" for turn in range(sizes.turns) for what in ("bare", "ours")]
    target = asyncio.run(Target.of(kubeconfig))
    asyncio.run(bind.open_namespaces(target, [NAMESPACE, *turns]))


def measure_embedded(sizes: Sizes) -> dict[str, results.Figure]:
    """Measure the embedded cluster; its own node has no room for a pod."""
    # It is made for a thousand nodes: those of more would take its time with their leases.
    sizes = replace(
        sizes, lease_s=sizes.lease_s and max(sizes.lease_s, sizes.nodes / RENEWALS_PER_S)
    )
    silence_s = str(max(40.0, 4 * sizes.lease_s))
    options = ("--cpus", "0.1", "--network", "host", "--node-silence", silence_s)
    without = ("--without", "operator", "--without", "scheduler")
    with tempfile.TemporaryDirectory() as home:
        if sizes.placed:
            pattern = embedded("--without", "operator", *options, home=home)
            with pattern as (kubeconfig, _):
                prepare(kubeconfig, sizes)
                stored_state.run_first(kubeconfig, sizes.pods_per_node, sizes.gang)
            state = Path(home, "clusters", "bench", "state.db")
            stored_state.store_copies(state, sizes.nodes, sizes.pods // sizes.gang, sizes.gang)
        with embedded(*without, *options, home=home) as (kubeconfig, process):
            if not sizes.placed:
                prepare(kubeconfig, sizes)
            return measure(EMBEDDED, sizes, kubeconfig, {"API server": process.pid})


def measure_kubernetes(sizes: Sizes) -> dict[str, results.Figure]:
    """Measure a real Kubernetes, without its controllers: the clients here act for them."""
    with real_kubernetes() as kubeconfig:
        install_definitions(kubeconfig, *bind.SCHEDULER_GROUPS)
        prepare(kubeconfig, sizes)
        bind.stop_controllers(kubeconfig)
        settle(kubeconfig)
        pids = {
            name: int((kubeconfig.parent / f"{name}.pid").read_text())
            for name in ("apiserver", "etcd")
        }
        servers = {"API server": pids["apiserver"], "etcd": pids["etcd"]}
        return measure(KUBERNETES, sizes, kubeconfig, servers)


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="10,000 nodes and 100,000 pods end to end.")
    parser.add_argument("--small", action="store_true", help="a profile of about a minute")
    parser.add_argument("--server", choices=(EMBEDDED, KUBERNETES, "all"), default="all")
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--pods", type=int)
    parser.add_argument("--gang", type=int, help="pods of a job")
    parser.add_argument("--churn-minutes", type=float)
    parser.add_argument("--churn-rate", type=float, help="pods that end, and come, each second")
    parser.add_argument("--lost", type=int, help="nodes that are lost; default: a twentieth")
    parser.add_argument("--preempting", type=int, help="pods of the urgent job; default: a fifth")
    parser.add_argument("--backlog", type=int, help="pods that the bare client and ours bind")
    parser.add_argument("--turns", type=int, help="comparisons with the bare client")
    parser.add_argument("--placed", action="store_true", help="create the pods on their nodes")
    parser.add_argument(
        "--lease-interval", type=float, help="seconds between renewals of a lease; 0: no leases"
    )
    return parser.parse_args(arguments)


def sizes_of(given: argparse.Namespace) -> Sizes:
    """The profile with the options that are given."""
    base = SMALL if given.small else FULL
    nodes = given.nodes or base.nodes
    pods = given.pods or base.pods

    def chosen(value: float | None, default: float) -> float:
        return default if value is None else value

    return Sizes(
        nodes,
        pods,
        given.gang or base.gang,
        base.churn_s if given.churn_minutes is None else given.churn_minutes * 60,
        chosen(given.churn_rate, base.churn_rate),
        int(chosen(given.lost, nodes // 20)),
        int(chosen(given.preempting, pods // 5)),
        int(chosen(given.backlog, min(base.backlog, pods // 4))),
        int(chosen(given.turns, base.turns)),
        given.placed,
        chosen(given.lease_interval, base.lease_s),
    )


def main(arguments: Sequence[str] = ()) -> None:
    given = _arguments(arguments)
    sizes = sizes_of(given)
    figures: dict[str, results.Figure] = {}
    versions: dict[str, str] = {}
    if given.server != KUBERNETES:
        figures |= measure_embedded(sizes)
    has_kubernetes = real_kubernetes_scripts() is not None and KUBERNETES_BINARIES.exists()
    if given.server == KUBERNETES or (given.server == "all" and has_kubernetes):
        figures |= measure_kubernetes(sizes)
        versions = kubernetes_version()
    conditions = (
        f"{sizes.nodes:,} nodes, {sizes.pods:,} pods in gangs of {sizes.gang}, "
        f"{sizes.churn_s / 60:g} minutes of churn at {sizes.churn_rate:g} pods/s, leases every "
        f"{sizes.lease_s:g} s (embedded: {RENEWALS_PER_S} a second at most); one run, the bare "
        f"client in {sizes.turns} turns"
    )
    results.write("scheduler_end_to_end", conditions, figures, versions)


if __name__ == "__main__":
    main(sys.argv[1:])
