"""The progress endpoint: pods report how far their training is, and it is stored in their job.

The protocol is that of Kubeflow Trainer's status server, so its clients work unchanged: a POST of
``{"trainerStatus": ...}`` to the path of the job's status, answered by the report, or by a Status
with 403, 404, 413, 422 or 500. Every replica of the operator serves it, beside the webhook.

The first report of a job is written immediately. Further ones within a second are merged into one
write, which follows at the end of that second and whose sender does not wait for it.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from aiohttp import web
from prometheus_client import Counter

from gangline.api.jobs.kind import JobKind
from gangline.api.jobs.progress import MAX_METRIC_LENGTH, MAX_METRICS
from gangline.api.meta.json_objects import subobject, without_nulls
from gangline.api.meta.objects import Status, Wire
from gangline.kube.client.client import ApiClient, PatchKind
from gangline.kube.errors import ApiError, BadRequest, Conflict, Invalid, KubeError, NotFound
from gangline.operator.webhook.configuration import DeduplicatedWarnings
from gangline.operator.webhook.progress_access import JobIdentity, ReportAuthorizer

log = logging.getLogger(__name__)

REPORTS = Counter("gangline_progress_reports", "Reports of progress by HTTP status", ("code",))

MAX_BODY_BYTES = 64 << 10
READ_TIMEOUT_S = 10.0
WRITE_INTERVAL_S = 1.0
"""Shortest time between two writes of one job."""
WRITES_IN_FLIGHT = 16
STOP_TIMEOUT_S = 2.0


_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_METRIC_LENGTH)]


class _Metric(Wire):
    name: _Text
    value: _Text


class _Status(Wire):
    """A ``TrainerStatus``, with limits that are checked as it is decoded."""

    last_updated_time: Annotated[datetime, msgspec.Meta(tz=True)]
    progress_percentage: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    estimated_remaining_seconds: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] | None = None
    metrics: Annotated[tuple[_Metric, ...], msgspec.Meta(max_length=MAX_METRICS)] = ()


class ProgressReport(Wire):
    """The body of a report."""

    trainer_status: _Status | None = None


class RefusedReport(Exception):
    """The report is refused; the response is a Status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


class ProgressWriter:
    """Stores reports in ``status.trainerStatus`` of jobs."""

    def __init__(self, client: ApiClient, interval_s: float = WRITE_INTERVAL_S) -> None:
        self._client = client
        self._interval_s = interval_s
        self._limiter = asyncio.Semaphore(WRITES_IN_FLIGHT)
        self._next: dict[JobIdentity, _Status | None] = {}
        """Jobs that were written within the interval, with the report that follows, if any."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._warnings = DeduplicatedWarnings(log)

    async def write(self, job: JobIdentity, status: _Status) -> None:
        """Store a report, or have it stored at the end of the interval.

        Raises:
            NotFound: the job was deleted.
            ApiError: the API server refuses the report, or does not answer.
        """
        if job in self._next:
            self._next[job] = status
            return
        self._next[job] = None
        try:
            await self._store(job, status)
        finally:
            task = asyncio.create_task(self._store_later(job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Store the reports that wait."""
        for task in self._tasks:
            task.cancel()
        waiting = [(job, status) for job, status in self._next.items() if status]
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                writes = (self._store(job, status) for job, status in waiting)
                await asyncio.gather(*writes, return_exceptions=True)

    async def _store_later(self, job: JobIdentity) -> None:
        try:
            while True:
                await asyncio.sleep(self._interval_s)
                status, self._next[job] = self._next[job], None
                if status is None:
                    break
                await self._store(job, status)
        except (ApiError, RefusedReport) as error:
            self._warnings.warn(job.kind.identity, f"progress is not stored: {error}")
        # After an error the next report is written immediately, so that its sender gets the reason.
        del self._next[job]

    async def _store(self, job: JobIdentity, status: _Status) -> None:
        patch = [
            # A job of this name may have been deleted and created again.
            {"op": "test", "path": "/metadata/uid", "value": job.uid},
            # Its status exists, because it was written before any pod.
            {"op": "add", "path": "/status/trainerStatus", "value": msgspec.to_builtins(status)},
        ]
        resource: Any = replace(job.kind.resource, type=dict[str, Any])
        async with self._limiter:
            try:
                stored = await self._client.patch(
                    resource,
                    job.name,
                    patch,
                    job.namespace,
                    kind=PatchKind.JSON,
                    subresource="status",
                )
            except (Invalid, Conflict):
                present = await self._client.get(resource, job.name, job.namespace)
                if subobject(present, "metadata").get("uid") == job.uid:
                    raise
                raise NotFound(Status(reason="NotFound", message="was created again")) from None
        if not subobject(stored, "status", "trainerStatus"):
            raise RefusedReport(
                500,
                "InternalError",
                f"the cluster's definition of {job.kind.identity} drops status.trainerStatus: "
                "install Gangline's (kubectl apply -f deploy/crds)",
            )


class ProgressEndpoint:
    def __init__(
        self, client: ApiClient, kinds: Sequence[JobKind], namespaces: Sequence[str] = ()
    ) -> None:
        """Without ``namespaces`` the jobs of all namespaces are served."""
        self._kinds = {
            (*version.split("/"), kind.resource.plural): kind
            for kind in kinds
            for version in kind.api_versions
        }
        self._namespaces = frozenset(namespaces)
        self._authorizer = ReportAuthorizer(client)
        self._writer = ProgressWriter(client)
        self._warnings = DeduplicatedWarnings(log)

    def routes(self) -> list[web.RouteDef]:
        path = "/apis/{group}/{version}/namespaces/{namespace}/{plural}/{name}/status"
        return [web.post(path, self._handle), web.route("*", "/apis/{tail:.*}", self._refuse_path)]

    async def close(self) -> None:
        await self._writer.close()

    async def _refuse_path(self, _: web.Request) -> web.Response:
        return _failure(404, "NotFound", "Not found")

    async def _handle(self, request: web.Request) -> web.Response:
        response = await self._respond(request)
        REPORTS.labels(str(response.status)).inc()
        return response

    async def _respond(self, request: web.Request) -> web.Response:
        try:
            report = await self._accept(request)
        except RefusedReport as refused:
            return _failure(refused.code, refused.reason, str(refused))
        except NotFound:
            return _failure(404, "NotFound", "Train job not found")
        except (Invalid, BadRequest) as error:
            return _failure(422, "Invalid", str(error))
        except KubeError as error:
            self._warnings.warn("", f"a report of progress is lost: {error}")
            return _failure(500, "InternalError", "Internal error")
        return web.Response(body=msgspec.json.encode(report), content_type="application/json")

    async def _accept(self, request: web.Request) -> ProgressReport:
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise _too_large()
        words = request.match_info
        kind = self._kinds.get((words["group"], words["version"], words["plural"]))
        served = not self._namespaces or words["namespace"] in self._namespaces
        if kind is None or not served:
            raise RefusedReport(404, "NotFound", "Not found")
        job = await self._authorizer.authorize(
            request.headers.get("Authorization", ""),
            JobIdentity(kind, words["namespace"], words["name"]),
        )
        if job is None:
            raise RefusedReport(403, "Forbidden", "Forbidden")
        report = parse_report(await _read_body(request))
        if report.trainer_status is not None:
            await self._writer.write(job, report.trainer_status)
        return report


async def _read_body(request: web.Request) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise _too_large()
    except TimeoutError:
        raise RefusedReport(408, "Timeout", "the body did not arrive in time") from None
    return bytes(body)


def parse_report(body: bytes) -> ProgressReport:
    """Raises RefusedReport: it is malformed, or a field exceeds its limits."""
    try:
        report = msgspec.convert(without_nulls(msgspec.json.decode(body)), ProgressReport)
        status = report.trainer_status
        if status is None:
            return report
        time = status.last_updated_time.astimezone(UTC).replace(microsecond=0)
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise RefusedReport(422, "Invalid", f"Invalid payload: {error}") from None
    return ProgressReport(msgspec.structs.replace(status, last_updated_time=time))


def _too_large() -> RefusedReport:
    return RefusedReport(413, "RequestEntityTooLarge", "Payload too large")


def _failure(code: int, reason: str, message: str) -> web.Response:
    status = {
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    body = msgspec.json.encode(status)
    return web.Response(status=code, body=body, content_type="application/json")
