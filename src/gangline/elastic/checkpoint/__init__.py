"""Flash checkpoints: a save costs training one copy of memory; incomplete steps are never loaded.

``Checkpointer`` is the API for training scripts. It copies the state to shared memory; the saver, a
separate process on each node, writes it to storage. Importing this package does not import torch,
because the saver and the agent work without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gangline.elastic.checkpoint.errors import (
    CheckpointError,
    CorruptError,
    FolderInUseError,
    ForeignFolderError,
    InsecureMemoryError,
    MemoryShortError,
    StepTakenError,
    StorageError,
    UnsavableError,
    UnsharedFolderError,
)
from gangline.elastic.checkpoint.saver.client import flush_job

if TYPE_CHECKING:
    from gangline.elastic.checkpoint.checkpointer import Checkpointer
    from gangline.elastic.checkpoint.restore.dcp_reader import FlashReader
    from gangline.elastic.checkpoint.restore.dcp_writer import FlashWriter
    from gangline.elastic.checkpoint.restore.restore import Loaded

__all__ = [
    "CheckpointError",
    "Checkpointer",
    "CorruptError",
    "FlashReader",
    "FlashWriter",
    "FolderInUseError",
    "ForeignFolderError",
    "InsecureMemoryError",
    "Loaded",
    "MemoryShortError",
    "StepTakenError",
    "StorageError",
    "UnsavableError",
    "UnsharedFolderError",
    "flush_job",
]


_LAZY = {
    "Checkpointer": "checkpointer",
    "FlashReader": "restore.dcp_reader",
    "FlashWriter": "restore.dcp_writer",
    "Loaded": "restore.restore",
}


def __getattr__(name: str) -> Any:
    """Import the names that need torch on first use."""
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(name)
