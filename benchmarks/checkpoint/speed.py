"""Flash checkpoints, compared with a copy, a write, ``torch.save``, ``async_save`` and DLRover.

One process, 524 MB on the CPU in 50 tensors. Measured and bare operations alternate in one run, so
that a busy machine slows both. Figures are medians; each line names its reference. DLRover is
measured if ``GANGLINE_DLROVER_PYTHON`` names its interpreter. With the argument ``training`` only
the cost of a save in every step is measured.
"""

import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy
import torch
import torch.distributed.checkpoint as dcp

from benchmarks import results
from benchmarks.checkpoint.dlrover_peer import DLRover
from gangline.elastic.checkpoint import Checkpointer
from gangline.elastic.checkpoint.snapshot import directory

TENSORS = 50
ELEMENTS = 2_621_440
ROUNDS = 7
PERSISTS = 4
STEP_S = 0.3
TURNS = 5
EACH_STEPS = 30
RESTARTS = 3
RESTORE = "restore"
TRAINING = "training"
LINGER_S = 60
CHUNK = 1 << 24

Figures: TypeAlias = dict[str, results.Figure]
Peers: TypeAlias = dict[str, dict[str, float]]
"""What peers take, by figure and name of the peer."""


def a_state() -> dict[str, Any]:
    """A state of 524 MB."""
    return {"model": {f"l{n}.w": torch.randn(ELEMENTS) for n in range(TENSORS)}, "step": 0}


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def line(what: str, taken: float, against: str = "", bare: float = 0.0) -> None:
    ratio = f"{taken / bare:5.2f} x {against} ({bare:.3f} s)" if bare else against
    print(f"  {what:<52} {taken:7.3f} s   {ratio}", flush=True)


def seconds(
    what: str, taken: float, bare: dict[str, results.Value | None] | None = None
) -> results.Figure:
    return results.Figure(what, "s", taken, bare or {})


def copy_to(target: dict[str, torch.Tensor], source: dict[str, torch.Tensor]) -> None:
    for name, tensor in source.items():
        target[name].copy_(tensor)


def bare_write(folder: Path, model: dict[str, torch.Tensor]) -> None:
    """Write the same bytes with fsync."""
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
    """Drop a file, or all files of a directory, from the page cache."""
    for file in path.iterdir() if path.is_dir() else [path]:
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def memory_saves(checkpointer: Checkpointer, state: dict[str, Any]) -> Figures:
    """Measure saves to memory beside a copy to other tensors."""
    model = state["model"]
    other = {name: torch.zeros_like(tensor) for name, tensor in model.items()}
    checkpointer.prepare(state)
    checkpointer.buffers.wait_for_memory()
    first = timed(lambda: checkpointer.save(1, state))
    bare, ours = [], []
    for step in range(2, 2 + ROUNDS):
        bare.append(timed(lambda: copy_to(other, model)))
        ours.append(timed(lambda step=step: checkpointer.save(step, state)))  # type: ignore[misc]
        time.sleep(0.3)  # the saver processes it meanwhile, as it would during a step
    copy = statistics.median(bare)
    line("save to memory, first after prepare", first, "to reach: 0.15 s")
    steady = statistics.median(ours)
    line("save to memory, steady", steady, "a bare copy", copy)
    return {
        "save_first": seconds("training stops for the first save to memory", first),
        "save_steady": seconds(
            "training stops for a later save to memory", steady, {"bare copy": copy}
        ),
    }


def storage_saves(checkpointer: Checkpointer, state: dict[str, Any], folder: Path) -> Figures:
    """Measure saves to storage beside a write with fsync."""
    bare, committed, blocked, skipped = [], [], [], 0
    for step in range(100, 100 + PERSISTS):
        bare.append(timed(lambda: bare_write(folder, state["model"])))
        begin = time.perf_counter()
        checkpointer.save(step * 10, state, "storage")
        blocked.append(time.perf_counter() - begin)
        checkpointer.wait()
        committed.append(time.perf_counter() - begin)
    for step in range(200, 200 + PERSISTS):
        checkpointer.save(step * 10, state, "storage")
        skipped += not checkpointer.save(step * 10 + 1, state)
        checkpointer.wait()
    line("save to storage, blocking", statistics.median(blocked))
    write = statistics.median(bare)
    line("save to storage, until committed", statistics.median(committed), "a bare write", write)
    print(f"  memory saves skipped while one is written            {skipped:7d} of {PERSISTS}")
    return {
        "save_storage": seconds("training stops for a save to storage", statistics.median(blocked)),
        "committed": seconds(
            "a save to storage until it is committed (DLRover: without fsync)",
            statistics.median(committed),
            {"bare write": write},
        ),
        "saves_meanwhile": results.Figure(
            f"memory saves that succeed while one is written to storage, of {PERSISTS}",
            "saves",
            PERSISTS - skipped,
            higher_is_better=True,
        ),
    }


def restores(checkpointer: Checkpointer, state: dict[str, Any], folder: Path) -> Figures:
    """Measure restores beside a copy from other tensors and a read."""
    # Stored already, so that the saver writes nothing when it detects the end of a process.
    checkpointer.save(100_000, state, "storage")
    checkpointer.wait()
    target = checkpointer.latest()
    found = folder / "steps" / f"step-{target:012d}"
    model = state["model"]
    other = {name: tensor.clone() for name, tensor in model.items()}
    os.sync()  # pending writes would slow both
    warm, copies = [], []
    for _ in range(TURNS):
        checkpointer.buffers.wait_for_memory()  # page faults would slow the bare copy
        copies.append(timed(lambda: copy_to(model, other)))
        warm.append(timed(lambda: checkpointer.load(state)))
    copy = statistics.median(copies)
    checkpointer.close(finished=False)  # one process at a time saves as a rank
    again = statistics.median(restarted(folder) for _ in range(RESTARTS))
    line("restore from memory, a process started again", again, "a bare copy", copy)
    line("restore from memory, the same process", statistics.median(warm), "a bare copy", copy)
    cold, bare = [], []
    checkpointer = Checkpointer(folder / "steps", keep=1, linger_s=LINGER_S)
    try:
        for _ in range(TURNS):
            checkpointer.buffers.close()
            for segment in checkpointer.job_folder.glob("*.seg"):
                segment.unlink()
            forget(folder / "bare")
            bare.append(timed(lambda: bare_read(folder / "bare")))
            forget(found)
            cold.append(timed(lambda: checkpointer.load(state)))
    finally:
        checkpointer.close()
    read = statistics.median(bare)
    line("restore from a local disk, cold", statistics.median(cold), "a bare read", read)
    return {
        "restore_restarted": seconds(
            "restore from memory, a restarted process", again, {"bare copy": copy}
        ),
        "restore_mapped": seconds(
            "restore from memory, the same process", statistics.median(warm), {"bare copy": copy}
        ),
        "restore_disk": seconds(
            "restore from a local disk, cold", statistics.median(cold), {"bare read": read}
        ),
    }


def restarted(folder: Path) -> float:
    """Seconds of the first restore in a new process."""
    ended = subprocess.run(
        [sys.executable, "-m", __spec__.name, RESTORE, folder],
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    return float(ended.stdout)


def restore_once(folder: Path) -> None:
    """Run as that process."""
    state = a_state()
    checkpointer = Checkpointer(folder / "steps", keep=1, linger_s=LINGER_S)
    took = timed(lambda: checkpointer.load(state))
    print(took)
    checkpointer.close(finished=False)


def peers(state: dict[str, Any], folder: Path) -> Peers:
    """Measure PyTorch's own means."""
    saves = [timed(lambda: torch.save(state, folder / "plain.pt")) for _ in range(3)]
    line("torch.save, blocking (not forced to the disk)", statistics.median(saves))
    forget(folder / "plain.pt")
    cold = timed(lambda: torch.load(folder / "plain.pt", weights_only=True))
    line("torch.load, cold", cold)
    blocked = []
    for turn in range(3):
        begin = time.perf_counter()
        saving = dcp.async_save(state, checkpoint_id=folder / f"async-{turn}", no_dist=True)
        blocked.append(time.perf_counter() - begin)
        saving.result()
    line("PyTorch's async_save, blocking, first", blocked[0])
    later = statistics.median(blocked[1:])
    line("PyTorch's async_save, blocking, later", later)
    return {
        "save_first": {"async_save": blocked[0], "torch.save": statistics.median(saves)},
        "save_steady": {"async_save": later},
        "restore_disk": {"torch.load": cold},
    }


def processor_s(pids: Sequence[int]) -> float:
    """Return the processor time of these processes, with that of threads that have ended."""
    # Linux makes the number of a process's clock so, see clock_getcpuclockid(3).
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return middle, low, high


def training(checkpointer: Checkpointer, state: dict[str, Any]) -> Figures:
    """Total cost of a save in every step, for a training that uses all cores.

    A step is a fixed amount of work of about 0.3 s, so that the saver's use of processor time
    counts. Single steps alternate: plain, with a bare copy of the state by as many threads, which
    costs what the memory's bandwidth forces, and with a save. Only steps of one turn are compared,
    so that other work on the machine, which changes more slowly, is in all of them; its changes do
    not count in processor time, which is that of the training and of the saver.
    """
    model = state["model"]
    other = {name: torch.zeros_like(tensor) for name, tensor in model.items()}
    weights = torch.randn(1500, 1500)
    used = time.process_time()
    for _ in range(20):
        torch.mm(weights, weights)
    once = (time.process_time() - used) / 20 / torch.get_num_threads()
    products = max(1, round(STEP_S / once))
    numbers = itertools.count(90_000)
    savers = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if checkpointer.job_folder.name.encode() in path.read_bytes()
    ]
    pids = [os.getpid(), *savers]

    def save() -> None:
        if not checkpointer.save(next(numbers), state):
            raise RuntimeError("a save to memory was skipped")

    def step(stop: Callable[[], object]) -> tuple[float, float]:
        """Return the seconds and the processor seconds of a step."""
        used, begin = processor_s(pids), time.perf_counter()
        stop()
        for _ in range(products):
            torch.mm(weights, weights)
        return time.perf_counter() - begin, processor_s(pids) - used

    copiers = ThreadPoolExecutor(torch.get_num_threads())
    pairs = [(other[name].numpy(), tensor.numpy()) for name, tensor in model.items()]

    def copy() -> None:
        # Without PyTorch's threads, which use processor time while they wait for each other.
        for _ in copiers.map(lambda pair: numpy.copyto(*pair), pairs):
            pass

    stops = {"plain": lambda: None, "copy": copy, "save": save}
    copy()
    save()
    turns = []
    for turn in range(EACH_STEPS):
        kinds = [*stops]
        kinds = kinds[turn % 3 :] + kinds[: turn % 3]
        taken = {kind: step(stops[kind]) for kind in kinds[:: 1 if turn % 2 else -1]}
        turns.append(taken)
    copiers.shutdown()
    figures = {}
    for number, (name, clock) in enumerate((("", "longer"), ("_processor", "more processor time"))):
        plain = statistics.median(taken["plain"][number] for taken in turns)

        def beyond(one: str, base: str, number: int = number, plain: float = plain) -> list[float]:
            """Return by how many percent of a plain step one kind takes longer than another."""
            return [100 * (taken[one][number] - taken[base][number]) / plain for taken in turns]

        saved, _, _ = spread(beyond("save", "plain"))
        copied, _, _ = spread(beyond("copy", "plain"))
        excess, low, high = spread(beyond("save", "copy"))
        what = f"training with a save in each step of 0.3 s takes {clock} by"
        print(f"  {what} {saved:.1f} %, with a bare copy in its place by {copied:.1f} %")
        print(f"    beyond a bare copy {excess:+.1f} % (quartiles {low:+.1f} to {high:+.1f} %)")
        figures[f"slowdown_each_step{name}"] = results.Figure(
            what, "%", saved, {"bare copy": copied}
        )
        figures[f"beyond_copy{name}"] = results.Figure(
            f"{what}, beyond a bare copy: quartiles", "%", (low, high)
        )
    return figures


def dlrover(folder: Path) -> Peers:
    """Save and restore the same state with DLRover, if it is available."""
    peer = DLRover.found(folder)
    if peer is None:
        return {}
    peer.measure("save")
    for saved in peer.place.glob("*/*.pt"):
        forget(saved)
    peer.measure("restore")
    found = peer.close()
    middle = {name: statistics.median(values) for name, values in found.items()}
    line("DLRover, save to memory, first", middle["first"])
    line("DLRover, save to memory, steady", middle["steady"], "a bare copy", middle["copy"])
    line("DLRover, save to storage, blocking", middle["blocked"])
    line("DLRover, save to storage, until committed", middle["committed"])
    skipped = round(sum(found["skipped"]))
    print(f"  DLRover, memory saves skipped meanwhile              {skipped:7d} of {PERSISTS}")
    warm = middle["warm"]
    beside = middle["beside"]
    again = middle["restarted"]
    line("DLRover, restore from memory, a process started again", again, "a bare copy", beside)
    line("DLRover, restore from memory, the same process", warm, "a bare copy", beside)
    line("DLRover, restore from a local disk, cold", middle["cold"])
    measured = {
        "save_first": middle["first"],
        "save_steady": middle["steady"],
        "save_storage": middle["blocked"],
        "committed": middle["committed"],
        "saves_meanwhile": PERSISTS - skipped,
        "restore_restarted": again,
        "restore_mapped": warm,
        "restore_disk": middle["cold"],
    }
    return {name: {"DLRover": value} for name, value in measured.items()}


def main() -> None:
    warnings.simplefilter("ignore")
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-speed-", dir=os.environ.get("BENCH_DIR")))
    state = a_state()
    print(f"524 MB in {TENSORS} tensors, {torch.get_num_threads()} threads, {folder}")
    if sys.argv[1:] == [TRAINING]:
        with Checkpointer(folder / "steps", keep=1, linger_s=LINGER_S) as checkpointer:
            training(checkpointer, state)
        shutil.rmtree(folder)
        return
    compared = [peers(state, folder), dlrover(folder)]
    checkpointer = Checkpointer(folder / "steps", keep=1, linger_s=LINGER_S)
    try:
        figures = memory_saves(checkpointer, state) | storage_saves(checkpointer, state, folder)
        figures |= training(checkpointer, state)
        figures |= restores(checkpointer, state, folder)
    finally:
        checkpointer.close()
        shutil.rmtree(folder)
        directory.remove_abandoned(directory.SHARED_MEMORY, directory.wall_clock())
    for name, figure in figures.items():
        for peers_of in compared:
            figure.peers.update(peers_of.get(name, {}))
    conditions = (
        f"524 MB in {TENSORS} tensors on the CPU, local disk; medians of operations in turn; "
        "Gangline computes and verifies checksums, the peers do not"
    )
    results.write("checkpoint_speed", conditions, figures, results.training_versions())


if __name__ == "__main__":
    if sys.argv[1:2] == [RESTORE]:
        restore_once(Path(sys.argv[2]))
    else:
        main()
