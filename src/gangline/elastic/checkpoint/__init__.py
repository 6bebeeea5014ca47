"""Flash checkpoints: saving costs a copy of memory, restoring less, and nothing torn is ever
loaded.

``Checkpointer`` is what training scripts use. Importing this package does not import torch; the
saver and the agent need none.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gangline.elastic.checkpoint.errors import (
    CheckpointError,
    CorruptError,
    FolderInUseError,
    ForeignFolderError,
    MemoryShortError,
    StepTakenError,
    StorageError,
    UnsavableError,
)
from gangline.elastic.checkpoint.link import flush_job

if TYPE_CHECKING:
    from gangline.elastic.checkpoint.checkpointer import Checkpointer
    from gangline.elastic.checkpoint.reader import FlashReader
    from gangline.elastic.checkpoint.restore import Loaded
    from gangline.elastic.checkpoint.writer import FlashWriter

__all__ = [
    "CheckpointError",
    "Checkpointer",
    "CorruptError",
    "FlashReader",
    "FlashWriter",
    "FolderInUseError",
    "ForeignFolderError",
    "Loaded",
    "MemoryShortError",
    "StepTakenError",
    "StorageError",
    "UnsavableError",
    "flush_job",
]


_LAZY = {
    "Checkpointer": "checkpointer",
    "FlashReader": "reader",
    "FlashWriter": "writer",
    "Loaded": "restore",
}


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is asked for."""
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(name)
