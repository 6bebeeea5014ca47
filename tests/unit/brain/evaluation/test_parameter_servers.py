"""Jobs with parameter servers whose workers have no agent: TensorFlow's event files, pods' CPU.

The evaluator, the guard and the history are the real ones, and so are the files. The job follows a
simple law: ``w`` workers make ``w / (1 + 0.05 w)`` steps a second, unless a server has too few
cores for them.
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from brain_records import a_running_job
from gangline.api.core.pod import Pod
from gangline.api.job_resources import JOB_KINDS
from gangline.api.meta.objects import Object, ObjectMeta
from gangline.api.quantity import parse_quantity
from gangline.api.resources import ELASTIC_JOBS
from gangline.brain.collection.collector import WatchedJob
from gangline.brain.collection.job_digest import ContainerRun, end_of_deleted
from gangline.brain.collection.live_facts import JobObservations
from gangline.brain.collection.measurements import PodSample, written_steps
from gangline.brain.facts.records import Mode, NodeCapacity, RoleSize, Wishes
from gangline.brain.guard.policy import BrainPolicyRule, GuardSettings
from gangline.sdk.event_files import EventFolder
from unit.brain.evaluation.scaled_job import NOW_MS, EvaluatedCluster, Published

MINUTE_MS = 60_000
GIB = 2**30


def event(at_ms: int, step: int) -> bytes:
    """A record of an event file: the scalar ``global_step/sec``."""
    value = b"\x0a\x0fglobal_step/sec\x15" + struct.pack("<f", 1.0)
    summary = b"\x0a" + bytes([len(value)]) + value
    number, varint = step, b""
    while number > 0x7F:
        varint, number = varint + bytes([number & 0x7F | 0x80]), number >> 7
    varint += bytes([number])
    data = b"\x09" + struct.pack("<d", at_ms / 1000) + b"\x10" + varint
    data += b"\x2a" + bytes([len(summary)]) + summary
    return struct.pack("<QI", len(data), 0) + data + b"\0" * 4


class ServedJob(EvaluatedCluster):
    """A job, its cluster and its clock."""

    def __init__(
        self, folder: Path, store: Any, workers: int, cores_per_step: Sequence[float], most: int
    ) -> None:
        self.step, self.workers = 0.0, 0
        self.cores_per_step = cores_per_step
        self.most = float("inf")
        self.limits = [2000] * len(cores_per_step)
        self.plans: list[dict[str, Any]] = []
        self.skew_s = 0.0
        self.transport = SimpleNamespace(clock_skew_s=lambda: self.skew_s)
        self.file, self.files = folder / "events.out.tfevents.1", EventFolder(folder)
        guard = GuardSettings(stable_evaluations=1, stable_s=0)
        rule = BrainPolicyRule(mode=Mode.APPLY, guard=guard)
        super().__init__(store, self, Published(), rule)
        self.nodes = (NodeCapacity(name="big", cpu_millis=16_000, memory_bytes=64 * GIB),)
        self.collector.nodes = lambda: self.nodes
        wishes = Wishes(mode=Mode.APPLY)
        role = RoleSize(role="worker", since_ms=NOW_MS, replicas=workers, cpu_millis=1000)
        job = a_running_job(
            cluster="c", strategy="ps", wishes=wishes, roles=(role,),
            workers_min=1, workers_max=most, workers_asked=workers,
            submitted_ms=NOW_MS, started_ms=NOW_MS, finished_ms=None,
        )  # fmt: skip
        meta = ObjectMeta(name=job.name, namespace=job.namespace, uid=job.uid)
        kind = next(kind for kind in JOB_KINDS if kind.resource is ELASTIC_JOBS)
        stored = Object(api_version=kind.resource.api_version, kind="ElasticJob", metadata=meta)
        self.watched = WatchedJob(kind, meta, JobObservations(job=job), stored=stored)
        self.collector.jobs[job.uid] = self.watched
        for rank in range(len(cores_per_step)):
            self._start("ps", rank)
        self._scale(workers)

    def _start(self, role: str, rank: int) -> None:
        run = ContainerRun(pod=f"{role}-{rank}", role=role, rank=rank, started_ms=self.now_ms)
        self.watched.observations.add_run(run)

    def _scale(self, workers: int) -> None:
        for rank in range(self.workers, workers):
            self._start("worker", rank)
        for run in list(self.watched.observations.runs.values()):
            if run.role == "worker" and run.rank >= workers:
                self.watched.observations.add_run(end_of_deleted(run, self.now_ms))
        self.workers = workers

    @property
    def rate(self) -> float:
        """Steps in a second."""
        limits = zip(self.limits, self.cores_per_step, strict=True)
        most = min(limit / 1000 / cores for limit, cores in limits)
        return min(self.workers / (1 + 0.05 * self.workers), most, self.most)

    async def create(self, _resource: Any, plan: Any, _namespace: str) -> None:
        """Carry a plan out, as the operator does."""
        spec = msgspec.to_builtins(plan.spec)
        self.plans.append(spec)
        for role, size in spec.get("replicaResourceSpecs", {}).items():
            if role == "worker":
                self._scale(size["replicas"])
        for pod in spec.get("migratePods", ()):
            self.limits[pod["rankIndex"]] = parse_quantity(pod["resource"]["cpu"]).milli

    async def list(self, _resource: Any) -> Any:
        """Return all pods of the cluster: one of another user holds 13 of 16 cores."""
        container = {"name": "c", "resources": {"requests": {"cpu": "13", "memory": "1Gi"}}}
        pod = {
            "metadata": {"name": "other"},
            "spec": {"nodeName": "big", "containers": [container]},
            "status": {"phase": "Running"},
        }
        return SimpleNamespace(items=[msgspec.convert(pod, Pod)])

    async def runs(self, minutes: int) -> None:
        """Let time pass: steps are written, the CPU of servers is read, the Brain evaluates."""
        for minute in range(minutes):
            self.now_ms += MINUTE_MS
            self.step += 60 * self.rate
            with self.file.open("ab") as file:
                file.write(event(self.now_ms, round(self.step)))
            self.collector.receive_steps("uid-1", written_steps(self.files.read()))
            for rank, cores in enumerate(self.cores_per_step):
                use = min(round(1000 * cores * self.rate), self.limits[rank])
                sample = PodSample(GIB, use)
                limits = self.limits[rank], 4 * GIB
                self.watched.servers.add(rank, "small", limits, sample, self.now_ms)
            if minute % 3 == 2:
                await self.evaluate()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of workers that were planned."""
        roles = [plan.get("replicaResourceSpecs", {}) for plan in self.plans]
        return tuple(sizes["worker"]["replicas"] for sizes in roles if "worker" in sizes)

    def sentence(self, what: str) -> str:
        (item,) = [item for item in self.writes.items if item.what == what]
        return item.sentence + item.held_because


async def test_hot_server_moves_to_what_a_node_has_free(tmp_path: Path, store: Any) -> None:
    job = ServedJob(tmp_path, store, 4, (0.65, 0.1), most=4)
    before = job.rate
    await job.runs(12)
    assert job.plans == [], "no baseline yet"
    assert "3 cores free (big)" in job.sentence("ps_cpu")
    await job.runs(10)
    (plan,) = job.plans
    assert [pod["rankIndex"] for pod in plan["migratePods"]] == [0]
    assert plan["migratePods"][0]["resource"] == {"cpu": "3"}
    assert job.rate > before
    await job.runs(30)
    assert len(job.plans) == 1, "it has helped, and nothing is hot"


async def test_nothing_is_changed_while_the_clock_differs_from_the_servers(
    tmp_path: Path, store: Any
) -> None:
    job = ServedJob(tmp_path, store, 4, (0.65, 0.1), most=4)
    job.skew_s = -120.0
    await job.runs(22)
    assert job.plans == []
    assert "clock" in job.sentence("ps_cpu")
    job.skew_s = 2.0
    await job.runs(10)
    assert len(job.plans) == 1


async def test_hot_server_stays_and_the_advice_says_why(tmp_path: Path, store: Any) -> None:
    job = ServedJob(tmp_path, store, 4, (0.65, 0.1), most=4)
    job.nodes = (msgspec.structs.replace(job.nodes[0], cpu_millis=14_000),)
    await job.runs(25)
    assert job.plans == []
    assert "cannot move" in job.sentence("warning")
    assert "1 cores free (big)" in job.sentence("warning")


async def test_servers_that_are_hot_evenly_move_together(tmp_path: Path, store: Any) -> None:
    job = ServedJob(tmp_path, store, 4, (0.65, 0.65), most=4)
    job.nodes = (msgspec.structs.replace(job.nodes[0], cpu_millis=64_000),)
    await job.runs(25)
    (plan,) = job.plans
    assert [pod["rankIndex"] for pod in plan["migratePods"]] == [0, 1]
    assert job.limits[0] == job.limits[1] > 2000


async def test_workers_are_added_while_throughput_grows(tmp_path: Path, store: Any) -> None:
    job = ServedJob(tmp_path, store, 2, (0.2, 0.2), most=16)
    await job.runs(120)
    # With 14 workers the servers use 82 % of their cores, with 15 they would use 86 %.
    assert job.sizes == (4, 8, 14)
    segments = job.watched.observations.segments
    rates = [1 / segment.step_seconds.mean for segment in segments.values()]
    assert max(rates) == pytest.approx(14 / 1.7, rel=0.02)


async def test_workers_that_bring_nothing_are_taken_back(tmp_path: Path, store: Any) -> None:
    job = ServedJob(tmp_path, store, 2, (0.05,), most=8)
    job.most = 1.9  # what the records come from
    await job.runs(90)
    assert job.sizes == (4, 2), "and what was measured then is not tried again"
    segments = job.watched.observations.segments
    assert segments[max(segments)].nodes == 2
