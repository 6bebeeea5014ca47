"""What is not observed but read: shared by all viewers, when a page needs it, and not more often.

``Cached`` reads a value at most once per interval, whatever the number of its readers. A reading
that takes long has a longer interval, so that reading never takes more than a tenth of the time.
Computations of the scheduler and reads of complete lists run in a thread with a client of their
own, and do not delay the pages.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from gangline.dashboard.observed import ClusterSnapshot
from gangline.dashboard.rights import put_last
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import ClusterConfig
from gangline.kube.errors import KubeError
from gangline.sdk.advice import BrainUnavailable, NotInHistory
from gangline.sdk.client import JobClient, JobError
from gangline.sdk.cluster_checks import ClusterCheckResult, check_cluster
from gangline.sdk.diagnosis import Diagnosis, diagnose_job
from gangline.sdk.goodput import MAX_READ, Goodput, has_goodput, read_goodput
from gangline.sdk.history import AsyncHistory
from gangline.sdk.jobs import Job
from gangline.sdk.usage import gpu_usage, node_usage, pod_usage

log = logging.getLogger(__name__)

T = TypeVar("T")
Data = dict[str, Any]

_SHARE = 10.0
"""Readings take at most one part in so many of the time."""
MAX_KEYS = 500
"""Values of one kind that are remembered."""
MAX_FORECAST = 2_000
"""Of more pods that wait, no explanation simulates when they start: the scheduler states on the
pod groups when it expects that."""
ON_REQUEST_S, ACCOUNT_S, USAGE_S, CHECK_S = 2.0, 5.0, 15.0, 60.0


@dataclass(slots=True)
class Cached(Generic[T]):
    """A value that is read when it is needed and too old."""

    read: Callable[[], Awaitable[T]]
    least_s: float
    on_change: Callable[[], None] = lambda: None
    """Called when a reading in the background has another result."""
    value: T | None = None
    problem: str = ""
    """Why the last reading failed; empty if it did not."""
    _due: float = 0.0
    _reading: asyncio.Task[None] | None = None

    async def get(self) -> T | None:
        """Return the value, read again if it is too old; None if it cannot be read."""
        if time.monotonic() >= self._due:
            await asyncio.shield(self._start())
        return self.value

    def peek(self) -> T | None:
        """Return the last value immediately, and read a new one in the background if it is too
        old; None until the first was read.
        """
        if time.monotonic() >= self._due:
            self._start()
        return self.value

    def expire(self) -> None:
        """Have it read again when it is needed, unless the last reading has failed."""
        if not self.problem:
            self._due = 0.0

    def _start(self) -> asyncio.Task[None]:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        return self._reading

    async def _read(self) -> None:
        began, before = time.monotonic(), self.value
        try:
            self.value, self.problem = await self.read(), ""
        except (KubeError, JobError, BrainUnavailable, ValueError) as error:
            if self.problem != str(error):
                log.warning("reading for a page failed: %s", error)
            self.problem = str(error)
        ended = time.monotonic()
        self._due = ended + max(self.least_s, _SHARE * (ended - began))
        if self.value != before:
            self.on_change()


@dataclass(slots=True)
class CachedByKey(Generic[T]):
    """Values by key; those that were not used for longest are forgotten."""

    read: Callable[[Any], Awaitable[T]]
    least_s: float
    on_change: Callable[[], None] = lambda: None
    _values: dict[Any, Cached[T]] = field(default_factory=dict)

    def of(self, key: Any, argument: Any = None) -> Cached[T]:
        """Return the value of a key, which ``argument`` (default: the key) is read for."""
        read = partial(self.read, key if argument is None else argument)
        cached = self._values.pop(key, None) or Cached(read, self.least_s, self.on_change)
        cached.read = read  # with the newest state of the job
        put_last(self._values, key, cached, MAX_KEYS)
        return cached


class NoPast(Exception):
    """There is no record, or it cannot be read; the message says why."""


class Past:
    """The record of jobs, read from the Brain; pages show of it what the viewer may list.

    All methods raise ``NoPast``.
    """

    def __init__(self, client: ApiClient, url: str = "") -> None:
        """Read the record of the Brain at ``url``; empty: where it has published its address."""

        async def connect() -> ApiClient:
            return client

        self._history = AsyncHistory(connect, "", url)
        self._values: CachedByKey[Any] = CachedByKey(lambda read: read(), ON_REQUEST_S)

    async def jobs(self, limit: int, filters: Mapping[str, str | int]) -> Data:
        """Return the first answer with ``jobs``, and the parameters of the ``next`` one."""
        key = ("jobs", limit, *sorted(filters.items()))
        return await self._read(key, lambda: self._history.page(limit, **filters)) or {}

    async def record(self, namespace: str, name: str, uid: str = "") -> Data | None:
        """Return how a job went; None if the record does not have the job."""

        async def read() -> Data | None:
            with suppress(NotInHistory):
                return await self._history.get(name, namespace, uid=uid)
            return None

        return await self._read(("record", namespace, name, uid), read)

    async def usage(self, by: str, since: int, until: int, *namespaces: str) -> list[Data]:
        """Return what jobs used, of some namespaces or of all; times in milliseconds."""
        read = partial(self._history.usage, by, since=since, until=until, namespaces=namespaces)
        return await self._read(("usage", by, since, until, *namespaces), read) or []

    async def _read(self, key: tuple[object, ...], read: Callable[[], Awaitable[T]]) -> T | None:
        cached: Cached[T] = self._values.of(key, read)
        value = await cached.get()
        if cached.problem:
            raise NoPast(cached.problem)
        return value


async def in_thread(config: ClusterConfig, work: Callable[[ApiClient], Awaitable[T]]) -> T:
    """Run ``work`` in a thread, with an event loop and a client of its own.

    The thread is a daemon: a long computation does not keep a server that stops.
    """
    done: Future[T] = Future()
    # From now on a caller that is cancelled ends its wait alone; the thread can still set a result.
    done.set_running_or_notify_cancel()

    async def connected() -> T:
        async with ApiClient(config, "gangline-dashboard", count_requests=False) as client:
            return await work(client)

    def run() -> None:
        try:
            done.set_result(asyncio.run(connected()))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="dashboard: reading", daemon=True).start()
    return await asyncio.wrap_future(done)


class Sources:
    def __init__(self, client: ApiClient, cluster: ClusterSnapshot, record: str = "") -> None:
        self.client = client
        self.cluster = cluster
        self.past = Past(client, record)
        changed = cluster.note_change
        self.checks = Cached(self._checks, CHECK_S, changed)
        self.queues = Cached(self._queues, ON_REQUEST_S, changed)
        self.gpu_usage = Cached(partial(gpu_usage, client), USAGE_S, changed)
        self.node_usage = Cached(partial(node_usage, client), USAGE_S, changed)
        self.pod_usage = CachedByKey(partial(pod_usage, client), USAGE_S, changed)
        self._complete_reading = asyncio.Lock()
        """One at a time: each has all pods in memory for some seconds."""
        self._accounts = CachedByKey(partial(read_goodput, client), ACCOUNT_S, changed)
        self.diagnoses = CachedByKey(self._diagnose, ON_REQUEST_S)
        self._unexplained: dict[str, Job] = {}
        """Jobs that were asked for since the last reading, which is for all of them."""
        self._explanations = Cached(self._explain, ON_REQUEST_S, changed)

    def account(self, job: Job) -> Cached[Goodput | None]:
        return self._accounts.of(job.uid, job)

    def accounts(self, jobs: Sequence[Job]) -> dict[str, Goodput]:
        """Return what is known of the goodput of jobs that have such an account, by UID; of the
        first ``MAX_READ`` it is read again in the background.
        """
        elastic = [job for job in jobs if has_goodput(job) and not job.state.finished][:MAX_READ]
        accounts = ((job.uid, self.account(job).peek()) for job in elastic)
        return {uid: account for uid, account in accounts if account is not None}

    def explanation(self, job: Job) -> Sequence[Any]:
        """Return why a job waits; empty until it is read, in the background."""
        if not job.replicas:
            return ()
        put_last(self._unexplained, job.uid, job, MAX_KEYS)
        if job.uid not in (self._explanations.value or ()):
            self._explanations.expire()
        return (self._explanations.peek() or {}).get(job.uid, ())

    async def _checks(self) -> list[ClusterCheckResult]:
        config, cluster = self.client.config, self.cluster
        namespace = config.namespace
        jobs = [cluster.job(entry) for entry in cluster if entry.key[0] == namespace]
        pods = [pod for (place, _), pod in cluster.pods.items() if place == namespace]
        return await in_thread(
            config, lambda client: check_cluster(client, namespace, jobs=jobs, pods=pods)
        )

    async def _read_all_pods(
        self, report: Callable[[ApiClient, Any], Awaitable[Mapping[str, T]]]
    ) -> Mapping[str, T]:
        """Return a report of the scheduler, by its settings."""
        from gangline.scheduler.reporting.replay import read_deployed_settings

        async def read(client: ApiClient) -> Mapping[str, T]:
            return await report(client, await read_deployed_settings(client))

        async with self._complete_reading:
            return await in_thread(self.client.config, read)

    async def _queues(self) -> Mapping[str, Any]:
        from gangline.scheduler.reporting.live import report_queues

        return await self._read_all_pods(report_queues)

    async def _explain(self) -> Mapping[str, Sequence[Any]]:
        from gangline.scheduler.reporting.live import explain_jobs

        asked = {
            uid: (job.namespace, [replica.name for replica in job.replicas])
            for uid, job in self._unexplained.items()
        }
        self._unexplained = {}
        forecast = len(self.cluster.pods_on("")) <= MAX_FORECAST
        explained = await self._read_all_pods(
            lambda client, settings: explain_jobs(client, settings, asked, forecast=forecast)
        )
        known = (self._explanations.value or {}).items()
        others = [(uid, value) for uid, value in known if uid not in asked]
        return dict([*others, *((uid, explained.get(uid, ())) for uid in asked)][-MAX_KEYS:])

    async def _diagnose(self, job: Job) -> Diagnosis:
        jobs = JobClient(self.client, job.kind.trainer)
        return await diagnose_job(jobs, job.name, job.namespace)
