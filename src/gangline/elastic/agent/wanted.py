"""Pending orders of the master: stop, or leave a round.

Commands and worlds arrive on separate ways, so an order to leave a round may arrive before the
world of that round. An order for round N also covers earlier rounds, and is never discarded.
"""

from dataclasses import dataclass

from gangline.elastic.agent.rendezvous import Notice

_CHANGED = "the members have changed"


@dataclass(slots=True)
class Wanted:
    """Orders received so far."""

    stop: Notice | None = None
    """The first order to stop."""
    left_round: int = -1
    """The last round that must be left."""
    reason: str = ""

    def end(self, reason: str) -> None:
        self.stop = self.stop or Notice(reason, stops=True)

    def leave(self, round_: int, reason: str) -> None:
        if round_ > self.left_round:
            self.left_round, self.reason = round_, reason or _CHANGED

    def notice(self, round_: int | None) -> Notice | None:
        """Return the order that applies to a round; None is before the first one."""
        if self.stop is not None:
            return self.stop
        if round_ is not None and round_ <= self.left_round:
            return Notice(self.reason)
        return None
