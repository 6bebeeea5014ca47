"""The orders for one worker, which a thread of its own reads while the script trains."""

import logging
import os
import threading
from collections.abc import Callable

from gangline.elastic.survivors.messages import Fallback, Form, Heard, Hold, Message
from gangline.elastic.survivors.orders import OrderClient
from gangline.elastic.trainer.life_line import open_life_line

log = logging.getLogger(__name__)

NEXT_ORDER_S = 75.0
"""Time for which a member waits for the group that follows, after a loss or a group that has not
formed; longer than the coordinator does.
"""


class OrderInbox:
    """Holds the newest order; interrupts what the main thread waits for when one arrives."""

    def __init__(self, slot: int, first: int, interrupt: Callable[[], None]) -> None:
        """Connect with the store of the workers, and follow the orders from one on.

        Args:
            slot: of this worker.
            first: number of the first order.
            interrupt: ends every exchange of the present group.

        Raises:
            OSError: the store cannot be reached.
        """
        self._slot, self._interrupt = slot, interrupt
        self.is_member = False
        """True if this worker has a rank: then it waits for the successor of a lost one, too."""
        self._condition = threading.Condition()
        self._order: Form | None = None
        """An order that has not been followed yet."""
        self._is_held = False
        """True while a successor is waited for."""
        self.is_over = False
        """True if no rank is replaced any more."""
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._client = OrderClient(*address, first)
        open_life_line(*address, slot)
        threading.Thread(target=self._follow, name="survivors", daemon=True).start()

    @property
    def is_pending(self) -> bool:
        """True if the present group has ended."""
        return self._order is not None or self._is_held

    def send(self, message: Message) -> None:
        """Send a message to the coordinator.

        Raises:
            OSError: the store has ended.
        """
        self._client.send(message)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for an order. Returns False if none comes."""
        with self._condition:
            self._condition.wait_for(lambda: self.is_pending or self.is_over, timeout_s)
            return self.is_pending

    def take(self, timeout_s: float | None) -> Form | None:
        """Wait for the order to form a group, and longer if it is known to come."""
        with self._condition:
            self._condition.wait_for(lambda: self.is_pending or self.is_over, timeout_s)
            if self._is_held:
                self._condition.wait_for(lambda: self._order or self.is_over, NEXT_ORDER_S)
            order, self._order = self._order, None
        return order

    def _follow(self) -> None:
        try:
            while not isinstance(order := self._client.read(), Fallback):
                form = order if isinstance(order, Form) and self._slot in order.members else None
                if form is not None:
                    self.send(Heard(self._slot, form.epoch))
                elif not (isinstance(order, Hold) and self.is_member):
                    continue
                # The group before ends first: the main thread forms the next one as soon as the
                # order is there, and its connections must not be cut.
                self._interrupt()
                with self._condition:
                    self._order, self._is_held = form, form is None
                    self._condition.notify_all()
        except OSError as error:
            log.debug("orders end: %s", error)
        with self._condition:
            self.is_over = True
            self._condition.notify_all()
