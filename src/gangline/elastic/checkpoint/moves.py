"""Copies tensors to their destinations in shared memory and computes checksums of the copies.

Long tensors are copied by several threads, which compute the checksums on the way: a second pass
over the memory would cost several times as much. PyTorch copies tensors that are not plain bytes or
are too short for several threads. Tensors in an accelerator arrive on a stream of their own
meanwhile.
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
"""Below this size, synchronising threads costs more than the copy."""


@dataclass(frozen=True, slots=True)
class Place:
    """Destination of a tensor: the same memory as a tensor and as bytes."""

    tensor: torch.Tensor
    raw: memoryview


Move = tuple[Place, torch.Tensor]
"""A destination and the tensor to copy there."""


@dataclass(slots=True)
class _Stretch:
    """A part of a long tensor that one thread copies."""

    number: int
    """Index of the tensor."""
    place: Bytes
    origin: Bytes
    sum: int = 0

    def copy(self) -> None:
        # The checksum is of the copy: other threads may still write to the tensor.
        self.sum = copy_summed(self.place, self.origin)


@dataclass(frozen=True, slots=True)
class Copied:
    """Result of a copy."""

    sums: list[int] | None
    """The checksum of each tensor's bytes. ``None`` while transfers are running, and for large
    tensors of an accelerator, where computing them would take longer than the copy.
    """
    arrivals: Arrivals
    """Transfers still running on the device; empty unless the copies are asynchronous."""


class Copier:
    """Copies with as many threads as PyTorch computes with; the threads live until ``close``."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._streams = Streams()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def copy(
        self,
        moves: Sequence[Move],
        half: Callable[[], None],
        lasting: Callable[[torch.Tensor], bool] | None = None,
    ) -> Copied:
        """Copy each tensor to its destination.

        Args:
            moves: destinations and tensors.
            half: called once, when part of the copy is done.
            lasting: return without waiting for accelerators. Tensors for which it returns true must
                not change until their transfers are complete; computation on the accelerator waits
                for
                the
                others.
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
        with contextlib.ExitStack() as leaving:  # the buffer may be unlocked or unmapped afterwards
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
        count = min(torch.get_num_threads(), len(waiting)) - 1
        if count < 1:
            return []
        if self._pool is None:
            self._pool = ThreadPoolExecutor(count, thread_name_prefix="gangline-checkpoint-copy")
        return [self._pool.submit(_work_off, waiting) for _ in range(count)]


def _work_off(waiting: deque[_Stretch]) -> None:
    """Copy one chunk after the other until none is left."""
    while True:
        try:
            stretch = waiting.popleft()
        except IndexError:
            return
        stretch.copy()


def _sums(
    moves: Sequence[Move], short: Sequence[int], stretches: Sequence[_Stretch]
) -> list[int] | None:
    """Return the checksum of each tensor: combined from its chunks, or computed now."""
    sums = [0] * len(moves)  # 0 is the checksum of an empty tensor
    for number in short:
        place, tensor = moves[number]
        if tensor.device.type != "cpu" and tensor.nbytes >= SMALL:
            return None
        sums[number] = checksum(place.raw)
    for stretch in stretches:
        sums[stretch.number] = joined(sums[stretch.number], stretch.sum, len(stretch.place))
    return sums


def _is_long(place: torch.Tensor, tensor: torch.Tensor) -> bool:
    """True if the tensor's bytes can be copied as they are, and justify several threads."""
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
