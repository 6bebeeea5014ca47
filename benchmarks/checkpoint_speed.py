"""Flash checkpoints beside a bare copy, a bare write, ``torch.save`` and PyTorch's ``async_save``.

One process, 524 MB on the CPU in 50 tensors, all in one run, the measured and the bare turn by turn
so that a busy machine slows both. Figures are medians; each line says what to hold it against.
"""

import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from gangline.elastic.checkpoint import Checkpointer
from gangline.elastic.checkpoint import home as homes

TENSORS = 50
ELEMENTS = 2_621_440
ROUNDS = 7
PERSISTS = 4
STEP_S = 0.3
CHUNK = 1 << 24


def a_state() -> dict[str, Any]:
    """524 MB of numbers."""
    return {"model": {f"l{n}.w": torch.randn(ELEMENTS) for n in range(TENSORS)}, "step": 0}


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def line(what: str, seconds: float, against: str = "", bare: float = 0.0) -> None:
    ratio = f"{seconds / bare:5.2f} x {against} ({bare:.3f} s)" if bare else against
    print(f"  {what:<52} {seconds:7.3f} s   {ratio}", flush=True)


def copy_to(target: dict[str, torch.Tensor], source: dict[str, torch.Tensor]) -> None:
    for name, tensor in source.items():
        target[name].copy_(tensor)


def bare_write(folder: Path, model: dict[str, torch.Tensor]) -> None:
    """The same bytes, written and forced to the disk."""
    with open(folder / "bare", "wb", buffering=0) as stream:
        for tensor in model.values():
            view = memoryview(tensor.numpy()).cast("B")
            for at in range(0, len(view), CHUNK):
                stream.write(view[at : at + CHUNK])
        os.fsync(stream.fileno())


def bare_read(path: Path) -> None:
    buffer = bytearray(ELEMENTS * 4)
    with open(path, "rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass


def forget(path: Path) -> None:
    """Have the kernel drop its copy of a file, or of all files in a folder."""
    for file in path.iterdir() if path.is_dir() else [path]:
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def memory_saves(checkpointer: Checkpointer, state: dict[str, Any]) -> None:
    model = state["model"]
    other = {name: torch.zeros_like(tensor) for name, tensor in model.items()}
    checkpointer.prepare(state)
    checkpointer.buffers.settle()
    first = timed(lambda: checkpointer.save(1, state))
    bare, ours = [], []
    for step in range(2, 2 + ROUNDS):
        bare.append(timed(lambda: copy_to(other, model)))
        ours.append(timed(lambda step=step: checkpointer.save(step, state)))  # type: ignore[misc]
        time.sleep(0.3)  # the saver takes its checksums meanwhile, as it would beside a step
    copy = statistics.median(bare)
    line("save to memory, first after prepare", first, "to reach: 0.15 s")
    line("save to memory, steady", statistics.median(ours), "a bare copy", copy)


def storage_saves(checkpointer: Checkpointer, state: dict[str, Any], folder: Path) -> None:
    bare, whole, blocked, skipped = [], [], [], 0
    for step in range(100, 100 + PERSISTS):
        bare.append(timed(lambda: bare_write(folder, state["model"])))
        begin = time.perf_counter()
        checkpointer.save(step * 10, state, "storage")
        blocked.append(time.perf_counter() - begin)
        checkpointer.wait()
        whole.append(time.perf_counter() - begin)
    for step in range(200, 200 + PERSISTS):
        checkpointer.save(step * 10, state, "storage")
        skipped += not checkpointer.save(step * 10 + 1, state)
        checkpointer.wait()
    line("save to storage, blocking", statistics.median(blocked))
    write = statistics.median(bare)
    line("save to storage, until committed", statistics.median(whole), "a bare write", write)
    print(f"  memory saves skipped while one is written            {skipped:7d} of {PERSISTS}")


def restores(checkpointer: Checkpointer, state: dict[str, Any], folder: Path) -> None:
    target = checkpointer.latest()
    found = folder / "steps" / f"step-{target:012d}"
    warm = []
    for _ in range(3):
        warm.append(timed(lambda: checkpointer.load(state)))
    line("restore from memory into the model", statistics.median(warm))
    checkpointer.buffers.close()
    for segment in checkpointer.home.glob("*.seg"):
        segment.unlink()
    cold, bare = [], []
    for _ in range(3):
        forget(folder / "bare")
        bare.append(timed(lambda: bare_read(folder / "bare")))
        forget(found)
        cold.append(timed(lambda: checkpointer.load(state)))
        checkpointer.buffers.close()
        for segment in checkpointer.home.glob("*.seg"):
            segment.unlink()
    read = statistics.median(bare)
    line("restore from a local disk, cold", statistics.median(cold), "a bare read", read)


def peers(state: dict[str, Any], folder: Path) -> None:
    saves = [timed(lambda: torch.save(state, folder / "plain.pt")) for _ in range(3)]
    line("torch.save, blocking (not forced to the disk)", statistics.median(saves))
    forget(folder / "plain.pt")
    line("torch.load, cold", timed(lambda: torch.load(folder / "plain.pt", weights_only=True)))
    blocked = []
    for turn in range(3):
        begin = time.perf_counter()
        saving = dcp.async_save(state, checkpoint_id=folder / f"async-{turn}", no_dist=True)
        blocked.append(time.perf_counter() - begin)
        saving.result()
    line("PyTorch's async_save, blocking, first", blocked[0])
    line("PyTorch's async_save, blocking, later", statistics.median(blocked[1:]))


def training(checkpointer: Checkpointer, state: dict[str, Any]) -> None:
    """What saving each tenth step of 0.3 s costs a training that uses all cores."""
    weights = torch.randn(1500, 1500)

    def step() -> None:
        end = time.perf_counter() + STEP_S
        while time.perf_counter() < end:
            torch.mm(weights, weights)

    blocked = []
    for number in range(1, 31):
        step()
        if number % 10 == 0:
            blocked.append(timed(lambda n=number: checkpointer.save(90_000 + n, state)))  # type: ignore[misc]
    share = sum(blocked) / (30 * STEP_S)
    print(f"  training slowed by a save each 10 steps of 0.3 s      {share:7.1%}     to reach: 2 %")


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-speed-", dir=os.environ.get("BENCH_DIR")))
    state = a_state()
    print(f"524 MB in {TENSORS} tensors, {torch.get_num_threads()} threads, {folder}")
    peers(state, folder)
    checkpointer = Checkpointer(folder / "steps", keep=1, linger_s=5)
    try:
        memory_saves(checkpointer, state)
        storage_saves(checkpointer, state, folder)
        training(checkpointer, state)
        restores(checkpointer, state, folder)
    finally:
        checkpointer.close()
        shutil.rmtree(folder)
        homes.reclaim(homes.SHARED_MEMORY, homes.wall_clock())


if __name__ == "__main__":
    main()
