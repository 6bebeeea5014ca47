"""Copies tensors to their destinations in shared memory and computes checksums of the copies.

Long tensors are copied by several threads, which compute the checksums on the way: a second pass
over the memory would cost several times as much. PyTorch copies tensors that are not plain bytes or
are too short for several threads. Tensors of an accelerator arrive on a stream beside the one that
training computes on, by PyTorch's device modules (``torch.cuda``, ``torch.xpu``, …), which share
names. Memory is pinned for CUDA and ROCm only, as PyTorch's own checkpoints do it.
"""

import contextlib
import ctypes
import functools
import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol

import numpy
import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from gangline.elastic.checkpoint.format.checksum import (
    COPY_CHUNK,
    ByteArray,
    checksum,
    combine_checksums,
    copy_with_checksum,
)
from gangline.elastic.checkpoint.format.manifest import LayoutEntry
from gangline.elastic.checkpoint.format.plan import SaveAgreement
from gangline.elastic.checkpoint.format.torch_framing import (
    is_plain_memory,
    tensor_bytes,
    torch_save_framing,
)
from gangline.elastic.checkpoint.snapshot.segment import Segment, SegmentHeader

log = logging.getLogger(__name__)
_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every context of the process."""
MIN_PARALLEL_BYTES = 1 << 18
"""Below this size, synchronising threads costs more than the copy."""


class _Event(Protocol):
    def synchronize(self) -> None: ...


def is_on_device(tensor: torch.Tensor) -> bool:
    """True if the tensor is in the memory of an accelerator that has streams."""
    return _module(tensor.device) is not None


def find_accelerator(value: object) -> torch.device | None:
    """Return the device of the first accelerator tensor in nested dictionaries and lists."""
    if isinstance(value, torch.Tensor):
        return value.device if is_on_device(value) else None
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return next((device for one in value if (device := find_accelerator(one))), None)
    return None


def pin_segment(segment: Segment, device: torch.device) -> Callable[[], None] | None:
    """Pin the segment so that a GPU writes straight into it; return the function that unpins it.

    Returns ``None`` where there is nothing to pin, or where the driver refuses: copies then go
    through the driver's own memory and take longer. Call it only from threads that compute nothing:
    CUDA keeps the error for the thread, and PyTorch would attribute it to the next kernel.
    """
    if device.type != "cuda":
        return None
    address = ctypes.addressof(ctypes.c_char.from_buffer(segment.map))
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):  # otherwise CUDA creates a context on the first GPU
        refused = int(runtime.cudaHostRegister(address, segment.size, _PORTABLE))
    if refused:
        log.warning(
            f"memory for checkpoints could not be pinned (error {refused}): saves will take longer",
            extra={"segment": segment.path.name, "error": refused},
        )
        return None
    return functools.partial(runtime.cudaHostUnregister, address)


class PendingTransfers:
    """Copies from accelerators that have not completed yet."""

    def __init__(self) -> None:
        self._ends: dict[torch.device, _Event] = {}
        self._held: list[torch.Tensor] = []
        """Source tensors, which must not be freed before their copies are complete."""

    def __bool__(self) -> bool:
        return bool(self._ends)

    def add_transfer(
        self, device: torch.device, end: _Event, origins: Iterable[torch.Tensor]
    ) -> None:
        """Register copies of ``origins``, complete once ``end`` has happened."""
        self._ends[device] = end
        self._held.extend(origins)

    def wait(self) -> None:
        for end in self._ends.values():
            end.synchronize()

    def delay_computation(self) -> None:
        """Let computation that is queued from now on start after the copies; return immediately."""
        for device, end in self._ends.items():
            _module(device).current_stream(device).wait_event(end)


class TransferStreams:
    def __init__(self) -> None:
        self._streams: dict[torch.device, Any] = {}

    def copy(
        self,
        moves: Sequence[tuple[torch.Tensor, torch.Tensor]],
        is_stable: Callable[[torch.Tensor], bool],
    ) -> PendingTransfers:
        """Start to copy each second tensor to the first, after the computation queued so far.

        Later computation waits for the copies of tensors that may change, not for stable ones.
        """
        transfers = PendingTransfers()
        by_device: dict[torch.device, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for destination, tensor in moves:
            by_device.setdefault(tensor.device, []).append((destination, tensor))
        for device, pairs in by_device.items():
            module = _module(device)
            stream = self._streams.get(device)
            if stream is None:
                stream = self._streams[device] = module.Stream(device)
            computing = module.current_stream(device)
            stream.wait_stream(computing)
            unstable = [move for move in pairs if not is_stable(move[1])]
            for some in (unstable, [move for move in pairs if is_stable(move[1])]):
                with module.stream(stream):
                    for destination, tensor in some:
                        # Otherwise PyTorch conjugates the destination before the bytes arrive.
                        destination.copy_(tensor.resolve_conj().resolve_neg(), non_blocking=True)
                if some is unstable:
                    computing.wait_stream(stream)
            transfers.add_transfer(device, stream.record_event(), [tensor for _, tensor in pairs])
        return transfers


class OptimizerBarrier:
    """Finds tensors that only optimizers change, and lets optimizer steps wait for copies of them.

    It sees PyTorch optimizers through their step hook. A tensor that no optimizer has registered
    may be changed by any code at any time.
    """

    def __init__(self) -> None:
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._arrivals = PendingTransfers()
        self._hook = register_optimizer_step_pre_hook(self._before_step)

    def close(self) -> None:
        self._hook.remove()

    def set_pending(self, transfers: PendingTransfers) -> None:
        """Let optimizer steps wait for these copies in place of the earlier ones."""
        self._arrivals = transfers

    def optimizer_memory(self) -> Callable[[torch.Tensor], bool]:
        """Return a predicate: the tensor shares memory with an optimizer's parameter or state."""
        registered = {
            tensor.untyped_storage().data_ptr()
            for optimizer in list(self._optimizers)
            for tensor in _tensors_of(optimizer)
        }
        return lambda tensor: tensor.untyped_storage().data_ptr() in registered

    def _before_step(self, optimizer: Optimizer, *arguments: object) -> None:
        del arguments
        self._optimizers.add(optimizer)
        self._arrivals.delay_computation()


def _tensors_of(optimizer: Optimizer) -> Iterable[torch.Tensor]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield _local(parameter)
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                yield _local(value)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a distributed tensor that is on this rank."""
    return getattr(tensor, "_local_tensor", tensor)


@functools.cache
def _module(device: torch.device) -> Any:
    """Return PyTorch's module for this kind of accelerator; ``None`` for one without streams."""
    if device.type in {"cpu", "meta"}:
        return None
    try:
        module = torch.get_device_module(device)
    except RuntimeError:
        return None
    return module if hasattr(module, "Stream") and hasattr(module, "current_stream") else None


@dataclass(frozen=True, slots=True)
class TensorDestination:
    """Destination of a tensor: the same memory as a tensor and as bytes."""

    tensor: torch.Tensor
    raw: memoryview


TensorMove = tuple[TensorDestination, torch.Tensor]
"""A destination and the tensor to copy there."""


@dataclass(slots=True)
class _CopyChunk:
    """A part of a long tensor that one thread copies."""

    number: int
    """Index of the tensor."""
    place: ByteArray
    origin: ByteArray
    sum: int = 0

    def copy(self) -> None:
        # The checksum is of the copy: other threads may still write to the tensor.
        self.sum = copy_with_checksum(self.place, self.origin)


@dataclass(frozen=True, slots=True)
class CopyResult:
    sums: list[int] | None
    """The checksum of each tensor's bytes. ``None`` while transfers are running, and for large
    tensors of an accelerator, where computing them would take longer than the copy.
    """
    transfers: PendingTransfers
    """Transfers still running on the device; empty unless the copies are asynchronous."""


class TensorCopier:
    """Copies with as many threads as PyTorch computes with; the threads live until ``close``."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._streams = TransferStreams()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def copy(
        self,
        moves: Sequence[TensorMove],
        on_half_copied: Callable[[], None],
        is_stable: Callable[[torch.Tensor], bool] | None = None,
    ) -> CopyResult:
        """Copy each tensor to its destination.

        Args:
            moves: destinations and tensors.
            on_half_copied: called once, when part of the copy is done.
            is_stable: return without waiting for accelerators. Tensors for which it returns true
                must not change until their transfers are complete; computation on the accelerator
                waits for the others.
        """
        chunks = [
            chunk
            for number, (destination, tensor) in enumerate(moves)
            if _is_parallel(destination.tensor, tensor)
            for chunk in _split(number, destination, tensor)
        ]
        long = {chunk.number for chunk in chunks}
        short = [number for number in range(len(moves)) if number not in long]
        on_device = [number for number in short if is_on_device(moves[number][1])]
        on_host = [number for number in short if not is_on_device(moves[number][1])]
        queue = deque(chunks)
        transfers = self._streams.copy(
            [(moves[number][0].tensor, moves[number][1]) for number in on_device],
            is_stable or (lambda _: False),
        )
        with contextlib.ExitStack() as leaving:  # the buffer may be unlocked or unmapped afterwards
            leaving.callback(transfers.wait)
            helpers = self._help(queue)
            leaving.callback(wait, helpers)
            leaving.callback(queue.clear)
            for number in on_host[: len(on_host) // 2]:
                moves[number][0].tensor.copy_(moves[number][1])
            on_half_copied()
            for number in on_host[len(on_host) // 2 :]:
                moves[number][0].tensor.copy_(moves[number][1])
            _copy_remaining(queue)
            for helper in helpers:
                helper.result()
            if transfers and is_stable is not None:
                leaving.pop_all()
                return CopyResult(None, transfers)
        return CopyResult(_checksums(moves, short, chunks), PendingTransfers())

    def _help(self, queue: deque[_CopyChunk]) -> list[Future[None]]:
        count = min(torch.get_num_threads(), len(queue)) - 1
        if count < 1:
            return []
        if self._pool is None:
            self._pool = ThreadPoolExecutor(count, thread_name_prefix="gangline-checkpoint-copy")
        return [self._pool.submit(_copy_remaining, queue) for _ in range(count)]


def _copy_remaining(queue: deque[_CopyChunk]) -> None:
    """Copy one chunk after the other until none is left."""
    while True:
        try:
            chunk = queue.popleft()
        except IndexError:
            return
        chunk.copy()


def _checksums(
    moves: Sequence[TensorMove], short: Sequence[int], chunks: Sequence[_CopyChunk]
) -> list[int] | None:
    """Return the checksum of each tensor: combined from its chunks, or computed now."""
    sums = [0] * len(moves)  # 0 is the checksum of an empty tensor
    for number in short:
        destination, tensor = moves[number]
        if tensor.device.type != "cpu" and tensor.nbytes >= MIN_PARALLEL_BYTES:
            return None
        sums[number] = checksum(destination.raw)
    for chunk in chunks:
        sums[chunk.number] = combine_checksums(sums[chunk.number], chunk.sum, len(chunk.place))
    return sums


def _is_parallel(destination: torch.Tensor, tensor: torch.Tensor) -> bool:
    """True if the tensor's bytes can be copied as they are, and justify several threads."""
    return (
        tensor.nbytes == destination.nbytes >= MIN_PARALLEL_BYTES
        and tensor.dtype == destination.dtype
        and is_plain_memory(tensor)
    )


def _split(number: int, destination: TensorDestination, tensor: torch.Tensor) -> list[_CopyChunk]:
    to = numpy.frombuffer(destination.raw, numpy.uint8)
    source = numpy.frombuffer(tensor_bytes(tensor), numpy.uint8)
    return [
        _CopyChunk(number, to[at : at + COPY_CHUNK], source[at : at + COPY_CHUNK])
        for at in range(0, len(to), COPY_CHUNK)
    ]


@dataclass(frozen=True, slots=True)
class EntryView:
    """The memory of one entry in a buffer."""

    entry: memoryview
    destination: TensorDestination | None
    """Destination of the tensor's bytes; ``None`` for other values and empty tensors."""
    before: int
    """Checksum of the bytes before the tensor's."""
    after: memoryview
    """The bytes after the tensor's."""

    def entry_checksum(self, raw: int) -> int:
        """Return the checksum of the entry, given that of its tensor's bytes."""
        if self.destination is None:
            return checksum(self.entry)
        return checksum(self.after, combine_checksums(self.before, raw, len(self.destination.raw)))


def entry_views(
    segment: Segment, header: SegmentHeader, agreement: SaveAgreement
) -> list[EntryView]:
    """Return the entries' memory in the segment; write the framing around tensors."""
    part = segment.part(header)
    views = []
    for entry, item in zip(agreement.layout.entries, agreement.items, strict=True):
        entry_bytes = part[entry.offset : entry.offset + entry.length]
        if item.tensor_data is None:
            views.append(EntryView(entry_bytes, None, 0, entry_bytes[:0]))
            continue
        dtype = item.tensor_data.properties.dtype
        shape = tuple(item.tensor_data.chunk.sizes)
        framing = torch_save_framing(dtype, shape)
        end = entry.raw_offset + entry.raw_length
        before, raw, after = (
            entry_bytes[: entry.raw_offset],
            entry_bytes[entry.raw_offset : end],
            entry_bytes[end:],
        )
        before[:] = framing.before
        after[:] = framing.after.ljust(len(after), b"\0")
        tensor = tensor_view(part, entry, dtype, shape)
        destination = TensorDestination(tensor, raw) if tensor is not None else None
        views.append(EntryView(entry_bytes, destination, checksum(before), after))
    return views


def tensor_view(
    part: memoryview, entry: LayoutEntry, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor | None:
    """Return the tensor over its bytes in ``part``, without a copy; ``None`` if it is empty."""
    if entry.raw_length == 0:
        return None
    flat = torch.frombuffer(
        part, dtype=torch.uint8, offset=entry.offset + entry.raw_offset, count=entry.raw_length
    )
    return flat.view(dtype).view(shape)
