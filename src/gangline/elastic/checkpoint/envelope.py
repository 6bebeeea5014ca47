"""What ``torch.save`` puts around a tensor's bytes, found out once for each shape, without the
bytes.

PyTorch's own reader expects each entry of a ``.distcp`` file to be a whole ``torch.save`` archive.
So an entry is laid out as one, and only its middle, the raw bytes, changes from save to save.
"""

import io
import pickle
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.serialization import skip_data

from gangline.elastic.checkpoint.errors import UnsavableError
from gangline.elastic.checkpoint.safety import safe_load

HEADROOM = 1.25
"""Pickled values may grow by this factor before ranks have to agree on a new layout."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What is before and after the raw bytes of a tensor."""

    before: bytes
    raw_length: int
    after: bytes

    @property
    def length(self) -> int:
        """Bytes of the whole archive."""
        return len(self.before) + self.raw_length + len(self.after)


class _Recorder(io.RawIOBase):
    """A file that keeps what is written and remembers where bytes were left out."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[bytes] = []
        self.at = 0
        self.gap: tuple[int, int] | None = None
        """How many bytes come before the gap, and its length."""

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
def envelope(dtype: torch.dtype, shape: tuple[int, ...]) -> Envelope:
    """What PyTorch would write around a contiguous tensor of this kind."""
    recorder = _Recorder()
    with skip_data():
        # The file is typed as a binary stream, of which PyTorch uses write, seek and tell.
        torch.save(torch.empty(shape, dtype=dtype), recorder)  # type: ignore[arg-type]
    written = b"".join(recorder.parts)
    before, raw = recorder.gap if recorder.gap else (len(written), 0)
    return Envelope(written[:before], raw, written[before:])


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, where they lie.

    One of a single element counts as contiguous whatever its stride, but has no view as bytes then;
    so the stride is said anew.
    """
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor's value is what lies in the CPU's memory, one element after the other."""
    return (
        type(tensor) in {torch.Tensor, torch.nn.Parameter}
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.data_ptr() != 0  # it has memory, which FSDP takes away for a while
    )


def pickled(key: str, value: object) -> bytes:
    """The bytes of a value that is no tensor, in the form that may be followed by padding.

    Raises:
        UnsavableError: it does not pickle, or loading it would need code that is not allowed.
    """
    buffer = io.BytesIO()
    try:
        # The zip form has its directory at the end and so does not bear padding; this one does.
        torch.save(value, buffer, _use_new_zipfile_serialization=False)
    except (pickle.PicklingError, TypeError, AttributeError, RuntimeError) as error:
        raise UnsavableError(
            f"{key!r} in the state is a {type(value).__name__} that does not pickle ({error}); "
            "keep open files, locks and connections out of the state"
        ) from error
    return buffer.getvalue()


def check_loadable(key: str, value: object, data: bytes) -> None:
    """Refuse at save what could not be loaded later.

    Raises:
        UnsavableError: loading would run code of a class.
    """
    try:
        safe_load(io.BytesIO(data))
    except pickle.UnpicklingError as error:
        raise UnsavableError(
            f"{key!r} in the state is or contains a {type(value).__name__}, which "
            "loads only by running its code; checkpoints never do: save its numbers, strings, "
            "lists and tensors instead"
        ) from error


def capacity(size: int) -> int:
    """Room for a pickled value of ``size`` bytes that may grow."""
    return int(size * HEADROOM) + 128
