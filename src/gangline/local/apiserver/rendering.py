"""Answers in the form that the client asked for: as stored, as a table, metadata only, as YAML."""

from collections.abc import Callable
from typing import Any

from gangline.local.apiserver import conversion
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


def object_answer(call: Call, body: bytes, code: int = 200) -> Rendered:
    """One object."""
    form = choose(call.accept, (TABLE, PARTIAL))
    if form == Form():
        return body, code, JSON
    shape = shaper(call, form)
    return _media(shape(body) if shape else body, code, form)


def list_answer(call: Call, page: Page) -> Rendered:
    """A list of objects."""
    form = choose(call.accept, (TABLE, PARTIAL_LIST))
    meta: Json = {"resourceVersion": str(page.revision)}
    if page.next:
        meta["continue"] = page.next
    if page.remaining is not None:
        meta["remainingItemCount"] = page.remaining
    convert = conversion.shaper(call.kind)
    bodies = [record.body for record in page.records]
    if convert is not None:
        bodies = [convert(body) for body in bodies]
    head: Json = {
        "kind": call.kind.list_kind_name,
        "apiVersion": call.kind.api_version,
        "metadata": meta,
    }
    whole = encode(head)[:-1] + b',"items":[' + b",".join(bodies) + b"]}"
    return _media(whole, 200, form)


def shaper(call: Call, form: Form) -> Callable[[bytes], bytes] | None:
    """What puts one object of a watch or an answer into a form; None: it is as it is."""
    return None


def _media(body: bytes, code: int, form: Form) -> Rendered:
    if form.media == YAML:
        return write_yaml(read_json(body)), code, YAML
    return body, code, JSON


def deleted(kind: Kind, body: bytes) -> bytes:
    """The answer to a deletion that is complete."""
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
