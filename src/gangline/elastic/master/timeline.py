"""The job's timeline: its events, the newest last, and those that have not been published yet."""

from gangline.elastic.master.state import MAX_EVENTS, PersistentState
from gangline.elastic.protocol.messages import JobEvent

_LONGEST_MESSAGE = 4096


class Timeline:
    """Appends events to the state."""

    def __init__(self, kept: PersistentState) -> None:
        self._kept = kept
        self._news: list[JobEvent] = []

    def add(self, reason: str, message: str, now: float, node: int | None = None) -> None:
        """Append an event; beyond the limit the oldest ones are dropped."""
        kept = self._kept
        event = JobEvent(reason=reason, message=message[:_LONGEST_MESSAGE], node_id=node, at=now)
        kept.events.append(event)
        self._news.append(event)
        surplus = len(kept.events) - MAX_EVENTS
        if surplus > MAX_EVENTS // 4:
            del kept.events[:surplus]
            kept.first_event += surplus

    def take_new(self) -> list[JobEvent]:
        """Return the events that were added since the last call."""
        news, self._news = self._news, []
        return news
