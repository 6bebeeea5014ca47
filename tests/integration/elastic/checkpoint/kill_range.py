"""Kills a small training process at every point of a save and of a restore, and looks what is left.

Run as a script, in a process that is used for nothing else: it forks the processes that are killed,
so that each costs milliseconds. Prints one line of JSON with what it saw; any broken promise is an
exception.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

from gangline.elastic.checkpoint import Checkpointer, failpoints
from gangline.elastic.checkpoint.snapshot import copy, directory
from gangline.elastic.checkpoint.storage.commit import committed_steps
from gangline.elastic.checkpoint.storage.target import open_target

STEPS = 3
SIZE = 3000
NEVER = 1_000_000
SAVER_POINTS = 16
"""Least number of failpoints that a saver passes with one save to write."""


def fresh() -> dict[str, object]:
    return {
        "weights": {f"w{n}": torch.zeros(SIZE) for n in range(4)},
        "step": 0,
        "history": [0],
    }


def fill(state: dict[str, object], step: int) -> None:
    weights = state["weights"]
    assert isinstance(weights, dict)
    for number, tensor in enumerate(weights.values()):
        tensor.fill_(step + number / 8)
    state["step"], state["history"] = step, [step] * (step % 7)


def is_of(state: dict[str, object], step: int) -> bool:
    """Return whether every value of the state belongs to ``step``."""
    expected = fresh()
    fill(expected, step)
    weights, others = expected["weights"], state["weights"]
    assert isinstance(weights, dict)
    assert isinstance(others, dict)
    same = all(torch.equal(weights[name], others[name]) for name in weights)
    return same and state["step"] == step and state["history"] == expected["history"]


def train(folder: str, say: int) -> None:
    """Load, check, train a few steps with a save after each; report every operation."""
    checkpointer = Checkpointer(folder, linger_s=120, keep=2)
    state = fresh()
    loaded = checkpointer.load(state)
    begin = loaded.step if loaded else 0
    if loaded is not None and not is_of(state, begin):
        os.write(say, b"torn\n")
    os.write(say, f"loaded {begin}\n".encode())
    for step in range(begin + 1, begin + 1 + STEPS):
        fill(state, step)
        if not checkpointer.save(step, state, "storage" if step % 2 else "memory"):
            os.write(say, f"skipped {step}\n".encode())
        os.write(say, f"returned {step}\n".encode())
    checkpointer.close(finished=False)


def one_life(folder: str, point: int) -> tuple[list[list[str]], bool]:
    """Run a training process that is killed at its ``point``-th failpoint; return its output if it
    died.
    """
    listen, say = os.pipe()
    child = os.fork()
    if child == 0:
        failpoints.arm_failpoint(f"*:{point}")
        os.close(listen)
        code = 1
        try:
            train(folder, say)
            code = 0
        finally:
            os._exit(code)
    os.close(say)
    with open(listen, "rb") as stream:
        said = [line.split() for line in stream.read().decode().splitlines()]
    _, status = os.waitpid(child, 0)
    died = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert died or status == 0, f"failed by itself at point {point}: {said}"
    return said, died


def kill_saver(job_folder: Path) -> None:
    """Kill the saver of this folder if one is running."""
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = process.read_bytes().split(b"\0")
        except OSError:
            continue
        if (
            str(job_folder).encode() in arguments
            and b"gangline.elastic.checkpoint.saver.process" in arguments
        ):
            os.kill(int(process.parent.name), signal.SIGKILL)


def savers_killed() -> list[str]:
    """Return the points at which savers died, in order, without those of training processes."""
    record = Path(os.environ[failpoints.RECORD])
    names = record.read_text().split() if record.exists() else []
    return [name for name in names if not name.startswith(("save-", "segment-", "restore-"))]


def one_saver_life(job_folder: Path, folder: str, number: int) -> list[list[str]]:
    """A training process whose saver is killed at a point of its own.

    Each second time the training process is killed as well, and it may be that the saver finds
    nothing to do. The other times it must have died at its point.
    """
    kill_saver(job_folder)
    os.environ["GANGLINE_SAVER_FAILPOINT"] = f"*:{1 + number // 2 * 5 % SAVER_POINTS}"
    before = len(savers_killed())
    said, died = one_life(folder, 1 + number if number % 2 else NEVER)
    deadline = time.monotonic() + 60
    while not died and len(savers_killed()) == before:
        if time.monotonic() > deadline:
            told = (job_folder / "saver.log").read_text()
            raise AssertionError(f"no saver died at its point: {number}\n{told}")
        time.sleep(0.01)
    return said


def main(folder: str, kills: int, with_saver: bool) -> None:
    base = directory.shared_memory_root(os.environ)
    job_folder = directory.job_directory(base, directory.job_name(os.environ, folder), folder)
    os.environ[failpoints.RECORD] = str(base / "killed")
    if with_saver:  # it has the most to do after saves of a device
        copy._checksums = lambda *_: None
    returned, done, point, lives, lost_nodes = 0, 0, 1, 0, 0
    while done < kills:
        if with_saver:
            before = len(savers_killed())
            said = one_saver_life(job_folder, folder, lives)
            done += len(savers_killed()) > before
        else:
            said, died = one_life(folder, point)
            done += died
            point = point + 1 if died else 1
        lives += 1
        returned = newest_returned(said, returned)
        if not with_saver and not died:
            lost_nodes += 1
            returned = lose_node(job_folder, folder, returned)
    kill_saver(job_folder)
    points = sorted(set(savers_killed()))
    seen = {"kills": done, "lost nodes": lost_nodes, "step": returned, "points": points}
    print(json.dumps(seen))


def newest_returned(said: list[list[str]], returned: int) -> int:
    """Return the newest step whose save returned."""
    assert ["torn"] not in said, said
    assert not [step for verb, step in said if verb == "skipped"], "three buffers skip no save"
    for verb, step in said:
        if verb == "loaded":
            assert int(step) >= returned, f"{step} was loaded, the save of {returned} returned"
        returned = int(step)
    return returned


def lose_node(job_folder: Path, folder: str, returned: int) -> int:
    """Remove saver and memory: the committed step must be loaded then."""
    kill_saver(job_folder)
    for segment in job_folder.glob("*.seg"):
        segment.unlink()
    steps = committed_steps(open_target(folder))
    assert steps, "nothing was committed in a whole life"
    assert steps[-1] <= returned
    return steps[-1]


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:] == ["saver"])
