"""What a printer of one kind is made of, and the cells that many kinds share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from gangline.local.apiserver.machinery.durations import age
from gangline.local.apiserver.machinery.json_objects import part
from gangline.local.apiserver.machinery.schemas import Json

NONE = "<none>"

Cells: TypeAlias = Callable[[Json, datetime], list[Any]]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table; priority above zero means that only ``-o wide`` shows it."""

    name: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0

    def definition(self) -> Json:
        """Return the column as it is written in a Table."""
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        }


@dataclass(frozen=True, slots=True)
class Printer:
    """The columns of a kind, the cells of one object, and the conditions of its row."""

    columns: tuple[Column, ...]
    cells: Cells
    conditions: Callable[[Json], list[Json]] = lambda obj: []


NAME = Column("Name", format="name", description="The name of the object, unique in its namespace.")
AGE = Column("Age", description="How long ago the object was created.")


def columns(*names: str) -> tuple[Column, ...]:
    """Return text columns by name; ``Name`` and ``Age`` are known, ``+`` marks a wide one."""
    known = {"Name": NAME, "Age": AGE}
    return tuple(
        known.get(name) or Column(name.removeprefix("+"), priority=int(name.startswith("+")))
        for name in names
    )


def name_of(obj: Json) -> str:
    """Return the name of an object."""
    return str(part(obj, "metadata").get("name", ""))


def created_age(obj: Json, now: datetime) -> str:
    """Return the age of an object."""
    return age(part(obj, "metadata").get("creationTimestamp"), now)


def deleting(obj: Json) -> bool:
    """Whether an object has been deleted and is not gone yet."""
    return bool(part(obj, "metadata").get("deletionTimestamp"))


def joined(values: Iterable[Any], separator: str = ",") -> str:
    """Return values as one text, ``<none>`` when there are none."""
    return separator.join(map(str, values)) or NONE


def labels_text(labels: Any) -> str:
    """Return labels as ``a=b,c=d`` in the order of their names."""
    return joined(f"{k}={v}" for k, v in sorted(labels.items())) if labels else NONE


def selector_text(selector: Json) -> str:
    """Return a label selector as kubectl writes it: ``a=b,c in (d,e),!f``."""
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
    return joined(terms)
