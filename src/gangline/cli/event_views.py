"""Events as a table and as plain data."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gangline.cli.output import age, table

if TYPE_CHECKING:
    from gangline.sdk.events import Happening


def event_table(events: "Sequence[Happening]", now: datetime, indent: str = "") -> str:
    """Return events under Arena's head, the oldest first."""
    rows = [
        [each.subject, each.type, age(each.last, now), f"[{each.reason}] {each.message}"]
        for each in events
    ]
    return table(["SOURCE", "TYPE", "AGE", "MESSAGE"], rows, indent)


def event_data(event: "Happening") -> dict[str, Any]:
    """Return an event as plain data."""
    return {
        "time": event.last.isoformat(),
        "type": event.type,
        "source": event.subject,
        "reason": event.reason,
        "message": event.message,
        "count": event.count,
        "namespace": event.namespace,
    }
