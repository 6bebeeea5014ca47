"""Server-side printing: objects as rows of a ``meta.k8s.io/v1`` Table, which kubectl prints as is.

A ``TablePrinter`` has the columns of a kind and a function that returns the cells of one object.
Those of built-in kinds are in ``columns.toml``, but for pods and events; custom kinds have those of
``additionalPrinterColumns``. All other kinds show name and age. Columns with a priority above zero
appear with ``-o wide``.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from gangline.api.jsonpath import JSONPath, JSONPathError
from gangline.api.meta.json_objects import subobject
from gangline.local.apiserver.machinery.printing.cells import table_printers
from gangline.local.apiserver.machinery.printing.pods import POD_PRINTER
from gangline.local.apiserver.machinery.printing.printer import (
    AGE,
    NAME,
    TableColumn,
    TablePrinter,
    format_age,
    make_columns,
    object_age,
    object_name,
)
from gangline.local.apiserver.machinery.schema.nodes import Json

__all__ = [
    "TableColumn",
    "TablePrinter",
    "find_printer",
    "partial_object_metadata",
    "partial_object_metadata_list",
    "render_table",
]


def _event(obj: Json, now: datetime) -> list[Any]:
    """Return the cells of an event of either API group; events.k8s.io renamed most fields."""
    series = subobject(obj, "series")
    first = obj.get("firstTimestamp") or obj.get("deprecatedFirstTimestamp") or obj.get("eventTime")
    last = obj.get("lastTimestamp") or obj.get("deprecatedLastTimestamp") or first
    last = series.get("lastObservedTime") or last
    involved = subobject(obj, "involvedObject") or subobject(obj, "regarding")
    source = subobject(obj, "source") or subobject(obj, "deprecatedSource")
    origin = [source.get("component") or obj.get("reportingController"), source.get("host")]
    count = series.get("count") or obj.get("count") or obj.get("deprecatedCount") or 1
    message = str(obj.get("message") or obj.get("note") or "").strip()
    return [
        format_age(last, now),
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}",
        involved.get("fieldPath", ""),
        ", ".join(filter(None, origin)),
        message,
        format_age(first, now),
        count,
        object_name(obj),
    ]


_EVENT = TablePrinter(
    make_columns(
        "Last Seen", "Type", "Reason", "Object", "+Subobject", "+Source",
        "Message", "+First Seen", "+Count", "+Name",
    ),
    _event,
)  # fmt: skip

META = "meta.k8s.io/v1"

BUILT_IN: Mapping[tuple[str, str], TablePrinter] = {
    ("", "Event"): _EVENT,
    ("", "Pod"): POD_PRINTER,
    ("events.k8s.io", "Event"): _EVENT,
}
NAME_AND_AGE = TablePrinter((NAME, AGE), lambda obj, now: [object_name(obj), object_age(obj, now)])


def find_printer(
    group: str, kind: str, additional_columns: Sequence[Json] | None = None
) -> TablePrinter:
    """Return the printer of a kind: its CRD's columns, the built-in ones, or name and age."""
    if additional_columns:
        return _crd_printer(additional_columns)
    printer = BUILT_IN.get((group, kind)) or table_printers().get((group, kind))
    return printer or NAME_AND_AGE


def render_table(
    printer: TablePrinter,
    objects: Iterable[Json],
    *,
    now: datetime,
    include_object: str = "Metadata",
    metadata: Json | None = None,
    with_columns: bool = True,
) -> Json:
    """Return the Table of a list of objects.

    ``include_object`` is None, Metadata or Object, as in the request. ``metadata`` is that of the
    list. All but the first event of a watch omit the columns.
    """
    return {
        "kind": "Table",
        "apiVersion": META,
        "metadata": metadata or {},
        "columnDefinitions": [asdict(column) for column in printer.columns] if with_columns else [],
        "rows": [_row(printer, obj, now, include_object) for obj in objects],
    }


def partial_object_metadata(obj: Json) -> Json:
    metadata = obj.get("metadata", {})
    return {"kind": "PartialObjectMetadata", "apiVersion": META, "metadata": metadata}


def partial_object_metadata_list(object_list: Json) -> Json:
    return {
        "kind": "PartialObjectMetadataList",
        "apiVersion": META,
        "metadata": object_list.get("metadata", {}),
        "items": [partial_object_metadata(item) for item in object_list.get("items", [])],
    }


def _row(printer: TablePrinter, obj: Json, now: datetime, include_object: str) -> Json:
    row: Json = {"cells": printer.cells(obj, now)}
    if conditions := printer.conditions(obj):
        row["conditions"] = conditions
    if include_object == "Object":
        row["object"] = obj
    elif include_object != "None":
        row["object"] = partial_object_metadata(obj)
    return row


def _crd_printer(definitions: Sequence[Json]) -> TablePrinter:
    columns = [NAME]
    paths: list[tuple[str, JSONPath | None]] = []
    for definition in definitions:
        kind = definition.get("type", "string")
        text, priority = definition.get("description", ""), definition.get("priority", 0)
        columns.append(
            TableColumn(
                definition.get("name", ""), kind, definition.get("format", ""), text, priority
            )
        )
        paths.append((kind, _path(definition.get("jsonPath", ""))))

    def cells(obj: Json, now: datetime) -> list[Any]:
        return [object_name(obj), *(_crd_cell(kind, path, obj, now) for kind, path in paths)]

    return TablePrinter(tuple(columns), cells)


def _path(text: str) -> JSONPath | None:
    try:
        return JSONPath(text)
    except JSONPathError:
        return None  # One invalid column must not hide the objects: it stays empty.


def _crd_cell(kind: str, path: JSONPath | None, obj: Json, now: datetime) -> Any:
    values = path.find(obj) if path else []
    if not values or values[0] is None:
        return None
    first = values[0]
    match kind:
        case "date":
            return format_age(first, now)
        case "integer" if isinstance(first, float):
            return int(first)
        case "integer" | "number":
            return first if isinstance(first, int | float) else None
        case "boolean":
            return first if isinstance(first, bool) else None
    return " ".join(map(_text, values))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
