"""Reads of objects: get, and lists by selector, with pages of one consistent revision.

Responses have the requested format: as stored, as a Table, only metadata, as YAML.
"""

import base64
from bisect import bisect_left
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple

import msgspec

from gangline.api.meta.field_causes import forbidden, unsupported
from gangline.api.meta.objects import StatusCause
from gangline.local import limits
from gangline.local.apiserver.core import conversion
from gangline.local.apiserver.core.errors import (
    bad_request,
    expired,
    invalid,
    not_found,
    timed_out,
)
from gangline.local.apiserver.core.negotiation import (
    JSON,
    YAML,
    ResponseFormat,
    choose_format,
    encode_json,
    read_json,
    write_yaml,
)
from gangline.local.apiserver.core.registry import Json, ServedKind
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.machinery.printing.table import (
    find_printer,
    partial_object_metadata,
    partial_object_metadata_list,
    render_table,
)
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.storage.watch_cache import ObjectRevision, WatchCache
from gangline.local.apiserver.watch import SelectionPredicate, compile_selection

MAX_REVISION_DIGITS = 20
PROBED = 4
"""A page with selectors is first looked for among so many times its limit."""


class ContinueToken(msgspec.Struct, rename="camel"):
    """The continue token of a list: the last key, and the revision (-1 for the newest)."""

    v: str = "meta.k8s.io/v1"
    rv: int = 0
    start: str = ""


class ListPage(NamedTuple):
    """One page of a list, or the complete list."""

    records: list[ObjectRevision]
    revision: int
    continue_token: str = ""
    remaining: int | None = None


def read_object(store: ObjectStore, request: ApiRequest) -> ObjectRevision:
    """Return the object that a request names. Raises StatusError: 404, there is none."""
    record = store.cache(request.kind.storage_name).records.get(request.key)
    if record is None:
        raise not_found(request.kind.plural, request.kind.group, request.name)
    check_revision_reached(store, request.params.get("resourceVersion", ""))
    return record


class ListQuery(NamedTuple):
    """The objects of a list before its selectors are applied. They do not change any more."""

    candidates: list[ObjectRevision]
    further: int
    """The number of objects after the candidates: they are enough for the page."""
    revision: int
    limit: int
    chosen: SelectionPredicate

    @property
    def comparisons(self) -> int:
        """The number of comparisons that the selectors make at most."""
        return len(self.candidates) * self.chosen.terms

    def page(self) -> ListPage:
        """Return the selected objects."""
        records = self.candidates
        if not self.chosen.matches_all:
            records = [record for record in records if self.chosen.matches(record)]
        shown = records[: self.limit or None]
        left = len(records) - len(shown) + self.further
        if not left:
            return ListPage(shown, self.revision)
        token = encode_continue_token(self.revision, shown[-1].key)
        return ListPage(shown, self.revision, token, left if self.chosen.matches_all else None)


def open_list(store: ObjectStore, request: ApiRequest) -> ListQuery:
    """Return the query of a list. Raises StatusError: 400 or 410, an option is invalid or its
    revision is too old.
    """
    chosen = compile_selection(request)
    limit = max(request.int_param("limit") or 0, 0)  # as in Kubernetes, below 0 is no limit
    request.int_param("timeoutSeconds")  # of a watch, but checked for lists too
    cache = store.cache(request.kind.storage_name)
    token = request.params.get("continue", "")
    after = ""
    if token:
        revision, after = _decode_continue_token(token)
        if revision > 0:
            _check_available(cache, revision, after, store.revision)
    else:
        revision = _requested_revision(store, cache, request)
    revision = store.revision if revision <= 0 else revision
    records, further = _candidates(cache, revision, request.namespace, chosen, after, limit)
    return ListQuery(records, further, revision, limit, chosen)


def _candidates(
    cache: WatchCache,
    revision: int,
    namespace: str | None,
    chosen: SelectionPredicate,
    after: str,
    limit: int,
) -> tuple[list[ObjectRevision], int]:
    """Return the objects among which a page is found, and how many follow them.

    To look at all objects for each page would take seconds of a list of 100,000 in pages of 500.
    """
    keys, past = cache.keys_at(revision, namespace, after)
    if chosen.key is not None:
        place = bisect_left(keys, chosen.key)
        keys = [key for key in keys[place : place + 1] if key == chosen.key]
    stop = len(keys)
    if limit and chosen.matches_all:
        stop = min(stop, limit)
    elif limit:
        matches = (
            index
            for index, key in enumerate(keys[: PROBED * limit])
            if chosen.matches(past.get(key) or cache.records[key])
        )
        stop = next(islice(matches, limit, None), stop - 1) + 1 if stop else 0
    records = [past.get(key) or cache.records[key] for key in keys[:stop]]
    return records, len(keys) - stop


def encode_continue_token(revision: int, after: str) -> str:
    """Return the continue token that the client sends for the next page."""
    return (
        base64.urlsafe_b64encode(encode_json(ContinueToken(rv=revision, start=after)))
        .decode()
        .rstrip("=")
    )


def _decode_continue_token(text: str) -> tuple[int, str]:
    try:
        if len(text) > limits.MAX_CONTINUE_CHARS:
            raise ValueError("no token is that long")
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        token = msgspec.json.decode(raw, type=ContinueToken)
    except (ValueError, msgspec.DecodeError):
        raise bad_request("continue key is not valid: this server did not make it") from None
    return token.rv, token.start


def _check_available(cache: WatchCache, revision: int, after: str, newest: int) -> None:
    if revision > newest:
        raise bad_request("continue key is not valid: its revision does not exist yet")
    if revision < cache.horizon:
        raise expired(
            "The provided continue parameter is too old to display a consistent list result. "
            "You can start a new list without the continue parameter, or use the continue token "
            "in this response to retrieve the remainder of the results.",
            continue_token=encode_continue_token(-1, after),
        )


def _requested_revision(store: ObjectStore, cache: WatchCache, request: ApiRequest) -> int:
    text = request.params.get("resourceVersion", "")
    match = request.params.get("resourceVersionMatch", "")
    where, cause = "resourceVersionMatch", None
    if match and not text:
        cause = forbidden(where, f"{where} is forbidden unless resourceVersion is provided")
    elif match and match not in ("Exact", "NotOlderThan"):
        cause = unsupported(where, match, ("Exact", "NotOlderThan"))
    elif match == "Exact" and text == "0":
        cause = forbidden(where, f'{where} "Exact" is forbidden for resourceVersion "0"')
    if cause is not None:
        raise invalid("meta.k8s.io", "ListOptions", "", [cause])
    requested = check_revision_reached(store, text)
    if match != "Exact":
        return 0
    if requested < cache.horizon:
        raise expired(f"The resourceVersion for the provided list is too old: {requested}")
    return requested


def parse_revision(text: str) -> int:
    """Return the number of a resourceVersion, or 0 if it is empty."""
    if not text:
        return 0
    if not text.isdecimal() or not text.isascii() or len(text) > MAX_REVISION_DIGITS:
        shown = text if len(text) <= MAX_REVISION_DIGITS else f"{text[:MAX_REVISION_DIGITS]}…"
        raise bad_request(f'Invalid value: "{shown}": resourceVersion must be a 64-bit number')
    return int(text)


def check_revision_reached(store: ObjectStore, text: str) -> int:
    """Refuse a revision that this server has not reached: it belongs to another server."""
    requested = parse_revision(text)
    if requested > store.revision:
        cause = StatusCause("ResourceVersionTooLarge", "Too large resource version")
        raise timed_out(
            f"Too large resource version: {requested}, current: {store.revision}", [cause]
        )
    return requested


Rendered = tuple[bytes, int, str]
STORED_FORMAT = ResponseFormat()

TABLE, PARTIAL_OBJECT, PARTIAL_LIST = "Table", "PartialObjectMetadata", "PartialObjectMetadataList"


def render_object(request: ApiRequest, body: bytes, code: int = 200) -> Rendered:
    form = choose_format(request.accept, (TABLE, PARTIAL_OBJECT))
    shape = make_renderer(request, form)
    return _media(shape(body) if shape else body, code, form)


def is_stored_form(request: ApiRequest, partial: str = PARTIAL_OBJECT) -> bool:
    """Return True if the requested format is that of objects as they are stored. Raises
    StatusError: 406.
    """
    form = choose_format(request.accept, (TABLE, partial))
    return form == STORED_FORMAT and request.kind.serves_stored_bytes


def stored_list_parts(request: ApiRequest, page: ListPage) -> list[bytes]:
    """Return the parts of a list of objects as they are stored."""
    parts = [b","] * (2 * len(page.records) + 1)
    parts[0] = _list_head(request, _list_metadata(page))
    parts[1::2] = [record.body for record in page.records]
    if not page.records:
        return [parts[0], b"]}"]
    parts[-1] = b"]}"
    return parts


def _list_head(request: ApiRequest, meta: Json) -> bytes:
    head: Json = {
        "kind": request.kind.list_kind_name,
        "apiVersion": request.kind.api_version,
        "metadata": meta,
    }
    return encode_json(head)[:-1] + b',"items":['


def _list_metadata(page: ListPage) -> Json:
    meta: Json = {"resourceVersion": str(page.revision)}
    if page.continue_token:
        meta["continue"] = page.continue_token
    if page.remaining is not None:
        meta["remainingItemCount"] = page.remaining
    return meta


def render_list(request: ApiRequest, page: ListPage) -> Rendered:
    form = choose_format(request.accept, (TABLE, PARTIAL_LIST))
    meta = _list_metadata(page)
    bodies = [record.body for record in page.records]
    if form.as_kind:
        return _media(_shaped_list(request, form, bodies, meta), 200, form)
    convert = conversion.make_converter(request.kind)
    if convert is not None:
        bodies = [convert(body) for body in bodies]
    return _media(_list_head(request, meta) + b",".join(bodies) + b"]}", 200, form)


def _shaped_list(
    request: ApiRequest, form: ResponseFormat, bodies: list[bytes], meta: Json
) -> bytes:
    objects = [conversion.from_stored(request.kind, read_json(body)) for body in bodies]
    if form.as_kind == TABLE:
        return encode_json(_table(request, objects, meta))
    parts = partial_object_metadata_list({"metadata": meta, "items": objects})
    return encode_json(parts)


def _table(request: ApiRequest, objects: list[Json], meta: Json | None = None) -> Json:
    return render_table(
        find_printer(request.kind.group, request.kind.kind, request.kind.columns),
        objects,
        now=datetime.now(UTC),
        include_object=request.params.get("includeObject") or "Metadata",
        metadata=meta,
    )


def make_renderer(request: ApiRequest, form: ResponseFormat) -> Callable[[bytes], bytes] | None:
    """Return the function that converts a stored object to a format, or None if it is stored so."""
    convert = conversion.make_converter(request.kind)
    if form.as_kind == TABLE:
        return lambda body: encode_json(_single_table(request, body))
    if form.as_kind == PARTIAL_OBJECT:
        return lambda body: encode_json(
            partial_object_metadata(conversion.from_stored(request.kind, read_json(body)))
        )
    return convert


def _single_table(request: ApiRequest, body: bytes) -> Json:
    obj: Json = conversion.from_stored(request.kind, read_json(body))
    return _table(request, [obj], {"resourceVersion": obj["metadata"].get("resourceVersion", "")})


def _media(body: bytes, code: int, form: ResponseFormat) -> Rendered:
    if form.media == YAML:
        return write_yaml(read_json(body)), code, YAML
    return body, code, JSON


def deletion_status(kind: ServedKind, body: bytes) -> bytes:
    """Return the response to a deletion that removed the object."""
    meta: Json = read_json(body)["metadata"]
    details = {"name": meta["name"], "kind": kind.plural, "uid": meta["uid"]}
    if kind.group:
        details["group"] = kind.group
    return encode_json(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": details,
        }
    )
