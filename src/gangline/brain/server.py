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

import ipaddress
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from aiohttp import web

from gangline.api.job_resources import JOB_KINDS
from gangline.api.meta.resource import Resource
from gangline.brain.facts.job_record import JobRecord
from gangline.brain.facts.records import Outcome, RecordedJob
from gangline.brain.settings import BadSettings
from gangline.brain.store.engine import Store
from gangline.brain.store.errors import StoreError
from gangline.brain.store.reader import HistoryFilter
from gangline.brain.store.records import UsageRow
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError, ConfigError
from gangline.kube.probes import Address, listen

TOKEN_REVIEWS: Resource[dict[str, Any]] = Resource(
    dict[str, Any], "authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False
)
ACCESS_REVIEWS: Resource[dict[str, Any]] = Resource(
    dict[str, Any],
    "authorization.k8s.io",
    "v1",
    "subjectaccessreviews",
    "SubjectAccessReview",
    namespaced=False,
)
CACHE_S = 60.0
MAX_CACHED = 10_000
K = TypeVar("K")
V = TypeVar("V")
_PLURALS = {kind.identity: kind.resource for kind in JOB_KINDS}


class NotAuthenticated(Exception):
    """The request has no valid token."""


@dataclass(frozen=True, slots=True)
class Asker:
    """The user behind a request. None as ``name`` is a user of this machine, who may see all."""

    name: str | None
    groups: tuple[str, ...] = ()
    uid: str = ""


LOCAL = Asker(None)


class _Cache(Generic[K, V]):
    """Answers of the API server, for a minute."""

    def __init__(self) -> None:
        self._answers: dict[K, tuple[V, float]] = {}

    async def get(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        cached = self._answers.get(key)
        if cached is not None and time.monotonic() - cached[1] < CACHE_S:
            return cached[0]
        answer = await ask()
        if len(self._answers) > MAX_CACHED:
            self._answers.clear()
        self._answers[key] = (answer, time.monotonic())
        return answer


class AccessChecks:
    """Reviews with a short memory: a page of history asks for the same rights a hundred times.

    Each method raises ``ApiError`` if the API server cannot check it.
    """

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._askers: _Cache[str, Asker] = _Cache()
        self._rights: _Cache[tuple[Asker, str, str, str], bool] = _Cache()

    async def asker(self, headers: Mapping[str, str]) -> Asker:
        """Return the user of the token.

        Raises:
            NotAuthenticated: there is no token, or it is not valid.
        """
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise NotAuthenticated("send a token of the cluster as Authorization: Bearer TOKEN")

        async def review() -> Asker:
            asked = {"spec": {"token": token.strip()}}
            status = (await self._client.create(TOKEN_REVIEWS, asked)).get("status") or {}
            if not status.get("authenticated"):
                raise NotAuthenticated("the token is not valid in this cluster")
            user = status.get("user") or {}
            groups = tuple(user.get("groups") or ())
            return Asker(str(user.get("username", "")), groups, str(user.get("uid", "")))

        return await self._askers.get(token, review)

    async def may(self, asker: Asker, verb: str, kind: str, namespace: str) -> bool:
        """Return whether a user has a right on a job kind in a namespace."""
        resource = _PLURALS.get(kind)
        if asker.name is None or resource is None:
            return asker.name is None
        return await self._may(asker, verb, resource.group, resource.plural, namespace)

    async def may_read_logs(self, asker: Asker, namespace: str) -> bool:
        return asker.name is None or await self._may(asker, "get", "", "pods/log", namespace)

    async def _may(self, asker: Asker, verb: str, group: str, plural: str, namespace: str) -> bool:
        async def review() -> bool:
            name, _, subresource = plural.partition("/")
            attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": name}
            spec = {
                "user": asker.name,
                "groups": list(asker.groups),
                "uid": asker.uid,
                "resourceAttributes": attributes
                | ({"subresource": subresource} if subresource else {}),
            }
            answer = await self._client.create(ACCESS_REVIEWS, {"spec": spec})
            return bool((answer.get("status") or {}).get("allowed"))

        return await self._rights.get((asker, verb, f"{plural}.{group}", namespace), review)


log = logging.getLogger(__name__)

MAX_BODY = 1 << 20
MAX_LIMIT = 500
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
        asked = read_filter(request.query, self._cluster)
        page = await self._store.query(lambda reader: reader.history(asked))
        shown: list[RecordedJob] = []
        hidden = 0
        for job in page.jobs:
            if await self.access.may(_asker(request), "get", job.kind, job.namespace):
                shown.append(job)
            else:
                hidden += 1
        following = page.next
        return _json(
            {
                "jobs": [public_job(job) for job in shown],
                "hidden": hidden,
                "next": {"until": following.until_ms, "after": following.after_id}
                if following
                else None,
            }
        )

    async def _run(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        run = await self._store.query(
            lambda reader: reader.run_named(self._cluster, namespace, name)
        )
        asker = _asker(request)
        # One answer for both: it must not show that a job exists.
        if run is None or not await self.access.may(asker, "get", run.job.kind, namespace):
            raise web.HTTPNotFound(text=f"no job {namespace}/{name} in the history")
        return _json({"job": public_job(run.job), "segments": run.segments, "pods": run.pods})

    async def _record(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        uid, records = request.query.get("uid", ""), self._store.records
        stored = await self._store.query(
            lambda _: (
                records.read(self._cluster, uid)
                if uid
                else records.read_named(self._cluster, namespace, name)
            )
        )
        asker = _asker(request)
        if (
            stored is None
            or stored.job.namespace != namespace
            or not await self.access.may(asker, "get", stored.job.kind, namespace)
        ):
            raise web.HTTPNotFound(text=f"no job {namespace}/{name} in the history")
        if self.current_record is not None and (now := self.current_record(stored.job.uid)):
            stored = msgspec.structs.replace(stored, record=now)
        shown: dict[str, Any] = msgspec.to_builtins(stored)
        shown["job"] = public_job(stored.job)
        if not await self.access.may_read_logs(asker, namespace):
            shown["logs"] = []
        return _json(shown)

    async def _usage(self, request: web.Request) -> web.Response:
        asked = read_usage_query(request.query, request.query.getall("namespace", []))
        namespaces, asker = list(asked.namespaces), _asker(request)
        if asker.name is not None:
            spaces = namespaces or [row.key for row in await self._used(asked, "namespace", ())]
            namespaces = [name for name in spaces if await self._may_list(asker, name)]
            if not namespaces:
                return _json({"rows": []})
        if asked.by != "month":
            return _json(
                {"rows": msgspec.to_builtins(await self._used(asked, asked.by, namespaces))}
            )
        months = []
        for name, since_ms, until_ms in months_between(asked.since_ms, asked.until_ms):
            month = msgspec.structs.replace(asked, since_ms=since_ms, until_ms=until_ms)
            if used := await self._used(month, "namespace", namespaces):
                months.append(sum_usage(name, used))
        return _json({"rows": msgspec.to_builtins(months)})

    async def _used(
        self, asked: "UsageQuery", by: str, namespaces: Iterable[str]
    ) -> list[UsageRow]:
        records = self._store.records
        return await self._store.query(
            lambda _: records.usage(self._cluster, by, asked.since_ms, asked.until_ms, namespaces)
        )

    async def _may_list(self, asker: Asker, namespace: str) -> bool:
        for kind in _PLURALS:
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


def read_filter(query: Mapping[str, str], cluster: str) -> HistoryFilter:
    """Return the filter that a query asks for.

    Raises:
        web.HTTPBadRequest: a parameter is unknown or wrong; the text names it.
    """
    texts = ("namespace", "name", "owner", "stem", "kind", "queue")
    numbers = {"since": "since_ms", "until": "until_ms", "after": "after_id", "limit": "limit"}
    _check_names(query, (*texts, "outcome", *numbers))
    fields: dict[str, Any] = {name: query[name] for name in texts if name in query}
    fields |= {
        field: _number(name, query[name]) for name, field in numbers.items() if name in query
    }
    fields["limit"] = max(1, min(fields.get("limit", 100), MAX_LIMIT))
    if outcome := query.get("outcome"):
        if outcome not in set(Outcome):
            raise web.HTTPBadRequest(text=f"outcome: {outcome!r} is none of {', '.join(Outcome)}")
        fields["outcomes"] = frozenset({Outcome(outcome)})
    return HistoryFilter(cluster=cluster, **fields)


USAGE_GROUPS = ("queue", "owner", "kind", "namespace", "month")
MAX_MONTHS = 36


class UsageQuery(msgspec.Struct, frozen=True):
    """By what to sum up, and which jobs: those that ended between two times."""

    by: str
    since_ms: int
    until_ms: int
    namespaces: tuple[str, ...] = ()


def read_usage_query(query: Mapping[str, str], namespaces: Sequence[str]) -> UsageQuery:
    """Read the parameters of ``/v1/usage``; ``namespaces`` are all values of ``namespace``.

    Raises:
        web.HTTPBadRequest: a parameter is unknown or wrong; the text names it.
    """
    _check_names(query, ("by", "since", "until", "namespace"))
    by = query.get("by", "queue")
    if by not in USAGE_GROUPS:
        raise web.HTTPBadRequest(text=f"by: {by!r} is none of {', '.join(USAGE_GROUPS)}")
    since_ms = _number("since", query.get("since", "0"), " of milliseconds")
    now_ms = round(time.time() * 1000)
    until_ms = _number("until", query.get("until", str(now_ms + 1)), " of milliseconds")
    return UsageQuery(by, since_ms, until_ms, tuple(namespaces))


def _check_names(query: Mapping[str, str], names: Sequence[str]) -> None:
    if unknown := sorted(set(query) - set(names)):
        text = f"{unknown[0]}: is not a parameter; they are {', '.join(names)}"
        raise web.HTTPBadRequest(text=text)


def _number(name: str, text: str, unit: str = "") -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 15):
        raise web.HTTPBadRequest(text=f"{name}: {text!r} is not a number{unit}")
    return int(text)


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


def sum_usage(key: str, rows: Sequence[UsageRow]) -> UsageRow:
    names = ("jobs", "gpu_seconds", "cpu_seconds", "accounted_seconds", "productive_seconds")
    return UsageRow(key=key, **{name: sum(getattr(row, name) for row in rows) for name in names})


def public_job(job: RecordedJob) -> dict[str, Any]:
    """Return a job without what only the store needs."""
    shown: dict[str, Any] = msgspec.to_builtins(job)
    for name in ("cluster", "command_digest", "spec_digest", "wishes", "observed_ms"):
        shown.pop(name, None)
    return shown


@web.middleware
async def translate_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turn errors into short texts with a status; nothing else of them leaves the process."""
    try:
        return await handler(request)
    except NotAuthenticated as error:
        return web.Response(status=401, text=str(error), headers={"WWW-Authenticate": "Bearer"})
    except StoreError as error:
        log.info("a request finds no history: %s", error)
        return web.Response(status=503, text="the history is not available")
    except ApiError as error:
        log.info("a request finds no API server: %s", error)
        return web.Response(status=503, text="the API server cannot check the request")


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
    context = _tls(certificate, key) if certificate else None

    @web.middleware
    async def authenticate(request: web.Request, handler: _Handler) -> web.StreamResponse:
        request[ASKER] = LOCAL if local else await api.access.asker(request.headers)
        return await handler(request)

    @web.middleware
    async def refuse_foreign_hosts(request: web.Request, handler: _Handler) -> web.StreamResponse:
        # A page in a browser can send requests to loopback under a name of its own (rebinding).
        host = request.url.host or ""
        if local and not is_loopback(host):
            return web.Response(status=403, text=f"the host {host[:80]!r} is not this machine")
        return await handler(request)

    app = web.Application(
        client_max_size=MAX_BODY,
        middlewares=[translate_errors, refuse_foreign_hosts, authenticate],
    )
    app.add_routes(api.routes())
    async with AsyncExitStack() as stack:
        serving = listen(app, address, "--api-bind-address", tls=context)
        try:
            port = await stack.enter_async_context(serving)
        except ConfigError as error:
            raise BadSettings(str(error)) from error
        yield port


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _tls(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise BadSettings(f"--tls-cert-file {certificate}: {error}") from error
    return context
