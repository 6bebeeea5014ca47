"""Serves the HTTP API: on loopback without authentication, elsewhere with TLS and tokens.

Who asks, and what may be shown: TokenReview and SubjectAccessReview of the API server.

The requests of the HTTP API.

======  ======================================  ====================================================
GET     /v1/history                             ended jobs, the latest first; filters in the query
GET     /v1/jobs/NAMESPACE/NAME/history         one job with segments and runs of its pods
GET     /v1/jobs/NAMESPACE/NAME/record          how it went; ``?uid=`` for an earlier one
GET     /v1/usage                               what jobs used: ``?by=queue&since=0&until=1``

POST    /v1/advice                              advice on a manifest that is not submitted yet
POST    /v1/facts                               facts of a job
======  ======================================  ====================================================

Jobs that the asker may not ``get`` are counted and not shown. Last lines of replicas are shown to
those who may read the logs of pods, and the use of a namespace to those who may list its jobs.
"""

import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from aiohttp import web

from gangline.api.job_resources import JOB_KINDS
from gangline.brain.facts.job_record import JobRecord
from gangline.brain.facts.records import RecordedJob, Run
from gangline.brain.settings import BadSettings
from gangline.brain.store.engine import Store
from gangline.brain.store.errors import StoreError
from gangline.brain.store.reader import GivenNumber, HistoryFilter
from gangline.brain.store.records import StoredRecord, UsageRow
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import is_loopback
from gangline.kube.errors import ApiError, ConfigError
from gangline.kube.probes import Address, listen

CACHE_S = 60.0
MAX_CACHED = 10_000
V = TypeVar("V")
Stored = TypeVar("Stored", Run, StoredRecord)
Query = TypeVar("Query", HistoryFilter, "UsageQuery")
_RESOURCES = {kind.identity: kind.resource for kind in JOB_KINDS}


class NotAuthenticated(Exception):
    """The request has no valid token."""


@dataclass(frozen=True, slots=True)
class Asker:
    """The user behind a request. None as ``name`` is a user of this machine, who may see all."""

    name: str | None
    groups: tuple[str, ...] = ()
    uid: str = ""


LOCAL = Asker(None)


class AccessChecks:
    """Reviews with a short memory: a page of history asks for the same rights a hundred times.

    Each method raises ``ApiError`` if the API server cannot check it.
    """

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._answers: dict[object, tuple[Any, float]] = {}
        """With the time until which they are used."""

    async def asker(self, headers: Mapping[str, str]) -> Asker:
        """Return the user of the token.

        Raises:
            NotAuthenticated: there is no token, or it is not valid.
        """
        scheme, _, written = headers.get("Authorization", "").partition(" ")
        token = written.strip()
        if scheme.lower() != "bearer" or not token:
            raise NotAuthenticated("send a token of the cluster as Authorization: Bearer TOKEN")

        async def review() -> Asker:
            status = await self._review("authentication.k8s.io", "TokenReview", {"token": token})
            if not status.get("authenticated"):
                raise NotAuthenticated("the token is not valid in this cluster")
            user = status.get("user") or {}
            groups = tuple(user.get("groups") or ())
            return Asker(str(user.get("username", "")), groups, str(user.get("uid", "")))

        return await self._cached(token, review)

    async def may(self, asker: Asker, verb: str, kind: str, namespace: str) -> bool:
        """Return whether a user has a right on a job kind in a namespace."""
        resource = _RESOURCES.get(kind)
        if resource is None:
            return asker.name is None
        return await self._may(
            asker, verb=verb, group=resource.group, resource=resource.plural, namespace=namespace
        )

    async def may_read_logs(self, asker: Asker, namespace: str) -> bool:
        return await self._may(
            asker, verb="get", group="", resource="pods", subresource="log", namespace=namespace
        )

    async def _may(self, asker: Asker, **attributes: str) -> bool:
        if asker.name is None:
            return True

        async def review() -> bool:
            spec: dict[str, Any] = {"user": asker.name, "uid": asker.uid, "groups": asker.groups}
            spec["resourceAttributes"] = attributes
            status = await self._review("authorization.k8s.io", "SubjectAccessReview", spec)
            return bool(status.get("allowed"))

        return await self._cached((asker, *attributes.values()), review)

    async def _review(self, group: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        review = {"apiVersion": f"{group}/v1", "kind": kind, "spec": spec}
        path = f"/apis/{group}/v1/{kind.lower()}s"
        answer = await self._client.request_json("POST", path, body=review)
        return dict(answer.get("status") or {})

    async def _cached(self, key: object, ask: Callable[[], Awaitable[V]]) -> V:
        answer, until = self._answers.get(key, (None, 0.0))
        if time.monotonic() >= until:
            answer = await ask()
            if len(self._answers) > MAX_CACHED:
                self._answers.clear()
            self._answers[key] = answer, time.monotonic() + CACHE_S
        found: V = answer
        return found


log = logging.getLogger(__name__)

MAX_BODY = 1 << 20
ASKER = "asker"
"""Key under which a request has its ``Asker``."""


ManifestAdviser: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Returns advice on a manifest; raises ``ValueError`` for one that is no job."""


class BrainApi:
    def __init__(self, client: ApiClient, store: Store, cluster: str) -> None:
        self._store, self._cluster = store, cluster
        self.access = AccessChecks(client)
        # These are set while this process leads.
        self.receive_facts: Callable[[str, bytes], str] | None = None
        """Takes a document of a job, by its uid; returns why it was not read, or an empty text."""
        self.manifest_adviser: ManifestAdviser | None = None
        self.current_record: Callable[[str], JobRecord | None] | None = None
        """The record of a job that runs or has just ended, of which the database knows less."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/history", self._history),
            web.get("/v1/jobs/{namespace}/{name}/history", self._run),
            web.get("/v1/jobs/{namespace}/{name}/record", self._record),
            web.get("/v1/usage", self._usage),
            web.post("/v1/advice", self._advise),
            web.post("/v1/facts", self._facts),
        ]

    async def _history(self, request: web.Request) -> web.Response:
        asked = read_query(request, HistoryFilter, cluster=self._cluster)
        page = await self._store.query(lambda reader: reader.history(asked))
        shown = [
            public_job(job)
            for job in page.jobs
            if await self.access.may(_asker(request), "get", job.kind, job.namespace)
        ]
        following = page.next and {"until": page.next.until_ms, "after": page.next.after_id}
        return _json({"jobs": shown, "hidden": len(page.jobs) - len(shown), "next": following})

    async def _run(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        run = await self._store.query(
            lambda reader: reader.run(self._cluster, namespace=namespace, name=name)
        )
        run = await self._checked(request, run)
        return _json({"job": public_job(run.job), "segments": run.segments, "pods": run.pods})

    async def _record(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        uid, records = request.query.get("uid", ""), self._store.records
        found = await self._store.query(
            lambda _: records.read(self._cluster, uid, namespace=namespace, name=name)
        )
        stored = await self._checked(request, found)
        if self.current_record is not None and (now := self.current_record(stored.job.uid)):
            stored = msgspec.structs.replace(stored, record=now)
        shown: dict[str, Any] = msgspec.to_builtins(stored)
        shown["job"] = public_job(stored.job)
        if not await self.access.may_read_logs(_asker(request), namespace):
            shown["logs"] = []
        return _json(shown)

    async def _checked(self, request: web.Request, found: Stored | None) -> Stored:
        """Return what the request may see; one answer else: it must not show that a job exists."""
        namespace, asker = request.match_info["namespace"], _asker(request)
        if (
            found is None
            or found.job.namespace != namespace
            or not await self.access.may(asker, "get", found.job.kind, namespace)
        ):
            name = request.match_info["name"]
            raise web.HTTPNotFound(text=f"no job {namespace}/{name} in the history")
        return found

    async def _usage(self, request: web.Request) -> web.Response:
        given = request.query.getall("namespace", [])
        asked = read_query(request, UsageQuery, namespace=given)
        namespaces, asker = list(asked.namespaces), _asker(request)
        if asker.name is not None:
            spaces = namespaces or [row.key for row in await self._used(asked, "namespace", ())]
            namespaces = [name for name in spaces if await self._may_list(asker, name)]
            if not namespaces:
                return _json({"rows": []})
        if asked.by != "month":
            return _json({"rows": await self._used(asked, asked.by, namespaces)})
        months = []
        for name, since_ms, until_ms in months_between(asked.since_ms, asked.until_ms):
            month = msgspec.structs.replace(asked, since_ms=since_ms, until_ms=until_ms)
            if used := await self._used(month, "namespace", namespaces):
                _, *columns = zip(*map(msgspec.structs.astuple, used), strict=True)
                months.append(UsageRow(name, *map(sum, columns)))
        return _json({"rows": months})

    async def _used(
        self, asked: "UsageQuery", by: str, namespaces: Iterable[str]
    ) -> list[UsageRow]:
        records = self._store.records
        return await self._store.query(
            lambda _: records.usage(self._cluster, by, asked.since_ms, asked.until_ms, namespaces)
        )

    async def _may_list(self, asker: Asker, namespace: str) -> bool:
        for kind in _RESOURCES:
            if await self.access.may(asker, "list", kind, namespace):
                return True
        return False

    async def _advise(self, request: web.Request) -> web.Response:
        if self.manifest_adviser is None:
            text = "this Brain only records jobs, or does not lead: 'gangline up --brain' advises"
            raise web.HTTPServiceUnavailable(text=text)
        try:
            manifest = msgspec.json.decode(await request.read(), type=dict[str, Any])
            meta = manifest.get("metadata") or {}
            kind, namespace = str(manifest.get("kind", "")), str(meta.get("namespace", ""))
            if not await self.access.may(_asker(request), "get", kind, namespace):
                raise web.HTTPForbidden(text=f"you may not get {kind} in {namespace}")
            return _json(await self.manifest_adviser(manifest))
        except (ValueError, msgspec.DecodeError) as error:
            raise web.HTTPBadRequest(text=str(error)) from error

    async def _facts(self, request: web.Request) -> web.Response:
        if self.receive_facts is None:
            raise web.HTTPServiceUnavailable(text="this copy of the Brain does not lead")
        text = await request.read()
        try:
            identity = msgspec.json.decode(text, type=_FactsIdentity)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise web.HTTPBadRequest(text=f"the body is not facts: {error}") from error
        if not await self.access.may(_asker(request), "update", "ElasticJob", identity.namespace):
            raise web.HTTPForbidden(text=f"you may not update ElasticJobs in {identity.namespace}")
        problem = self.receive_facts(identity.uid, text)
        if problem:
            raise web.HTTPBadRequest(text=problem)
        return web.Response(status=204)


class _FactsIdentity(msgspec.Struct):
    uid: str
    namespace: str = ""


MAX_MONTHS = 36


class UsageQuery(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"since_ms": "since", "until_ms": "until", "namespaces": "namespace"},
):
    """By what to sum up, and which jobs: those that ended between two times, in milliseconds."""

    by: Literal["queue", "owner", "kind", "namespace", "month"] = "queue"
    since_ms: GivenNumber = 0
    until_ms: GivenNumber = msgspec.field(default_factory=lambda: round(time.time() * 1000) + 1)
    namespaces: tuple[str, ...] = ()


def read_query(request: web.Request, kind: type[Query], **known: object) -> Query:
    """Return what a request asks for.

    Raises:
        web.HTTPBadRequest: a parameter is unknown or wrong; the text names it.
    """
    given = {name: value for name, value in request.query.items() if value}
    try:
        return msgspec.convert(given | known, kind, strict=False)
    except msgspec.ValidationError as error:
        raise web.HTTPBadRequest(text=str(error)) from error


def months_between(since_ms: int, until_ms: int) -> list[tuple[str, int, int]]:
    """Return the name and the bounds of each month (UTC), the last first, at most 36."""
    months: list[tuple[str, int, int]] = []
    while until_ms > since_ms and len(months) < MAX_MONTHS:
        last = datetime.fromtimestamp((until_ms - 1) / 1000, UTC)
        first = last.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        begin_ms = max(since_ms, round(first.timestamp() * 1000))
        months.append((f"{first:%Y-%m}", begin_ms, until_ms))
        until_ms = begin_ms
    return months


def public_job(job: RecordedJob) -> dict[str, Any]:
    """Return a job without what only the store needs."""
    hidden = ("cluster", "command_digest", "spec_digest", "wishes", "observed_ms")
    return {name: x for name, x in msgspec.to_builtins(job).items() if name not in hidden}


def _asker(request: web.Request) -> Asker:
    asker = request[ASKER]
    assert isinstance(asker, Asker)
    return asker


def _json(body: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")


_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serve_api(
    api: BrainApi, address: Address, certificate: str = "", key: str = ""
) -> AsyncIterator[int]:
    """Serve the API while the context is open; yields the port.

    Raises:
        BadSettings: the address is not available, or is not loopback and has no certificate.
    """
    local = is_loopback(address.host)
    if not local and not (certificate and key):
        raise BadSettings(
            f"--api-bind-address {address}: only loopback is served without TLS; "
            "give --tls-cert-file and --tls-key-file, or an address such as 127.0.0.1:8090"
        )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH) if certificate else None
    try:
        if context is not None:
            context.load_cert_chain(certificate, key)
    except OSError as error:
        raise BadSettings(f"--tls-cert-file {certificate}: {error}") from error

    @web.middleware
    async def check(request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Turn errors into short texts with a status; nothing else of them leaves the process."""
        # A page in a browser can send requests to loopback under a name of its own (rebinding).
        host = request.url.host or ""
        if local and not is_loopback(host):
            return web.Response(status=403, text=f"the host {host[:80]!r} is not this machine")
        try:
            request[ASKER] = LOCAL if local else await api.access.asker(request.headers)
            return await handler(request)
        except NotAuthenticated as error:
            challenge = {"WWW-Authenticate": "Bearer"}
            return web.Response(status=401, text=str(error), headers=challenge)
        except StoreError as error:
            log.info("a request finds no history: %s", error)
            return web.Response(status=503, text="the history is not available")
        except ApiError as error:
            log.info("a request finds no API server: %s", error)
            return web.Response(status=503, text="the API server cannot check the request")

    app = web.Application(client_max_size=MAX_BODY, middlewares=[check])
    app.add_routes(api.routes())
    async with AsyncExitStack() as stack:
        serving = listen(app, address, "--api-bind-address", tls=context)
        try:
            port = await stack.enter_async_context(serving)
        except ConfigError as error:
            raise BadSettings(str(error)) from error
        yield port
