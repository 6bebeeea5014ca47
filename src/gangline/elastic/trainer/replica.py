"""What a member of a group has in memory, and its transfer to a member that is behind.

Every replica has the same model, optimizer and position. The random state is each rank's own: it is
kept in a file of the rank's seat, which outlives a killed process.
"""

import ctypes
import io
import mmap
import pickle
import random
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from struct import Struct
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist

_LARGE_BYTES = 64 << 10
"""Tensors from this size on are sent by themselves; smaller ones together with the structure."""
_TAG = 0x6A77
_WINDOW = 16
"""Tensors that are under way together; each may have a copy in the memory of the processor."""
MODEL = "model"
"""The first part of a state: the tensors of the model, by their names."""


class StateOwner(Protocol):
    """An object whose state a successor takes over."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take over a state."""
        ...


def _is_large(value: object) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and value.numel() * value.element_size() >= _LARGE_BYTES
    )


class _Pickler(pickle.Pickler):
    """Leaves large tensors out, and lists them."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: list[torch.Tensor] = []

    def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
        if not _is_large(obj):
            return None
        self.tensors.append(obj.detach())
        return tuple(obj.shape), obj.dtype, obj.device.type


class _Unpickler(pickle.Unpickler):
    """Makes a place for each tensor that was left out, or takes that of the model."""

    def __init__(self, file: io.BytesIO, model: Sequence[torch.Tensor]) -> None:
        super().__init__(file)
        self._model: Iterator[torch.Tensor] = iter(model)
        self.tensors: list[torch.Tensor] = []

    def persistent_load(self, pid: tuple[Any, ...]) -> torch.Tensor:
        shape, dtype, kind = pid
        place = next(self._model, None)
        if place is None:
            device = torch.device("cuda", torch.cuda.current_device()) if kind == "cuda" else kind
            place = torch.empty(shape, dtype=dtype, device=device)
        elif (tuple(place.shape), place.dtype, place.device.type) != pid:
            raise RuntimeError("the models of two ranks differ")
        self.tensors.append(place)
        return place


class StateTransfer:
    """Sends and receives states over a group."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        device: torch.device,
        wait: Callable[[dist.Work], None],
    ) -> None:
        """Prepare; ``device`` is that of the tensors that the group exchanges."""
        self._group, self._device, self._wait = group, device, wait

    def send(self, state: Mapping[str, Any], rank: int) -> None:
        """Send a state to a rank, which calls `receive`. The model comes first in it."""
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump(dict(state))
        content = torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8)
        with _Window(self._wait) as window:
            for tensor in (torch.tensor([content.numel()]), content, *pickler.tensors):
                sent = tensor.contiguous().to(self._device).flatten()
                window.add(self._group.send([sent], rank, _TAG), sent)

    def receive(self, model: Mapping[str, torch.Tensor], rank: int) -> dict[str, Any]:
        """Receive what a rank sends. Large tensors of the model are received in their places."""
        size = torch.zeros(1, dtype=torch.int64)
        self._receive([size], rank)
        content = torch.empty(int(size), dtype=torch.uint8)
        self._receive([content], rank)
        live = [tensor for tensor in model.values() if _is_large(tensor)]
        unpickler = _Unpickler(io.BytesIO(_content(content)), live)
        state: dict[str, Any] = unpickler.load()
        self._receive(unpickler.tensors, rank)
        if state[MODEL].keys() != model.keys():
            raise RuntimeError("the models of two ranks differ")
        for name, tensor in state.pop(MODEL).items():
            if tensor.data_ptr() != model[name].data_ptr():
                model[name].copy_(tensor)
        return state

    def _receive(self, tensors: Sequence[torch.Tensor], rank: int) -> None:
        with _Window(self._wait) as window:
            for tensor in tensors:
                buffer = tensor
                if tensor.device != self._device or not tensor.is_contiguous():
                    buffer = torch.empty_like(
                        tensor, device=self._device, memory_format=torch.contiguous_format
                    )
                window.add(self._group.recv([buffer.view(-1)], rank, _TAG), buffer, tensor)


class _Window:
    """Transfers that are under way together, so that no rank waits between two of them."""

    def __init__(self, wait: Callable[[dist.Work], None]) -> None:
        self._wait = wait
        self._waiting: deque[tuple[dist.Work, torch.Tensor, torch.Tensor]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        while kind is None and self._waiting:
            self._end_first()

    def add(
        self, work: dist.Work, buffer: torch.Tensor, target: torch.Tensor | None = None
    ) -> None:
        """Add a transfer. What is received for a target in another buffer is copied at its end."""
        self._waiting.append((work, buffer, buffer if target is None else target))
        if len(self._waiting) > _WINDOW:
            self._end_first()

    def _end_first(self) -> None:
        work, buffer, target = self._waiting.popleft()
        self._wait(work)
        if target is not buffer:
            target.copy_(buffer)


def random_state() -> tuple[Any, ...]:
    """Return the random state of this process: PyTorch, its devices, Python and NumPy.

    It has no tensors or arrays, so that two states are compared in a moment.
    """
    cuda: Any = torch.cuda
    devices = cuda.get_rng_state_all() if cuda.is_initialized() else []
    numpy = sys.modules.get("numpy")
    legacy: Any = numpy.random.get_state() if numpy else None
    return (
        _content(torch.get_rng_state()),
        [_content(device) for device in devices],
        random.getstate(),
        legacy and (legacy[0], legacy[1].tobytes(), *legacy[2:]),
    )


def set_random_state(state: tuple[Any, ...]) -> None:
    """Continue with a `random_state`."""
    own, devices, python, legacy = state
    torch.set_rng_state(_bytes_tensor(own))
    cuda: Any = torch.cuda
    if devices and cuda.is_initialized() and len(devices) == cuda.device_count():
        cuda.set_rng_state_all([_bytes_tensor(device) for device in devices])
    random.setstate(python)
    if legacy is not None and (numpy := sys.modules.get("numpy")):
        keys = numpy.frombuffer(legacy[1], dtype=numpy.uint32)
        numpy.random.set_state((legacy[0], keys, *legacy[2:]))


def _content(numbers: torch.Tensor) -> bytes:
    """Return a contiguous tensor of bytes on the processor; ``numpy()`` needs NumPy installed."""
    return ctypes.string_at(numbers.data_ptr(), numbers.numel())


def _bytes_tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


class SeatFile:
    """The random state of a seat after its last three steps, in memory that is mapped from a file.

    A process may be killed while it writes. It may have finished a step that the others have not,
    and have begun the next one. So each of three places has the state after one step, with a
    checksum.
    """

    _HEAD = Struct("=qII")
    """Number of finished steps, length and checksum of the state."""
    _PLACES = 3
    _PLACE_BYTES = 64 << 10

    def __init__(self, path: Path) -> None:
        with path.open("ab") as file:
            file.truncate(self._PLACES * self._PLACE_BYTES)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._written: tuple[int, tuple[Any, ...]] | None = None

    def write(self, step: int, state: tuple[Any, ...]) -> None:
        """Keep the state after ``step`` steps; the same one again is not written."""
        if (step, state) == self._written:
            return
        self._written = step, state
        content = pickle.dumps(state, pickle.HIGHEST_PROTOCOL)
        if len(content) + self._HEAD.size > self._PLACE_BYTES:
            return
        head = self._HEAD.pack(step, len(content), zlib.crc32(content))
        begin = step % self._PLACES * self._PLACE_BYTES
        self._map[begin : begin + len(head) + len(content)] = head + content

    def read(self, step: int) -> tuple[Any, ...] | None:
        """Return the state after ``step`` steps; None if it is not there."""
        begin = step % self._PLACES * self._PLACE_BYTES
        number, length, checksum = self._HEAD.unpack_from(self._map, begin)
        begin += self._HEAD.size
        content = self._map[begin : begin + length]
        if number != step or not length or zlib.crc32(content) != checksum:
            return None
        state: tuple[Any, ...] = pickle.loads(content)
        return state
