"""DLRover's flash checkpoint, measured by its own interpreter for our benchmarks.

    VENV/bin/python dlrover_training.py save FOLDER FIGURES     # and then "restore"
    VENV/bin/python dlrover_training.py device FOLDER FIGURES GIGABYTES DEVICE

Starts DLRover's launcher with itself as the training script, which appends the figures to a file of
JSON lines. Does not import gangline. Tested with dlrover 0.6.1, whose launcher is patched for
PyTorch 2.13.
"""

import inspect
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TENSORS = 50
ELEMENTS = 2_621_440
ROUNDS = 7
PERSISTS = 4
TURNS = 5
RESTARTS = 3
PATIENCE_S = 120.0


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def launch(*arguments: str) -> None:
    """Run ``dlrover-run --standalone`` for one training process."""
    import dlrover.trainer.torch.elastic_run as launcher
    from dlrover.trainer.torch.main import main

    handler = launcher.SubprocessHandler

    def patient(*given: Any) -> Any:
        expected = len(inspect.signature(handler.__init__).parameters) - 1
        return handler(*given, *[None] * (expected - len(given)))

    launcher.SubprocessHandler = patient
    sys.argv = ["dlrover-run", "--standalone", "--nproc-per-node", "1"]
    sys.argv += ["--max-restarts", str(RESTARTS), __file__, "train", *arguments]
    main()


class Training:
    def __init__(
        self, folder: str, figures: str, elements: int = ELEMENTS, device: str = "cpu"
    ) -> None:
        import torch
        import torch.distributed as dist
        from dlrover.trainer.torch.flash_checkpoint.ddp import (
            DdpCheckpointer,
            StorageType,
        )

        dist.init_process_group("gloo")
        self.folder, self.figures, self.level = Path(folder), Path(figures), StorageType
        self.model = {f"l{n}.w": torch.randn(elements, device=device) for n in range(TENSORS)}
        self.other: dict[str, Any] = {}
        self.checkpointer = DdpCheckpointer(folder)

    def record(self, **figures: Any) -> None:
        with self.figures.open("a") as stream:
            stream.write(json.dumps(figures) + "\n")

    def keep(self, step: int, level: Any) -> float:
        state = {"model": self.model, "step": step}
        return timed(lambda: self.checkpointer.save_checkpoint(step, state, storage_type=level))

    def copy(self) -> None:
        for name, tensor in self.model.items():
            self.other[name].copy_(tensor)

    def memory(self) -> None:
        self.other = {name: one.clone() for name, one in self.model.items()}
        self.record(first=self.keep(1, self.level.MEMORY))
        for step in range(2, 2 + ROUNDS):
            time.sleep(0.3)
            self.record(copy=timed(self.copy), steady=self.keep(step, self.level.MEMORY))

    def device(self) -> None:
        self.record(first=self.keep(1, self.level.MEMORY))
        for step in range(2, 2 + ROUNDS):
            time.sleep(0.3)
            self.record(steady=self.keep(step, self.level.MEMORY))

    def storage(self) -> None:
        for step in range(100, 100 + 10 * PERSISTS, 10):
            begin = time.perf_counter()
            blocked = self.keep(step, self.level.DISK)
            time.sleep(0.5)
            before = self.checkpointer._engine._cached_step
            self.keep(step + 1, self.level.MEMORY)
            skipped = self.checkpointer._engine._cached_step == before
            self.committed(step, begin)
            committed = time.perf_counter() - begin
            self.record(blocked=blocked, skipped=skipped, committed=committed)

    def committed(self, step: int, begin: float) -> None:
        tracker = self.folder / "dlrover_latest.txt"
        while not (tracker.exists() and tracker.read_text().strip() == str(step)):
            if time.perf_counter() - begin > PATIENCE_S:
                raise TimeoutError(f"DLRover has not committed step {step}")
            time.sleep(0.01)

    def restore(self, name: str) -> None:
        begin = time.perf_counter()
        found = self.checkpointer.load_checkpoint()
        for key, tensor in found["model"].items():
            self.model[key].copy_(tensor)
        self.record(**{name: time.perf_counter() - begin})


def train(what: str, folder: str, figures: str, gigabytes: str = "", device: str = "") -> None:
    """Measure saves and restores from memory, or a restore from storage in a new job.

    Restores from memory are measured in restarted processes, as after a fault, and then in a
    process
    that has mapped the memory already. For a state in GPU memory only saves are measured.
    """
    if what == "device":
        Training(folder, figures, int(float(gigabytes) * 1e9 / 4 / TENSORS), device).device()
        return
    training = Training(folder, figures)
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if what == "save" and restarts:
        training.restore("restarted")
        if restarts < RESTARTS:
            os._exit(1)
    elif what == "save":
        training.memory()
        training.storage()
        for _ in range(TURNS):
            training.record(beside=timed(training.copy))
            training.restore("warm")
        os._exit(1)
    else:
        training.restore("cold")


if __name__ == "__main__":
    os.environ.setdefault("DLROVER_LOG_LEVEL", "ERROR")
    if sys.argv[1] == "train":
        train(*sys.argv[2:])
    else:
        launch(*sys.argv[1:])
