"""The lock of one rank's buffers: no second process may save as the same rank of a job."""

import fcntl
import os
import time
from pathlib import Path

from gangline.elastic.checkpoint.errors import FolderInUseError
from gangline.elastic.checkpoint.snapshot.directory import open_own

_DYING_S = 5.0
"""Seconds that the previous process of the rank may take to end after a restart."""
_POLL_S = 0.05
_MAX_PID_BYTES = 32


class RankLock:
    """A lock on ``r00003.lock`` in the job's folder; the kernel releases it with the process.

    It belongs to the process (fcntl(2), record locks): data loader workers that outlive a killed
    rank do not retain it.
    """

    def __init__(self, home: Path, rank: int, target: str) -> None:
        """Take the lock.

        Raises:
            FolderInUseError: another process saves as this rank.
        """
        self._descriptor = open_own(home / f"r{rank:05d}.lock", os.O_RDWR | os.O_CREAT)
        deadline = time.monotonic() + _DYING_S
        while not self._acquire():
            if time.monotonic() >= deadline:
                holder = os.pread(self._descriptor, _MAX_PID_BYTES, 0).decode().strip()
                self.close()
                raise FolderInUseError(
                    f"process {holder} saves to {target} as rank {rank} too: call "
                    "torch.distributed.init_process_group() before the Checkpointer is created, so "
                    "that the ranks save together, or give each process a folder of its own"
                )
            time.sleep(_POLL_S)
        os.pwrite(self._descriptor, str(os.getpid()).ljust(_MAX_PID_BYTES).encode(), 0)

    def _acquire(self) -> bool:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Release the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
