"""Pending orders of the master: stop, or leave a round.

Commands and worlds arrive on separate ways, so an order to leave a round may arrive before the
world of that round. An order for round N also covers earlier rounds, and is never discarded.
"""

from dataclasses import dataclass

from gangline.elastic.agent.rendezvous import StopNotice

_MEMBERS_CHANGED = "the members have changed"


@dataclass(slots=True)
class PendingOrders:
    """Orders received so far."""

    stop: StopNotice | None = None
    """The first order to stop."""
    left_round: int = -1
    """The last round that must be left."""
    reason: str = ""

    def order_stop(self, reason: str) -> None:
        self.stop = self.stop or StopNotice(reason, stops=True)

    def order_leave(self, round_: int, reason: str) -> None:
        if round_ > self.left_round:
            self.left_round, self.reason = round_, reason or _MEMBERS_CHANGED

    def notice(self, round_: int | None) -> StopNotice | None:
        """Return the order that applies to a round; None is before the first one."""
        if self.stop is not None:
            return self.stop
        if round_ is not None and round_ <= self.left_round:
            return StopNotice(self.reason)
        return None
