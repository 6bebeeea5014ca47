"""Requests to an API server as plain data: method, path, parameters and body of each verb.

Everything here is pure, so that tables can test the wire format; ``transport`` sends.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from gangline.api.meta.resource import Resource
from gangline.kube.errors import ConfigError

JSON = "application/json"
PROTOBUF = "application/vnd.kubernetes.protobuf"


class PatchKind(StrEnum):
    """The type of a patch, as its media type."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


Params = tuple[tuple[str, str], ...]
_BREAKS = re.compile(r"[\r\n\0]")
_TARGET = re.compile(r"[!-~]+", re.ASCII)
"""Characters that may occur unescaped in the request line."""


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, relative to a server."""

    method: str
    path: str
    params: Params = ()
    body: bytes | None = None
    content_type: str = JSON

    @property
    def is_idempotent(self) -> bool:
        """Whether sending it twice has the same effect as sending it once."""
        return self.method in {"GET", "HEAD"}


def query_parameters(**values: object) -> Params:
    """Convert keyword arguments to query parameters; absent ones are omitted.

    Names are converted from snake_case to camelCase; a list repeats its name.
    """
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        head, *tail = name.rstrip("_").split("_")
        wire = head + "".join(part.capitalize() for part in tail)
        pairs += [(wire, "true" if item is True else str(item)) for item in _items(value)]
    return tuple(pairs)


def _items(value: object) -> Sequence[object]:
    if value is None or value == "" or value is False:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


def object_path(
    resource: Resource[Any], namespace: str | None, name: str, subresource: str = ""
) -> str:
    """Return the path of one object.

    Raises:
        ValueError: the name is empty (that would be the collection), or a namespace is missing.
    """
    if not name:
        raise ValueError(f"the name of a {resource.kind} is empty")
    if resource.namespaced and not namespace:
        raise ValueError(f"{resource.kind} {name!r} is namespaced, and no namespace was given")
    return resource.path(_quoted(namespace), quote(name, safe=""), subresource)


def collection_path(resource: Resource[Any], namespace: str | None) -> str:
    """Return the path of all objects of a kind; without a namespace, of all namespaces."""
    return resource.path(_quoted(namespace) or None)


def _quoted(namespace: str | None) -> str | None:
    return quote(namespace, safe="") if namespace else namespace


def get(resource: Resource[Any], name: str, namespace: str | None) -> Request:
    """Read one object."""
    return Request("GET", object_path(resource, namespace, name))


def list_page(
    resource: Resource[Any],
    namespace: str | None,
    *,
    labels: str = "",
    fields: str = "",
    limit: int = 0,
    continue_: str = "",
    resource_version: str = "",
) -> Request:
    """Read one page of a list; the continue token implies the revision.

    With revision ``0`` the server returns any state that it has in memory, mostly on one page.
    """
    params = query_parameters(
        label_selector=labels,
        field_selector=fields,
        limit=limit or None,
        continue_=continue_,
        resource_version=None if continue_ else resource_version,
    )
    return Request("GET", collection_path(resource, namespace), params)


def watch(
    resource: Resource[Any],
    namespace: str | None,
    *,
    labels: str = "",
    fields: str = "",
    resource_version: str = "",
    bookmarks: bool = True,
    timeout_s: int = 0,
) -> Request:
    """Watch a list from a revision on."""
    params = query_parameters(
        watch=True,
        label_selector=labels,
        field_selector=fields,
        resource_version=resource_version,
        allow_watch_bookmarks=bookmarks,
        timeout_seconds=timeout_s or None,
    )
    return Request("GET", collection_path(resource, namespace), params)


def create(
    resource: Resource[Any], body: Any, namespace: str | None, *, dry_run: bool = False
) -> Request:
    """Create an object; the default namespace is the body's."""
    namespace = namespace or namespace_of(body)
    if resource.namespaced and not namespace:
        raise ValueError(f"a {resource.kind} is namespaced, and no namespace was given")
    params = query_parameters(dry_run="All" if dry_run else None)
    return Request(
        "POST", collection_path(resource, namespace), params, encode_object(resource, body)
    )


def update(
    resource: Resource[Any], body: Any, namespace: str | None, *, subresource: str = ""
) -> Request:
    """Replace an object or a subresource, if it still has the revision of the body."""
    path = object_path(resource, namespace or namespace_of(body), name_of(body), subresource)
    return Request("PUT", path, (), encode_object(resource, body))


def patch(
    resource: Resource[Any],
    name: str,
    change: Any,
    namespace: str | None,
    *,
    kind: PatchKind = PatchKind.MERGE,
    subresource: str = "",
) -> Request:
    """Change some fields of an object or a subresource."""
    path = object_path(resource, namespace, name, subresource)
    return Request("PATCH", path, (), msgspec.json.encode(change), kind.value)


def apply(
    resource: Resource[Any],
    body: Any,
    namespace: str | None,
    *,
    manager: str,
    force: bool = False,
    subresource: str = "",
) -> Request:
    """Apply the fields that ``manager`` owns (server-side apply)."""
    path = object_path(resource, namespace or namespace_of(body), name_of(body), subresource)
    params = query_parameters(field_manager=manager, force=force)
    return Request("PATCH", path, params, encode_object(resource, body), PatchKind.APPLY.value)


def delete(
    resource: Resource[Any],
    name: str,
    namespace: str | None,
    *,
    grace_seconds: int | None = None,
    propagation: str | None = None,
    uid: str | None = None,
    resource_version: str | None = None,
) -> Request:
    """Delete an object, if it still has this ``uid`` and ``resource_version``."""
    expected = {"uid": uid, "resourceVersion": resource_version}
    options = {
        "gracePeriodSeconds": grace_seconds,
        "propagationPolicy": propagation,
        "preconditions": {key: value for key, value in expected.items() if value} or None,
    }
    given = {key: value for key, value in options.items() if value is not None}
    body = {"apiVersion": "v1", "kind": "DeleteOptions", **given} if given else None
    return Request(
        "DELETE",
        object_path(resource, namespace, name),
        (),
        msgspec.json.encode(body) if body else None,
    )


def pod_path(namespace: str, name: str, subresource: str) -> str:
    """Return the path of a subresource of a pod."""
    if not (namespace and name):
        raise ValueError(f"a pod needs a namespace ({namespace!r}) and a name ({name!r})")
    return (
        f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}/{subresource}"
    )


def bind(pod: str, namespace: str, node: str, uid: str | None) -> Request:
    """Bind a pod to a node."""
    meta = {"name": pod, "namespace": namespace, **({"uid": uid} if uid else {})}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
    return Request("POST", pod_path(namespace, pod, "binding"), (), msgspec.json.encode(body))


def evict(
    pod: str, namespace: str, grace_seconds: int | None = None, version: str = "policy/v1"
) -> Request:
    """Evict a pod, with this version of the policy API."""
    body = {
        "apiVersion": version,
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": namespace},
        **(
            {}
            if grace_seconds is None
            else {"deleteOptions": {"gracePeriodSeconds": grace_seconds}}
        ),
    }
    return Request("POST", pod_path(namespace, pod, "eviction"), (), msgspec.json.encode(body))


def logs(pod: str, namespace: str, **options: object) -> Request:
    """Read the log of a container; ``options`` are those of the API, in snake_case."""
    return Request("GET", pod_path(namespace, pod, "log"), query_parameters(**options))


def encode_headers(headers: Iterable[tuple[str, str]]) -> bytes:
    """Encode headers for HTTP/1.1.

    Raises:
        ConfigError: a value contains a line break, which could inject another header.
    """
    lines = []
    for name, value in headers:
        if _BREAKS.search(value):
            raise ConfigError(f"the header {name} has a line break")
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines).encode()


def encode_request(request: Request, base_path: str, head: bytes) -> bytes:
    """Encode a request for HTTP/1.1; ``head`` has the headers that all requests share."""
    target = base_path + request.path
    if request.params:
        target += "?" + urlencode(request.params, quote_via=quote)
    if not _TARGET.fullmatch(target):
        target = quote(target, safe="/?=&%:@!$'()*+,;~")
    body = request.body or b""
    length = f"Content-Length: {len(body)}\r\n" if body or request.method != "GET" else ""
    kind = f"Content-Type: {request.content_type}\r\n" if request.body is not None else ""
    begin = f"{request.method} {target} HTTP/1.1\r\n{kind}{length}".encode()
    return b"".join((begin, head, b"\r\n", body))


def encode_object(resource: Resource[Any], body: Any) -> bytes:
    """Encode an object; sets the version and kind of the resource if the object has none."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, msgspec.Raw):
        return bytes(body)
    if isinstance(body, Mapping):
        return msgspec.json.encode(
            {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        )
    if not getattr(body, "kind", "") or not getattr(body, "api_version", ""):
        body = msgspec.structs.replace(body, api_version=resource.api_version, kind=resource.kind)
    return msgspec.json.encode(body)


def name_of(body: Any) -> str:
    """Return the name in an object's metadata, or an empty text."""
    return _metadata(body, "name")


def namespace_of(body: Any) -> str:
    """Return the namespace in an object's metadata, or an empty text."""
    return _metadata(body, "namespace")


def _metadata(body: Any, field: str) -> str:
    if isinstance(body, Mapping):
        metadata = body.get("metadata")
        value = metadata.get(field) if isinstance(metadata, Mapping) else None
    else:
        value = getattr(getattr(body, "metadata", None), field, None)
    return value if isinstance(value, str) else ""
