"""What the master wants of an agent, held against the round that it is in. Pure.

Commands and worlds come on ways of their own, so an order to leave a round may be here before the
world of that round is. Nothing is ever forgotten: an order concerns its round and all before it.
"""

from dataclasses import dataclass

from gangline.elastic.agent.rendezvous import Notice

_CHANGED = "the members have changed"


@dataclass(slots=True)
class Wanted:
    """The orders so far."""

    stop: Notice | None = None
    """The end; the first order for it stands."""
    left_round: int = -1
    """The last round that is to be left."""
    reason: str = ""

    def end(self, reason: str) -> None:
        """Have it end."""
        self.stop = self.stop or Notice(reason, stops=True)

    def leave(self, round_: int, reason: str) -> None:
        """Have it leave a round, and join again."""
        if round_ > self.left_round:
            self.left_round, self.reason = round_, reason or _CHANGED

    def notice(self, round_: int | None) -> Notice | None:
        """Say what is wanted of somebody in that round; None is before the first one."""
        if self.stop is not None:
            return self.stop
        if round_ is not None and round_ <= self.left_round:
            return Notice(self.reason)
        return None
