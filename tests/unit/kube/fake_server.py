"""A small API server with scripted failures."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from gangline.api.meta.objects import Object, Wire
from gangline.api.meta.resource import Resource
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import ClusterConfig
from gangline.kube.http.request import PROTOBUF

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ThingSpec(Wire):
    size: int = 0


class Thing(Object):
    spec: ThingSpec = ThingSpec()


THINGS = Resource(Thing, "", "v1", "things", "Thing")


@dataclass
class Seen:
    """A request that the server got."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class FakeServer:
    """Serves one collection of things with list (paged), watch and scripted responses."""

    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    things: dict[str, dict[str, Any]] = field(default_factory=dict)
    changes: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    revision: int = 0
    oldest: int = 0
    faults: list[Answer] = field(default_factory=list)
    """Answers to the next requests, instead of the proper ones."""
    watch_faults: list[Answer] = field(default_factory=list)
    """The same for watches only."""
    routes: dict[tuple[str, str], Answer] = field(default_factory=dict)
    handle_other: Answer | None = None
    """Answers what nothing else does, in place of the collection of things."""
    watches: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _stopped: bool = False

    async def put(self, name: str, size: int = 0, **labels: str) -> None:
        old = self.things.get(name)
        self.revision += 1
        thing = {
            "apiVersion": "v1",
            "kind": "Thing",
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": old["metadata"]["uid"] if old else f"{name}-{self.revision}",
                "resourceVersion": str(self.revision),
                "labels": labels,
            },
            "spec": {"size": size},
        }
        self.things[name] = thing
        await self._tell("MODIFIED" if old else "ADDED", thing)

    async def remove(self, name: str) -> None:
        self.revision += 1
        thing = self.things.pop(name)
        thing["metadata"]["resourceVersion"] = str(self.revision)
        await self._tell("DELETED", thing)

    async def bookmark(self) -> None:
        self.revision += 1
        metadata = {"resourceVersion": str(self.revision)}
        await self._tell("BOOKMARK", {"metadata": metadata})

    async def _tell(self, kind: str, thing: dict[str, Any]) -> None:
        self.changes.append((self.revision, kind, json.loads(json.dumps(thing))))
        async with self._changed:
            self._changed.notify_all()

    def compact(self) -> None:
        """Forget all changes so far: watches from before get 410."""
        self.oldest = self.revision
        self.changes.clear()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(
            Seen(
                request.method,
                request.path,
                dict(request.query),
                dict(request.headers),
                await request.read(),
            )
        )
        if self.faults:
            return await self.faults.pop(0)(request)
        if answer := self.routes.get((request.method, request.path)):
            return await answer(request)
        if self.handle_other is not None:
            return await self.handle_other(request)
        if request.query.get("watch"):
            if self.watch_faults:
                return await self.watch_faults.pop(0)(request)
            return await self._watch(request)
        return self._list(request)

    def _list(self, request: web.Request) -> web.Response:
        things = sorted(self.things.values(), key=lambda thing: thing["metadata"]["name"])
        start, limit = int(request.query.get("continue", 0)), int(request.query.get("limit", 0))
        end = start + limit if limit else len(things)
        metadata = {"resourceVersion": str(self.revision)}
        if end < len(things):
            metadata["continue"] = str(end)
        bare = [{key: thing[key] for key in ("metadata", "spec")} for thing in things[start:end]]
        return web.json_response({"kind": "ThingList", "metadata": metadata, "items": bare})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        if since < self.oldest:
            return status_answer(410, "Expired", "too old resource version")
        response = web.StreamResponse()
        await response.prepare(request)
        self.watches += 1
        try:
            while not self._stopped:
                if since < self.oldest:
                    expired = {"kind": "Status", "reason": "Expired", "code": 410}
                    line = json.dumps({"type": "ERROR", "object": expired}).encode()
                    await response.write(line + b"\n")
                    break
                for revision, kind, thing in [c for c in self.changes if c[0] > since]:
                    line = json.dumps({"type": kind, "object": thing}).encode()
                    await response.write(line + b"\n")
                    since = revision
                async with self._changed:
                    if not self._stopped and not [c for c in self.changes if c[0] > since]:
                        await self._changed.wait()
        finally:
            self.watches -= 1
        return response

    async def stop_watches(self) -> None:
        self._stopped = True
        async with self._changed:
            self._changed.notify_all()


def status_answer(
    code: int, reason: str, message: str = "", retry_after: int | None = None
) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "reason": reason, "code": code}
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return web.json_response({**body, "message": message}, status=code, headers=headers)


def failing(code: int, reason: str, retry_after: int | None = None) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return status_answer(code, reason, "as scripted", retry_after)

    return answer


def answering(body: Any, code: int = 200) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=code)

    return answer


async def hanging_up(request: web.Request) -> web.StreamResponse:
    """Close the connection instead of answering."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def binary(*bodies: bytes, code: int = 200, broken: bool = False) -> Answer:
    """Answer in protobuf; ``broken``: the connection is cut before the end."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=code, headers={"Content-Type": PROTOBUF})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for body in bodies:
            await response.write(body)
        if broken:
            assert request.transport is not None
            request.transport.abort()
        return response

    return answer


def streaming(*pieces: bytes, broken: bool = False) -> Answer:
    """Stream pieces; ``broken``: then cut the connection instead of ending the stream."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        if broken:
            assert request.transport is not None
            request.transport.close()
        return response

    return answer


async def serve(server: FakeServer) -> web.AppRunner:
    application = web.Application(client_max_size=2**26)
    application.router.add_route("*", "/{tail:.*}", server.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = site.name
    return runner


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[FakeServer, ApiClient]]:
    """A server that runs, and a client of it."""
    server = FakeServer()
    runner = await serve(server)
    try:
        async with ApiClient(ClusterConfig(server.url)) as client:
            yield server, client
    finally:
        await server.stop_watches()
        await runner.cleanup()
