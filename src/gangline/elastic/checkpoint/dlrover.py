"""The names that DLRover's scripts use, so that they port by changing an import.

    from gangline.elastic.checkpoint.dlrover import DdpCheckpointer, StorageType

Checkpoints are written in Gangline's layout, which plain PyTorch opens; a folder of DLRover's own
is refused with words on how to read it. ``path`` arguments are accepted and not looked at: a step
has its place.
"""

import os
from enum import Enum, auto
from typing import Any

from gangline.elastic.checkpoint.checkpointer import Checkpointer


class StorageType(Enum):
    """Where a save goes."""

    MEMORY = auto()
    DISK = auto()


class DdpCheckpointer:
    """Saves and loads states that are the same on all ranks."""

    def __init__(
        self,
        checkpoint_dir: str | os.PathLike[str],
        local_shard_num: int = 1,
        global_shard_num: int = 1,
        comm_backend: str = "",
        save_timeout: float = 600,
        replica_count: int = 0,
    ) -> None:
        """Arguments after the folder are DLRover's; only ``save_timeout`` still means something.

        Who writes what follows from the states; copies at peers are made where they are of use.
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
        """Save to memory, and on to storage for ``DISK``."""
        del path
        level = "storage" if storage_type is StorageType.DISK else "memory"
        self.checkpointer.save(step, state_dict, level)  # type: ignore[arg-type]

    def load_checkpoint(self, resume_path: str = "") -> dict[str, Any]:
        """The newest state that is whole, or an empty dictionary."""
        del resume_path
        loaded = self.checkpointer.load()
        return loaded.state if loaded else {}

    def wait_latest_checkpoint(self, timeout: float = 1800) -> bool:
        """Wait until what was to go to storage is there."""
        return self.checkpointer.wait(timeout)

    def close(self) -> None:
        """The training is over: free the memory."""
        self.checkpointer.close()


class FsdpShardCheckpointer(DdpCheckpointer):
    """Saves and loads sharded states, of ``DTensor`` as FSDP2 makes them; they reshard."""

    def load_sharded(self, state_dict: dict[str, Any]) -> int:
        """Load into ``state_dict`` in place; the step, or -1 when there is no checkpoint."""
        loaded = self.checkpointer.load(state_dict)
        return loaded.step if loaded else -1
