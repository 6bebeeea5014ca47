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
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).with_name("third_party")
SOURCES = Path(__file__).parents[2] / "src"
TIMEOUT_S = 240.0
WARM = "spare interpreters are warm"
WARM_WITHIN_S = 45.0
"""After this time a kill waits no longer: the next start is a cold one, and equal as well."""
_TIMES = re.compile(r"^\[\d{4}-|train_runtime")
"""Lines of output that contain times."""
_POLLED_EVERY_S = 0.05


@dataclass(frozen=True)
class Results:
    """What a program has left behind."""

    codes: list[int]
    """Exit codes of the launchers."""
    folder: Path

    @cached_property
    def records(self) -> dict[int, dict[int, list[dict[str, Any]]]]:
        """Records by life, up to each kill, and rank."""
        found: dict[int, dict[int, list[dict[str, Any]]]] = {}
        for path in sorted((self.folder / "records").glob("life-*")):
            life, rank = (int(part.split("-")[1]) for part in path.name.split("."))
            lines = path.read_text().replace(str(self.folder), "FOLDER").splitlines()
            found.setdefault(life, {})[rank] = [json.loads(line) for line in lines]
        return found

    def start(self, life: int) -> dict[int, dict[str, Any]]:
        """What each rank saw before it trained."""
        return {rank: records[0] for rank, records in self.records[life].items()}

    def losses(self, life: int) -> dict[int, dict[int, str]]:
        """The losses of each rank by step, to the bit."""
        return {
            rank: {record["step"]: record["loss"] for record in records if "step" in record}
            for rank, records in self.records[life].items()
        }

    def end(self) -> dict[int, dict[str, Any]]:
        """Final weights of each rank, and the random number that it would draw next."""
        last = self.records[max(self.records)]
        return {rank: records[-1] for rank, records in last.items()}

    def weights(self) -> list[dict[str, str]]:
        """Digests of the final weights of each rank."""
        return [ended["weights"] for _, ended in sorted(self.end().items())]

    def stdout(self) -> list[str]:
        """The lines of all workers in a fixed order, without those that contain times."""
        lines = (self.folder / "stdout").read_text().splitlines()
        return sorted(line for line in lines if not _TIMES.search(line))

    def stderr(self) -> str:
        """The end of what launchers and workers have logged."""
        return (self.folder / "stderr").read_text()[-4000:]


class ThirdParty:
    """Runs programs with two workers in one environment."""

    def __init__(self, python: Path, folder: Path, **variables: str) -> None:
        """Take the interpreter, a folder for all runs, and variables of all workers."""
        self.python, self.folder = python, folder
        self._variables = {"PYTHONPATH": str(SOURCES), "PYTHONWARNINGS": "ignore", **variables}

    def torchrun(self, name: str, program: str, kills: Sequence[tuple[int, int]] = ()) -> Results:
        """Run by torchrun, which is started again after each kill.

        Its own restarts are not used: over gloo a new attempt may find addresses of the previous
        one in the store, fail, and exhaust the restarts.
        """
        folder, environment = self._prepare(name, kills)
        command = [str(self.python), "-m", "torch.distributed.run", "--nproc-per-node=2"]
        command += ["--max-restarts=0", *_script(program, folder)]
        codes = []
        for _ in range(len(kills) + 1):
            with _process(command, environment, folder) as process:
                codes.append(process.wait(TIMEOUT_S))
        return Results(codes, folder)

    def gangline(
        self, name: str, program: str, kills: Sequence[tuple[int, int]] = (), nodes: int = 1
    ) -> Results:
        """Run by Gangline on one or two nodes, which have equal parts of the workers.

        The first kill waits until all nodes have reported warm interpreters, for a limited time.
        """
        folder, environment = self._prepare(name, kills)
        environment |= {"KILLS_WAIT_FOR": str(gate := folder / "gate"), "LOGLEVEL": "INFO"}
        command = [str(self.python), "-m", "gangline.elastic.launcher", "--max-restarts=3"]
        command += [f"--nproc-per-node={2 // nodes}", f"--nnodes={nodes}"]
        with contextlib.ExitStack() as stack:
            if nodes > 1:
                address = stack.enter_context(_master(folder))
                command += ["--rdzv-backend=c10d", f"--rdzv-endpoint={address}", "--rdzv-id=job"]
                command += ["--rdzv-conf=is_host=0"]
            command += _script(program, folder)
            launchers = [
                stack.enter_context(_process(command, environment, folder)) for _ in range(nodes)
            ]
            began = time.monotonic()
            while any(each.poll() is None for each in launchers):
                is_warm = (folder / "stderr").read_text().count(WARM) >= nodes
                if is_warm or time.monotonic() - began > WARM_WITHIN_S:
                    gate.touch()
                if time.monotonic() - began > TIMEOUT_S:
                    break
                time.sleep(_POLLED_EVERY_S)
            codes = [-1 if each.returncode is None else each.returncode for each in launchers]
        return Results(codes, folder)

    def _prepare(self, name: str, kills: Sequence[tuple[int, int]]) -> tuple[Path, dict[str, str]]:
        folder = self.folder / name
        (folder / "records").mkdir(parents=True)
        inherited = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        return folder, {
            **inherited,
            **self._variables,
            "RECORDS": str(folder / "records"),
            "KILLS": ",".join(f"{rank}:{step}" for rank, step in kills),
        }


def _script(program: str, folder: Path) -> list[str]:
    return [str(PROGRAMS / f"{program}.py"), str(folder / "out")]


@contextlib.contextmanager
def _process(
    command: Sequence[str], environment: dict[str, str], folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process; end it and what it has started."""
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


@contextlib.contextmanager
def _master(folder: Path) -> Iterator[str]:
    """Run the job's master in Gangline's own environment, as an operator does; yields host:port."""
    port_file = folder / "port"
    command = [sys.executable, "-m", "gangline.elastic.master", "--job-name=job", "--port=0"]
    command += ["--host=127.0.0.1", f"--port-file={port_file}", f"--journal={folder / 'journal'}"]
    with _process(command, dict(os.environ), folder) as process:
        while not port_file.exists() or not port_file.read_text():
            assert process.poll() is None, (folder / "stderr").read_text()
            time.sleep(_POLLED_EVERY_S)
        yield f"127.0.0.1:{port_file.read_text().strip()}"
