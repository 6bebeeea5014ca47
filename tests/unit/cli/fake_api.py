"""A small fake API server for tests of the command line: objects by path.

It validates nothing: created objects exist, other objects are not found, and kinds that a test
forbids or removes give the responses of a real API server.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from gangline.api.meta.selectors import parse_label_selector

Manifest = dict[str, Any]

_PATH = re.compile(
    r"(?P<collection>/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[^/]+))"
    r"(?:/(?P<name>[^/]+)(?:/(?P<sub>[^/]+))?)?"
)


DIGITS = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/digits"


def pod_of_digits(replica: str, uid: str = "", phase: str = "", **status: Any) -> Manifest:
    """A pod of the job ``digits``, with the status of its container."""
    role, _, index = replica.rpartition("-")
    labels = {
        "training.kubeflow.org/job-name": "digits",
        "training.kubeflow.org/replica-type": role,
        "training.kubeflow.org/replica-index": index,
    }
    owner = {"kind": "PyTorchJob", "name": "digits", "uid": DIGITS, "controller": True}
    metadata = {"name": f"digits-{replica}", "namespace": "default", "uid": uid, "labels": labels}
    return {
        "metadata": metadata | {"ownerReferences": [owner]},
        "spec": {"containers": [{"name": "c"}], "nodeName": "node-1"},
        "status": {"phase": phase, "containerStatuses": [{"name": "c", **status}]},
    }


class FakeApi:
    """Objects of the server, and the requests that it got."""

    def __init__(self) -> None:
        self.objects: dict[str, Manifest] = {}
        """By path."""
        self.forbidden: set[str] = set()
        """Resources (their plurals) that the user may not touch."""
        self.namespaces = {"default"}
        self.absent: set[str] = set()
        """Resources that are not installed."""
        self.logs: dict[str, str] = {}
        """What pods wrote, by their names; each line has its time in front. What a container wrote
        before its restart: ``NAME before``."""
        self.read: list[str] = []
        """Logs that were asked for."""
        self.archived_logs: dict[str, str] = {}
        """What pods that are gone wrote, and under ``-`` which they are: embedded clusters do."""
        self.pages: dict[str, str] = {}
        """Other texts by path: what a proxy returns."""
        self.written: list[str] = []
        """Method and path of all requests that change something."""

    def add(self, path: str, **more: Any) -> Manifest:
        """Put an object at a path."""
        found = _PATH.fullmatch(path)
        assert found is not None, path
        meta = {"name": found["name"], "namespace": found["namespace"] or "", "uid": path}
        meta |= more.pop("metadata", {})
        self.objects[path] = {"metadata": meta, **more}
        return self.objects[path]

    def add_job(self, *conditions: Manifest) -> None:
        """Put the job ``digits`` with a master and a worker."""
        template = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
        specs = {role: {"replicas": 1, "template": template} for role in ("Master", "Worker")}
        of = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}
        spec = {"pytorchReplicaSpecs": specs}
        self.add(DIGITS, **of, spec=spec, status={"conditions": list(conditions)})

    def add_pod(self, pod: Manifest) -> None:
        """Put a pod into the namespace ``default``."""
        self.add(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}", **pod)

    def keep(self, *pods: Manifest) -> None:
        """Let these be the deleted pods whose logs are stored."""
        # An empty text would be an answer that nothing is stored at all.
        self.archived_logs["-"] = "".join(f"{json.dumps(pod)}\n" for pod in pods) or "\n"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer any request."""
        if (page := self.pages.get(request.path)) is not None:
            return web.Response(text=page)
        found = _PATH.fullmatch(request.path)
        if found is None or found["plural"] in self.absent:
            return refusal(404, "NotFound", "the server could not find the requested resource")
        if found["plural"] in self.forbidden:
            return refusal(403, "Forbidden", f"{found['plural']} is forbidden: no right to it")
        if request.method != "GET":
            self.written.append(f"{request.method} {request.path}")
        if request.method == "POST" and found["namespace"] not in {None, *self.namespaces}:
            missing = {"kind": "namespaces", "name": found["namespace"]}
            message = f"namespaces {found['namespace']!r} not found"
            return refusal(404, "NotFound", message, details=missing)
        if found["sub"]:
            logs = self.archived_logs if "keptFor" in request.query else self.logs
            name = found["name"] + " before" * (request.query.get("previous") == "true")
            self.read.append(name)
            text = logs.get(name) if found["sub"] == "log" else None
            return web.Response(text=text) if text else refusal(404, "NotFound", "no such log")
        match request.method, found["name"]:
            case "POST", None:
                return self._create(found["collection"], await request.json())
            case "GET", None if "watch" in request.query:
                return await _nothing_changes(request)
            case "GET", None:
                selector = request.query.get("labelSelector", "")
                return self._list(found["plural"], found["namespace"], selector)
            case "DELETE", _ if request.path in self.objects:
                return web.json_response(self.objects.pop(request.path))
            case "GET", name if found["plural"] == "namespaces" and name in self.namespaces:
                return web.json_response({"metadata": {"name": name}})
            case "GET", _ if request.path in self.objects:
                return web.json_response(self.objects[request.path])
        named = {"kind": found["plural"], "name": found["name"]}
        message = f"{found['plural']} {found['name']!r} not found"
        return refusal(404, "NotFound", message, details=named)

    def _create(self, collection: str, body: Manifest) -> web.Response:
        path = f"{collection}/{body['metadata']['name']}"
        if path in self.objects:
            return refusal(409, "AlreadyExists", f"{path.rpartition('/')[2]!r} already exists")
        kind = {key: body[key] for key in ("apiVersion", "kind")}
        return web.json_response(self.add(path, **body) | kind, status=201)

    def _list(self, plural: str, namespace: str | None, selector: str) -> web.Response:
        chosen = parse_label_selector(selector)
        items = [
            each
            for each in self._of(plural, namespace)
            if chosen.matches(each["metadata"].get("labels", {}))
        ]
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})

    def _of(self, plural: str, namespace: str | None) -> Iterator[Manifest]:
        for path, each in self.objects.items():
            found = _PATH.fullmatch(path)
            if found and found["plural"] == plural and namespace in {None, found["namespace"]}:
                yield each


async def _nothing_changes(request: web.Request) -> web.StreamResponse:
    """A watch without events, until the client disconnects."""
    response = web.StreamResponse()
    await response.prepare(request)
    await asyncio.Event().wait()
    return response


def refusal(code: int, reason: str, message: str, **more: Any) -> web.Response:
    """An answer that says no, in the form that API servers use."""
    status = {"kind": "Status", "status": "Failure", "reason": reason, "code": code, **more}
    return web.json_response(status | {"message": message}, status=code)


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[FakeApi, Path]]:
    """Run such a server; gives it and a kubeconfig for it."""
    api, app = FakeApi(), web.Application()
    app.add_routes([web.route("*", "/{path:.*}", api.answer)])
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield api, kubeconfig(folder, f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


def kubeconfig(folder: Path, server: str) -> Path:
    """Write a kubeconfig for a server."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return path
