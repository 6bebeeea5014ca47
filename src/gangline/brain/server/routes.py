"""The requests of the HTTP API.

======  ======================================  ====================================================
GET     /v1/history                             ended jobs, the latest first; filters in the query
GET     /v1/jobs/NAMESPACE/NAME/history         one job with segments and runs of its pods
GET     /v1/jobs/NAMESPACE/NAME/advice          its JobAdvice
POST    /v1/advice                              advice on a manifest that is not submitted yet
POST    /v1/facts                               facts of a job
======  ======================================  ====================================================

Jobs that the asker may not ``get`` are counted and not shown.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec
from aiohttp import web

from gangline.api.resources import JOB_ADVICE
from gangline.brain.facts.records import Job, Outcome, Run
from gangline.brain.server.access import AccessChecks, Asker, NotAuthenticated
from gangline.brain.store.engine import Store
from gangline.brain.store.errors import StoreError
from gangline.brain.store.reading.reader import HistoryFilter
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError, NotFound

log = logging.getLogger(__name__)

MAX_BODY = 1 << 20
MAX_LIMIT = 500
ASKER = "asker"
"""Key under which a request has its ``Asker``."""


class FactsReceiver(Protocol):
    """What takes facts: the collector of the leader."""

    def receive_facts(self, uid: str, text: str | bytes) -> str:
        """Take a document; return why it was not read, or an empty text."""


ManifestAdviser = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Returns advice on a manifest; raises ``ValueError`` for one that is no job."""


class BrainApi:
    """Handlers of the requests."""

    def __init__(self, client: ApiClient, store: Store, cluster: str) -> None:
        self._client, self._store, self._cluster = client, store, cluster
        self.access = AccessChecks(client)
        self.collector: FactsReceiver | None = None
        """Set while this process leads."""
        self.manifest_adviser: ManifestAdviser | None = None

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/history", self._history),
            web.get("/v1/jobs/{namespace}/{name}/history", self._run),
            web.get("/v1/jobs/{namespace}/{name}/advice", self._advice),
            web.post("/v1/advice", self._advise),
            web.post("/v1/facts", self._facts),
        ]

    async def _history(self, request: web.Request) -> web.Response:
        asked = read_filter(request.query, self._cluster)
        page = await self._store.query(lambda reader: reader.history(asked))
        shown: list[Job] = []
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
        return _json(public_run(run))

    async def _advice(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        try:
            advice = await self._client.get(JOB_ADVICE, name, namespace)
        except NotFound:
            advice = None
        if advice is None or not await self.access.may(
            _asker(request), "get", advice.status.job_kind, namespace
        ):
            raise web.HTTPNotFound(text=f"no advice on {namespace}/{name}")
        return _json(msgspec.to_builtins(advice.status))

    async def _advise(self, request: web.Request) -> web.Response:
        if self.manifest_adviser is None:
            raise web.HTTPServiceUnavailable(text="this copy of the Brain does not lead")
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
        if self.collector is None:
            raise web.HTTPServiceUnavailable(text="this copy of the Brain does not lead")
        text = await request.read()
        try:
            identity = msgspec.json.decode(text, type=_FactsIdentity)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise web.HTTPBadRequest(text=f"the body is not facts: {error}") from error
        if not await self.access.may(_asker(request), "update", "ElasticJob", identity.namespace):
            raise web.HTTPForbidden(text=f"you may not update ElasticJobs in {identity.namespace}")
        problem = self.collector.receive_facts(identity.uid, text)
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
    if unknown := sorted(set(query) - {*texts, *numbers, "outcome"}):
        known = ", ".join((*texts, "outcome", *numbers))
        raise web.HTTPBadRequest(text=f"{unknown[0]}: is not a parameter; they are {known}")
    fields: dict[str, Any] = {name: query[name] for name in texts if name in query}
    for name, field in numbers.items():
        text = query.get(name)
        if text is None:
            continue
        if not (text.isascii() and text.isdecimal() and len(text) < 16):
            raise web.HTTPBadRequest(text=f"{name}: {text!r} is not a number")
        fields[field] = int(text)
    fields["limit"] = max(1, min(fields.get("limit", 100), MAX_LIMIT))
    if outcome := query.get("outcome"):
        if outcome not in set(Outcome):
            raise web.HTTPBadRequest(text=f"outcome: {outcome!r} is none of {', '.join(Outcome)}")
        fields["outcomes"] = frozenset({Outcome(outcome)})
    return HistoryFilter(cluster=cluster, **fields)


def public_job(job: Job) -> dict[str, Any]:
    """Return a job without what only the store needs."""
    shown: dict[str, Any] = msgspec.to_builtins(job)
    for name in ("cluster", "command_digest", "spec_digest", "wishes", "observed_ms"):
        shown.pop(name, None)
    return shown


def public_run(run: Run) -> dict[str, Any]:
    return {
        "job": public_job(run.job),
        "segments": msgspec.to_builtins(run.segments),
        "pods": msgspec.to_builtins(run.pods),
    }


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
