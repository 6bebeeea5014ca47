"""Copies tensors to their places in shared memory, in the way that is faster on this machine.

PyTorch's copy is a loop over elements; the C library's moves bytes, and may pass by the processor's
cache. Which one is quicker depends on the processor, by a fifth to a third either way, and this is
all that a save waits for: so the first saves try both. What is not plain bytes, or too small to be
worth it, PyTorch copies in any case.
"""

import contextlib
import ctypes
import enum
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import torch

from gangline.elastic.checkpoint.envelope import is_plain

STRETCH = 1 << 22
"""Bytes that a thread copies before it takes the next: short, so that all end at about once."""
SMALL = 1 << 18
"""Below so many bytes the threads would rather wait for each other than copy."""
Pair = tuple[torch.Tensor, torch.Tensor]
"""A place, and the tensor to copy there."""
TRIALS = 3
"""How often each way is tried before the faster one stays."""
_Stretch = tuple[int, int, int]
"""Addresses of the place and of the tensor, and a number of bytes."""


class Way(enum.Enum):
    """Who copies long rows of bytes."""

    PYTORCH = "PyTorch"
    C_LIBRARY = "C library"


@dataclass(slots=True)
class Race:
    """Which way is the faster one, found out by use: no copy is made for it alone."""

    took: dict[Way, list[float]] = field(default_factory=lambda: {way: [] for way in Way})
    """Seconds a byte of each trial."""

    def choose(self) -> Way:
        """The way with trials left, in turns, then the one with the quickest trial."""
        fewest = min(Way, key=lambda way: len(self.took[way]))
        if len(self.took[fewest]) < TRIALS:
            return fewest
        return min(Way, key=lambda way: min(self.took[way]))

    def ran(self, way: Way, count: int, seconds: float) -> None:
        """Note how long ``count`` bytes took."""
        if count and len(self.took[way]) < TRIALS:
            self.took[way].append(seconds / count)


class Copier:
    """Copies, with as many threads as PyTorch computes with; they live until ``close``."""

    def __init__(self, race: Race | None = None) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._race = race or Race()

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def copy(self, pairs: Sequence[Pair], half: Callable[[], None]) -> None:
        """Copy each tensor to its place; calls ``half`` once, when part of it is done."""
        way = self._race.choose()
        long = [pair for pair in pairs if _is_long(*pair)]
        size = sum(place.nbytes for place, _ in long)
        begin = time.perf_counter()
        if way is Way.PYTORCH:
            self._copy(pairs, [], half)
        else:
            self._copy([pair for pair in pairs if not _is_long(*pair)], long, half)
        self._race.ran(way, size, time.perf_counter() - begin)

    def _copy(self, whole: Sequence[Pair], long: Sequence[Pair], half: Callable[[], None]) -> None:
        """Have PyTorch copy ``whole`` and, meanwhile, the C library ``long``."""
        stretches = deque(stretch for pair in long for stretch in _cut(*pair))
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
