"""The bytes that ``torch.save`` writes around a tensor, computed once for each shape.

PyTorch's reader expects each entry of a ``.distcp`` file to be a complete ``torch.save`` archive.
An entry has that form; from save to save only its middle, the raw bytes, changes.
"""

import io
import pickle
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.serialization import skip_data

from gangline.elastic.checkpoint.errors import UnsavableError
from gangline.elastic.checkpoint.format.safe_unpickle import safe_unpickle

HEADROOM = 1.25
"""Pickled values may grow by this factor before the ranks have to agree on a new layout."""


@dataclass(frozen=True, slots=True)
class TorchSaveFraming:
    """The bytes of an archive before and after the raw bytes of its tensor."""

    before: bytes
    raw_length: int
    after: bytes

    @property
    def length(self) -> int:
        return len(self.before) + self.raw_length + len(self.after)


class _Recorder(io.RawIOBase):
    """A write-only file that records its content and the position of bytes that were left out."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[bytes] = []
        self.at = 0
        self.gap: tuple[int, int] | None = None
        """Offset and length of the gap."""

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def write(self, data: object) -> int:
        written = bytes(data)  # type: ignore[call-overload]
        self.parts.append(written)
        self.at += len(written)
        return len(written)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        length = offset if whence == io.SEEK_CUR else offset - self.at
        self.gap = (self.at, length)
        self.at += length
        return self.at


@lru_cache(maxsize=4096)
def torch_save_framing(dtype: torch.dtype, shape: tuple[int, ...]) -> TorchSaveFraming:
    """Return the bytes that PyTorch writes around a contiguous tensor of this type and shape."""
    recorder = _Recorder()
    with skip_data():
        # The parameter's type is a binary stream; PyTorch uses only write, seek and tell.
        torch.save(torch.empty(shape, dtype=dtype), recorder)  # type: ignore[arg-type]
    written = b"".join(recorder.parts)
    before, raw = recorder.gap if recorder.gap else (len(written), 0)
    return TorchSaveFraming(written[:before], raw, written[before:])


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor, without a copy.

    A tensor of one element counts as contiguous whatever its stride, but then cannot be viewed as
    bytes; so the stride is set again.
    """
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data


def is_plain_memory(tensor: torch.Tensor) -> bool:
    """True if the tensor's value is its CPU memory, one element after the other."""
    return (
        type(tensor) in {torch.Tensor, torch.nn.Parameter}
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.data_ptr() != 0  # FSDP frees a tensor's memory for a while
    )


def pickle_value(key: str, value: object) -> bytes:
    """Pickle a value that is no tensor, in a form that may be followed by padding.

    Raises:
        UnsavableError: it cannot be pickled, or loading it would need code that is not allowed.
    """
    buffer = io.BytesIO()
    try:
        # The zip format has its directory at the end, so padding is only possible in the old one.
        torch.save(value, buffer, _use_new_zipfile_serialization=False)
    except (pickle.PicklingError, TypeError, AttributeError, RuntimeError) as error:
        raise UnsavableError(
            f"{key!r} in the state is a {type(value).__name__} that cannot be pickled ({error}); "
            "keep open files, locks and connections out of the state"
        ) from error
    return buffer.getvalue()


def check_loadable(key: str, value: object, data: bytes) -> None:
    """Refuse a value at save time that could not be loaded later.

    Raises:
        UnsavableError: loading would run code of a class.
    """
    try:
        safe_unpickle(io.BytesIO(data))
    except pickle.UnpicklingError as error:
        raise UnsavableError(
            f"{key!r} in the state is or contains a {type(value).__name__}, which "
            "loads only by running its code; checkpoints never do: save its numbers, strings, "
            "lists and tensors instead"
        ) from error


def padded_capacity(size: int) -> int:
    """Return the bytes to reserve for a pickled value of ``size`` bytes that may grow."""
    return int(size * HEADROOM) + 128
