"""The exchange of gradients and buffers over a group whose ranks may be lost.

Invariant: every backward pass ends, so that `DistributedDataParallel` can be used again. A failure
is remembered, not raised: the group checks ``has_failed`` before an optimizer steps.
"""

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from gangline.elastic.trainer.group_links import END_S, GroupLinks

log = logging.getLogger(__name__)

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

        def allreduce() -> dist.Work:
            buffer.mul_(1.0 / dist.get_world_size())  # the arithmetic of DistributedDataParallel
            return self._links.group.allreduce([buffer])

        return self._exchange(buffer, allreduce)

    def broadcast(self, _: None, buffers: Mapping[str, torch.Tensor]) -> None:
        """Give all ranks the buffers of rank 0; a communication hook of buffers."""
        kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for buffer in buffers.values():
            kinds.setdefault((buffer.dtype, buffer.device), []).append(buffer)
        for alike in kinds.values():
            flat = _flatten_dense_tensors(alike)  # type: ignore[no-untyped-call]
            self._exchange(flat, partial(self._links.group.broadcast, flat, 0)).wait()
            if self.has_failed:  # nothing is computed with these buffers
                raise RuntimeError("the exchange of the model's buffers has failed")
            parts = _unflatten_dense_tensors(flat, alike)  # type: ignore[no-untyped-call]
            torch._foreach_copy_(alike, parts)

    def _exchange(
        self, buffer: torch.Tensor, start: Callable[[], dist.Work]
    ) -> torch.futures.Future[torch.Tensor]:
        exchanged: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        # Before the look at ``has_failed``, which `interrupt` sets first: one sees the other.
        self._pending[exchanged] = buffer
        if self.has_failed:
            self._close(exchanged, buffer)
            return exchanged
        try:
            future = start().get_future()
        except RuntimeError as error:
            self._fail(error)
            self._close(exchanged, buffer)
            return exchanged
        if buffer.device.type != "cpu":  # later work on the device waits for this future
            self._pending.pop(exchanged, None)
            exchanged = future.then(partial(self._end, buffer))
            return exchanged
        future.add_done_callback(lambda done: self._close(exchanged, self._end(buffer, done)))
        return exchanged

    def interrupt(self) -> None:
        """End all exchanges, also those that gloo does not end although their connections have.

        gloo forgets an operation of which a part has arrived. The step has no effect, and nothing
        is written to the buffers any more; a thread of the group waits on.
        """
        self.has_failed = True
        self._links.interrupt()
        end = time.monotonic() + END_S
        while self._pending and time.monotonic() < end:
            time.sleep(_POLL_S)
        for exchanged, buffer in [*self._pending.items()]:
            self.has_failed = self._links.is_abandoned = True
            log.warning("an exchange does not end after its connections, and is abandoned")
            self._close(exchanged, buffer)

    def _end(self, buffer: torch.Tensor, future: torch.futures.Future[Any]) -> torch.Tensor:
        try:
            future.value()
        except RuntimeError as error:
            self._fail(error)
        return buffer

    def _close(self, exchanged: torch.futures.Future[torch.Tensor], buffer: torch.Tensor) -> None:
        if self._pending.pop(exchanged, None) is not None:
            exchanged.set_result(buffer)

    def _fail(self, error: RuntimeError) -> None:
        if not self.has_failed:
            log.debug("an exchange has failed: %s", error)
        self.has_failed = True
