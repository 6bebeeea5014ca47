"""Unpickles without running code from the file.

PyTorch's own reader unpickles ``.metadata`` and values without restriction. Here only the classes
that such files consist of are known; any other name in a pickle is an error.
"""

import pickle
import threading
from collections.abc import Callable
from importlib import import_module
from typing import IO, Any

import numpy
import torch
from torch.distributed.checkpoint.metadata import Metadata

from gangline.elastic.checkpoint.errors import CorruptError

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


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return a class that metadata consists of; refuse any other."""
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        if module == "builtins" and name in _BUILTINS:
            return getattr(import_module("builtins"), name)
        if _KNOWN.get(name) == module:
            return getattr(import_module(module), name)
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a checkpoint's metadata")


def read_metadata(stream: IO[bytes]) -> Metadata:
    """Read a ``.metadata`` file.

    Raises:
        CorruptError: it is damaged, or names a class that does not belong in metadata.
    """
    try:
        found = _MetadataUnpickler(stream).load()
    except (pickle.UnpicklingError, EOFError, ValueError, AttributeError, IndexError) as error:
        raise CorruptError(f".metadata cannot be read: {error}") from error
    except (TypeError, KeyError, ImportError, MemoryError, OverflowError) as error:
        raise CorruptError(f".metadata is damaged: {error}") from error
    if not isinstance(found, Metadata):
        raise CorruptError(f".metadata holds a {type(found).__name__}")
    return found


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


_loading = threading.Lock()
"""PyTorch's list of allowed classes is global for all threads. Leaving ``safe_globals`` removes
names from it even if the training script had added them.
"""


def safe_unpickle(stream: IO[bytes]) -> Any:
    """Load a value with PyTorch's restricted unpickler, extended by NumPy's arrays.

    Raises:
        pickle.UnpicklingError: loading it would need code.
    """
    with _loading:
        theirs = torch.serialization.get_safe_globals()
        try:
            with torch.serialization.safe_globals(_data_classes()):
                return torch.load(stream, map_location="cpu", weights_only=True)
        finally:
            torch.serialization.add_safe_globals(theirs)
