"""Events as a table and as plain data."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gangline.cli.output import format_age, format_table

if TYPE_CHECKING:
    from gangline.sdk.events import EventRecord


def event_table(
    events: "Sequence[EventRecord]", now: datetime, indent: str = "", *, wide: bool = False
) -> str:
    """Return events under Arena's header, the oldest first; ``wide`` adds namespace and count."""
    head = ["SOURCE", "TYPE", "AGE", "MESSAGE", *(["NAMESPACE", "COUNT"] if wide else [])]
    rows = []
    for each in events:
        row: list[object] = [each.subject, each.type, format_age(each.last, now)]
        row += [f"[{each.reason}] {each.message}"]
        rows.append([*row, *([each.namespace, each.count] if wide else [])])
    return format_table(head, rows, indent)


def event_data(event: "EventRecord") -> dict[str, Any]:
    return {
        "time": event.last.isoformat(),
        "type": event.type,
        "source": event.subject,
        "reason": event.reason,
        "message": event.message,
        "count": event.count,
        "namespace": event.namespace,
    }
