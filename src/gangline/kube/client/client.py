"""The client of an API server: typed verbs on resources, over one connection pool.

    async with Client(load_config()) as client:
        pod = await client.get(PODS, "train-worker-0", "default")

Every verb raises ``ApiError`` (see ``errors``). Bytes are decoded directly into the type of the
resource. That type may be a struct with the few fields that the caller reads, ``dict[str, Any]``
for complete objects, or ``msgspec.Raw`` for their bytes.
"""

import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import msgspec

from gangline.api.meta.objects import ListMeta, Object, Status
from gangline.api.meta.resource import Resource
from gangline.kube.client.decoding import (
    ListResult,
    MalformedObject,
    WatchEvent,
    decode_event,
    decode_object,
    decode_page,
    split_lines,
)
from gangline.kube.client.exec import ExecResult, run_in_container
from gangline.kube.config.config import ClusterConfig
from gangline.kube.errors import ApiError, BadRequest, Gone, error_from_status
from gangline.kube.http import request as build
from gangline.kube.http.request import JSON, PatchKind, Request
from gangline.kube.http.transport import REQUEST_TIMEOUT_S, Transport
from gangline.kube.rate_limit import TokenBucket

__all__ = ["ApiClient", "ListResult", "MalformedObject", "PatchKind", "WatchEvent"]

T = TypeVar("T")

MERGE = PatchKind.MERGE

EVICTION, LEGACY_EVICTION = "policy/v1", "policy/v1beta1"
WATCH_TIMEOUT_S = (300, 600)
"""Range of the random time after which the server is asked to end a watch.

A limit detects dead watches; the randomness prevents that all watches reconnect together.
"""
WATCH_SILENCE_S = 180.0
"""A watch without data for this time is closed.

API servers send a bookmark each minute. Some stop sending for good (seen with Kubernetes 1.20.2
while thousands of objects were created).
"""
WATCH_GRACE_S = 30
"""Additional time for the server to end a watch before the client closes it."""


class ApiClient:
    """Client of one API server. Use as ``async with Client(config) as client``."""

    def __init__(
        self,
        config: ClusterConfig,
        user_agent: str = "gangline",
        *,
        rate_limit: TokenBucket | None = None,
        count_requests: bool = True,
    ) -> None:
        self.config = config
        self.transport = Transport(config, user_agent, rate_limit, count_requests=count_requests)
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
        transform: Callable[[T], T] | None = None,
    ) -> ListResult[T]:
        """Read all objects of one namespace, or of all namespaces, in pages of ``limit``.

        ``transform`` returns the form of an object that is kept.
        """
        selection = resource, namespace, labels, fields
        try:
            return await self._list(*selection, limit, transform)
        except Gone:
            # The revision of the first page expired before the last was read: read all in one page.
            return await self._list(*selection, 0, transform)

    async def _list(
        self,
        resource: Resource[T],
        namespace: str | None,
        labels: str,
        fields: str,
        limit: int,
        transform: Callable[[T], T] | None,
    ) -> ListResult[T]:
        items: list[T] = []
        malformed: list[MalformedObject] = []
        continue_ = ""
        while True:
            page = build.list_page(
                resource, namespace, labels=labels, fields=fields, limit=limit, continue_=continue_
            )
            answer = await self.transport.send(page)
            metadata, page_items, misfits = read_page(answer, page, resource)
            items += map(transform, page_items) if transform else page_items
            malformed += misfits
            if not (continue_ := metadata.continue_):
                return ListResult(items, metadata.resource_version, malformed)

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
        """Yield changes after ``resource_version`` until the server ends the watch.

        Without a revision, the watch begins with an ADDED event for each existing object. Use
        ``contextlib.aclosing`` to close the watch before its end.

        Raises:
            Gone: the server no longer has the revision: list again.
            Unreachable: the connection broke, or no data arrived for ``WATCH_SILENCE_S`` although
                bookmarks were requested.
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
            async for event in read_events(chunks, request, resource):
                yield event

    async def create(
        self,
        resource: Resource[T],
        body: T | Mapping[str, Any],
        namespace: str | None = None,
        *,
        dry_run: bool = False,
    ) -> T:
        """Create an object.

        Raises:
            AlreadyExists: an object of this name exists. This also happens when the response of a
                successful create was lost and the caller repeats it: check the owner of the object.
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
        """Replace an object (or its ``status``) if it still has the resource version of the body.

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
        """Change some fields; for ``PatchKind.JSON``, ``patch`` is a list of operations."""
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
        """Server-side apply: declare the fields that ``manager`` owns; creates the object if
        necessary.

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
        """Delete an object; ``propagation`` is Foreground, Background or Orphan.

        Raises:
            Conflict: the object has another ``uid`` or ``resource_version``.
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
        """Bind a pod to a node, if the pod still has this ``uid``.

        Raises:
            Conflict: the pod has another uid, or is bound already.
        """
        await self.transport.send(build.bind(pod_name, namespace, node, uid))

    async def evict(
        self, pod_name: str, namespace: str, *, grace_seconds: int | None = None
    ) -> None:
        """Evict a pod, within its disruption budgets.

        Raises:
            TooManyRequests: a disruption budget does not allow the eviction now.
        """
        request = build.evict(pod_name, namespace, grace_seconds, self._eviction)
        try:
            await self.transport.send(request)
        except BadRequest as error:
            # Kubernetes before 1.22 has only policy/v1beta1.
            if self._eviction == LEGACY_EVICTION or "no kind" not in str(error):
                raise
            self._eviction = LEGACY_EVICTION
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
        bars: bool = False,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the log of a container, line by line, without line ends.

        ``kept_for`` is the uid of the owner of a deleted pod: embedded clusters retain its logs.
        ``bars`` as in ``split_lines``.

        Raises:
            BadRequest: the container does not run yet, or the pod has several and none is named.
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
            async for line in split_lines(chunks, keep_last=True, bars=bars):
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
    ) -> ExecResult:
        """Run a command in a container and wait for its end.

        Raises:
            ApiError: it could not be run, or did not end in time (``Unreachable``).
        """
        return await run_in_container(
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
        """Send any request; return the response as plain data, or as text if it is not JSON."""
        raw = body if isinstance(body, bytes) or body is None else msgspec.json.encode(body)
        request = Request(method, path, tuple((params or {}).items()), raw, content_type)
        answer = await self.transport.send(request, timeout_s=timeout_s)
        try:
            return msgspec.json.decode(answer) if answer else None
        except msgspec.DecodeError:
            return answer.decode(errors="replace")

    async def is_allowed(self, **attributes: str) -> bool:
        """Return whether the user may do what ``verb``, ``group``, ``resource`` and others name."""
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = await self.request_json("POST", path, body=review)
        return bool((answer.get("status") or {}).get("allowed"))

    async def user_name(self) -> str:
        """Return the name of the user.

        Raises:
            NotFound: the server is older than Kubernetes 1.28.
        """
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        answer = await self.request_json("POST", path, body=review)
        return str(answer["status"]["userInfo"].get("username", ""))

    async def _object(self, resource: Resource[T], request: Request) -> T:
        answer = await self.transport.send(request)
        with _translate_decode_errors(request, resource):
            return decode_object(resource.type, answer)


async def read_events(
    chunks: AsyncIterator[bytes], request: Request, resource: Resource[T]
) -> AsyncGenerator[WatchEvent[T], None]:
    """Yield the events of a watch in JSON.

    Raises:
        ApiError: the server reported an error, or sent something else.
    """
    async for line in split_lines(chunks):
        if not line:
            continue
        try:
            event = decode_event(resource.type, line)
            if isinstance(event, bytes):
                raise error_from_status(msgspec.json.decode(event, type=Status))
        except msgspec.DecodeError as error:
            raise malformed_error(request, resource, error) from error
        yield event


def read_page(
    answer: bytes, request: Request, resource: Resource[T]
) -> tuple[ListMeta, list[T], list[MalformedObject]]:
    """Return the metadata and the objects of a page in JSON.

    Raises:
        ApiError: it is not a list.
    """
    with _translate_decode_errors(request, resource):
        metadata, page_items, misfits = decode_page(resource.type, answer)
    return metadata, _fill_in_kind(resource, page_items), misfits


def _fill_in_kind(resource: Resource[Any], items: list[T]) -> list[T]:
    """Set the kind of each object: only a list itself has it, unlike the events of a watch."""
    for item in items:
        if isinstance(item, Object) and not item.kind:
            # These objects were just decoded and are not shared yet, so they may still be changed.
            msgspec.structs.force_setattr(item, "kind", resource.kind)
            msgspec.structs.force_setattr(item, "api_version", resource.api_version)
    return items


@contextmanager
def _translate_decode_errors(request: Request, resource: Resource[Any]) -> Iterator[None]:
    """Translate decode errors into an ``ApiError`` that names the expected kind."""
    try:
        yield
    except msgspec.DecodeError as error:
        raise malformed_error(request, resource, error) from error


def malformed_error(request: Request, resource: Resource[Any], error: Exception) -> ApiError:
    """Return the error for a response that is not of the expected kind."""
    message = f"{request.path}: the response is not a {resource.kind}: {error}"
    return ApiError(Status(status="Failure", reason="Malformed", message=message))
