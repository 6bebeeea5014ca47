"""Runs third-party training programs by torchrun and by Gangline, with the same flags.

The programs are in ``third_party``. They use PyTorch and libraries on it, and know nothing of
Gangline; ``records.py`` there writes what is compared and kills ranks at defined steps.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).with_name("third_party")
SOURCES = Path(__file__).parents[2] / "src"
TORCHRUN, GANGLINE = "torch.distributed.run", "gangline.elastic.launcher"
TIMEOUT_S = 240.0
WARM = re.compile(r"spare interpreters are warm")
_TIMES = re.compile(r"^\[\d{4}-|train_runtime")
"""Lines of output that contain times."""

Records = dict[int, dict[int, list[dict[str, Any]]]]


@dataclass(frozen=True)
class Results:
    """What a program has left behind."""

    codes: list[int]
    """Exit codes of the launchers of all nodes."""
    folder: Path

    @cached_property
    def records(self) -> Records:
        """Records by attempt and rank."""
        found: Records = {}
        for path in sorted((self.folder / "records").iterdir()):
            attempt, rank = (int(part.split("-")[1]) for part in path.name.split("."))
            lines = path.read_text().replace(str(self.folder), "FOLDER").splitlines()
            found.setdefault(attempt, {})[rank] = [json.loads(line) for line in lines]
        return found

    def started(self, attempt: int) -> dict[int, dict[str, Any]]:
        """What each rank saw before it trained."""
        found: dict[int, dict[str, Any]] = {}
        for rank, records in self.records[attempt].items():
            found[rank] = {}
            for record in records:
                if "step" in record or "weights" in record:
                    break
                found[rank] |= record
        return found

    def losses(self, attempt: int) -> dict[int, dict[int, str]]:
        """The losses of each rank by step, to the bit."""
        return {
            rank: {record["step"]: record["loss"] for record in records if "step" in record}
            for rank, records in self.records[attempt].items()
        }

    def end(self) -> dict[int, dict[str, Any]]:
        """Final weights of each rank, and the random numbers that it would draw next."""
        last = self.records[max(self.records)]
        return {rank: records[-1] for rank, records in last.items()}

    def stdout(self) -> list[str]:
        """The lines of all workers in a fixed order, without those that contain times."""
        lines = (self.folder / "stdout").read_text().splitlines()
        return sorted(line for line in lines if not _TIMES.search(line))

    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()


def run(
    python: Path,
    launcher: str,
    program: str,
    folder: Path,
    *,
    nodes: int = 1,
    kills: Sequence[tuple[int, int]] = (),
    waits: bool = False,
    flags: Sequence[str] = (),
    **variables: str,
) -> Results:
    """Run a program with two workers until it ends.

    Args:
        python: the interpreter.
        launcher: the module that starts the workers.
        program: the file in ``third_party``, without its ending.
        folder: an empty folder for this run; the program's own is ``out`` in it.
        nodes: one or two launchers; each has an equal part of the workers.
        kills: rank and step for each attempt that is killed.
        waits: the first kill waits until each launcher has reported warm interpreters.
        flags: of the launcher.
        variables: further environment variables.
    """
    (folder / "records").mkdir(parents=True)
    gate = folder / "gate"
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"} | {
        "PYTHONPATH": str(SOURCES),
        "PYTHONWARNINGS": "ignore",
        "RECORDS": str(folder / "records"),
        "KILLS": ",".join(f"{rank}:{step}" for rank, step in kills),
        "LOGLEVEL": "INFO",
        **variables,
    }
    if waits:
        environment["KILLS_WAIT_FOR"] = str(gate)
    command = [
        *(str(python), "-m", launcher, "--nproc-per-node", str(2 // nodes), "--nnodes", str(nodes)),
        *("--max-restarts", "3", *flags, str(PROGRAMS / f"{program}.py"), str(folder / "out")),
    ]
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(_process(command, environment, folder)) for _ in range(nodes)
        ]
        deadline = time.monotonic() + TIMEOUT_S
        while any(one.poll() is None for one in started) and time.monotonic() < deadline:
            if waits and not gate.exists():
                written = (folder / "stderr").read_text()
                if len(WARM.findall(written)) >= nodes:
                    gate.touch()
            time.sleep(0.05)
        codes = [-1 if one.poll() is None else one.returncode for one in started]
    return Results(codes, folder)


@contextlib.contextmanager
def _process(
    command: Sequence[str], environment: dict[str, str], folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "stdout").open("ab") as out, (folder / "stderr").open("ab") as errors:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
