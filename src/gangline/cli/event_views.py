"""Events as a table and as plain data."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gangline.cli.output import age, table

if TYPE_CHECKING:
    from gangline.sdk.events import Happening


def event_table(
    events: "Sequence[Happening]", now: datetime, indent: str = "", *, wide: bool = False
) -> str:
    """Return events under Arena's header, the oldest first; ``wide`` adds namespace and count."""
    head = ["SOURCE", "TYPE", "AGE", "MESSAGE", *(["NAMESPACE", "COUNT"] if wide else [])]
    rows = []
    for each in events:
        row: list[object] = [each.subject, each.type, age(each.last, now)]
        row += [f"[{each.reason}] {each.message}"]
        rows.append([*row, *([each.namespace, each.count] if wide else [])])
    return table(head, rows, indent)


def event_data(event: "Happening") -> dict[str, Any]:
    return {
        "time": event.last.isoformat(),
        "type": event.type,
        "source": event.subject,
        "reason": event.reason,
        "message": event.message,
        "count": event.count,
        "namespace": event.namespace,
    }
