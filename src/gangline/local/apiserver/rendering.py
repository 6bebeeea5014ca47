"""Responses in the requested format: as stored, as a Table, only metadata, as YAML."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from gangline.local.apiserver import conversion
from gangline.local.apiserver.machinery.table import (
    partial_object,
    partial_object_list,
    printer_for,
    render_table,
)
from gangline.local.apiserver.negotiation import (
    JSON,
    YAML,
    Form,
    choose,
    encode,
    read_json,
    write_yaml,
)
from gangline.local.apiserver.reading import Page
from gangline.local.apiserver.registry import Json, Kind
from gangline.local.apiserver.request import Call

Rendered = tuple[bytes, int, str]

TABLE, PARTIAL, PARTIAL_LIST = "Table", "PartialObjectMetadata", "PartialObjectMetadataList"


def object_answer(request: Call, body: bytes, code: int = 200) -> Rendered:
    form = choose(request.accept, (TABLE, PARTIAL))
    shape = shaper(request, form)
    return _media(shape(body) if shape else body, code, form)


def list_answer(request: Call, page: Page) -> Rendered:
    form = choose(request.accept, (TABLE, PARTIAL_LIST))
    meta: Json = {"resourceVersion": str(page.revision)}
    if page.next:
        meta["continue"] = page.next
    if page.remaining is not None:
        meta["remainingItemCount"] = page.remaining
    bodies = [record.body for record in page.records]
    if form.shape:
        return _media(_shaped_list(request, form, bodies, meta), 200, form)
    convert = conversion.shaper(request.kind)
    if convert is not None:
        bodies = [convert(body) for body in bodies]
    head: Json = {
        "kind": request.kind.list_kind_name,
        "apiVersion": request.kind.api_version,
        "metadata": meta,
    }
    return _media(encode(head)[:-1] + b',"items":[' + b",".join(bodies) + b"]}", 200, form)


def _shaped_list(request: Call, form: Form, bodies: list[bytes], meta: Json) -> bytes:
    objects = [conversion.from_stored(request.kind, read_json(body)) for body in bodies]
    if form.shape == TABLE:
        return encode(_table(request, objects, meta))
    parts = partial_object_list({"metadata": meta, "items": objects})
    return encode(parts)


def _table(request: Call, objects: list[Json], meta: Json | None = None) -> Json:
    return render_table(
        printer_for(request.kind.group, request.kind.kind, request.kind.columns),
        objects,
        now=datetime.now(UTC),
        include_object=request.params.get("includeObject") or "Metadata",
        metadata=meta,
    )


def shaper(request: Call, form: Form) -> Callable[[bytes], bytes] | None:
    """Return the function that converts a stored object to a format, or None if it is stored so."""
    convert = conversion.shaper(request.kind)
    if form.shape == TABLE:
        return lambda body: encode(_single_table(request, body))
    if form.shape == PARTIAL:
        return lambda body: encode(
            partial_object(conversion.from_stored(request.kind, read_json(body)))
        )
    return convert


def _single_table(request: Call, body: bytes) -> Json:
    obj: Json = conversion.from_stored(request.kind, read_json(body))
    return _table(request, [obj], {"resourceVersion": obj["metadata"].get("resourceVersion", "")})


def _media(body: bytes, code: int, form: Form) -> Rendered:
    if form.media == YAML:
        return write_yaml(read_json(body)), code, YAML
    return body, code, JSON


def deleted(kind: Kind, body: bytes) -> bytes:
    """Return the response to a deletion that removed the object."""
    meta: Any = read_json(body)["metadata"]
    details = {"name": meta["name"], "kind": kind.plural, "uid": meta["uid"]}
    if kind.group:
        details["group"] = kind.group
    return encode(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": details,
        }
    )
