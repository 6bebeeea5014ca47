"""Access to one cluster: ``AsyncClient``, and ``Client`` for code without an event loop.

``Client`` runs an event loop in a thread of its own, so it works inside a running event loop too,
as in notebooks.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from typing import Any, Self, TypeVar, Unpack

import msgspec

from gangline.api.meta.objects import Object
from gangline.kube.client.client import ApiClient as KubeClient
from gangline.kube.config.config import load_config
from gangline.kube.http.request import encode_object
from gangline.sdk.client import JobClient
from gangline.sdk.diagnosis import Diagnosis, diagnose_job
from gangline.sdk.events import EventRecord, job_events
from gangline.sdk.functions.job import (
    FunctionJobOptions,
    FunctionOptions,
    build_function_job,
    default_name,
)
from gangline.sdk.handle import JobHandle, ProgressCallback
from gangline.sdk.job_editor import JobEditor
from gangline.sdk.jobs import Job, format_run_time
from gangline.sdk.kinds import JOB_KINDS
from gangline.sdk.logs import ALL_LOGS, LogLine, LogOptions, follow_logs, read_logs

T = TypeVar("T")
EventList = list[EventRecord]
_RESOURCES = {kind.resource.type: kind.resource for kind in JOB_KINDS}


class JobList(list[Job]):
    """Jobs, the newest first; notebooks show a table."""

    def _repr_html_(self) -> str:
        from gangline.sdk import html_report

        if not self:
            return html_report.note("No jobs.")
        head = ("Job", "Kind", "State", "Replicas", "GPUs", "Duration", "Reason")
        rows = [
            (
                job.name,
                job.kind.trainer,
                job.state,
                f"{job.running}/{job.desired}",
                job.requested_gpus,
                format_run_time(job),
                job.reason,
            )
            for job in self
        ]
        return html_report.table(head, rows)


class AsyncClient:
    """Works with the jobs of a cluster. Use as ``async with AsyncClient() as client``."""

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
        """
        self._kube = KubeClient(load_config(kubeconfig, context), user_agent="gangline-sdk")
        self.namespace = namespace or self._kube.config.namespace
        self.jobs = JobClient(self._kube)

    async def __aenter__(self) -> Self:
        await self._kube.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._kube.__aexit__(*error)

    async def submit(self, job: Object | Mapping[str, Any]) -> Job:
        """Create a job from a struct such as ``PyTorchJob(...)``, or from a manifest.

        Raises:
            AlreadyExists: an object of this name exists.
            Invalid, BadRequest: the job is invalid.
            UnknownKind: the cluster has no such kind.
        """
        created = await self.jobs.submit(_manifest(job), self.namespace)
        metadata = created["metadata"]
        return await self.jobs.get(metadata["name"], metadata["namespace"])

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
            name: of the job; default: that of the function.
            arguments: of the function by name: plain data.
            options: workers (pods in all), their resources and policies.

        Raises:
            UnsupportedFunction: the function cannot be sent as source.
            AlreadyExists: a job of this name exists.
        """
        called = name or default_name(function)
        job = build_function_job(
            called, function, arguments or {}, FunctionJobOptions(image=image, **options)
        )
        return await self.submit(job)

    async def get(self, name: str) -> Job:
        """Return a job.

        Raises:
            NoSuchJob, AmbiguousJob: no job, or several jobs have this name.
        """
        return await self.jobs.get(name, self.namespace)

    async def list(self, labels: str = "") -> JobList:
        """Return the jobs, the newest first."""
        return JobList(await self.jobs.list(self.namespace, labels))

    async def wait(self, name: str, progress: ProgressCallback | None = None) -> Job:
        """Wait until a job has ended, and return it.

        Args:
            name: the job.
            progress: called with the job at the start, and whenever its state, its reason or the
                number of running replicas changes.

        Raises:
            NoSuchJob: no job has this name, or it was deleted meanwhile.
        """
        return await self.jobs.wait(name, self.namespace, progress)

    async def logs(
        self, name: str, *, follow: bool = False, options: LogOptions = ALL_LOGS
    ) -> AsyncGenerator[LogLine, None]:
        """Yield the lines of all replicas, merged by time; with ``follow`` until the end of the
        job.
        """
        job = await self.get(name)
        if not follow:
            async for line in read_logs(self._kube, job, options):
                yield line
            return
        async with follow_logs(self._kube, job, options) as lines:
            async for line in lines:
                yield line

    async def events(self, name: str = "") -> EventList:
        """Return the events of a job; of all objects for an empty name."""
        return await job_events(self._kube, self.namespace, name)

    async def scale(self, name: str, replicas: int, role: str = "worker") -> Job:
        """Set the number of replicas of a role.

        Raises:
            JobError: the job has no such role, or has ended.
        """
        await JobEditor(self.jobs).scale(name, self.namespace, lambda _: replicas, role)
        return await self.get(name)

    async def suspend(self, name: str) -> None:
        """Delete the pods of a job and suspend it."""
        await JobEditor(self.jobs).suspend(name, self.namespace)

    async def resume(self, name: str) -> None:
        """Resume a suspended job."""
        await JobEditor(self.jobs).suspend(name, self.namespace, suspended=False)

    async def diagnose(self, name: str) -> Diagnosis:
        """Find out why a job failed or is pending."""
        return await diagnose_job(self.jobs, name, self.namespace)

    async def delete(self, name: str) -> None:
        """Delete a job with all objects that it owns.

        Raises:
            NoSuchJob, AmbiguousJob: no job, or several jobs have this name.
        """
        await self.jobs.delete(name, self.namespace)


class Client:
    """``AsyncClient`` without ``await``. Use as ``with Client() as client``."""

    def __init__(self, namespace: str | None = None, **configuration: Any) -> None:
        self._client = AsyncClient(namespace, **configuration)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="gangline-sdk", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._client.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._run(self._client.__aexit__(*error))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        doing = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return doing.result()
        except BaseException:
            doing.cancel()
            raise

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
        starting = self._client.run(
            function, image=image, name=name, arguments=arguments, **options
        )
        return JobHandle(self, self._run(starting).name)

    def handle(self, name: str) -> JobHandle:
        """Return a handle of a job that exists, such as one of an earlier session.

        Raises:
            NoSuchJob, AmbiguousJob: no job, or several jobs have this name.
        """
        return JobHandle(self, self.get(name).name)

    def get(self, name: str) -> Job:
        """Return a job; see ``AsyncClient.get``."""
        return self._run(self._client.get(name))

    def list(self, labels: str = "") -> JobList:
        """Return the jobs, the newest first."""
        return self._run(self._client.list(labels))

    def wait(self, name: str, progress: ProgressCallback | None = None) -> Job:
        """Wait until a job has ended, and return it; see ``AsyncClient.wait``."""
        return self._run(self._client.wait(name, progress))

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
        lines = self._client.logs(name, follow=follow, options=options)
        try:
            while (line := self._run(_next(lines))) is not None:
                yield line
        finally:
            self._run(_close(lines))


async def _next(lines: AsyncGenerator[LogLine, None]) -> LogLine | None:
    return await anext(lines, None)


async def _close(lines: AsyncGenerator[LogLine, None]) -> None:
    await lines.aclose()


def _manifest(job: Object | Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert a job to plain data, without default values of a struct."""
    if isinstance(job, Mapping):
        return job
    resource = _RESOURCES.get(type(job))
    if resource is None:
        raise TypeError(f"{type(job).__name__} is not a kind of job")
    manifest: dict[str, Any] = msgspec.json.decode(encode_object(resource, job))
    manifest.pop("status", None)
    return manifest
