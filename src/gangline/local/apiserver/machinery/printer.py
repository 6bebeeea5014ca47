"""The columns and cells of a table printer, and cells that several kinds share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from gangline.local.apiserver.machinery.durations import format_age
from gangline.local.apiserver.machinery.json_objects import subobject
from gangline.local.apiserver.machinery.schemas import Json

NONE = "<none>"

CellsFunction: TypeAlias = Callable[[Json, datetime], list[Any]]


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column of a table. Only ``-o wide`` shows a column with a priority above zero."""

    name: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0

    def definition(self) -> Json:
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        }


@dataclass(frozen=True, slots=True)
class TablePrinter:
    """The columns of a kind, the cells of one object, and the conditions of its row."""

    columns: tuple[TableColumn, ...]
    cells: CellsFunction
    conditions: Callable[[Json], list[Json]] = lambda obj: []


NAME = TableColumn(
    "Name", format="name", description="The name of the object, unique in its namespace."
)
AGE = TableColumn("Age", description="How long ago the object was created.")


def make_columns(*names: str) -> tuple[TableColumn, ...]:
    """Return text columns. ``Name`` and ``Age`` are predefined, ``+`` marks a wide column."""
    known = {"Name": NAME, "Age": AGE}
    return tuple(
        known.get(name) or TableColumn(name.removeprefix("+"), priority=int(name.startswith("+")))
        for name in names
    )


def object_name(obj: Json) -> str:
    return str(subobject(obj, "metadata").get("name", ""))


def object_age(obj: Json, now: datetime) -> str:
    return format_age(subobject(obj, "metadata").get("creationTimestamp"), now)


def has_deletion_timestamp(obj: Json) -> bool:
    return bool(subobject(obj, "metadata").get("deletionTimestamp"))


def join_or_none(values: Iterable[Any], separator: str = ",") -> str:
    return separator.join(map(str, values)) or NONE


def format_labels(labels: Any) -> str:
    return join_or_none(f"{k}={v}" for k, v in sorted(labels.items())) if labels else NONE


def format_selector(selector: Json) -> str:
    """Return a label selector in the notation of kubectl: ``a=b,c in (d,e),!f``."""
    terms = [f"{k}={v}" for k, v in sorted((selector.get("matchLabels") or {}).items())]
    for term in selector.get("matchExpressions") or []:
        key, values = term.get("key"), ",".join(sorted(term.get("values") or []))
        match term.get("operator"):
            case "In":
                terms.append(f"{key} in ({values})")
            case "NotIn":
                terms.append(f"{key} notin ({values})")
            case "Exists":
                terms.append(f"{key}")
            case "DoesNotExist":
                terms.append(f"!{key}")
    return join_or_none(terms)
