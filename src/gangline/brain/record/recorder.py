"""Watches jobs through the collector, and writes their records.

What would be lost with a pod or a job is taken when it happens: a job is observed with each of its
own events, the deleted object included, and the log of a replica is read when it has failed. The
rest is observed at most twice a second. A record is written when its job has ended and at most
every ``WRITE_S`` seconds before. While the database is away, records stay in memory and the
watches go on; of ended jobs at most ``MAX_UNWRITTEN``.
"""

import asyncio
import contextlib
import logging
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from gangline.api.core.pod import Pod
from gangline.api.jobs.kind import JobKind
from gangline.api.masking import mask_data, mask_line, mask_lines, mask_manifest, secret_values
from gangline.api.verdict import Finding, finding_of_pod
from gangline.brain.collection.collector import Collector
from gangline.brain.collection.measurements import PodSample, ReportedStep, written_steps
from gangline.brain.facts.job_record import MAX_LINES, Curves, JobRecord, LogTail, merge_records
from gangline.brain.facts.records import Run
from gangline.brain.record.account import reserved_seconds, with_ranks, with_scalars
from gangline.brain.record.observe import JobAtTime, observe, to_ms
from gangline.brain.store.engine import Store
from gangline.brain.store.errors import StoreError
from gangline.brain.store.records import RecordRow
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError
from gangline.kube.turns import Turns
from gangline.sdk.client import JobError
from gangline.sdk.diagnosis import TAIL_LINES, diagnose, diagnosis_data, failed_container
from gangline.sdk.event_files import EventFolder, find_folder
from gangline.sdk.events import EventRecord, job_events
from gangline.sdk.goodput import Goodput, has_goodput, read_goodput
from gangline.sdk.jobs import Job, JobState, build_job
from gangline.sdk.logs import read_tail
from gangline.sdk.manifests import effective_manifest
from gangline.sdk.usage import gpu_usage

log = logging.getLogger(__name__)

OBSERVE_S: Final = 0.5
WRITE_S: Final = 30.0
POLL_S: Final = 5.0
"""Interval between readings of the goodput of running elastic jobs."""
DEVICES_S: Final = 30.0
RETAIN_S: Final = 600.0
"""Records of ended jobs stay in memory for so long, because late reports of their pods arrive."""
READ_LOGS_S: Final = 20.0
CONCURRENT: Final = 8
"""Requests to the API server at one time."""
MAX_UNWRITTEN: Final = 2_000
MAX_FAILURES: Final = 256
"""Failures of one job in memory, the last ones."""
_PROGRESS: Final = ("GANGLINE_PROGRESS_FILE",)
_LARGEST_PROGRESS: Final = 64 * 1024
_STEP: Final = re.compile(rb"^\0*step (\d{1,15})\s*$", re.MULTILINE)
BATCH: Final = 20
"""Records of one transaction."""
STOP_S: Final = 2.0
"""For so long records are written after the end, less than the grace of a lost leadership."""


@dataclass(slots=True)
class _Recording:
    """A job in memory."""

    kind: JobKind
    stored: Any
    job: Job
    spec: dict[str, Any]
    secrets: frozenset[str]
    record: JobRecord = field(default_factory=JobRecord)
    goodput: Goodput | None = None
    failures: list[Finding] = field(default_factory=list)
    failed_pods: dict[str, Pod] = field(default_factory=dict)
    """By name, as they were when they failed."""
    tails: dict[str, str] = field(default_factory=dict)
    """Ends of logs for the diagnosis, by pod."""
    logs: list[LogTail] = field(default_factory=list)
    """Not written yet."""
    log_keys: set[tuple[str, str, int]] = field(default_factory=set)
    reads: set[asyncio.Task[None]] = field(default_factory=set)
    events: EventFolder | None = None
    """Where the job writes event files of TensorBoard; None if that is not known."""
    progress_file: Path | None = None
    """Where a program without an agent writes its steps; None if that is not known."""
    is_deleted: bool = False
    is_changed: bool = True
    """Whether the record differs from what was written."""
    is_merged: bool = False
    """Whether it has what an earlier process has stored."""
    written_at: float | None = None
    ended_ms: int | None = None
    ended_at: float | None = None
    is_complete: bool = False
    """Whether the job has ended and its diagnosis is made."""

    @property
    def has_ended(self) -> bool:
        return self.is_deleted or self.job.state.finished


class Recorder:
    """Keeps the records of one cluster. Create it before the collector runs; then ``run``."""

    def __init__(
        self,
        client: ApiClient,
        collector: Collector,
        store: Store,
        cluster: str,
        *,
        reads_folders: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Record what ``collector`` observes; ``reads_folders`` if jobs run on this machine."""
        self._client, self._collector, self._store = client, collector, store
        self._cluster, self._clock = cluster, clock
        self._reads_folders = reads_folders
        self._recordings: dict[str, _Recording] = {}
        self._dirty: set[str] = set()
        """Jobs to observe."""
        self._requests = asyncio.Semaphore(CONCURRENT)
        self._wake = asyncio.Event()
        self._losses = store.losses
        self._tasks: asyncio.TaskGroup | None = None
        self._starting: list[Callable[[], None]] = []
        self._done: set[str] = set()
        """Jobs that have ended, are written, and still exist."""
        self.dropped = 0
        """Records of ended jobs that were lost because the database was away for too long."""
        collector.add_listeners(self._on_job, self._on_pod, self._on_usage)

    async def run(self) -> None:
        """Record until cancelled; what was not written is written then, if the database answers."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                for start in self._starting:
                    start()
                self._starting.clear()
                tasks.create_task(self._repeat(OBSERVE_S, self._observe_dirty))
                tasks.create_task(self._repeat(POLL_S, self._poll_goodput))
                tasks.create_task(self._repeat(DEVICES_S, self._poll_devices))
                tasks.create_task(self._write_due())
        finally:
            for recording in self._recordings.values():
                recording.written_at = None
            await asyncio.shield(self.flush(until=time.monotonic() + STOP_S))

    def current(self, uid: str) -> JobRecord | None:
        """Return the record of a job as it is now; None if memory does not have all of it."""
        recording = self._recordings.get(uid)
        return recording.record if recording and recording.is_merged else None

    def _now_ms(self) -> int:
        return round(self._clock() * 1000)

    # Watches

    def _on_job(self, kind: JobKind, old: Any, new: Any) -> None:
        stored = new if new is not None else old
        uid = stored.metadata.uid
        if uid not in self._collector.jobs:
            self._recordings.pop(uid, None)  # its namespace is excluded
            return
        recording = self._recordings.get(uid)
        if recording is None:
            recording = self._begin(kind, stored)
            if uid in self._done and new is not None and recording.job.state.finished:
                return
            self._done.discard(uid)
            self._recordings[uid] = recording
            if recording.job.state.finished:
                # It may have ended long ago: what is stored of it shows whether anything is new.
                recording.is_deleted = new is None
                self._start(lambda: self._resume(uid, recording))
                return
            self._take_failures(uid, recording)
        recording.stored = stored
        recording.is_deleted = recording.is_deleted or new is None
        if old is not None and new is not None and old.spec != new.spec:
            manifest = msgspec.to_builtins(stored)
            recording.spec["written"] = _written(kind, manifest)
            recording.secrets |= secret_values(manifest)
        self._observe(uid, recording)

    def _begin(self, kind: JobKind, stored: Any) -> _Recording:
        manifest = msgspec.to_builtins(stored)
        folder = find_folder(manifest) if self._reads_folders else None
        return _Recording(
            kind=kind,
            stored=stored,
            job=build_job(kind, stored, [], []),
            spec={"written": _written(kind, manifest)},
            secrets=secret_values(manifest),
            events=EventFolder(folder) if folder else None,
            progress_file=find_folder(manifest, _PROGRESS) if self._reads_folders else None,
        )

    async def _resume(self, uid: str, recording: _Recording) -> None:
        """Go on with a job that had ended when it was first observed."""
        with contextlib.suppress(StoreError):
            await self._merge_stored(uid, recording)
        earlier = recording.record
        is_stored = earlier.state == recording.job.state and not recording.is_deleted
        if is_stored and earlier.diagnosis:
            recording.is_changed = False
            recording.is_complete = True
            recording.ended_at = time.monotonic()
            return
        self._take_failures(uid, recording)
        self._observe(uid, recording)

    def _take_failures(self, uid: str, recording: _Recording) -> None:
        for pod in self._collector.pods.by_index("job", uid):
            self._take_failure(recording, pod)

    def _on_pod(self, uid: str, pod: Pod) -> None:
        recording = self._recordings.get(uid)
        if recording is not None:
            self._take_failure(recording, pod)
            self._dirty.add(uid)

    def _on_usage(self, uid: str, samples: Sequence[PodSample]) -> None:
        recording = self._recordings.get(uid)
        if recording is not None and not recording.has_ended:
            values = {
                "cpu": sum(sample.cpu_millis for sample in samples) / 1000,
                "memory": float(sum(sample.memory_bytes for sample in samples)),
            }
            self._add_point(recording, "usage", values)

    def _running(self) -> list[_Recording]:
        return [one for one in self._recordings.values() if not one.has_ended]

    def _add_point(self, recording: _Recording, table: str, values: Mapping[str, float]) -> None:
        curves = recording.record.curves
        points = curves.get(table, Curves()).with_point(self._now_ms(), values)
        recording.record = msgspec.structs.replace(
            recording.record, curves={**curves, table: points}
        )
        recording.is_changed = True

    # Observation

    async def _observe_dirty(self) -> None:
        turns = Turns()
        for uid in list(self._dirty):
            self._dirty.discard(uid)
            recording = self._recordings.get(uid)
            if recording is not None and not recording.is_complete:
                self._observe(uid, recording)
            await turns.give_way()

    def _observe(self, uid: str, recording: _Recording) -> None:
        self._dirty.discard(uid)
        pods = self._collector.pods.by_index("job", uid)
        groups = self._collector.groups.by_index("job", uid)
        job = build_job(recording.kind, recording.stored, pods, groups)
        recording.job = _masked_job(job, recording.secrets)
        before = recording.record
        seen = JobAtTime(
            job=recording.job,
            status=recording.kind.status(recording.stored),
            pods=pods,
            failures=recording.failures,
            goodput=recording.goodput,
            global_batch=self._global_batch(uid),
            at_ms=self._now_ms(),
            is_deleted=recording.is_deleted,
        )
        recording.record = observe(before, seen)
        recording.is_changed = recording.is_changed or recording.record != before
        if recording.has_ended and recording.ended_at is None:
            recording.ended_at = time.monotonic()
            finished = recording.job.finished
            recording.ended_ms = to_ms(finished) if finished else seen.at_ms
            self._start(lambda: self._complete(uid, recording))

    def _global_batch(self, uid: str) -> int | None:
        watched = self._collector.jobs.get(uid)
        segments = watched.observations.segments if watched else {}
        return segments[max(segments)].global_batch if segments else None

    def _start(self, work: Callable[[], Any]) -> None:
        """Start a coroutine as a task; before ``run``, remember it."""
        if self._tasks is None:
            self._starting.append(lambda: self._start(work))
        else:
            self._tasks.create_task(work())

    async def _complete(self, uid: str, recording: _Recording) -> None:
        """Make the diagnosis of a job that has ended, and have the record written."""
        pods = self._collector.pods.by_index("job", uid)
        if recording.reads:
            await asyncio.wait(recording.reads, timeout=READ_LOGS_S)
        await self._read(recording)
        if recording.job.state.finished and recording.record.diagnosis is None:
            recording.record = msgspec.structs.replace(
                recording.record, diagnosis=await self._diagnosis(recording, pods)
            )
        self._observe(uid, recording)
        recording.is_complete = recording.is_changed = True
        self._wake.set()

    async def _diagnosis(self, recording: _Recording, pods: list[Pod]) -> dict[str, Any]:
        job, events = recording.job, list[EventRecord]()
        if job.state is JobState.FAILED:
            with contextlib.suppress(ApiError):
                events = await job_events(self._client, job.namespace, job)
        present = {pod.metadata.name for pod in pods}
        gone = [pod for name, pod in recording.failed_pods.items() if name not in present]
        diagnosis = diagnose(job, [*pods, *gone], events, recording.tails)
        masked: dict[str, Any] = mask_data(diagnosis_data(diagnosis), recording.secrets)
        return masked

    # Logs

    def _take_failure(self, recording: _Recording, pod: Pod) -> None:
        name, is_previous = failed_container(pod)
        if not name:
            return
        statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
        count = next(status.restart_count for status in statuses if status.name == name)
        attempt = count - 1 if is_previous else count
        key = (pod.metadata.uid, name, attempt)
        finding = finding_of_pod(pod)
        if key in recording.log_keys or finding is None:
            return
        recording.log_keys.add(key)
        recording.failures.append(finding)
        recording.failed_pods[pod.metadata.name] = pod
        del recording.failures[:-MAX_FAILURES]
        if finding.consequence and pod.metadata.deletion_timestamp is not None:
            return  # it was ended together with its gang: its log has nothing
        tail = LogTail(
            pod=pod.metadata.name,
            replica=finding.replica,
            container=name,
            attempt=max(0, attempt),
            at_ms=to_ms(finding.at) if finding.at else self._now_ms(),
        )
        self._start(lambda: self._read_log(recording, pod, tail, is_previous=is_previous))

    async def _read_log(
        self, recording: _Recording, pod: Pod, tail: LogTail, *, is_previous: bool
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        recording.reads.add(task)
        try:
            async with self._requests, asyncio.timeout(READ_LOGS_S):
                lines = await self._tail(recording, pod, tail, is_previous=is_previous)
        except TimeoutError:
            lines = []
        finally:
            recording.reads.discard(task)
        if not lines:
            return
        masked = mask_lines(lines, recording.secrets)
        recording.tails[tail.pod] = "\n".join(masked[-TAIL_LINES:])
        recording.logs.append(msgspec.structs.replace(tail, lines=tuple(masked)))
        recording.is_changed = True

    async def _tail(
        self, recording: _Recording, pod: Pod, tail: LogTail, *, is_previous: bool
    ) -> list[str]:
        lines = await read_tail(self._client, pod, tail.container, MAX_LINES, previous=is_previous)
        now = self._collector.pods.get(pod.metadata.namespace, pod.metadata.name)
        restarts = [
            status.restart_count
            for status in (now.status.container_statuses if now else ())
            if status.name == tail.container
        ]
        if restarts and restarts[0] > tail.attempt and not is_previous:
            # It has begun again meanwhile: what was read may be the log of that run.
            return await read_tail(self._client, pod, tail.container, MAX_LINES, previous=True)
        if not lines:  # an embedded cluster keeps logs of deleted pods
            uid = recording.job.uid
            return await read_tail(
                self._client, pod, tail.container, MAX_LINES, previous=False, kept_for=uid
            )
        return lines

    # Requests

    async def _poll_goodput(self) -> None:
        running, turns = iter(self._running()), Turns()

        async def read() -> None:
            for recording in running:
                await self._read(recording)
                await turns.give_way()

        await asyncio.gather(*(read() for _ in range(CONCURRENT)))

    async def _read(self, recording: _Recording) -> None:
        await self._read_goodput(recording)
        await self._read_effective(recording)
        await self._read_events(recording)

    async def _read_goodput(self, recording: _Recording) -> None:
        if not has_goodput(recording.job) or recording.job.started is None:
            return
        async with self._requests:
            try:
                goodput = await read_goodput(self._client, recording.job)
            except ApiError:
                return
        if goodput is not None:
            recording.goodput = goodput
            self._dirty.add(recording.job.uid)

    async def _read_effective(self, recording: _Recording) -> None:
        """Read what a job with a runtime runs, once its pods exist."""
        has_it = "effective" in recording.spec or not recording.kind.has_runtime
        if has_it or recording.job.started is None:
            return
        async with self._requests:
            try:
                effective = await effective_manifest(self._client, recording.job)
            except (ApiError, JobError):
                return
        recording.spec["effective"] = mask_manifest(effective)
        recording.is_changed = True

    async def _read_events(self, recording: _Recording) -> None:
        if recording.progress_file is not None:
            step = await asyncio.to_thread(read_step, recording.progress_file)
            self._collector.receive_steps(recording.job.uid, step)
        if recording.events is None:
            return
        async with self._requests:
            scalars = await asyncio.to_thread(recording.events.read)
            table = recording.record.curves.get("events", Curves())
            table = await asyncio.to_thread(with_scalars, table, scalars)
            self._collector.receive_steps(recording.job.uid, written_steps(scalars))
        if scalars:
            curves = {**recording.record.curves, "events": table}
            recording.record = msgspec.structs.replace(recording.record, curves=curves)
            recording.is_changed = True

    async def _poll_devices(self) -> None:
        with_devices = [one for one in self._running() if one.job.allocated_gpus]
        usage = await gpu_usage(self._client) if with_devices else None
        turns = Turns()
        for recording in with_devices if usage else ():
            assert usage is not None
            pods = self._collector.pods.by_index("job", recording.job.uid)
            names = [(pod.metadata.namespace, pod.metadata.name) for pod in pods]
            busy = [usage.pods[name] for name in names if name in usage.pods]
            devices = [device for name in names for device in usage.by_pod.get(name, ())]
            memory = [device.memory_used_bytes or 0 for device in devices]
            if busy:
                values = {"gpus": sum(busy), "gpuMemory": float(sum(memory))}
                self._add_point(recording, "usage", values)
            await turns.give_way()

    async def _repeat(self, every_s: float, work: Callable[[], Any]) -> None:
        while True:
            try:
                await work()
            except Exception:
                # One bad object must not end the records of all other jobs.
                log.exception("a part of the records was not observed")
            await asyncio.sleep(every_s)

    # Database

    async def _write_due(self) -> None:
        while True:
            self._wake.clear()
            await self.flush()
            try:
                async with asyncio.timeout(1.0):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def flush(self, until: float = math.inf) -> None:
        """Write the records that are due, those of ended jobs first, until a monotonic time."""
        if self._losses != self._store.losses:
            # A damaged file was replaced by an empty one: what memory has goes into it again.
            self._losses = self._store.losses
            for recording in self._recordings.values():
                recording.is_changed, recording.written_at = True, None
        due = [uid for uid, recording in self._recordings.items() if self._is_due(recording)]
        due.sort(key=lambda uid: not self._recordings[uid].has_ended)
        try:
            for first in range(0, len(due), BATCH):
                if time.monotonic() >= until:
                    log.info(
                        "records are not written: the time is over",
                        extra={"jobs": len(due) - first},
                    )
                    break
                await self._write(due[first : first + BATCH])
        except StoreError as error:
            log.debug("records stay in memory: %s", error)
        self._forget()

    def _is_due(self, recording: _Recording) -> bool:
        if not recording.is_changed:
            return False
        if recording.is_complete or recording.written_at is None:
            return True
        return time.monotonic() - recording.written_at >= WRITE_S

    async def _write(self, uids: list[str]) -> None:
        for uid in uids:
            await self._merge_stored(uid, self._recordings[uid])
        rows: list[RecordRow] = []
        runs: list[Run] = []
        for uid in uids:
            watched = self._collector.jobs.get(uid)
            if watched is not None and (run := watched.observations.run()) is not None:
                runs.append(Run(job=run.job))
                rows.append(self._row(uid, self._recordings[uid], run))

        def write() -> list[str]:
            self._store.write.runs(runs)
            return self._store.records.write(self._cluster, rows)

        # What changes while it is written is written again.
        for uid in uids:
            self._recordings[uid].is_changed = False
        try:
            await self._store.update(lambda _: write())
        except StoreError:
            for uid in uids:
                self._recordings[uid].is_changed = True
            raise
        for row in rows:
            recording = self._recordings.get(row.uid)
            if recording is not None:
                recording.written_at = time.monotonic()
                del recording.logs[: len(row.logs)]

    async def _merge_stored(self, uid: str, recording: _Recording) -> None:
        if recording.is_merged:
            return
        stored = await self._store.query(lambda _: self._store.records.read(self._cluster, uid))
        recording.is_merged = True
        if stored is not None and stored.record is not None:
            recording.record = merge_records(stored.record, recording.record)
            if stored.spec and "effective" in stored.spec:
                recording.spec.setdefault("effective", stored.spec["effective"])

    def _row(self, uid: str, recording: _Recording, run: Run) -> RecordRow:
        observations = self._collector.jobs[uid].observations
        at_ms = recording.ended_ms or self._now_ms()
        gpus, cores = reserved_seconds(run.job, run.pods, at_ms)
        recording.record = msgspec.structs.replace(
            recording.record, curves=with_ranks(recording.record.curves, observations.windows)
        )
        goodput = recording.goodput
        return RecordRow(
            uid=uid,
            at_ms=at_ms,
            record=recording.record,
            spec=dict(recording.spec),
            logs=tuple(recording.logs),
            gpu_seconds=gpus,
            cpu_seconds=cores,
            productive_seconds=round(gpus * goodput.share) if goodput else None,
        )

    def _forget(self) -> None:
        """Drop ended jobs from memory: written ones after a time, and too many others."""
        before = time.monotonic() - RETAIN_S
        unwritten, old = list[tuple[float, str]](), list[str]()
        for uid, recording in self._recordings.items():
            if not recording.is_complete or recording.ended_at is None:
                continue
            if recording.is_changed:
                unwritten.append((recording.ended_at, uid))
            elif recording.ended_at < before:
                old.append(uid)
        lost = [uid for _, uid in sorted(unwritten)[: max(0, len(unwritten) - MAX_UNWRITTEN)]]
        if lost and not self.dropped:
            log.warning("records of ended jobs are lost: the database is away")
        self.dropped += len(lost)
        for uid in (*lost, *old):
            if not self._recordings[uid].is_deleted:
                self._done.add(uid)
            del self._recordings[uid]


def read_step(path: Path) -> list[ReportedStep]:
    """Return the step in a progress file, as of its last change; empty if there is none."""
    try:
        if not path.is_file():  # to open a pipe would wait for its writer
            return []
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LARGEST_PROGRESS))
            steps = _STEP.findall(file.read(_LARGEST_PROGRESS))
            changed_s = os.fstat(file.fileno()).st_mtime
    except OSError:
        return []
    return [ReportedStep(round(1000 * changed_s), int(step)) for step in steps[-1:]]


def _written(kind: JobKind, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a job as it was written, without status and secrets."""
    names = {"apiVersion": kind.resource.api_version, "kind": kind.resource.kind}
    written = {name: value for name, value in manifest.items() if name != "status"}
    return mask_manifest(names | written)


def _masked_job(job: Job, secrets: frozenset[str]) -> Job:
    """Return a job without secrets in its texts, which quote lines of logs."""
    replicas = tuple(
        replace(replica, message=mask_line(replica.message, secrets))
        if replica.message
        else replica
        for replica in job.replicas
    )
    return replace(
        job,
        reason=mask_line(job.reason, secrets),
        last_restart=mask_line(job.last_restart, secrets),
        replicas=replicas,
    )
