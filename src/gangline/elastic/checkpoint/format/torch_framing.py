"""The form of single values in a checkpoint: their bytes, their names, and reading them safely.

Each entry of a ``.distcp`` file is a complete ``torch.save`` archive. The bytes around a tensor are
computed once for each shape; from save to save only the raw bytes in the middle change. Unlike in
PyTorch's own reader, a pickle that names any class but known ones of data is an error.

PyTorch saves one value for each name, but a random state or a counter differs between ranks. Small
values are therefore compared at each save. Where they differ, the first rank saves its value under
the name, and each other rank ``r`` saves its own under ``NAME@rank-r``.
"""

import io
import pickle
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from importlib import import_module
from typing import IO, Any, TypeGuard

import numpy
import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.serialization import skip_data

from gangline.elastic.checkpoint.errors import CorruptError, UnsavableError

_METADATA = "torch.distributed.checkpoint.metadata"
_KNOWN = {
    **dict.fromkeys(
        (
            "Metadata",
            "MetadataIndex",
            "TensorStorageMetadata",
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "TensorProperties",
            "StorageMeta",
            "_MEM_FORMAT_ENCODING",
        ),
        _METADATA,
    ),
    "_StorageInfo": "torch.distributed.checkpoint.filesystem",
    "Size": "torch",
    "OrderedDict": "collections",
    "_get_layout": "torch.serialization",
}
_BUILTINS = {"set", "frozenset", "complex", "slice", "bytearray"}
_loading = threading.Lock()
"""PyTorch's list of allowed classes is global for all threads. Leaving ``safe_globals`` removes
names from it even if the training script had added them.
"""
HEADROOM = 1.25
"""Pickled values may grow by this factor before the ranks have to agree on a new layout."""
SMALL_BYTES = 1 << 16
"""Tensors in main memory up to this size are compared; the random state of PyTorch has 5,056."""
OF_A_RANK = re.compile(r"(^|\.)random\.rank-\d+(\.|$)")
"""Random states of a ``TrainingState``: each rank saves them under a name of its own."""
_OWN_NAME = re.compile(r"(?P<name>.*)@rank-(?P<rank>\d+)", re.DOTALL)
_DIGEST_BITS = 61
"""Sums of digests stay within a signed integer of 64 bits, in which ranks compare them."""


def _enum_member(enum: type[Enum], name: str) -> Enum:
    """Stand in for ``getattr``, by which early Pythons 3.11 pickle a member of an enum."""
    if not (isinstance(enum, type) and issubclass(enum, Enum)):
        raise pickle.UnpicklingError(f"getattr of {enum} is not allowed in a checkpoint's metadata")
    return enum[name]


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return a class that metadata consists of; refuse any other."""
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        if module == "builtins" and name in _BUILTINS:
            return getattr(import_module("builtins"), name)
        if module == "builtins" and name == "getattr":
            return _enum_member
        if _KNOWN.get(name) == module:
            return getattr(import_module(module), name)
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a checkpoint's metadata")


def read_metadata(stream: IO[bytes]) -> Metadata:
    """Read a ``.metadata`` file.

    Raises CorruptError: it is damaged, or names a class that does not belong in metadata.
    """
    try:
        metadata = _MetadataUnpickler(stream).load()
    except (pickle.UnpicklingError, EOFError, ValueError, AttributeError, IndexError) as error:
        raise CorruptError(f".metadata cannot be read: {error}") from error
    except (TypeError, KeyError, ImportError, MemoryError, OverflowError) as error:
        raise CorruptError(f".metadata is damaged: {error}") from error
    if not isinstance(metadata, Metadata):
        raise CorruptError(f".metadata holds a {type(metadata).__name__}")
    return metadata


def _data_classes() -> list[Callable[..., Any] | tuple[Callable[..., Any], str]]:
    """Return pure data classes that are not on PyTorch's list: NumPy's arrays and scalars."""
    multiarray: Any = import_module("numpy._core.multiarray")
    kinds = [type(numpy.dtype(letter)) for letter in "?bBhHiIlLqQefdFD"]
    return [
        bytes,  # for empty bytes; PyTorch knows how others are pickled
        (bytes, "__builtin__.bytes"),
        numpy.ndarray,
        numpy.dtype,
        *kinds,
        (multiarray._reconstruct, "numpy._core.multiarray._reconstruct"),
        (multiarray._reconstruct, "numpy.core.multiarray._reconstruct"),
        (multiarray.scalar, "numpy._core.multiarray.scalar"),
        (multiarray.scalar, "numpy.core.multiarray.scalar"),
    ]


def safe_unpickle(stream: IO[bytes]) -> Any:
    """Load a value with PyTorch's restricted unpickler, extended by NumPy's arrays.

    Raises pickle.UnpicklingError: loading it would need code.
    """
    with _loading:
        theirs = torch.serialization.get_safe_globals()
        try:
            with torch.serialization.safe_globals(_data_classes()):
                return torch.load(stream, map_location="cpu", weights_only=True)
        finally:
            torch.serialization.add_safe_globals(theirs)


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

    Raises UnsavableError: it cannot be pickled, or loading it would need code that is not allowed.
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

    Raises UnsavableError: loading would run code of a class.
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


def own_name(name: str, rank: int) -> str:
    """Return the name under which a rank saves its own value."""
    return f"{name}@rank-{rank}"


def parse_own_name(name: str) -> tuple[str, int] | None:
    """Return the name and the rank of an own value; None for any other name."""
    match = _OWN_NAME.fullmatch(name)
    return (match["name"], int(match["rank"])) if match else None


def is_small_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """True for tensors that are compared."""
    return (
        isinstance(value, torch.Tensor)
        and type(value) in {torch.Tensor, torch.nn.Parameter}
        and value.device.type == "cpu"
        and value.layout == torch.strided
        and not value.is_quantized
        and value.nbytes <= SMALL_BYTES
        and (value.numel() == 0 or value.data_ptr() != 0)  # FSDP frees a tensor's memory
    )


def tensor_digest(name: str, value: torch.Tensor) -> int:
    """Return a digest of name, type, shape and content."""
    plain = value.detach().resolve_conj().resolve_neg().contiguous()
    return value_digest(f"{name}|{value.dtype}|{tuple(value.shape)}", tensor_bytes(plain))


def value_digest(name: str, content: bytes | memoryview) -> int:
    """Return a digest of a name and a pickled value, or the bytes of a tensor."""
    digest = blake2b(content, digest_size=8, key=blake2b(name.encode(), digest_size=16).digest())
    return int.from_bytes(digest.digest(), "little") % (1 << _DIGEST_BITS)


def summarize(digests: Iterable[int]) -> int:
    """Return one number for a set of digests, whatever their order."""
    return sum(digests) % (1 << _DIGEST_BITS)


def differing_names(by_rank: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the names whose values differ, each with the first rank that has it."""
    first: dict[str, int] = {}
    differing: dict[str, int] = {}
    for rank, digests in enumerate(by_rank):
        for name, digest in digests.items():
            holder = first.setdefault(name, rank)
            if by_rank[holder][name] != digest:
                differing[name] = holder
    return differing


def names_of_all(by_rank: Sequence[Mapping[str, int]]) -> frozenset[str]:
    """Return the names that every rank has."""
    return frozenset.intersection(*(frozenset(digests) for digests in by_rank))
