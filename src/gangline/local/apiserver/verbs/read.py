"""Reads of objects: get, and lists by selector, with pages of one consistent revision."""

import base64
from bisect import bisect_right
from typing import NamedTuple

import msgspec

from gangline.api.meta.objects import StatusCause
from gangline.local import limits
from gangline.local.apiserver.core.errors import bad_request, expired, not_found, timed_out
from gangline.local.apiserver.core.negotiation import encode_json
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.storage.watch_cache import ObjectRevision, WatchCache
from gangline.local.apiserver.watch.selection import SelectionPredicate, compile_selection

MAX_REVISION_DIGITS = 20


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
    """Return the object that a request names.

    Raises:
        StatusError: 404, there is none.
    """
    record = store.cache(request.kind.storage_name).records.get(request.key)
    if record is None:
        raise not_found(request.kind.plural, request.kind.group, request.name)
    check_revision_reached(store, request.params.get("resourceVersion", ""))
    return record


class ListQuery(NamedTuple):
    """The objects of a list before its selectors are applied. They do not change any more."""

    candidates: list[ObjectRevision]
    revision: int
    limit: int
    after: str
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
        return _paginate(records, self.revision, self.limit, self.after, self.chosen)


def open_list(store: ObjectStore, request: ApiRequest) -> ListQuery:
    """Return the query of a list.

    Raises:
        StatusError: 400 or 410, an option is invalid or its revision is too old.
    """
    chosen = compile_selection(request)
    limit = max(request.int_param("limit") or 0, 0)  # as in Kubernetes, below 0 is no limit
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
    found = _candidates(cache, revision, store.revision, request.namespace, chosen)
    return ListQuery(found, revision, limit, after, chosen)


def _candidates(
    cache: WatchCache, revision: int, newest: int, namespace: str | None, chosen: SelectionPredicate
) -> list[ObjectRevision]:
    if chosen.key is not None:
        at = cache.records.get(chosen.key) if revision == newest else None
        found = [at] if at else []
        if revision != newest:
            found = [r for r in cache.state_at(revision, namespace) if r.key == chosen.key]
    elif revision < newest:
        found = cache.state_at(revision, namespace)
    else:
        found = [cache.records[key] for key in cache.keys(namespace)]
    return found


def _paginate(
    records: list[ObjectRevision], revision: int, limit: int, after: str, chosen: SelectionPredicate
) -> ListPage:
    if after:
        records = records[bisect_right(records, after, key=lambda record: record.key) :]
    if not limit or len(records) <= limit:
        return ListPage(records, revision)
    shown = records[:limit]
    token = encode_continue_token(revision, shown[-1].key)
    left = len(records) - limit if chosen.matches_all else None
    return ListPage(shown, revision, token, left)


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
    if match and match not in ("Exact", "NotOlderThan"):
        raise bad_request(f'resourceVersionMatch: Unsupported value: "{match}"')
    if match and not text:
        raise bad_request("resourceVersionMatch is forbidden unless resourceVersion is provided")
    requested = check_revision_reached(store, text)
    if match != "Exact":
        return 0
    if requested == 0:
        raise bad_request('resourceVersionMatch "Exact" is forbidden for resourceVersion "0"')
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
