"""Logs of the replicas of a job as one stream.

``read_logs`` merges existing lines by time. ``follow_logs`` reads each replica while it writes:

1. Pods that do not exist yet are awaited; restarted and replaced pods are picked up.
2. A broken stream is reopened at the last timestamp. Timestamps of the kubelet show which lines
   were delivered, so no line is lost or repeated.
3. Readers wait while ``LineQueue`` is full, so memory is bounded for any speed of the consumer.
"""

import asyncio
import contextlib
import heapq
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import msgspec

from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import TERMINAL_PHASES, ContainerStatus
from gangline.api.meta.objects import Object
from gangline.api.resources import PODS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError, NotFound
from gangline.kube.informers.informer import Informer
from gangline.sdk.jobs import JOB_NAME_LABEL, ROLE_LABEL, Job, build_job, replica_name

T = TypeVar("T")

MAX_QUEUED_LINES = 10_000
"""Limit of lines that were read but not consumed."""


class LineQueue(Generic[T]):
    """An asyncio queue that can be closed, and that returns batches."""

    def __init__(self, most: int = MAX_QUEUED_LINES) -> None:
        self._lines: asyncio.Queue[T | None] = asyncio.Queue(most)
        self._ended = False

    def __len__(self) -> int:
        return self._lines.qsize()

    async def put(self, line: T) -> None:
        """Add a line; wait while the queue is full."""
        await self._lines.put(line)

    def close(self) -> None:
        """Close the queue. This never waits, because the consumer may have stopped."""
        self._ended = True
        with contextlib.suppress(asyncio.QueueFull):  # a waiting consumer implies an empty queue
            self._lines.put_nowait(None)

    async def batches(self) -> AsyncIterator[list[T]]:
        """Yield all lines that arrived since the last batch, at least one, until the queue is
        closed.
        """
        while not (self._ended and self._lines.empty()):
            if (line := await self._lines.get()) is None:
                return
            batch = [line]
            while not self._lines.empty() and (line := self._lines.get_nowait()) is not None:
                batch.append(line)
            yield batch
            if line is None:
                return


RECONNECT_DELAY_S = 0.5
"""Delay before a stream that ended early is reopened."""
DRAIN_TIMEOUT_S = 3.0
"""Time limit after the end of a job for the last lines of replicas that still run."""


@dataclass(frozen=True, slots=True, order=True)
class LogLine:
    """A line of a replica."""

    time: str
    """Timestamp of the kubelet (RFC 3339 with nanoseconds); sorts as text."""
    replica: str
    """Role and index, such as ``worker-3``."""
    text: str
    """The line, or of a line with carriage returns the state that a terminal shows at its end."""
    is_bar: bool = False
    """True for the present state of a progress bar, whose line has not ended."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Which lines to read."""

    tail: int | None = None
    """Limit of last lines of each replica."""
    since_seconds: int | None = None
    previous: bool = False
    """Lines of the containers before their last restart; cannot be followed."""
    replica: str = ""
    """Only the replica of this name (``worker-3``, or the pod's name)."""
    replicas: frozenset[str] = frozenset()
    """Only replicas of these names; empty for all."""
    role: str = ""
    """Only replicas of this role."""
    since_time: str = ""
    """Only lines since this time (RFC 3339)."""
    container: str = ""
    """The container; empty for the first."""
    bars: bool = False
    """While lines are followed, yield each state of a progress bar too."""


ALL_LOGS = LogOptions()


async def read_logs(
    client: ApiClient, job: Job, options: LogOptions = ALL_LOGS
) -> AsyncIterator[LogLine]:
    """Yield the existing lines of all replicas, in order of time."""
    async for line, _ in _merge_by_time(await _readers(client, job, options)):
        yield line


async def _merge_by_time(
    readers: list[AsyncIterator[LogLine]],
) -> AsyncIterator[tuple[LogLine, int]]:
    """Yield the lines of all readers in order of time, each with the number of its reader."""
    heads: list[tuple[LogLine, int]] = []
    for number, reader in enumerate(readers):
        if (line := await anext(reader, None)) is not None:
            heapq.heappush(heads, (line, number))
    while heads:
        line, number = heads[0]
        yield line, number
        following = await anext(readers[number], None)
        if following is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (following, number))


async def _readers(
    client: ApiClient, job: Job, options: LogOptions
) -> list[AsyncIterator[LogLine]]:
    """Return a reader for each replica: of its pod, or of the stored log of a deleted pod.

    With ``previous``, the lines are those of the containers before their last restart. If the pod
    was not restarted, they are those of the pod that it replaced.
    """
    label = f"{JOB_NAME_LABEL}={job.name}"
    listing = await client.list(PODS, job.namespace, labels=label)
    present = [pod for pod in listing.items if matches_options(pod, job.uid, options)]
    gone = [
        pod
        for pod in await deleted_pods(client, job) or ()
        if matches_options(pod, job.uid, options)
    ]
    of_gone, of_present = ({pod.metadata.name for pod in pods} for pods in (gone, present))
    readers: list[AsyncIterator[LogLine]] = []
    for pod in present:
        if options.previous and not was_restarted(pod, options.container):
            if pod.metadata.name in of_gone:
                readers.append(archived_lines(client, job, pod, replace(options, previous=False)))
        elif has_started(pod, options.container):
            readers.append(read_timestamped(client, pod, options))
    return readers + [
        archived_lines(client, job, pod, options)
        for pod in gone
        if pod.metadata.name not in of_present
    ]


async def deleted_pods(client: ApiClient, job: Job) -> list[Pod] | None:
    """Return the deleted pods of a job whose logs are stored.

    Only embedded clusters store logs of deleted pods; None for other clusters.
    """
    lines = client.logs("-", job.namespace, kept_for=job.uid)
    try:
        return [msgspec.json.decode(line, type=Pod) async for line in lines]
    except NotFound:
        return None  # other clusters have no pod named "-"
    except (ApiError, msgspec.DecodeError):
        return []


async def read_tail(
    client: ApiClient, pod: Pod, container: str, count: int, *, previous: bool, kept_for: str = ""
) -> list[str]:
    """Return the last lines of a container; none if its log cannot be read.

    ``kept_for`` is the UID of the job of a deleted pod.
    """
    name, namespace = pod.metadata.name, pod.metadata.namespace
    lines = client.logs(
        name, namespace, container=container, tail=count, previous=previous, kept_for=kept_for
    )
    try:
        return [_last_state(line.decode(errors="replace")) async for line in lines]
    except ApiError:
        return []


async def archived_lines(
    client: ApiClient, job: Job, pod: Pod, options: LogOptions
) -> AsyncIterator[LogLine]:
    """Yield the stored lines of a deleted pod."""
    try:
        async for line in read_timestamped(client, pod, options, kept_for=job.uid):
            yield line
    except NotFound:
        return  # the container never ran, or its log was deleted meanwhile


@asynccontextmanager
async def follow_logs(
    client: ApiClient, job: Job, options: LogOptions = ALL_LOGS
) -> AsyncIterator[AsyncIterator[LogLine]]:
    """Open a stream of lines as they are written; it ends when the job has ended and all lines are
    read.

    The stream ends also when the job is deleted.
    """
    async with follow_batches(client, job, options) as batches:
        yield (line async for batch in batches for line in batch)


@asynccontextmanager
async def follow_batches(
    client: ApiClient, job: Job, options: LogOptions = ALL_LOGS
) -> AsyncIterator[AsyncIterator[list[LogLine]]]:
    """Open a stream of batches: all lines since the last batch, and never an empty batch."""
    follower = LogFollower(client, job, options)
    work = asyncio.create_task(follower.run(), name=f"logs of {job.name}")
    try:
        yield follower.lines.batches()
        if work.done():
            work.result()
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


class LogFollower:
    """Reads all replicas of a job while they write, each in its own task."""

    def __init__(self, client: ApiClient, job: Job, options: LogOptions) -> None:
        self._client = client
        self._job = job
        self._options = options
        self.lines: LineQueue[LogLine] = LineQueue()
        self._tick = asyncio.Event()
        """Set at the next change, then replaced: read it before the state, await it afterwards."""
        labels = f"{JOB_NAME_LABEL}={job.name}"
        self._pods: Informer[Pod] = Informer(client, PODS, job.namespace, labels=labels)
        self._jobs: Informer[Any] = Informer(
            client, job.kind.resource, job.namespace, fields=f"metadata.name={job.name}"
        )
        self._pods.add_listener(self._note)
        self._jobs.add_listener(self._note)
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._positions: dict[str, LogPosition] = {}
        """Where the backlog of each pod ended, by its UID."""

    async def run(self) -> None:
        """Read until the job has ended and every replica was read to its end."""
        informers = [asyncio.create_task(informer.run()) for informer in (self._pods, self._jobs)]
        try:
            await self._pods.wait_for_sync()
            await self._jobs.wait_for_sync()
            await self._read_backlog()
            while True:
                tick = self._tick
                if await self._start_readers():
                    return
                await tick.wait()
        finally:
            tasks = [*informers, *self._readers.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.lines.close()

    async def _read_backlog(self) -> None:
        """Read what several replicas have written so far, merged by time.

        The readers of the replicas continue behind it, each by itself.
        """
        pods = [
            pod
            for pod in self._pods.items()
            if matches_options(pod, self._job.uid, self._options)
            and has_started(pod, self._options.container)
        ]
        if len(pods) < 2:
            return
        async for line, number in _merge_by_time([self._existing_lines(pod) for pod in pods]):
            position = self._positions.setdefault(pods[number].metadata.uid, LogPosition())
            position.is_new(line)
            await self.lines.put(line)

    async def _existing_lines(self, pod: Pod) -> AsyncIterator[LogLine]:
        """Yield the lines of one pod; a broken stream ends early, and its reader continues it."""
        with contextlib.suppress(ApiError):
            async for line in read_timestamped(self._client, pod, self._options, may_continue=True):
                yield line

    def _note(self, _old: Object | None, _new: Object | None) -> None:
        self._tick.set()
        self._tick = asyncio.Event()

    async def _start_readers(self) -> bool:
        """Start readers for new pods; return whether the job has ended and all is read."""
        for pod in self._pods.items():
            uid = pod.metadata.uid
            if uid not in self._readers and matches_options(pod, self._job.uid, self._options):
                reading = self._read(pod.metadata.name, uid)
                self._readers[uid] = asyncio.create_task(reading, name=f"log of {uid}")
        job = self._jobs.get(self._job.namespace, self._job.name)
        is_active = (
            job is not None
            and job.metadata.uid == self._job.uid
            and not build_job(self._job.kind, job, [], []).state.finished
        )
        if is_active:
            return False
        await self._drain()
        return True

    async def _drain(self) -> None:
        """Read ended replicas to their end; running replicas get a limited time for their last
        lines.
        """
        while pending := {task for task in self._readers.values() if not task.done()}:
            running = any(
                not self._has_ended(uid) for uid, t in self._readers.items() if t in pending
            )
            timeout = DRAIN_TIMEOUT_S if running else None
            done, _ = await asyncio.wait(
                pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                return

    def _has_ended(self, uid: str) -> bool:
        pod = self._pod(uid)
        return pod is None or pod.status.phase in TERMINAL_PHASES

    def _pod(self, uid: str) -> Pod | None:
        return next((pod for pod in self._pods.items() if pod.metadata.uid == uid), None)

    async def _read(self, name: str, uid: str) -> None:
        """Read one pod from start to end, across restarts and broken connections."""
        seen = self._positions.pop(uid, LogPosition())
        options = self._options
        while (pod := self._pod(uid)) is not None:
            if not has_started(pod, options.container):
                await self._pause(uid, pod)
                continue
            seen.resume()
            try:
                async for line in read_timestamped(
                    self._client, pod, options, follow=True, since=seen.last
                ):
                    if line.is_bar or seen.is_new(line):
                        await self.lines.put(line)
            except NotFound:
                return
            except ApiError:
                await asyncio.sleep(RECONNECT_DELAY_S)
                continue
            if self._has_ended(uid):
                return
            # The limits apply to the first stream only; later streams resume at the position.
            options = replace(options, tail=None, since_seconds=None, since_time="")
            await asyncio.sleep(RECONNECT_DELAY_S)

    async def _pause(self, uid: str, pod: Pod) -> None:
        """Wait until a pod has changed."""
        while True:
            tick = self._tick
            if self._pod(uid) is not pod:
                return
            await tick.wait()


@dataclass(slots=True)
class LogPosition:
    """Position in the log of a replica: the last timestamp, and the lines with this timestamp.

    The kubelet resumes at whole seconds, so lines before and at the position arrive again.
    """

    last: str = ""
    at_last: list[str] = field(default_factory=list)
    """Texts that were delivered with exactly this timestamp, including repetitions."""
    _again: list[str] = field(default_factory=list)

    def resume(self) -> None:
        """Expect the lines of the last timestamp to arrive again."""
        self._again = list(self.at_last)

    def is_new(self, line: LogLine) -> bool:
        """Return whether a line was not delivered yet, and advance the position."""
        if line.time < self.last:
            return False
        if line.time > self.last:
            self.last, self.at_last, self._again = line.time, [line.text], []
            return True
        if line.text in self._again:
            self._again.remove(line.text)
            return False
        self.at_last.append(line.text)
        return True


async def read_timestamped(
    client: ApiClient,
    pod: Pod,
    options: LogOptions,
    *,
    follow: bool = False,
    since: str = "",
    kept_for: str = "",
    may_continue: bool = False,
) -> AsyncIterator[LogLine]:
    """Yield the lines of one pod with their timestamps.

    ``since`` resumes after a broken connection; ``kept_for`` is the UID of the job of a deleted
    pod. With ``may_continue`` a progress bar whose line has not ended is left to the next reader.
    """
    replica = replica_name(pod)
    lines = client.logs(
        pod.metadata.name,
        pod.metadata.namespace,
        container=log_container(pod, options.container),
        follow=follow,
        tail=None if since else options.tail,
        since_seconds=None if since else options.since_seconds,
        since_time=f"{since[:19]}Z" if since else options.since_time,
        timestamps=True,
        previous=options.previous,
        kept_for=kept_for,
        bars=True,
    )
    time = state = ""
    async with aclosing(lines) as stream:
        async for line in stream:
            text = line.decode(errors="replace")
            if not time:  # later parts of a line have no time
                time, _, text = text.partition(" ")
            if not text.endswith("\r"):
                yield LogLine(time, replica, _last_state(text))
                time = ""
                continue
            state = _last_state(text)
            if follow and options.bars:
                yield LogLine(time, replica, state, is_bar=True)
    if time and not may_continue:
        yield LogLine(time, replica, state)


def _last_state(text: str) -> str:
    """Return what a terminal shows of a line at its end: the text after the last carriage return.

    Blank states are skipped: with them a bar clears its line.
    """
    if "\r" not in text:
        return text
    states = [state for state in text.split("\r") if state.strip()]
    return states[-1] if states else ""


def log_container(pod: Pod, container: str = "") -> str:
    """Return the container whose log is read: by default the first, or if it has not run, the init
    container that has failed.
    """
    first = container or pod.spec.containers[0].name
    if container or any(s.name == first and _has_run(s) for s in pod.status.container_statuses):
        return first
    failed = (s.name for s in pod.status.init_container_statuses if _has_failed(s))
    return next(failed, first)


def has_started(pod: Pod, container: str) -> bool:
    """Return whether a container has run, so that it may have a log."""
    name = log_container(pod, container)
    return any(
        status.name == name and _has_run(status)
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
    )


def _has_run(status: ContainerStatus) -> bool:
    ended = status.state.terminated or status.last_state.terminated
    return bool(status.state.running or ended or status.restart_count)


def _has_failed(status: ContainerStatus) -> bool:
    ends = (status.state.terminated, status.last_state.terminated)
    return any(end is not None and (end.exit_code or end.signal) for end in ends)


def was_restarted(pod: Pod, container: str) -> bool:
    """Return whether a container of this pod has run before."""
    name = log_container(pod, container)
    return any(
        status.name == name and status.last_state.terminated is not None
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
    )


def matches_options(pod: Pod, job_uid: str, options: LogOptions) -> bool:
    """Return whether a pod belongs to the job and matches the options."""
    owner = pod.metadata.controller
    if owner is None or owner.uid != job_uid:
        return False
    names = {pod.metadata.name, replica_name(pod)}
    role = pod.metadata.labels.get(ROLE_LABEL, "")
    if options.role and options.role.lower() != role:
        return False
    if options.replicas and not names & options.replicas:
        return False
    return not options.replica or options.replica in names
