"""Restore of a lost node's part of a checkpoint from its peer's memory, compared with a transfer.

There are two ranks. One has a state of 524 MB and is lost. Each has a directory of shared memory
that stands for its node. The link is loopback TCP. The bare transfer sends as many bytes from one
file in shared memory to a new one, in the fastest way that a single thread has. DLRover is not
measured: its replicas restored zeros.
"""

import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing import Process
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import results
from benchmarks.checkpoint.savers import savers_of
from gangline.elastic.checkpoint import Checkpointer
from gangline.elastic.checkpoint.snapshot import inventory

TENSORS = 50
ELEMENTS = 2_621_440
SAVES = 3
TURNS = 5
LOST = 1
PATIENCE_S = 120.0


def a_part(rank: int) -> dict[str, Any]:
    """Only the lost rank's state is large: a real peer node would have its own processors."""
    generator = torch.Generator().manual_seed(rank)
    elements = ELEMENTS if rank == LOST else 1000
    return {
        f"rank{rank}.l{n}.w": torch.randn(elements, generator=generator) for n in range(TENSORS)
    }


def node(memory: Path, rank: int) -> Path:
    return memory / f"node-{rank}"


def saving(checkpointer: Checkpointer, rank: int, memory: Path) -> dict[str, Any]:
    """Save, and measure the time until the peer has the copy."""
    state, copied = a_part(rank), []
    checkpointer.load(state)
    checkpointer.buffers.wait_for_memory()
    for step in range(1, SAVES + 1):
        dist.barrier()
        begin = time.perf_counter()
        checkpointer.save(step, state)
        while not has_copy(memory, rank, step):
            if time.perf_counter() - begin > PATIENCE_S:
                raise TimeoutError(f"the peer has no copy of step {step}")
            time.sleep(0.01)
        copied.append(time.perf_counter() - begin)
    return {"copied": copied}


def has_copy(memory: Path, rank: int, step: int) -> bool:
    return any(
        not held.is_local and (held.rank, held.step) == (rank, step)
        for home in node(memory, 1 - rank).glob("gangline-*")
        for held in inventory.list_snapshots(home)
    )


def restoring(checkpointer: Checkpointer, rank: int, memory: Path) -> dict[str, Any]:
    """Restore in a process whose pages are faulted in."""
    del memory
    right = a_part(rank)
    state = {name: torch.ones_like(tensor) for name, tensor in right.items()}
    dist.barrier()
    begin = time.perf_counter()
    loaded = checkpointer.load(state)
    seconds = time.perf_counter() - begin
    assert loaded is not None
    assert loaded.step == SAVES
    assert all(torch.equal(right[name], state[name]) for name in right), "what was loaded differs"
    return {"seconds": seconds, "source": loaded.source}


ACTS = {"save": saving, "restore": restoring}


def act(what: str, rank: int, memory: Path, folder: Path) -> None:
    """Run as one of the ranks and print its measurements."""
    store = dist.FileStore(str(memory / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    checkpointer = Checkpointer(folder, linger_s=60)
    seen = ACTS[what](checkpointer, rank, memory)
    checkpointer.close(finished=False)
    print(json.dumps(seen), flush=True)


def both(what: str, memory: Path, folder: Path) -> list[dict[str, Any]]:
    """Run both ranks."""
    (memory / "store").unlink(missing_ok=True)
    ranks = []
    for rank in range(2):
        node(memory, rank).mkdir(exist_ok=True)
        ranks.append(
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.checkpoint.node",
                    what,
                    str(rank),
                    memory,
                    folder,
                ],
                env=os.environ | {"GANGLINE_CHECKPOINT_MEMORY": str(node(memory, rank))},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [rank.communicate(timeout=PATIENCE_S)[0] for rank in ranks]
    assert not any(rank.returncode for rank in ranks), "a rank failed"
    return [json.loads(output) for output in outputs]


def lose(gone: Path) -> None:
    """Lose a node: kill its savers and delete its memory."""
    for process in savers_of(gone):
        os.kill(process, signal.SIGKILL)
    shutil.rmtree(gone)


def give(listener: socket.socket, origin: Path) -> None:
    connection, _ = listener.accept()
    with connection, origin.open("rb", buffering=0) as stream:
        connection.sendfile(stream)


def bare_transfer(memory: Path, keep: bool = True) -> float:
    """Seconds for as many bytes from a file in shared memory; to a new file if ``keep``."""
    origin, place, size = memory / "origin", memory / "place", TENSORS * ELEMENTS * 4
    if not origin.exists():
        origin.write_bytes(torch.randn(TENSORS * ELEMENTS).numpy().tobytes())
    block = memoryview(bytearray(1 << 19))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = Process(target=give, args=(listener, origin))
        sender.start()
        begin = time.perf_counter()
        with (
            socket.create_connection(listener.getsockname()) as connection,
            place.open("wb", buffering=0) as file,
        ):
            left = size
            while left:
                got = connection.recv_into(block)
                assert got, "the sender closed the connection"
                left -= got
                if keep:
                    file.write(block[:got])
        seconds = time.perf_counter() - begin
        sender.join()
    place.unlink()
    return seconds


def line(what: str, seconds: float, limit: float) -> None:
    print(f"  {what:<52} {seconds:7.3f} s   {seconds / limit:5.2f} x a bare transfer", flush=True)


def main() -> None:
    memory = Path(tempfile.mkdtemp(prefix="checkpoint-node-", dir="/dev/shm"))
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-node-"))
    try:
        copied = both("save", memory, folder)
        found, bare, link = list[float](), list[float](), list[float]()
        for _ in range(TURNS):
            lose(node(memory, LOST))
            bare.append(bare_transfer(memory))
            link.append(bare_transfer(memory, keep=False))
            restored = both("restore", memory, folder)
            assert [one["source"] for one in restored] == ["memory", "peer"], restored
            found.append(restored[LOST]["seconds"])
        limit = statistics.median(bare)
        print("524 MB over loopback")
        line("a bare transfer that discards the data", statistics.median(link), limit)
        line("a bare transfer to a new file in shared memory", limit, limit)
        line("save until the peer has it", statistics.median(copied[LOST]["copied"]), limit)
        line("node lost, restore from the peer's memory", statistics.median(found), limit)
        peers: dict[str, results.Value | None] = {"bare transfer": limit}
        figures = {
            "copied": results.Figure(
                "a save until the next node has it",
                "s",
                statistics.median(copied[LOST]["copied"]),
                peers,
            ),
            "restored": results.Figure(
                "a node lost: restore from the memory of the next one",
                "s",
                statistics.median(found),
                peers,
            ),
        }
        conditions = "524 MB over loopback, sender and receiver on the same processors; medians"
        results.write("checkpoint_node", conditions, figures, results.training_versions())
    finally:
        for rank in range(2):
            lose(node(memory, rank))
        shutil.rmtree(memory)
        shutil.rmtree(folder)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        act(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
    else:
        main()
