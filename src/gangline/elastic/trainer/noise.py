"""The noise of gradients, estimated from two batch sizes that a step has anyway.

For a batch of ``B`` records the expected squared norm of the gradient is ``|G|² + S / B``, with the
true gradient ``G`` and the trace ``S`` of the covariance of one record's gradient. A micro-batch of
this process and the global batch give two equations for both. S. McCandlish et al., "An Empirical
Model of Large-Batch Training", 2018, appendix A.1. ``S / |G|²`` is the noise scale, in records.

Each process estimates from its own micro-batches, and the mean over processes is the estimate from
all of them, because it is linear. So nothing is exchanged between processes for it.

With a loss scaler both numbers carry the square of the scale, and their ratio is right.
"""

from collections.abc import Iterable, Sequence

import torch

EVERY_STEPS = 50
MEMORY = 20
"""Number of estimates that the running mean covers: a thousand steps."""


class NoiseEstimator:
    """Estimates noise in every fiftieth step."""

    def __init__(self, every: int = EVERY_STEPS) -> None:
        self._every = every
        self.is_measuring = False
        """True in a step whose gradients are measured."""
        self._norms: list[torch.Tensor] = []
        self._small: list[torch.Tensor] = []
        self._big: torch.Tensor | None = None
        self._unread: _Pending | None = None
        self._weight = self._sqr = self._var = 0.0

    def begin_step(self, step: int, *, is_possible: bool) -> None:
        """Begin an optimizer step with this number, counted from 0."""
        self._read()
        self.is_measuring = is_possible and step % self._every == self._every - 1
        self._norms, self._small, self._big = [], [], None

    def gradient(self, gradient: torch.Tensor) -> None:
        """Add the gradient of a parameter in the present micro-batch, before it is weighted."""
        self._norms.append(_squared_norm(gradient))

    def end_micro_batch(self) -> None:
        """The gradients of the present micro-batch are complete."""
        if self._norms:
            self._small.append(_sum(self._norms))
            self._norms = []

    def global_gradients(self, gradients: Iterable[torch.Tensor]) -> None:
        """Measure the gradients of the global batch, before they are clipped."""
        norms = [_squared_norm(gradient) for gradient in gradients]
        self._big = _sum(norms) if norms else None

    def end_step(self, sizes: Sequence[int], global_batch: int) -> None:
        """End the step.

        Args:
            sizes: records of each micro-batch of this process.
            global_batch: records of all processes.
        """
        measured, self.is_measuring = self.is_measuring, False
        if not measured or self._big is None or len(self._small) != len(sizes):
            return
        inverse_small = sum(1 / size for size in sizes) / len(sizes)
        inverse_big = 1 / global_batch
        if inverse_small > inverse_big:
            squares = torch.stack([torch.stack(self._small).mean(), self._big])
            self._unread = _Pending(squares, inverse_small, inverse_big)
            self._read()

    def estimate(self) -> tuple[float, float] | None:
        """Return ``|G|²`` and ``S``; None before the first estimate, or while one is negative.

        The difference of two noisy numbers may have the wrong sign while there are few of them.
        """
        self._read()
        if not self._weight:
            return None
        sqr, var = self._sqr / self._weight, self._var / self._weight
        return (sqr, var) if sqr > 0 and var >= 0 else None

    def _read(self) -> None:
        squares = self._unread.values() if self._unread is not None else None
        if self._unread is None or squares is None:
            return
        pending, self._unread = self._unread, None
        small, big = squares
        var = (small - big) / (pending.inverse_small - pending.inverse_big)
        sqr = big - var * pending.inverse_big
        if abs(var) < float("inf") and abs(sqr) < float("inf"):  # not after an overflow
            keep = 1 - 1 / MEMORY
            self._weight = keep * self._weight + 1
            self._sqr, self._var = keep * self._sqr + sqr, keep * self._var + var


class _Pending:
    """Two numbers on their way from the device."""

    def __init__(self, squares: torch.Tensor, inverse_small: float, inverse_big: float) -> None:
        self.inverse_small, self.inverse_big = inverse_small, inverse_big
        self._event: torch.cuda.Event | None = None
        self._squares = squares
        if squares.is_cuda:
            self._squares = torch.empty(2, dtype=squares.dtype, pin_memory=True)
            self._squares.copy_(squares, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def values(self) -> list[float] | None:
        """Return the numbers; None while the device has not written them."""
        if self._event is not None and not self._event.query():  # type: ignore[no-untyped-call]
            return None
        values: list[float] = self._squares.tolist()
        return values


def _squared_norm(tensor: torch.Tensor) -> torch.Tensor:
    # Halves would overflow, and torch refuses to narrow doubles while it computes the norm.
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    norm: torch.Tensor = torch.linalg.vector_norm(tensor.detach(), dtype=dtype)
    return norm.float().square()


def _sum(numbers: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([each.to(numbers[0].device) for each in numbers]).sum()
