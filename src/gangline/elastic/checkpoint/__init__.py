"""Flash checkpoints: saving costs a copy of memory, restoring less, and nothing torn is ever
loaded.

``Checkpointer`` is what training scripts use. Importing this package does not import torch; the
saver and the agent need none.
"""

from typing import TYPE_CHECKING, Any

from gangline.elastic.checkpoint.errors import (
    CheckpointError,
    CorruptError,
    FolderInUseError,
    ForeignFolderError,
    MemoryShortError,
    StorageError,
    UnsavableError,
)
from gangline.elastic.checkpoint.link import flush_job

if TYPE_CHECKING:
    from gangline.elastic.checkpoint.checkpointer import Checkpointer
    from gangline.elastic.checkpoint.restore import Loaded

__all__ = [
    "CheckpointError",
    "Checkpointer",
    "CorruptError",
    "FolderInUseError",
    "ForeignFolderError",
    "Loaded",
    "MemoryShortError",
    "StorageError",
    "UnsavableError",
    "flush_job",
]


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is asked for."""
    if name == "Checkpointer":
        from gangline.elastic.checkpoint.checkpointer import Checkpointer  # noqa: PLC0415

        return Checkpointer
    if name == "Loaded":
        from gangline.elastic.checkpoint.restore import Loaded  # noqa: PLC0415

        return Loaded
    raise AttributeError(name)
