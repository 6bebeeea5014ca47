"""Limits of what one user may have open at a time: streams, and bytes of request bodies."""

import contextlib
from collections import Counter
from collections.abc import Iterator

from gangline.local.apiserver.flowcontrol.fair_queues import rejection


class UserLimits:
    """Counts per user. A limit of 0 means none."""

    def __init__(self) -> None:
        self._used: Counter[str] = Counter()

    @contextlib.contextmanager
    def reserve(self, user: str, amount: int, limit: int, what: str) -> Iterator[None]:
        """Reserve ``amount`` for the duration of a request.

        Raises:
            StatusError: 429, the user would exceed the limit.
        """
        # The first request is always admitted: a single body may be larger than the limit.
        if limit and self._used[user] and self._used[user] + amount > limit:
            raise rejection(f"this user has {what}, the limit is {limit}")
        self._used[user] += amount
        try:
            yield
        finally:
            self._used[user] -= amount
            if not self._used[user]:
                del self._used[user]
