"""One request: its path, verb and options as one value, and responses that are sent in parts.

Paths are those of Kubernetes: ``/api/v1/...`` for the core group and ``/apis/GROUP/VERSION/...``
for others, then optionally ``namespaces/NAMESPACE``, the plural, a name and a subresource. A client
that reads nothing for ``STALL_TIMEOUT_S`` is disconnected, so that what it was sent does not stay
in memory.
"""

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

from aiohttp import web

from gangline.local import limits
from gangline.local.apiserver.core.errors import bad_request, method_not_allowed, unknown_path
from gangline.local.apiserver.core.registry import SUBRESOURCES, Json, Registry, ServedKind
from gangline.local.query_options import boolean_option

PIECE_BYTES = 1 << 16
"""Bytes that are sent before the client must have read most of the previous ones."""
STALL_TIMEOUT_S = 30.0
"""Seconds in which a client must read the previous parts of a response."""


async def write_part(
    request: web.BaseRequest, response: web.StreamResponse, part: bytes | memoryview
) -> None:
    """Send a part, and wait until the client has read most of what it was sent. Raises
    ConnectionError: the client has disconnected, or it has not read for too long.
    """
    view = memoryview(part)
    for start in range(0, len(view), PIECE_BYTES):
        try:
            async with asyncio.timeout(STALL_TIMEOUT_S):
                await response.write(view[start : start + PIECE_BYTES])
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the client does not read its response") from None


def join_parts(parts: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    """Join short parts to parts of at most ``max_bytes``; longer ones stay as they are."""
    joined: list[bytes] = []
    size = 0
    for part in parts:
        if joined and size + len(part) > max_bytes:
            yield b"".join(joined)
            joined, size = [], 0
        joined.append(part)
        size += len(part)
    if joined:
        yield b"".join(joined)


INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
INT64 = (-(1 << 63), (1 << 63) - 1)
VERBS = {
    ("GET", True): "get",
    ("GET", False): "list",
    ("HEAD", True): "get",
    ("HEAD", False): "list",
    ("POST", True): "create",
    ("POST", False): "create",
    ("PUT", True): "update",
    ("PATCH", True): "patch",
    ("DELETE", True): "delete",
    ("DELETE", False): "deletecollection",
}


@dataclass(frozen=True, slots=True)
class RequestUser:
    """The authenticated user of a request."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Further attributes, such as the pod of a service account token."""

    def to_json(self) -> Json:
        """Return the given attributes by the names of Kubernetes' UserInfo."""
        extra = {name: list(values) for name, values in self.extra}
        given = {"username": self.name, "uid": self.uid, "groups": list(self.groups)}
        return {name: value for name, value in (given | {"extra": extra}).items() if value}


AUTHENTICATED = "system:authenticated"
"""The group of all users with valid credentials."""
ANONYMOUS = RequestUser("system:anonymous", ("system:unauthenticated",))


@dataclass(slots=True)
class ApiRequest:
    """One request for objects of one kind."""

    kind: ServedKind
    verb: str
    namespace: str | None
    name: str
    subresource: str
    params: Mapping[str, str]
    user: RequestUser = ANONYMOUS
    user_agent: str = ""
    accept: str = ""
    content_type: str = ""
    body: bytes = b""
    all_params: Mapping[str, list[str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    audit_annotations: dict[str, str] = field(default_factory=dict)
    """What rules note for the audit log."""

    @property
    def key(self) -> str:
        """The key of the object in its store cache."""
        return f"{self.namespace}/{self.name}" if self.kind.namespaced else self.name

    @property
    def dry_run(self) -> bool:
        """True if the request must not store anything."""
        value = self.params.get("dryRun")
        if value not in (None, "All"):
            raise bad_request(f'invalid dryRun {value!r}: the only supported value is "All"')
        return value == "All"

    def bool_param(self, name: str) -> bool:
        """Return a boolean option of the query; an absent one is false."""
        return bool(boolean_option(self.params, name))

    def optional_bool_param(self, name: str) -> bool | None:
        """Return a boolean option of the query, or None if it is absent."""
        return boolean_option(self.params, name)

    def int_param(self, name: str) -> int | None:
        """Return an integer option of the query, or None if it is absent."""
        text = self.params.get(name, "")
        if not text:
            return None
        if not INTEGER.fullmatch(text) or not INT64[0] <= (number := int(text)) <= INT64[1]:
            shown = text if len(text) <= 40 else f"{text[:40]}…"
            raise bad_request(f"the option {name} must be a 64-bit number, not {shown!r}")
        return number


def split_target(raw_path: str) -> tuple[str, dict[str, list[str]]]:
    """Return the path and the options of a request target. Raises StatusError: 400, the query has
    too many parameters.
    """
    path, _, query = raw_path.partition("?")
    options: dict[str, list[str]] = {}
    if query:
        try:
            pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=limits.MAX_PARAMETERS)
        except ValueError:
            most = limits.MAX_PARAMETERS
            raise bad_request(f"the query has more than {most} parameters") from None
        for name, value in pairs:
            options.setdefault(name, []).append(value)
    return unquote(path) if "%" in path else path, options


def resolve_request(
    registry: Registry, method: str, path: str, options: dict[str, list[str]]
) -> ApiRequest:
    """Parse the kind, verb and object of a request. Raises StatusError: 404 for an unknown path,
    405 for an unsupported verb.
    """
    parts = [part for part in path.split("/") if part]
    group, version, rest = _group_version(parts)
    watched = bool(rest) and rest[0] == "watch"
    if watched:  # the deprecated watch path, which some clients still use
        rest = rest[1:]
    namespace: str | None = None
    of_namespace = not group and rest[2:] in (["status"], ["finalize"])
    if len(rest) >= 3 and rest[0] == "namespaces" and not of_namespace:
        namespace, rest = rest[1], rest[2:]
    proxied = rest[2:3] == ["proxy"]
    if not rest or (len(rest) > 3 + (rest[0] == "pods") and not proxied):
        raise unknown_path()
    kind = registry.find(group, version, rest[0])
    if kind is None or (namespace is not None and not kind.namespaced):
        raise unknown_path()
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if subresource and subresource not in kind.subresources:
        raise unknown_path()
    params = {name: values[0] for name, values in options.items()}
    # The options of a proxied request are those of the pod.
    options_of_verb = {} if proxied else params
    verb = _verb(method, kind, (name, subresource), options_of_verb, watched)
    if kind.namespaced and namespace is None and verb not in ("list", "watch"):
        raise unknown_path() if name else method_not_allowed(method)
    return ApiRequest(kind, verb, namespace, name, subresource, params, all_params=options)


def _group_version(parts: list[str]) -> tuple[str, str, list[str]]:
    if len(parts) >= 2 and parts[0] == "api":
        return "", parts[1], parts[2:]
    if len(parts) >= 3 and parts[0] == "apis":
        return parts[1], parts[2], parts[3:]
    raise unknown_path()


def _verb(
    method: str, kind: ServedKind, named: tuple[str, str], params: dict[str, str], watched: bool
) -> str:
    name, subresource = named
    if subresource == "proxy" and method == "OPTIONS":
        method = "GET"  # which a pod may answer; no object of this server has options
    verb = VERBS.get((method, bool(name)), "")
    if verb in ("list", "get") and (watched or boolean_option(params, "watch")):
        verb = "watch"
    allowed = SUBRESOURCES[subresource][3] if subresource else kind.verbs
    if not verb or verb not in allowed or (verb == "create" and name and not subresource):
        raise method_not_allowed(method)
    return verb
