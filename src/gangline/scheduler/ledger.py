"""Who uses how much: amounts by gang and by queue, kept as pods come, go and change queues."""

from collections import Counter, defaultdict

from gangline.scheduler.model import GroupKey, Request

NOBODY = ""
"""The queue of gangs whose group nobody has seen."""


class Ledger:
    """Amounts charged to gangs, and through them to queues."""

    def __init__(self, alone_queue: str) -> None:
        self.by_group: dict[GroupKey, Counter[str]] = defaultdict(Counter)
        self.by_queue: dict[str, Counter[str]] = defaultdict(Counter)
        self._queue_of: dict[GroupKey, str] = {}
        self._alone_queue = alone_queue
        """Who pays for pods without a group."""

    def charge(self, group: GroupKey | None, request: Request, sign: int = 1) -> None:
        """Count a pod's request (``sign`` -1: no longer)."""
        queue = self.by_queue[self.queue_of(group)]
        for resource, amount in request:
            queue[resource] += sign * amount
        if group is None:
            return
        own = self.by_group[group]
        for resource, amount in request:
            own[resource] += sign * amount
        if not any(own.values()):
            del self.by_group[group]

    def queue_of(self, group: GroupKey | None) -> str:
        """Return who pays for a gang."""
        return self._alone_queue if group is None else self._queue_of.get(group, NOBODY)

    def assign(self, group: GroupKey, queue: str) -> None:
        """Let a queue pay for a gang, also for what was charged before."""
        former = self.queue_of(group)
        if former == queue:
            return
        self._queue_of[group] = queue
        own = self.by_group.get(group, Counter())
        self.by_queue[former].subtract(own)
        self.by_queue[queue].update(own)

    def release(self, group: GroupKey) -> None:
        """Let nobody pay for a gang any more: its group is gone."""
        self.assign(group, NOBODY)
        self._queue_of.pop(group, None)
