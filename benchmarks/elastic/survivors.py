"""A lost rank: from its SIGKILL to the next step of all, compared with torchrun and torchft.

Three ranks train a model of 4 MB over gloo; the last one is killed when training is steady, and for
Gangline when a successor is warm. Measured in turn, medians. ``gangline`` keeps the other ranks
running (``SurvivorGroup``), ``restart`` restarts them from the beginning as for any other script.
torchft has no successor in this time: its next step is that of the two other ranks. It is
measured if ``GANGLINE_TORCHFT_PYTHON`` names an interpreter that has it;
``GANGLINE_TORCH_2_14_PYTHON`` names one with PyTorch 2.14 and Gangline's requirements.

    python -m benchmarks.elastic.survivors [RUNS]
"""

import argparse
import contextlib
import json
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import results

RUNS, RANKS, STEADY_STEP = 7, 3, 20
PATIENCE_S = 120.0
SCRIPT = Path(__file__).with_name("survivor_worker.py")
WARM = "a successor is warm"
PYTHON_214 = os.environ.get("GANGLINE_TORCH_2_14_PYTHON", "")
TORCHFT = os.environ.get("GANGLINE_TORCHFT_PYTHON", "")
SOURCE = str(results.ROOT / "src")


class Job:
    """One training; its ranks write their steps to files."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, Path(tempfile.mkdtemp(dir=folder))
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        ranks = ["--standalone", "--nproc-per-node", str(RANKS), "--max-restarts", "1000"]
        if self.kind == "torchft":
            program = Path(TORCHFT).with_name("torchft_lighthouse")
            self._launch([str(program), "--bind", f"127.0.0.1:{port}", "--min_replicas", "2"])
            for number in range(RANKS):
                variables = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}
                self._launch(
                    [TORCHFT, str(SCRIPT), "torchft", str(self.folder)],
                    REPLICA_GROUP_ID=str(number), **variables,
                )  # fmt: skip
            return
        python = PYTHON_214 if self.kind == "gangline, PyTorch 2.14" else sys.executable
        launcher = (
            "torch.distributed.run" if self.kind == "torchrun" else "gangline.elastic.launcher"
        )
        mode = "survive" if self.kind.startswith("gangline") else "plain"
        self._launch([python, "-m", launcher, *ranks, str(SCRIPT), mode, str(self.folder)])

    def measure(self) -> float:
        """Kill a rank; return the seconds to the next step of all."""
        self.start()
        self._wait(lambda: len(self._ranks(STEADY_STEP, 0.0)) >= RANKS)
        if self.kind.startswith("gangline"):
            self._wait(lambda: WARM in (self.folder / "log").read_text())
        step, pid = max((line[0], line[2]) for line in self._lines() if line[1] == RANKS - 1)
        killed = time.time()
        os.kill(int(pid), signal.SIGKILL)
        left = RANKS - 1 if self.kind == "torchft" else RANKS
        first = 0 if self.kind in ("torchrun", "restart") else int(step)
        try:
            self._wait(lambda: len(self._ranks(first, killed)) >= left)
        except TimeoutError:
            return math.inf
        return max(self._ranks(first, killed).values()) - killed

    def end(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()

    def _launch(self, command: list[str], **variables: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "LOGLEVEL": "INFO", **variables}
        environment["PYTHONPATH"] = SOURCE
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self.processes.append(process)

    def _lines(self) -> list[tuple[float, ...]]:
        """Return step, rank, process and time of each step."""
        files = self.folder.glob("steps-*")
        lines = [line for file in files for line in file.read_text().splitlines()]
        return [tuple(json.loads(line)) for line in lines if line.endswith("]")]

    def _ranks(self, step: int, after: float) -> dict[float, float]:
        """Return the time of the first step after another one, and after a time, of each rank.

        A step that was finished before the kill may be reported after it.
        """
        ranks: dict[float, float] = {}
        for at, rank, _, when in sorted(self._lines()):
            if at > step and when > after:
                ranks.setdefault(rank, when)
        return ranks

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError((self.folder / "log").read_text()[-2000:])
            time.sleep(0.02)


@contextlib.contextmanager
def started(kind: str, folder: Path) -> Iterator[Job]:
    job = Job(kind, folder)
    try:
        yield job
    finally:
        job.end()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=int, nargs="?", default=RUNS)
    runs = parser.parse_args().runs
    kinds = ["gangline", "restart", "torchrun"]
    kinds += ["gangline, PyTorch 2.14"] if PYTHON_214 else []
    kinds += ["torchft"] if TORCHFT else []
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(runs):
            for kind in kinds:
                with started(kind, Path(folder)) as job:
                    seconds[kind].append(job.measure())
                print(f"{kind}: {seconds[kind][-1]:.3f} s", flush=True)
    medians = {kind: statistics.median(values) for kind, values in seconds.items()}
    ours = medians.pop("gangline")
    for kind, peer in medians.items():
        print(f"{kind}: {peer:.3f} s, gangline {ours:.3f} s, ratio {peer / ours:.1f}")
    what = "one of three ranks is killed: until all train again"
    peers = {kind: None if math.isinf(peer) else peer for kind, peer in medians.items()}
    conditions = (
        f"a model of 4 MB over gloo; medians of {runs} runs in turn; a successor is warm; torchft "
        "at its defaults, without a successor"
    )
    figures = {"rank_lost": results.Figure(what, "s", ours, peers)}
    results.write("elastic_survivors", conditions, figures, results.training_versions())


if __name__ == "__main__":
    main()
