"""Memory that checkpoints use beyond their buffers, in the training process and its saver.

A state of 524 MB on the CPU is saved to memory and to a local disk and restored, in a process that
has imported everything. Anonymous memory is sampled every 10 ms; for the saver, mapped files count
as well. There is no peer: the bound is 100 MB.
"""

import os
import re
import shutil
import tempfile
import threading
from pathlib import Path

import torch

from benchmarks.checkpoint.savers import savers_of
from gangline.elastic.checkpoint import Checkpointer

TENSORS = 50
ELEMENTS = 2_621_440
SAVES = 12
TO_REACH_MB = 100


def memory_mb(process: int, *kinds: str) -> float:
    """Memory of these kinds that a process uses, in megabytes (10^6 bytes)."""
    status = Path(f"/proc/{process}/status").read_text()
    return sum(int(found) for found in re.findall(rf"(?:{'|'.join(kinds)}):\s+(\d+)", status)) / 1e3


class Watch:
    """Records the maximum memory."""

    def __init__(self) -> None:
        self.saver: int | None = None
        self.before = memory_mb(os.getpid(), "RssAnon")
        self.training_mb = self.saver_mb = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.01):
            grown = memory_mb(os.getpid(), "RssAnon") - self.before
            self.training_mb = max(self.training_mb, grown)
            if self.saver is not None:
                has = memory_mb(self.saver, "RssAnon", "RssFile")
                self.saver_mb = max(self.saver_mb, has)

    def close(self) -> None:
        self._over.set()
        self._thread.join()


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-memory-"))
    state = {f"l{n}.w": torch.randn(ELEMENTS) for n in range(TENSORS)}
    watch = Watch()
    try:
        with Checkpointer(folder) as checkpointer:
            (watch.saver,) = savers_of(checkpointer.job_folder)
            checkpointer.load(state)
            for step in range(1, SAVES + 1):
                checkpointer.save(step, state, "storage" if step % 4 == 0 else "memory")
            assert checkpointer.wait()
            loaded = checkpointer.load(state)
            assert loaded is not None
            assert loaded.source == "memory"
            watch.saver = None
    finally:
        watch.close()
        shutil.rmtree(folder)
    both = watch.training_mb + watch.saver_mb
    print("524 MB, 3 buffers")
    print(f"  the training process, more than before      {watch.training_mb:5.0f} MB")
    print(f"  its saver, in all                           {watch.saver_mb:5.0f} MB")
    print(f"  together                                    {both:5.0f} MB (to reach: {TO_REACH_MB})")


if __name__ == "__main__":
    main()
