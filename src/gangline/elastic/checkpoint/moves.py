"""Copies tensors to their places in shared memory: large ones as bytes, by several threads.

The C library's copy of a long row of bytes need not read the memory that it overwrites, as
PyTorch's loop over elements does, so less goes through the memory bus, which is all that a save
waits for. What is not plain bytes, or too small to be worth it, PyTorch copies.
"""

import contextlib
import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch

from gangline.elastic.checkpoint.envelope import is_plain

STRETCH = 1 << 22
"""Bytes that a thread copies before it takes the next: short, so that all end at about once."""
SMALL = 1 << 18
"""Below so many bytes the threads would rather wait for each other than copy."""
Pair = tuple[torch.Tensor, torch.Tensor]
"""A place, and the tensor to copy there."""
_Stretch = tuple[int, int, int]
"""Addresses of the place and of the tensor, and a number of bytes."""


class Copier:
    """Copies, with as many threads as PyTorch computes with; they live until ``close``."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def copy(self, pairs: Sequence[Pair], half: Callable[[], None]) -> None:
        """Copy each tensor to its place; calls ``half`` once, when part of it is done."""
        whole: list[Pair] = []
        stretches = deque[_Stretch]()
        for pair in pairs:
            if _is_long(*pair):
                stretches.extend(_cut(*pair))
            else:
                whole.append(pair)
        helpers = self._help(stretches)
        try:
            for number, (place, tensor) in enumerate(whole):
                if number == len(whole) // 2:
                    half()
                place.copy_(tensor)
            if not whole:
                half()
            _work_off(stretches)
        finally:
            stretches.clear()
            wait(helpers)  # the memory may be unlocked or gone once this returns

    def _help(self, stretches: deque[_Stretch]) -> list[Future[None]]:
        """Have other threads copy too, if there is enough to copy."""
        count = min(torch.get_num_threads(), len(stretches)) - 1
        if count < 1:
            return []
        if self._pool is None:
            self._pool = ThreadPoolExecutor(count, thread_name_prefix="gangline-checkpoint-copy")
        return [self._pool.submit(_work_off, stretches) for _ in range(count)]


def _is_long(place: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether the tensor's bytes can be copied as they lie, and are worth several threads."""
    return (
        tensor.nbytes == place.nbytes >= SMALL and tensor.dtype == place.dtype and is_plain(tensor)
    )


def _cut(place: torch.Tensor, tensor: torch.Tensor) -> list[_Stretch]:
    to, origin, size = place.data_ptr(), tensor.data_ptr(), tensor.nbytes
    return [(to + at, origin + at, min(STRETCH, size - at)) for at in range(0, size, STRETCH)]


def _work_off(stretches: deque[_Stretch]) -> None:
    """Copy one after the other, until other threads have taken the last."""
    with contextlib.suppress(IndexError):
        while True:
            ctypes.memmove(*stretches.popleft())
