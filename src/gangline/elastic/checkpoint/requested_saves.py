"""Saves that the agent requests, because the node is about to be evicted.

All ranks must save the same step. So rank 0 looks for a request about once a second, and broadcasts
what it finds together with the step of the next such exchange; training pays one broadcast in that
time. A script that does not call ``due`` but saves after every step needs no agreement: each rank
stops after the save during which it finds the request, and the others wait for it in their next
step.
"""

import time

from gangline.elastic.checkpoint.ranks import SaveGroup
from gangline.elastic.save_request import SaveOrder, SaveOrders

EXCHANGE_EVERY_S = 1.0
MAX_STEPS_BETWEEN = 1000


class RequestedSaves:
    """Which save answers a request; the same on all ranks."""

    def __init__(self, ranks: SaveGroup, orders: SaveOrders) -> None:
        self._ranks, self._orders = ranks, orders
        self._is_enabled = not ranks.any_rank(not orders.is_enabled)
        self._uses_due = False
        self._agreed: SaveOrder | None = None
        self._next_exchange = 0
        self._last_exchange: tuple[int, float] | None = None
        self._last_saved: int | None = None

    def is_due(self, step: int) -> bool:
        """Return whether a request asks for a save after this step. All ranks call it together."""
        if not self._is_enabled:
            return False
        if not self._uses_due:
            self._uses_due = True
            self._orders.announce()
        # A lower step than at the last exchange: the script counts from the beginning again.
        if self._last_exchange is not None and self._last_exchange[0] <= step < self._next_exchange:
            return self._agreed is not None
        pending = self._orders.pending() if self._ranks.rank == 0 else None
        self._agreed, self._next_exchange = self._ranks.broadcast((pending, self._next(step)))
        return self._agreed is not None

    def _next(self, step: int) -> int:
        """Return the step of the next exchange, from the time that the last steps took."""
        now, last = time.monotonic(), self._last_exchange
        self._last_exchange = (step, now)
        if self._ranks.world == 1 or last is None or step <= last[0]:
            return step + 1
        steps = step - last[0]
        passed_s = max(now - last[1], 1e-6)
        # At most twice as many as before: one slow step after fast ones must not be late.
        count = min(int(steps * EXCHANGE_EVERY_S / passed_s), 2 * steps, MAX_STEPS_BETWEEN)
        return step + max(count, 1)

    def answer(self, step: int, *, is_saved: bool) -> SaveOrder | None:
        """Return the request that the save of this step answers, if any; it is not reported yet."""
        if not self._is_enabled:
            return None
        order, self._agreed = self._agreed, None
        follows, self._last_saved = self._last_saved == step - 1, step
        if not self._uses_due and follows:
            self._orders.announce()
            order = self._orders.pending()
        return order if is_saved else None
