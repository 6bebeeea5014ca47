"""Access to one cluster: ``AsyncClient``, and ``Client`` for code without an event loop.

Both connect with the first call, and again with the first call after they were closed; connections
that are still open are closed with their event loop. ``Client`` runs its calls in a loop of another
thread, so it works inside a running event loop too, as in notebooks.
"""

import asyncio
import ctypes
import math
import os
import queue
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack
from weakref import WeakSet

import msgspec

from gangline.api.meta.objects import Object, Status
from gangline.api.names import validate_dns_label
from gangline.kube.client.client import ApiClient as KubeClient
from gangline.kube.config.config import ClusterConfig, load_config
from gangline.kube.errors import AlreadyExists, KubeError
from gangline.kube.http.request import encode_object
from gangline.sdk.background_loop import background_loop
from gangline.sdk.client import JobClient, JobError, UnknownKind
from gangline.sdk.diagnosis import Diagnosis, diagnose_job
from gangline.sdk.events import job_events
from gangline.sdk.functions.job import FunctionOptions, prepare_function_job, with_suffix
from gangline.sdk.functions.program import (
    FunctionFailed,
    NoResult,
    failure_text,
    read_failures,
    read_results,
)
from gangline.sdk.handle import JobHandle, ProgressCallback
from gangline.sdk.job_editor import JobEditor
from gangline.sdk.jobs import Job, JobState
from gangline.sdk.kinds import JOB_KINDS
from gangline.sdk.listings import EventList, JobList
from gangline.sdk.logs import ALL_LOGS, LineQueue, LogLine, LogOptions, follow_logs, read_logs

if TYPE_CHECKING:
    from gangline.sdk.history import AsyncHistory, History

T = TypeVar("T")
_RESOURCES = {kind.resource.type: kind.resource for kind in JOB_KINDS}
_POLL_S = 0.5
_ACTIVE = frozenset(("Pending", "ContainerCreating", "PodInitializing", "Running"))
_EXPECTED = (KubeError, JobError, FunctionFailed, NoResult, TimeoutError)
"""Errors whose message says all: users see where they called, without our frames."""


class AsyncClient:
    """Works with the jobs of a cluster. It connects with the first call.

    ``async with AsyncClient() as client`` closes its connections at the end of the block.
    """

    def __init__(
        self,
        namespace: str | None = None,
        *,
        kubeconfig: str | None = None,
        context: str | None = None,
    ) -> None:
        """Load the configuration; without arguments as ``kubectl`` does.

        Raises:
            ConfigError: there is none, or it is broken.
            ValueError: the namespace is not the name of one.
        """
        self._config = load_config(kubeconfig, context)
        self.namespace = namespace or self._config.namespace
        if problem := validate_dns_label(self.namespace):
            raise ValueError(f"namespace: {self.namespace!r} {problem.problem}; {problem.remedy}")
        self._connections: dict[asyncio.AbstractEventLoop, _Connection] = {}
        """The connections in each event loop; those of a parent process stay here, unused."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._config.server}, namespace {self.namespace}>"

    async def __aenter__(self) -> Self:
        await self._connect()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections of the running event loop; the next call opens them again."""
        if connection := self._connections.pop(asyncio.get_running_loop(), None):
            await connection.aclose()

    close = aclose

    @property
    def jobs(self) -> JobClient:
        """The lower level of this client, after its first call in the running event loop."""
        connection = self._connections.get(asyncio.get_running_loop())
        if connection is None:
            raise RuntimeError("the client is not connected: use 'async with client'")
        return connection.jobs

    async def _connect(self) -> JobClient:
        loop = asyncio.get_running_loop()
        connection = self._connections.get(loop)
        if connection is None:
            for other in self._connections.copy():
                if other.is_closed():
                    self._connections.pop(other, None)
            connection = self._connections[loop] = _Connection(self._config)
            await connection.open()
        return connection.jobs

    @property
    def history(self) -> "AsyncHistory":
        """Jobs of the past, of the namespace of this client unless another is given."""
        from gangline.sdk.history import AsyncHistory

        async def connect() -> KubeClient:
            return (await self._connect()).client

        return AsyncHistory(connect, self.namespace)

    async def submit(self, job: Object | Mapping[str, Any]) -> Job:
        """Create a job from a struct such as ``PyTorchJob(...)``, or from a manifest.

        Raises:
            AlreadyExists: an object of this name exists.
            Invalid, BadRequest: the job is invalid.
            UnknownKind: it is no job, or the cluster has no such kind.
        """
        manifest = _manifest(job)
        jobs = await self._connect()
        created = await jobs.submit(manifest, self.namespace)
        metadata = created["metadata"]
        kind = f"{created['kind']}.{created['apiVersion'].partition('/')[0]}"
        return await jobs.get(f"{kind}/{metadata['name']}", metadata["namespace"])

    async def run(
        self,
        function: Callable[..., object],
        *,
        image: str,
        name: str = "",
        arguments: Mapping[str, Any] | None = None,
        **options: Unpack[FunctionOptions],
    ) -> Job:
        """Call a function in each replica of a new job.

        Args:
            function: its source is sent, with what it uses of its module.
            image: has the packages that the function imports; any on an embedded cluster.
            name: of the job; default: that of the function, with a suffix if such a job exists.
            arguments: of the function by name: plain data.
            options: workers (pods in all), their resources and policies.

        Raises:
            UnsupportedFunction: the function or an argument cannot be sent.
            InvalidArguments: the arguments do not fit the function.
            InvalidOption: the name, the image or an option is wrong.
            AlreadyExists: a job of the given name exists.
        """
        manifest = prepare_function_job(function, image, name, arguments, options)
        return await self._create(manifest, is_named=bool(name))

    async def _create(self, manifest: dict[str, Any], *, is_named: bool) -> Job:
        """Create a job whose name no job of any kind has; add a suffix to a default name."""
        first_name = name = manifest["metadata"]["name"]
        while True:
            existing = await self._existing(name)
            if not existing:
                try:
                    return await self.submit(manifest)
                except AlreadyExists as error:  # it was created in this moment
                    existing = str(error)
            if is_named:
                message = (
                    f"{existing}: give another name, use it with client.handle({name!r}), or "
                    f"delete it with client.delete({name!r})"
                )
                status = Status(status="Failure", reason="AlreadyExists", code=409, message=message)
                raise AlreadyExists(status) from None
            name = with_suffix(first_name)
            manifest = {**manifest, "metadata": {"name": name}}

    async def _existing(self, name: str) -> str:
        """Return a sentence about the jobs with a name; empty if there is none."""
        jobs = await self._connect()
        kinds = await jobs.kinds_with(name, self.namespace)
        if not kinds:
            return ""
        job = f"{', '.join(kind.trainer for kind in kinds)} {name!r}"
        return f"{job} exists in namespace {self.namespace!r}"

    async def get(self, name: str) -> Job:
        """Return a job.

        Raises:
            NoSuchJob, AmbiguousJob: no job, or several jobs have this name.
        """
        return await (await self._connect()).get(name, self.namespace)

    async def list(self, labels: str = "") -> JobList:
        """Return the jobs, the newest first."""
        return JobList(await (await self._connect()).list(self.namespace, labels))

    async def wait(
        self,
        name: str,
        progress: ProgressCallback | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Job:
        """Wait until a job has ended, and return it.

        Args:
            name: the job.
            progress: called with the job at the start, and whenever its state, its reason or the
                number of running replicas changes.
            timeout: limit in seconds; None for none. The job goes on after it.

        Raises:
            NoSuchJob: no job has this name, or it was deleted meanwhile.
            TimeoutError: the job has not ended in time; the message has its state and the reason.
        """
        _check_wait(progress, timeout)
        jobs = await self._connect()
        return await jobs.wait(name, self.namespace, progress, timeout_s=timeout)

    async def results(
        self,
        name: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> dict[int, Any]:
        """Wait for the end; return what the function has returned by rank, without None.

        Raises:
            FunctionFailed: the function has failed on a rank; the message has its traceback.
            NoResult: a log lacks lines of a result.
            NoSuchJob, TimeoutError: as ``wait``; all ranks must have ended in time.
        """
        end = None if timeout is None else time.monotonic() + timeout
        job = await self.wait(name, timeout=timeout)
        # The job succeeds with its first rank; the others may still have something to report.
        while job.state is JobState.SUCCEEDED and (late := _active_replicas(job)):
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(
                    f"job {name!r} has succeeded, but {late} runs after {timeout:g} s"
                )
            await asyncio.sleep(_POLL_S)
            job = await self.get(name)
        lines = [line async for line in self.logs(job.name)]
        failures = read_failures(lines)
        if job.state is JobState.SUCCEEDED and not failures and not _failed_replicas(job):
            return read_results(line.text for line in lines)
        diagnosis = await self.diagnose(job.name)
        reported = {failure.replica for failure in failures}
        if diagnosis.root and diagnosis.root.replica in reported:
            raise FunctionFailed(f"{job.name} has failed {failure_text(failures)}", failures)
        # The replica that failed first could not report anything, as one without memory.
        others = f"\n\nLater {failure_text(failures)}" if failures else ""
        raise FunctionFailed(f"{diagnosis!r}{others}", failures)

    async def result(
        self,
        name: str,
        rank: int = 0,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Any:
        """Wait for the end; return what the function has returned on one rank.

        Raises:
            FunctionFailed, NoSuchJob, TimeoutError: as ``results``.
            NoResult: a log lacks lines of a result, or there is no such rank.
        """
        ranks = (await self.get(name)).desired
        if isinstance(rank, bool) or rank not in range(ranks):
            raise NoResult(f"{name} has ranks 0 to {ranks - 1}, not {rank}")
        return (await self.results(name, timeout=timeout)).get(rank)

    async def logs(
        self, name: str, *, follow: bool = False, options: LogOptions = ALL_LOGS
    ) -> AsyncGenerator[LogLine, None]:
        """Yield the lines of all replicas, merged by time; with ``follow`` until the end of the
        job.
        """
        jobs = await self._connect()
        job = await jobs.get(name, self.namespace)
        queued: LineQueue[LogLine] = LineQueue()
        # A task can be cancelled as a unit. Nested generators cannot be closed when a loop ends
        # before the caller has read all lines: asyncio closes all of them concurrently.
        reading = asyncio.create_task(_read_lines(jobs.client, job, follow, options, queued))
        try:
            async for batch in queued.batches():
                for line in batch:
                    yield line
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def events(self, name: str = "") -> EventList:
        """Return the events of a job; of all objects for an empty name."""
        jobs = await self._connect()
        return EventList(await job_events(jobs.client, self.namespace, name))

    async def scale(self, name: str, replicas: int, role: str = "worker") -> Job:
        """Set the number of replicas of a role.

        Raises:
            JobError: the job has no such role, or has ended.
        """
        await JobEditor(await self._connect()).scale(name, self.namespace, lambda _: replicas, role)
        return await self.get(name)

    async def suspend(self, name: str) -> None:
        """Delete the pods of a job and suspend it."""
        await JobEditor(await self._connect()).suspend(name, self.namespace)

    async def resume(self, name: str) -> None:
        """Resume a suspended job."""
        await JobEditor(await self._connect()).suspend(name, self.namespace, suspended=False)

    async def diagnose(self, name: str) -> Diagnosis:
        """Find out why a job failed or is pending."""
        return await diagnose_job(await self._connect(), name, self.namespace)

    async def delete(self, name: str) -> None:
        """Delete a job with all objects that it owns.

        Raises:
            NoSuchJob, AmbiguousJob: no job, or several jobs have this name.
        """
        await (await self._connect()).delete(name, self.namespace)


class Client:
    """``AsyncClient`` without ``await``. It connects with the first call.

    ``with Client() as client`` closes its connections at the end of the block; without it they are
    closed when the program ends. A closed client connects again when it or a handle is used.
    """

    def __init__(
        self,
        namespace: str | None = None,
        *,
        kubeconfig: str | None = None,
        context: str | None = None,
    ) -> None:
        """Load the configuration; see ``AsyncClient``."""
        self._client = AsyncClient(namespace, kubeconfig=kubeconfig, context=context)

    def __repr__(self) -> str:
        return repr(self._client).replace("AsyncClient", "Client", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def namespace(self) -> str:
        """The namespace of the jobs."""
        return self._client.namespace

    def close(self) -> None:
        """Close the connections; the next call opens them again."""
        self._run(self._client.aclose())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return _result(background_loop().submit(work))

    @property
    def history(self) -> "History":
        """Jobs of the past; see ``AsyncClient.history``."""
        from gangline.sdk.history import History

        return History(self._client.history, self._run)

    def submit(self, job: Object | Mapping[str, Any]) -> Job:
        """Create a job; see ``AsyncClient.submit``."""
        return self._run(self._client.submit(job))

    def run(
        self,
        function: Callable[..., object],
        *,
        image: str,
        name: str = "",
        arguments: Mapping[str, Any] | None = None,
        **options: Unpack[FunctionOptions],
    ) -> JobHandle:
        """Call a function in each replica of a new job; see ``AsyncClient.run``."""
        manifest = prepare_function_job(function, image, name, arguments, options)
        job = self._run(self._client._create(manifest, is_named=bool(name)))
        return JobHandle(self, job.name, job.uid)

    def handle(self, name: str) -> JobHandle:
        """Return a handle of a job that exists, such as one of an earlier session.

        Raises:
            NoSuchJob, AmbiguousJob: no job, or several jobs have this name.
        """
        job = self.get(name)
        return JobHandle(self, job.name, job.uid)

    def get(self, name: str) -> Job:
        """Return a job; see ``AsyncClient.get``."""
        return self._run(self._client.get(name))

    def list(self, labels: str = "") -> JobList:
        """Return the jobs, the newest first."""
        return self._run(self._client.list(labels))

    def wait(
        self,
        name: str,
        progress: ProgressCallback | None = None,
        *,
        timeout: float | None = None,
    ) -> Job:
        """Wait until a job has ended, and return it; see ``AsyncClient.wait``."""
        if progress is None:
            return self._run(self._client.wait(name, timeout=timeout))
        _check_wait(progress, timeout)
        # Reports are made in this thread: a callback may use the client, or end the wait.
        reports: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        waiting = background_loop().submit(self._client.wait(name, reports.put, timeout=timeout))
        waiting.add_done_callback(lambda _: reports.put(None))
        try:
            while (job := reports.get()) is not None:
                progress(job)
        finally:
            waiting.cancel()
        return _result(waiting)

    def results(self, name: str, *, timeout: float | None = None) -> dict[int, Any]:
        """Wait for the end; return what the function has returned; see ``AsyncClient.results``."""
        return self._run(self._client.results(name, timeout=timeout))

    def result(self, name: str, rank: int = 0, *, timeout: float | None = None) -> Any:
        """Wait for the end; return what one rank has returned; see ``AsyncClient.result``."""
        return self._run(self._client.result(name, rank, timeout=timeout))

    def events(self, name: str = "") -> EventList:
        """Return the events of a job; see ``AsyncClient.events``."""
        return self._run(self._client.events(name))

    def scale(self, name: str, replicas: int, role: str = "worker") -> Job:
        """Set the number of replicas of a role; see ``AsyncClient.scale``."""
        return self._run(self._client.scale(name, replicas, role))

    def suspend(self, name: str) -> None:
        """Delete the pods of a job and suspend it."""
        self._run(self._client.suspend(name))

    def resume(self, name: str) -> None:
        """Resume a suspended job."""
        self._run(self._client.resume(name))

    def diagnose(self, name: str) -> Diagnosis:
        """Find out why a job failed or is pending."""
        return self._run(self._client.diagnose(name))

    def delete(self, name: str) -> None:
        """Delete a job with all objects that it owns."""
        self._run(self._client.delete(name))

    def logs(
        self, name: str, *, follow: bool = False, options: LogOptions = ALL_LOGS
    ) -> Iterator[LogLine]:
        """Yield the lines of all replicas; see ``AsyncClient.logs``."""
        # The event loop closes the generator when it is no longer referenced.
        lines = self._client.logs(name, follow=follow, options=options)
        while (line := self._run(_next(lines))) is not None:
            yield line


_connections: "WeakSet[_Connection]" = WeakSet()


def _leak_connections() -> None:
    """Let a forked child never collect the connections of its parent: closing writes to them."""
    for connection in _connections:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _connections.clear()


os.register_at_fork(after_in_child=_leak_connections)


class _Connection:
    """Connections in one event loop, which are closed with it."""

    def __init__(self, config: ClusterConfig) -> None:
        kube = KubeClient(config, user_agent="gangline-sdk", count_requests=False)
        self.jobs = JobClient(kube)
        self._opened = _opened(kube)
        _connections.add(self)

    async def open(self) -> None:
        await anext(self._opened)

    async def aclose(self) -> None:
        await self._opened.aclose()


async def _opened(kube: KubeClient) -> AsyncGenerator[None, None]:
    """Open a client; it is closed with this generator, which event loops do before they end."""
    async with kube:
        yield


def _result(doing: Future[T]) -> T:
    try:
        return doing.result()
    except _EXPECTED as error:
        raise error.with_traceback(None) from None
    except BaseException:
        doing.cancel()
        raise


def _check_wait(progress: object, timeout: object) -> None:
    """Check the arguments of ``wait``.

    Raises:
        TypeError, ValueError: one of them is wrong.
    """
    if progress is not None and not callable(progress):
        raise TypeError(f"progress: {progress!r} cannot be called; give seconds as timeout=...")
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout: {timeout!r} is not a number; give seconds, or None for no limit")
    if not 0 <= timeout < math.inf:
        raise ValueError(f"timeout: {timeout!r} is no time; give seconds, or None for no limit")


def _active_replicas(job: Job) -> str:
    """Return the names of replicas that start or run."""
    active = (
        replica.short_name
        for replica in job.replicas
        if replica.exit_code is None
        and (replica.status in _ACTIVE or replica.status.startswith("Init:"))
    )
    return ", ".join(active)


def _failed_replicas(job: Job) -> bool:
    return any(replica.exit_code for replica in job.replicas)


async def _read_lines(
    client: KubeClient, job: Job, follow: bool, options: LogOptions, queued: LineQueue[LogLine]
) -> None:
    """Put the lines of a job into a queue, and close it."""
    try:
        if follow:
            async with follow_logs(client, job, options) as lines:
                async for line in lines:
                    await queued.put(line)
        else:
            async for line in read_logs(client, job, options):
                await queued.put(line)
    finally:
        queued.close()


async def _next(lines: AsyncGenerator[LogLine, None]) -> LogLine | None:
    return await anext(lines, None)


def _manifest(job: Object | Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert a job to plain data, without default values of a struct."""
    if isinstance(job, Mapping):
        kind = str(job.get("kind", ""))
        if all(job_kind.resource.kind != kind for job_kind in JOB_KINDS):
            names = ", ".join(sorted({job_kind.resource.kind for job_kind in JOB_KINDS}))
            raise UnknownKind(f"kind: {kind!r} is not a kind of job; give one of {names}")
        return job
    resource = _RESOURCES.get(type(job))
    if resource is None:
        raise TypeError(f"{type(job).__name__} is not a kind of job")
    manifest: dict[str, Any] = msgspec.json.decode(encode_object(resource, job))
    manifest.pop("status", None)
    return manifest
