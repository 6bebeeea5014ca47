"""Copies tensors to their places in shared memory, and sums up what it copies.

Long rows of bytes are copied by several threads and summed up on the way, which costs a fraction of
what reading them again later would. What is not plain bytes, or too small to be worth several
threads, PyTorch copies; what is in an accelerator comes on a stream of its own meanwhile.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy
import torch

from gangline.elastic.checkpoint.accelerator import Arrivals, Streams, is_far
from gangline.elastic.checkpoint.envelope import bytes_of, is_plain
from gangline.elastic.checkpoint.sums import STRETCH, Bytes, checksum, copy_summed, joined

SMALL = 1 << 18
"""Below so many bytes the threads would rather wait for each other than copy."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor goes: the same memory as a tensor and as bytes."""

    tensor: torch.Tensor
    raw: memoryview


Move = tuple[Place, torch.Tensor]
"""A place, and the tensor to copy there."""


@dataclass(slots=True)
class _Stretch:
    """A part of a long tensor, copied by one thread."""

    number: int
    """Which of the tensors it belongs to."""
    place: Bytes
    origin: Bytes
    sum: int = 0

    def copy(self) -> None:
        # The sum is of what has arrived: the tensor may be one that others still write to.
        self.sum = copy_summed(self.place, self.origin)


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy came to."""

    sums: list[int] | None
    """The checksum of each tensor's bytes; ``None`` where summing up would take longer than copying
    did, for large tensors of an accelerator, or where some are still on their way."""
    arrivals: Arrivals
    """These; none, unless they were asked for."""


class Copier:
    """Copies, with as many threads as PyTorch computes with; they live until ``close``."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._streams = Streams()

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def copy(
        self,
        moves: Sequence[Move],
        half: Callable[[], None],
        lasting: Callable[[torch.Tensor], bool] | None = None,
    ) -> Copied:
        """Copy each tensor to its place; calls ``half`` once, when part of it is done.

        With ``lasting``, does not wait for what an accelerator sends: tensors of which it says so
        must not change until they have arrived, and computing on the accelerator waits for others.
        """
        stretches = [
            stretch
            for number, (place, tensor) in enumerate(moves)
            if _is_long(place.tensor, tensor)
            for stretch in _cut(number, place, tensor)
        ]
        long = {stretch.number for stretch in stretches}
        short = [number for number in range(len(moves)) if number not in long]
        far = [number for number in short if is_far(moves[number][1])]
        near = [number for number in short if not is_far(moves[number][1])]
        waiting = deque(stretches)
        arrivals = self._streams.copy(
            [(moves[number][0].tensor, moves[number][1]) for number in far],
            lasting or (lambda _: False),
        )
        with contextlib.ExitStack() as leaving:  # the memory may be unlocked or gone afterwards
            leaving.callback(arrivals.wait)
            helpers = self._help(waiting)
            leaving.callback(wait, helpers)
            leaving.callback(waiting.clear)
            for number in near[: len(near) // 2]:
                moves[number][0].tensor.copy_(moves[number][1])
            half()
            for number in near[len(near) // 2 :]:
                moves[number][0].tensor.copy_(moves[number][1])
            _work_off(waiting)
            for helper in helpers:
                helper.result()
            if arrivals and lasting is not None:
                leaving.pop_all()
                return Copied(None, arrivals)
        return Copied(_sums(moves, short, stretches), Arrivals())

    def _help(self, waiting: deque[_Stretch]) -> list[Future[None]]:
        """Have other threads copy too, if there is enough to copy."""
        count = min(torch.get_num_threads(), len(waiting)) - 1
        if count < 1:
            return []
        if self._pool is None:
            self._pool = ThreadPoolExecutor(count, thread_name_prefix="gangline-checkpoint-copy")
        return [self._pool.submit(_work_off, waiting) for _ in range(count)]


def _work_off(waiting: deque[_Stretch]) -> None:
    """Copy one after the other, until other threads have taken the last."""
    while True:
        try:
            stretch = waiting.popleft()
        except IndexError:
            return
        stretch.copy()


def _sums(
    moves: Sequence[Move], short: Sequence[int], stretches: Sequence[_Stretch]
) -> list[int] | None:
    """The sum of each tensor: those of its stretches joined, or taken now."""
    sums = [0] * len(moves)  # also that of no bytes
    for number in short:
        place, tensor = moves[number]
        if tensor.device.type != "cpu" and tensor.nbytes >= SMALL:
            return None
        sums[number] = checksum(place.raw)
    for stretch in stretches:
        sums[stretch.number] = joined(sums[stretch.number], stretch.sum, len(stretch.place))
    return sums


def _is_long(place: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether the tensor's bytes can be copied as they lie, and are worth several threads."""
    return (
        tensor.nbytes == place.nbytes >= SMALL and tensor.dtype == place.dtype and is_plain(tensor)
    )


def _cut(number: int, place: Place, tensor: torch.Tensor) -> list[_Stretch]:
    to = numpy.frombuffer(place.raw, numpy.uint8)
    origin = numpy.frombuffer(bytes_of(tensor), numpy.uint8)
    return [
        _Stretch(number, to[at : at + STRETCH], origin[at : at + STRETCH])
        for at in range(0, len(to), STRETCH)
    ]
