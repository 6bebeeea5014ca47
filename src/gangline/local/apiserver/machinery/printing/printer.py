"""Table printers: columns, and cells that several kinds share.

Durations have the form of kubectl: at most two units, the smaller one only for small values.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from gangline.api.meta.json_objects import objects_in, subobject
from gangline.local.apiserver.machinery.schema.nodes import Json

UNKNOWN = "<unknown>"
DAY, YEAR = 86_400, 365 * 86_400

_STEPS = (
    # (below this many seconds, unit, its seconds, smaller unit, its seconds)
    (120, "s", 1, "", 0),
    (600, "m", 60, "s", 1),
    (10_800, "m", 60, "", 0),
    (28_800, "h", 3600, "m", 60),
    (2 * DAY, "h", 3600, "", 0),
    (8 * DAY, "d", DAY, "h", 3600),
    (2 * YEAR, "d", DAY, "", 0),
    (8 * YEAR, "y", YEAR, "d", DAY),
)


def format_duration(seconds: float) -> str:
    """Return a duration such as ``45s``, ``5m12s``, ``3h`` or ``2d4h``."""
    if seconds <= -2:
        return "<invalid>"
    total = max(0, int(seconds))
    for below, unit, size, small, small_size in _STEPS:
        if total < below:
            rest = total % size // small_size if small_size else 0
            return f"{total // size}{unit}" + (f"{rest}{small}" if rest else "")
    return f"{total // YEAR}y"


def parse_time(text: object) -> datetime | None:
    """Parse an RFC 3339 time. Returns None if the value is not a time."""
    if not isinstance(text, str):
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def format_age(timestamp: object, now: datetime) -> str:
    """Return the time since ``timestamp``, or ``<unknown>`` if it is not a time."""
    parsed = parse_time(timestamp)
    return format_duration((now - parsed).total_seconds()) if parsed else UNKNOWN


def latest_time(timestamps: Iterable[object]) -> datetime | None:
    return max(filter(None, map(parse_time, timestamps)), default=None)


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
    """Return columns such as ``Ready:integer``, of text if they name no type. ``Name`` and ``Age``
    are predefined, ``+`` marks a wide column.
    """
    common = {"Name": NAME, "Age": AGE}
    columns = []
    for text in names:
        name, _, kind = text.removeprefix("+").partition(":")
        plain = TableColumn(name, kind or "string", priority=int(text.startswith("+")))
        columns.append(common.get(text, plain))
    return tuple(columns)


def object_name(obj: Json) -> str:
    return str(subobject(obj, "metadata").get("name", ""))


def object_age(obj: Json, now: datetime) -> str:
    return format_age(subobject(obj, "metadata").get("creationTimestamp"), now)


def has_deletion_timestamp(obj: Json) -> bool:
    return bool(subobject(obj, "metadata").get("deletionTimestamp"))


def join_or_none(values: Iterable[Any], separator: str = ",") -> str:
    return separator.join(map(str, values)) or NONE


def find_condition(conditions: Any, type_: str) -> Json:
    """Return the condition of a type; an empty one if there is none."""
    found = (condition for condition in objects_in(conditions) if condition.get("type") == type_)
    return next(found, {})


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
