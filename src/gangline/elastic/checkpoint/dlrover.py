"""Class names of DLRover's checkpoint API, so that its scripts port by changing an import.

    from gangline.elastic.checkpoint.dlrover import DdpCheckpointer, StorageType

Checkpoints are written in Gangline's layout, which plain PyTorch opens. A folder in DLRover's own
format is refused with a message that explains how to read it. ``path`` arguments are accepted and
ignored: the folder of a step is fixed.
"""

import os
from enum import Enum, auto
from typing import Any

from gangline.elastic.checkpoint.checkpointer import Checkpointer


class StorageType(Enum):
    """Where a save is written to."""

    MEMORY = auto()
    DISK = auto()


class DdpCheckpointer:
    """Saves and loads states that are equal on all ranks."""

    def __init__(
        self,
        checkpoint_dir: str | os.PathLike[str],
        local_shard_num: int = 1,
        global_shard_num: int = 1,
        comm_backend: str = "",
        save_timeout: float = 600,
        replica_count: int = 0,
    ) -> None:
        """Create the checkpointer; of DLRover's arguments only ``save_timeout`` has an effect.

        Which rank writes what follows from the states. Copies on peers are made where they are
        useful.
        """
        del local_shard_num, global_shard_num, comm_backend, replica_count
        self.save_timeout = save_timeout
        self.checkpointer = Checkpointer(checkpoint_dir)

    def save_checkpoint(
        self,
        step: int,
        state_dict: dict[str, Any],
        path: str = "",
        storage_type: StorageType = StorageType.DISK,
    ) -> None:
        """Save to memory, and with ``DISK`` also to storage."""
        del path
        level = "storage" if storage_type is StorageType.DISK else "memory"
        self.checkpointer.save(step, state_dict, level)  # type: ignore[arg-type]

    def load_checkpoint(self, resume_path: str = "") -> dict[str, Any]:
        """Return the newest complete state, or an empty dictionary."""
        del resume_path
        loaded = self.checkpointer.load()
        return loaded.state if loaded else {}

    def wait_latest_checkpoint(self, timeout: float = 1800) -> bool:
        """Wait until storage has every step that was saved to it; return whether it has."""
        return self.checkpointer.wait(timeout)

    def close(self) -> None:
        """End the training: free the memory after the last upload."""
        self.checkpointer.close()


class FsdpShardCheckpointer(DdpCheckpointer):
    """Saves and loads sharded states of ``DTensor``, as FSDP2 creates them; they reshard."""

    def load_sharded(self, state_dict: dict[str, Any]) -> int:
        """Load into ``state_dict`` in place; return the step, or -1 if there is no checkpoint."""
        loaded = self.checkpointer.load(state_dict)
        return loaded.step if loaded else -1
