"""The client of an API server: typed verbs on resources, one connection pool, one loop.

    async with Client(load_config()) as client:
        pod = await client.get(PODS, "train-worker-0", "default")

Every verb raises ``ApiError`` (see ``errors``). Bytes are decoded straight into the type of the
resource, which may be a struct with the few fields the caller reads, ``dict[str, Any]`` for objects
as they are, or ``msgspec.Raw`` for their bytes.
"""

import random
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import msgspec

from gangline.api.meta import Object, Status
from gangline.api.resource import Resource
from gangline.kube import request as build
from gangline.kube.config import ClusterConfig
from gangline.kube.decoding import (
    Listing,
    Malformed,
    WatchEvent,
    decode_event,
    decode_object,
    decode_page,
    split_lines,
)
from gangline.kube.errors import ApiError, BadRequest, Gone, error_from_status
from gangline.kube.execute import Executed, execute
from gangline.kube.ratelimit import TokenBucket
from gangline.kube.request import JSON, PatchKind, Request
from gangline.kube.transport import REQUEST_TIMEOUT_S, Transport

__all__ = ["Client", "Listing", "Malformed", "PatchKind", "WatchEvent"]

T = TypeVar("T")

MERGE = PatchKind.MERGE

EVICTION, OLD_EVICTION = "policy/v1", "policy/v1beta1"
WATCH_TIMEOUT_S = (300, 600)
"""The server is asked to end a watch after a time drawn from here, so that a dead one is noticed
and not all watchers come back at once."""
WATCH_SILENCE_S = 180.0
"""A watch is given up when nothing comes for so long: API servers send a bookmark each minute, and
some fall silent for good (seen with Kubernetes 1.20.2 when thousands of objects were made)."""
WATCH_GRACE_S = 30
"""After the time it was asked to end at, a watch that is still open is cut off by us."""


class Client:
    """Talks to one API server. Use as ``async with Client(config) as client``."""

    def __init__(
        self,
        config: ClusterConfig,
        user_agent: str = "gangline",
        *,
        rate_limit: TokenBucket | None = None,
        counted: bool = True,
    ) -> None:
        self.config = config
        self.transport = Transport(config, user_agent, rate_limit, counted=counted)
        self._eviction = EVICTION

    async def __aenter__(self) -> Self:
        await self.transport.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.transport.__aexit__(*error)

    async def get(self, resource: Resource[T], name: str, namespace: str | None = None) -> T:
        """Read one object."""
        return await self._object(resource, build.get(resource, name, namespace))

    async def list(
        self,
        resource: Resource[T],
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        limit: int = 500,
    ) -> Listing[T]:
        """Read all objects of one namespace, or of all, in pages of ``limit``."""
        try:
            return await self._list(resource, namespace, labels, fields, limit)
        except Gone:
            # The revision of the first page expired before we had the last: all at once, then.
            return await self._list(resource, namespace, labels, fields, 0)

    async def _list(
        self, resource: Resource[T], namespace: str | None, labels: str, fields: str, limit: int
    ) -> Listing[T]:
        items: list[T] = []
        malformed: list[Malformed] = []
        continue_ = ""
        while True:
            page = build.list_page(
                resource, namespace, labels=labels, fields=fields, limit=limit, continue_=continue_
            )
            answer = await self.transport.send(page)
            with _as_malformed(page, resource):
                metadata, found, misfits = decode_page(resource.type, answer)
            items += _with_kind(resource, found)
            malformed += misfits
            if not (continue_ := metadata.continue_):
                return Listing(items, metadata.resource_version, malformed)

    async def watch(
        self,
        resource: Resource[T],
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str = "",
        bookmarks: bool = True,
        timeout_s: int | None = None,
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Follow changes after ``resource_version`` until the server ends the watch.

        Without a revision it begins with an ADDED for each object there is. Close it with
        ``contextlib.aclosing`` when you leave before it ends.

        Raises:
            Gone: the revision is no longer held: list again.
            Unreachable: the connection broke, or nothing came for ``WATCH_SILENCE_S`` although
                bookmarks were asked for.
        """
        timeout_s = timeout_s or random.randint(*WATCH_TIMEOUT_S)
        request = build.watch(
            resource,
            namespace,
            labels=labels,
            fields=fields,
            resource_version=resource_version,
            bookmarks=bookmarks,
            timeout_s=timeout_s,
        )
        limit_s = timeout_s + WATCH_GRACE_S
        silence_s = WATCH_SILENCE_S if bookmarks else None
        stream = self.transport.stream(request, timeout_s=limit_s, silence_s=silence_s)
        async with stream as chunks:
            async for line in split_lines(chunks):
                if not line:
                    continue
                try:
                    event = decode_event(resource.type, line)
                    if isinstance(event, bytes):
                        raise error_from_status(msgspec.json.decode(event, type=Status))
                except msgspec.DecodeError as error:
                    raise _malformed(request, resource, error) from error
                yield event

    async def create(
        self,
        resource: Resource[T],
        body: T | Mapping[str, Any],
        namespace: str | None = None,
        *,
        dry_run: bool = False,
    ) -> T:
        """Store a new object.

        Raises:
            AlreadyExists: there is one of this name. Also when a lost answer made a caller repeat
                a create that had succeeded: look at who owns the object.
        """
        return await self._object(
            resource, build.create(resource, body, namespace, dry_run=dry_run)
        )

    async def update(
        self,
        resource: Resource[T],
        body: T | Mapping[str, Any],
        namespace: str | None = None,
        *,
        subresource: str = "",
    ) -> T:
        """Replace an object (or its ``status``), if it is still at the body's resource version.

        Raises:
            Conflict: it has changed.
        """
        request = build.update(resource, body, namespace, subresource=subresource)
        return await self._object(resource, request)

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Any,
        namespace: str | None = None,
        *,
        kind: PatchKind = MERGE,
        subresource: str = "",
    ) -> T:
        """Change some fields; ``patch`` is a list of operations for ``PatchKind.JSON``."""
        request = build.patch(resource, name, patch, namespace, kind=kind, subresource=subresource)
        return await self._object(resource, request)

    async def apply(
        self,
        resource: Resource[T],
        body: T | Mapping[str, Any],
        namespace: str | None = None,
        *,
        manager: str,
        force: bool = False,
        subresource: str = "",
    ) -> T:
        """Declare what ``manager`` wants of an object, which is made if it is not there.

        Raises:
            Conflict: another manager owns a field, and ``force`` is not set.
        """
        request = build.apply(
            resource, body, namespace, manager=manager, force=force, subresource=subresource
        )
        return await self._object(resource, request)

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        namespace: str | None = None,
        *,
        grace_seconds: int | None = None,
        propagation: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> None:
        """Remove an object; ``propagation`` is Foreground, Background or Orphan.

        Raises:
            Conflict: it is not the one meant by ``uid`` and ``resource_version``.
        """
        request = build.delete(
            resource,
            name,
            namespace,
            grace_seconds=grace_seconds,
            propagation=propagation,
            uid=uid,
            resource_version=resource_version,
        )
        await self.transport.send(request)

    async def bind(
        self, pod_name: str, namespace: str, node: str, *, uid: str | None = None
    ) -> None:
        """Put a pod on a node, if it is still the pod meant by ``uid``.

        Raises:
            Conflict: it is another pod, or it is on a node already.
        """
        await self.transport.send(build.bind(pod_name, namespace, node, uid))

    async def evict(
        self, pod_name: str, namespace: str, *, grace_seconds: int | None = None
    ) -> None:
        """Ask a pod to leave its node, within what disruption budgets allow.

        Raises:
            TooManyRequests: a disruption budget does not allow it now.
        """
        request = build.evict(pod_name, namespace, grace_seconds, self._eviction)
        try:
            await self.transport.send(request)
        except BadRequest as error:
            # Kubernetes before 1.22 knows the older version alone.
            if self._eviction == OLD_EVICTION or "no kind" not in str(error):
                raise
            self._eviction = OLD_EVICTION
            request = build.evict(pod_name, namespace, grace_seconds, self._eviction)
            await self.transport.send(request)

    async def logs(  # noqa: PLR0913 - the options of the API's log request
        self,
        pod: str,
        namespace: str,
        *,
        container: str = "",
        follow: bool = False,
        tail: int | None = None,
        since_seconds: int | None = None,
        since_time: str = "",
        timestamps: bool = False,
        previous: bool = False,
        kept_for: str = "",
    ) -> AsyncGenerator[bytes, None]:
        """Read what a container wrote, line by line, without line ends.

        ``kept_for`` names the owner (its uid) of a pod that is gone: embedded clusters keep logs.

        Raises:
            BadRequest: the container is not running yet, or the pod has several and none is named.
        """
        request = build.logs(
            pod,
            namespace,
            container=container,
            follow=follow,
            tail_lines=tail,
            since_seconds=since_seconds,
            since_time=since_time,
            timestamps=timestamps,
            previous=previous,
            kept_for=kept_for,
        )
        async with self.transport.stream(request) as chunks:
            async for line in split_lines(chunks, keep_last=True):
                yield line

    async def exec(
        self,
        pod: str,
        namespace: str,
        command: Sequence[str],
        *,
        container: str = "",
        stdin: bytes | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Executed:
        """Run a command in a container to its end.

        Raises:
            ApiError: it could not be run, or did not end in time (``Unreachable``).
        """
        return await execute(
            self.transport,
            pod,
            namespace,
            command,
            container=container,
            stdin=stdin,
            timeout_s=timeout_s,
        )

    async def request_json(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        content_type: str = JSON,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Any:
        """Send any request; the answer as dicts and lists, or as text if it is not JSON."""
        raw = body if isinstance(body, bytes) or body is None else msgspec.json.encode(body)
        request = Request(method, path, tuple((params or {}).items()), raw, content_type)
        answer = await self.transport.send(request, timeout_s=timeout_s)
        try:
            return msgspec.json.decode(answer) if answer else None
        except msgspec.DecodeError:
            return answer.decode(errors="replace")

    async def _object(self, resource: Resource[T], request: Request) -> T:
        answer = await self.transport.send(request)
        with _as_malformed(request, resource):
            return decode_object(resource.type, answer)


def _with_kind(resource: Resource[Any], items: list[T]) -> list[T]:
    """Say of each object what it is: a list says so once for all of them, unlike a watch."""
    for item in items:
        if isinstance(item, Object) and not item.kind:
            # Nobody else has seen these objects yet: they are still ours to change.
            msgspec.structs.force_setattr(item, "kind", resource.kind)
            msgspec.structs.force_setattr(item, "api_version", resource.api_version)
    return items


@contextmanager
def _as_malformed(request: Request, resource: Resource[Any]) -> Iterator[None]:
    """Say of an answer that cannot be read what it should have been."""
    try:
        yield
    except msgspec.DecodeError as error:
        raise _malformed(request, resource, error) from error


def _malformed(request: Request, resource: Resource[Any], error: msgspec.DecodeError) -> ApiError:
    message = f"{request.path}: the answer is no {resource.kind}: {error}"
    return ApiError(Status(status="Failure", reason="Malformed", message=message))
