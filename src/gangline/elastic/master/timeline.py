"""The job's timeline: what has happened, the newest last, and what of it is news."""

from gangline.elastic.master.state import EVENTS_KEPT, Kept
from gangline.elastic.protocol.messages import JobEvent

_LONGEST_MESSAGE = 4096


class Timeline:
    """Adds to the events that the state keeps."""

    def __init__(self, kept: Kept) -> None:
        """Take what is remembered."""
        self._kept = kept
        self._news: list[JobEvent] = []

    def tell(self, reason: str, message: str, now: float, node: int | None = None) -> None:
        """Add what has happened; of very many events the oldest are forgotten."""
        kept = self._kept
        event = JobEvent(reason=reason, message=message[:_LONGEST_MESSAGE], node_id=node, at=now)
        kept.events.append(event)
        self._news.append(event)
        surplus = len(kept.events) - EVENTS_KEPT
        if surplus > EVENTS_KEPT // 4:
            del kept.events[:surplus]
            kept.first_event += surplus

    def news(self) -> list[JobEvent]:
        """Return what was added since this was asked last."""
        news, self._news = self._news, []
        return news
