"""A minimal training without any library: in each step all ranks sum a number through rank 0.

As collectives do, a step waits for ever for a rank that does not answer, and fails when its
connection breaks. Rank 0 notes each step in the file ``steps``, from which the next attempt goes
on as from a checkpoint, and in ``history``, one line for each: the step, the number of ranks, the
pod. Every worker notes its starts in ``starts``. Arguments: the folder of these files, whose file
``end`` ends the training.
"""

import os
import select
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAUSE_S = 0.05
MEETING_S = 60.0

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# The agent of rank 0 listens on MASTER_PORT itself, as torchrun's does.
PLACE = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1
POD = os.environ.get("POD_NAME", "")


def main(folder: Path) -> None:
    """Train until the file ``end`` exists."""
    with (folder / "starts").open("a") as starts:
        starts.write(f"{POD} {RANK}/{WORLD} {os.getpid()}\n")
    with meeting() as peers:
        step = taken(folder)
        while True:
            step, ended = added(peers, folder, step)
            Path(os.environ["GANGLINE_PROGRESS_FILE"]).write_text(f"step {step}\n")
            if ended:
                break
            pause()


def taken(folder: Path) -> int:
    """The last step that rank 0 has recorded."""
    steps = folder / "steps"
    return int(steps.read_text()) if steps.exists() else 0


@contextmanager
def meeting() -> Iterator[list[socket.socket]]:
    """Rank 0 connects to all others, another rank to rank 0."""
    peers = accepted() if RANK == 0 else [connected()]
    try:
        yield peers
    finally:
        for peer in peers:
            peer.close()


def accepted() -> list[socket.socket]:
    """Accept all other ranks."""
    with socket.create_server(("", PLACE[1])) as server:
        return [server.accept()[0] for _ in range(WORLD - 1)]


def connected() -> socket.socket:
    """Connect to rank 0, which may still be starting."""
    deadline = time.monotonic() + MEETING_S
    while True:
        try:
            found = socket.create_connection(PLACE, timeout=5)
        except OSError:
            if time.monotonic() > deadline:
                raise
            pause()
            continue
        found.settimeout(None)
        return found


def added(peers: list[socket.socket], folder: Path, step: int) -> tuple[int, bool]:
    """Do one step together; return it, and whether it was the last one."""
    if RANK != 0:
        say(peers[0], step)
        return hear(peers[0]), bool(hear(peers[0]))
    total = step + sum(hear(peer) for peer in peers)
    step, ended = total // WORLD + 1, (folder / "end").exists()
    note(folder, step)
    for peer in peers:
        say(peer, step)
        say(peer, int(ended))
    return step, ended


def note(folder: Path, step: int) -> None:
    """Record the state from which the next attempt continues, and the writer."""
    with (folder / "history").open("a") as history:
        history.write(f"{step} {WORLD} {POD}\n")
    new = folder / f"steps.{POD}"
    new.write_text(str(step))
    new.replace(folder / "steps")


def pause() -> None:
    """Sleep; ``time.sleep`` fails under the library that makes clocks jump."""
    select.select([], [], [], PAUSE_S)


def say(peer: socket.socket, number: int) -> None:
    """Send a number."""
    peer.sendall(number.to_bytes(8, "big"))


def hear(peer: socket.socket) -> int:
    """Receive a number."""
    found = b""
    while len(found) < 8:
        piece = peer.recv(8 - len(found))
        if not piece:
            raise ConnectionResetError("connection closed by another rank")
        found += piece
    return int.from_bytes(found, "big")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
