"""The dashboard with 10,000 jobs, 50,000 pods and 200 readers, beside the budgets of its design.

The embedded API server has jobs and pods that nothing runs; those of the first 500 jobs wait, all
others are on nodes. One job of each sort is created through the API, and copied in the state file
of the stopped server, which takes seconds instead of minutes. One dashboard serves all readers,
each with a stream of its own; the readers, the API server and the dashboard share the machine. A
change is the status of one pod, which 20 of the readers see on the page of its job. Opening and
closing 10,000 streams shows whether anything is left behind.

    python -m benchmarks dashboard_load
"""

import asyncio
import contextlib
import gzip
import json
import os
import random
import re
import sqlite3
import statistics
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from benchmarks import results
from benchmarks.client.job_list import JOBS_PATH, PODS_PATH, pod
from benchmarks.cluster.connection import Connection, Target
from benchmarks.cluster.servers import GANGLINE, embedded
from benchmarks.operator.creation import create_all, job
from gangline.local.apiserver.storage.durable_files import Durability
from gangline.local.apiserver.storage.sqlite import LogRow, StateDatabase

JOBS, PODS_PER_JOB, LARGE = 10_000, 5, 1_000
"""Jobs, pods of each, and pods of one job more."""
WAITING, NODES = 500, 50
READERS, WATCHED_JOBS = 200, 10
REQUESTS, CHANGES = 40, 40
STREAMS, AT_ONCE = 10_000, 50
REQUESTS_OF_S = 60.0
"""How long requests to the API server are counted."""
WAITS, ON_NODES = "bench-0", f"bench-{WAITING}"
"""The jobs that are copied."""
ROWS_OF_JOB = (
    "SELECT rv, topic, key, type, body FROM log WHERE key = 'default/' || :name "
    "OR key LIKE 'default/' || :name || '-%' ORDER BY topic = 'pods.', rv"
)
"""The job, then its pods."""
PAGE = "/jobs/default/pytorchjob"

BUDGETS = {
    "first_page_s": ("start of `gangline dashboard` until its first page", "s", 1.5),
    "jobs_ms": (f"`/jobs` with {JOBS:,} jobs, p95 until the first byte", "ms", 150),
    "large_ms": (f"page of a job with {LARGE:,} replicas, p95", "ms", 200),
    "large_kb": (f"page of a job with {LARGE:,} replicas, compressed", "kB", 150),
    "assets_kb": ("all scripts and styles, compressed", "kB", 80),
    "seen_s": (f"change of a pod until it is visible, p95, {READERS} readers", "s", 1.0),
    "memory_mb": (f"memory with {JOBS:,} jobs and {JOBS * PODS_PER_JOB:,} pods", "MB", 400),
    "requests": (f"requests to the API server with {READERS} readers, for each with one", "", 1.2),
    "left_mb": (f"memory that grew while {STREAMS:,} streams were opened and closed", "MB", 20),
    "left_files": (f"open files left by {STREAMS:,} streams", "", 5),
}
"""What is measured, its unit, and the most that it should be."""


class Server:
    """A dashboard in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], metrics: str = "") -> None:
        self.process = process
        self._metrics = metrics
        assert process.stdout is not None
        address = process.stdout.readline().partition("Dashboard: ")[2].strip()
        parts = urlsplit(address)
        self.base = f"{parts.scheme}://{parts.netloc}"
        self.headers = {"Authorization": f"Bearer {parts.query.removeprefix('token=')}"}

    @property
    def memory_mb(self) -> float:
        """Resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1000

    @property
    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    async def requests(self, session: aiohttp.ClientSession) -> float:
        """Number of its requests to the API server so far."""
        async with session.get(self._metrics) as answer:
            lines = re.findall(r"^rest_client_requests_total.* (\S+)$", await answer.text(), re.M)
        return sum(map(float, lines))


@contextlib.contextmanager
def dashboard(kubeconfig: Path, *arguments: str, metrics: str = "") -> Iterator[Server]:
    """Run ``gangline dashboard``; its output may not be a terminal, so no browser is opened."""
    process = subprocess.Popen(
        [*GANGLINE, "dashboard", *arguments],
        env=os.environ | {"KUBECONFIG": str(kubeconfig)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield Server(process, metrics)
    finally:
        process.terminate()
        process.wait(30)


def percentile_95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def node(name: str) -> bytes:
    capacity = {"cpu": "4000", "memory": "4Ti", "pods": "5000", "nvidia.com/gpu": "8"}
    status = {"capacity": capacity, "conditions": [{"type": "Ready", "status": "True"}]}
    body = {"metadata": {"name": name}, "status": {**status, "allocatable": capacity}}
    return json.dumps({"apiVersion": "v1", "kind": "Node"} | body).encode()


async def create(target: Target) -> None:
    """Create nodes, a job that waits, one that does not, and a large one, with their pods."""
    await create_all(target, [("/api/v1/nodes", node(f"host-{number}")) for number in range(NODES)])
    names = (WAITS, ON_NODES, "large")
    await create_all(target, [(JOBS_PATH, json.dumps(job(name)).encode()) for name in names])
    connection = await Connection.open(target)
    _, answer = await connection.request("GET", JOBS_PATH)
    connection.close()
    requests: list[tuple[str, bytes]] = []
    for owner in json.loads(answer)["items"]:
        name = owner["metadata"]["name"]
        for number in range(LARGE if name == "large" else PODS_PER_JOB):
            body = json.loads(pod(owner, number))
            if name != WAITS:
                body["spec"]["nodeName"] = f"host-{number % NODES}"
            requests.append((PODS_PATH, json.dumps(body).encode()))
    await create_all(target, requests)


def copy_jobs(state: Path) -> None:
    """Copy both small jobs, with their pods, in the state file of a stopped server."""
    with contextlib.closing(sqlite3.connect(state)) as connection:
        (revision,) = connection.execute("SELECT max(rv) FROM log").fetchone()
        originals = {
            name: [LogRow(*row) for row in connection.execute(ROWS_OF_JOB, {"name": name})]
            for name in (WAITS, ON_NODES)
        }
    copies = []
    for number in set(range(JOBS)) - {0, WAITING}:
        original = WAITS if number < WAITING else ON_NODES
        name, own, rows = f"bench-{number}", str(uuid.uuid4()), originals[original]
        for row in rows:
            revision += 1
            text = row.body.decode().replace(original, name).replace(uid_of(rows[0]), own)
            text = text.replace(uid_of(row), str(uuid.uuid4()))
            text = text.replace(f'"resourceVersion":"{row.rv}"', f'"resourceVersion":"{revision}"')
            text = re.sub(r'"nodeName":"[^"]+"', f'"nodeName":"host-{revision % NODES}"', text)
            key = row.key.replace(original, name)
            copies.append(row._replace(rv=revision, key=key, body=text.encode()))
    database = StateDatabase(state, durability=Durability.PROCESS)
    database.commit(copies, (), database.horizon())
    database.close()


def uid_of(row: LogRow) -> str:
    return json.loads(row.body)["metadata"]["uid"]


async def set_phase(connection: Connection, name: str, phase: str) -> None:
    body = json.dumps({"status": {"phase": phase}}).encode()
    form = "application/merge-patch+json"
    code, answer = await connection.request("PATCH", f"{PODS_PATH}/{name}/status", body, form)
    assert code == 200, answer


async def get(session: aiohttp.ClientSession, server: Server, path: str) -> tuple[float, int]:
    """Milliseconds until the first byte of a page, and its size as it was sent."""
    began = time.monotonic()
    async with session.get(f"{server.base}{path}", headers=server.headers) as answer:
        assert answer.status == 200, (path, answer.status)
        first = (time.monotonic() - began) * 1000
        return first, len(await answer.read())


async def pages(server: Server) -> dict[str, float]:
    """Measure pages one after the other, as their first readers see them."""
    accept = {"Accept-Encoding": "gzip"}
    async with aiohttp.ClientSession(auto_decompress=False, headers=accept) as session:
        paths = [f"/jobs?q=bench-{number}" if number % 2 else "/jobs" for number in range(REQUESTS)]
        jobs = [(await get(session, server, path))[0] for path in paths]
        large = [await get(session, server, f"{PAGE}/large/replicas") for _ in range(REQUESTS)]
    return {
        "jobs_ms": percentile_95(jobs),
        "large_ms": percentile_95([first for first, _ in large]),
        "large_kb": large[0][1] / 1000,
    }


async def assets(server: Server) -> float:
    """Compressed size of everything that the pages load."""
    async with aiohttp.ClientSession(headers=server.headers) as session:
        names: set[str] = set()
        for path in ("/", f"{PAGE}/large/curves"):
            async with session.get(f"{server.base}{path}") as answer:
                names |= set(re.findall(r'"(/static/[^"]+\.(?:js|css))"', await answer.text()))
        sizes = []
        for name in names:
            async with session.get(f"{server.base}{name}") as answer:
                sizes.append(len(gzip.compress(await answer.read())))
    return sum(sizes) / 1000


class Reader:
    """One open page, with the time when each text was seen first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: dict[str, float] = {}
        self.opened = asyncio.Event()

    async def read(self, session: aiohttp.ClientSession, server: Server) -> None:
        """Read the stream of a job until it ends."""
        address = f"{server.base}{PAGE}/{self.name}/stream"
        async with session.get(address, headers=server.headers) as answer:
            async for line in answer.content:
                self.opened.set()
                for state in re.findall(rb'title="\S+-0: (\w+)', line):
                    self.seen[state.decode()] = time.monotonic()


@contextlib.asynccontextmanager
async def readers(server: Server, count: int) -> AsyncIterator[list[Reader]]:
    """Keep streams open."""
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    # A page of the benchmark's size is one line of a stream.
    async with aiohttp.ClientSession(
        timeout=timeout, connector=connector, read_bufsize=1 << 22
    ) as session:
        opened = [Reader(f"bench-{number % WATCHED_JOBS}") for number in range(count)]
        tasks = [asyncio.create_task(reader.read(session, server)) for reader in opened]
        await asyncio.gather(*(reader.opened.wait() for reader in opened))
        yield opened
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def changes(target: Target, opened: Sequence[Reader]) -> list[float]:
    """Seconds from a change of a pod until each reader of its job has it."""
    connection = await Connection.open(target)
    delays: list[float] = []
    random.seed(1)
    for number in range(CHANGES):
        name = f"bench-{number % WATCHED_JOBS}"
        phase = "Running" if number // WATCHED_JOBS % 2 == 0 else "Pending"
        concerned = [reader for reader in opened if reader.name == name]
        for reader in concerned:
            reader.seen.clear()
        began = time.monotonic()
        await set_phase(connection, f"{name}-0", phase)
        async with asyncio.timeout(30):
            while not all(phase in reader.seen for reader in concerned):
                await asyncio.sleep(0.01)
        delays += [reader.seen[phase] - began for reader in concerned]
        await asyncio.sleep(random.uniform(0.1, 1.5))
    connection.close()
    return delays


async def requests_of(server: Server, count: int) -> float:
    """Number of requests to the API server in some seconds with readers."""
    async with readers(server, count), aiohttp.ClientSession() as session:
        await asyncio.sleep(5)  # the questions of the first pages
        before = await server.requests(session)
        await asyncio.sleep(REQUESTS_OF_S)
        return await server.requests(session) - before


async def open_and_close(server: Server, count: int) -> None:
    """Open streams, read the first event of each, and close them."""
    pending = iter(range(count))

    async def reader() -> None:
        for number in pending:
            async with aiohttp.ClientSession(read_bufsize=1 << 22) as session:
                address = f"{server.base}{PAGE}/bench-{number % 100}/stream"
                async with session.get(address, headers=server.headers) as answer:
                    await answer.content.readline()

    await asyncio.gather(*(reader() for _ in range(AT_ONCE)))
    await asyncio.sleep(20)  # the server notices that a reader is gone when it writes


async def measure(kubeconfig: Path, server: Server) -> dict[str, float]:
    target = await Target.of(kubeconfig)
    values = await pages(server)
    values["assets_kb"] = await assets(server)
    alone = await requests_of(server, 1)
    values["requests"] = await requests_of(server, READERS) / max(1.0, alone)
    async with readers(server, READERS) as opened:
        delays = await changes(target, opened)
    values["seen_s"] = percentile_95(delays)
    print(f"  a change until it is visible: median {statistics.median(delays):.2f} s")
    values["memory_mb"] = server.memory_mb
    await open_and_close(server, STREAMS // 10)  # memory that is allocated once
    before = server.memory_mb, server.open_files
    await open_and_close(server, STREAMS)
    values["left_mb"] = server.memory_mb - before[0]
    values["left_files"] = server.open_files - before[1]
    return values


def start(kubeconfig: Path) -> float:
    """Median of the seconds from the start of the command until its first page."""

    async def first_page(server: Server) -> None:
        async with aiohttp.ClientSession() as session:
            await get(session, server, "/")

    took = []
    for _ in range(5):
        began = time.monotonic()
        with dashboard(kubeconfig, "--port", "0", "--no-open") as server:
            asyncio.run(first_page(server))
            took.append(time.monotonic() - began)
    return statistics.median(took[1:])


def main() -> None:
    metrics = "127.0.0.1:18095"
    quiet = ("--without", "operator", "--without", "scheduler", "--node-silence", "86400")
    with tempfile.TemporaryDirectory() as home:
        with embedded(*quiet, home=home) as (kubeconfig, _):
            values = {"first_page_s": start(kubeconfig)}
            asyncio.run(create(asyncio.run(Target.of(kubeconfig))))
        began = time.monotonic()
        copy_jobs(kubeconfig.with_name("state.db"))
        print(f"  {JOBS:,} jobs and their pods stored in {time.monotonic() - began:.0f} s")
        with embedded(*quiet, home=home) as (kubeconfig, _):
            arguments = ("serve", "--auth", "local", "--metrics-bind-address", metrics)
            with dashboard(kubeconfig, *arguments, metrics=f"http://{metrics}/metrics") as server:
                asyncio.run(_until_read(server))
                values |= asyncio.run(measure(kubeconfig, server))
    figures = {}
    for name, (what, unit, budget) in BUDGETS.items():
        value = values[name]
        verdict = "" if value <= budget else "   OVER BUDGET"
        print(f"  {what + ':':75} {value:8.2f} {unit:3} of {budget:g}{verdict}")
        figures[name] = results.Figure(what, unit, value, {"budget": float(budget)})
    conditions = f"{JOBS:,} jobs, {READERS} readers, all on one machine"
    results.write("dashboard_load", conditions, figures)


async def _until_read(server: Server) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(300):
        while True:
            async with session.get(f"{server.base}/readyz") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.5)


if __name__ == "__main__":
    main()
