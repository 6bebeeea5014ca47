"""Responses in the requested format: as stored, as a Table, only metadata, as YAML."""

from collections.abc import Callable
from datetime import UTC, datetime

from gangline.local.apiserver.core import conversion
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
from gangline.local.apiserver.verbs.read import ListPage

Rendered = tuple[bytes, int, str]
STORED_FORMAT = ResponseFormat()

TABLE, PARTIAL_OBJECT, PARTIAL_LIST = "Table", "PartialObjectMetadata", "PartialObjectMetadataList"


def render_object(request: ApiRequest, body: bytes, code: int = 200) -> Rendered:
    form = choose_format(request.accept, (TABLE, PARTIAL_OBJECT))
    shape = make_renderer(request, form)
    return _media(shape(body) if shape else body, code, form)


def is_stored_object(request: ApiRequest) -> bool:
    """Return True if the requested format is that of the object as it is stored.

    Raises:
        StatusError: 406.
    """
    form = choose_format(request.accept, (TABLE, PARTIAL_OBJECT))
    return form == STORED_FORMAT and request.kind.is_stored_form


def is_stored_list(request: ApiRequest) -> bool:
    """Return True if the requested list consists of the objects as they are stored.

    Raises:
        StatusError: 406.
    """
    form = choose_format(request.accept, (TABLE, PARTIAL_LIST))
    return form == STORED_FORMAT and request.kind.is_stored_form


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
