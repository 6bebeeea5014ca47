"""Copies from accelerators into pinned memory, on streams beside the one that training computes on.

All calls go through PyTorch's device modules (``torch.cuda``, ``torch.xpu``, …), which share names.
Memory is pinned for CUDA and ROCm, as PyTorch's own checkpoints do it. Other accelerators copy to
unpinned memory.
"""

import ctypes
import functools
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from gangline.elastic.checkpoint.snapshot.segment import Segment

log = logging.getLogger(__name__)
_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every context of the process."""


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
        return next((found for one in value if (found := find_accelerator(one))), None)
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
        known = {
            tensor.untyped_storage().data_ptr()
            for optimizer in list(self._optimizers)
            for tensor in _tensors_of(optimizer)
        }
        return lambda tensor: tensor.untyped_storage().data_ptr() in known

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
