"""The exchange of gradients over a group whose ranks may be lost.

Invariant: every backward pass ends, so that `DistributedDataParallel` can be used again. A failure
is remembered, not raised: the group checks ``has_failed`` before an optimizer steps.
"""

import logging
import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from gangline.elastic.trainer.group_links import GroupLinks

log = logging.getLogger(__name__)

_END_S = 0.2
"""Time in which an exchange ends whose connections have been shut down."""
_POLL_S = 0.002


class GradientExchange:
    """Averages the buckets of `DistributedDataParallel` over the present group."""

    def __init__(self, links: GroupLinks) -> None:
        self._links = links
        self.has_failed = False
        """True from a failed exchange, or an interrupt, until the next group has formed."""
        self._pending: dict[torch.futures.Future[torch.Tensor], torch.Tensor] = {}
        """Exchanges that have not ended."""

    def average(
        self,
        _: None,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        """Average a bucket; a communication hook."""
        buffer = bucket.buffer()
        averaged: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        # Before the look at ``has_failed``, which `interrupt` sets first: one sees the other.
        self._pending[averaged] = buffer
        if self.has_failed:
            self._close(averaged, buffer)
            return averaged
        buffer.mul_(1.0 / dist.get_world_size())  # the arithmetic of DistributedDataParallel
        try:
            future = self._links.group.allreduce([buffer]).get_future()
        except RuntimeError as error:
            self._fail(error)
            self._close(averaged, buffer)
            return averaged
        if buffer.device.type != "cpu":  # later work on the device waits for this future
            self._pending.pop(averaged, None)
            averaged = future.then(partial(self._end, buffer))
            return averaged
        future.add_done_callback(lambda done: self._close(averaged, self._end(buffer, done)))
        return averaged

    def interrupt(self) -> None:
        """End all exchanges, also those that gloo does not end although their connections have.

        gloo forgets an operation of which a part has arrived. The step has no effect, and nothing
        is written to the buffers any more; a thread of the group waits on.
        """
        self.has_failed = True
        self._links.interrupt()
        end = time.monotonic() + _END_S
        while self._pending and time.monotonic() < end:
            time.sleep(_POLL_S)
        for averaged, buffer in [*self._pending.items()]:
            self._links.is_abandoned = True
            log.warning("an exchange does not end after its connections, and is abandoned")
            self._close(averaged, buffer)

    def _end(self, buffer: torch.Tensor, future: torch.futures.Future[Any]) -> torch.Tensor:
        try:
            future.value()
        except RuntimeError as error:
            self._fail(error)
        return buffer

    def _close(self, averaged: torch.futures.Future[torch.Tensor], buffer: torch.Tensor) -> None:
        if self._pending.pop(averaged, None) is not None:
            averaged.set_result(buffer)

    def _fail(self, error: RuntimeError) -> None:
        if not self.has_failed:
            log.debug("an exchange has failed: %s", error)
        self.has_failed = True
