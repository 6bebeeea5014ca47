"""A lost rank: from its SIGKILL to the next step of all, compared with torchrun and torchft.

Three ranks train a model of 4 MB over gloo; the last one is killed when training is steady, and for
Gangline when a successor is warm. ``gangline`` keeps the other ranks running (``SurvivorGroup``),
``restart`` restarts them from the beginning as for any other script. torchft has no successor in
this time: its next step is that of the two other ranks. It is measured if
``GANGLINE_TORCHFT_PYTHON`` names an interpreter that has it; ``GANGLINE_TORCH_2_14_PYTHON`` names
one with PyTorch 2.14 and Gangline's requirements.

All trainings start once. Then they are measured in turn, while the others are paused between two
steps; one that has taken more than a minute in all is not measured again. For Gangline the medians
of each phase are printed, too.

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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import results

RUNS, RANKS, STEADY_STEPS = 7, 3, 10
PATIENCE_S = 120.0
RECOVERY_S = 60.0
"""Time after which a training that was not continued has failed."""
PEER_S = 60.0
"""Time that the turns of a peer may take in all; the last one may end later."""
SCRIPT = Path(__file__).with_name("survivor_worker.py")
WARM = "a successor is warm"
PYTHON_214 = os.environ.get("GANGLINE_TORCH_2_14_PYTHON", "")
TORCHFT = os.environ.get("GANGLINE_TORCHFT_PYTHON", "")
SOURCE = str(results.ROOT / "src")
PHASES = {
    "detect": "Heard",
    "interrupt": "form",
    "form": "Connected",
    "restore": "Formed",
}
"""The moment that ends each phase, of the last member; the first step is the rest."""


@dataclass(frozen=True)
class Step:
    """A step that one rank has finished, or a moment of its recovery."""

    name: str
    number: int
    rank: int
    pid: int
    time: float


@dataclass
class Job:
    """One training; its ranks write their steps to files."""

    kind: str
    folder: Path
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _steps: list[Step] = field(default_factory=list)
    _read: dict[Path, int] = field(default_factory=dict)
    _kills: int = 0
    _lighthouse: str = ""

    @property
    def is_gangline(self) -> bool:
        return self.kind.startswith("gangline")

    def start(self) -> None:
        if self.kind == "torchft":
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            program = Path(TORCHFT).with_name("torchft_lighthouse")
            self._launch([str(program), "--bind", f"127.0.0.1:{port}", "--min_replicas", "2"])
            self._lighthouse = f"http://127.0.0.1:{port}"
            for number in range(RANKS):
                self._launch_replica(number)
        else:
            python = PYTHON_214 if self.kind == "gangline, PyTorch 2.14" else sys.executable
            launcher = (
                "torch.distributed.run" if self.kind == "torchrun" else "gangline.elastic.launcher"
            )
            ranks = ["--standalone", "--nproc-per-node", str(RANKS), "--max-restarts", "1000"]
            mode = "survive" if self.is_gangline else "plain"
            self._launch([python, "-m", launcher, *ranks, str(SCRIPT), mode, str(self.folder)])

    def prepare(self) -> None:
        """Wait until it can be measured."""
        self._wait_until_steady()
        self._pause()

    def measure(self) -> tuple[float, dict[str, float]]:
        """Kill a rank; return the seconds to the next step of all, and those of each phase."""
        (self.folder / "pause").unlink()
        self._wait_until_steady()
        last = [step for step in self._finished() if step.rank == RANKS - 1][-1]
        before = {step.pid for step in self._steps}
        killed = time.time()
        os.kill(last.pid, signal.SIGKILL)
        self._kills += 1
        left = RANKS - 1 if self.kind == "torchft" else RANKS

        def next_steps() -> dict[int, float]:
            """Return the time of the first step that each rank has begun after the kill."""
            times: dict[int, float] = {}
            for step in self._finished(killed):
                is_new = step.pid not in before
                if is_new if self.kind in ("restart", "torchrun") else step.number > last.number:
                    times.setdefault(step.rank, step.time)
            return times

        try:
            self._wait(lambda: len(next_steps()) >= left, RECOVERY_S)
        except TimeoutError:
            return math.inf, {}
        seconds = max(next_steps().values()) - killed
        if self.kind == "torchft":
            self._launch_replica(RANKS - 1)
        phases = self._phases(killed, seconds) if self.is_gangline else {}
        self.prepare()
        return seconds, phases

    def end(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()

    def _phases(self, killed: float, seconds: float) -> dict[str, float]:
        phases, begin = {}, killed
        for phase, name in PHASES.items():
            first: dict[int, float] = {}
            for step in self._steps:
                if step.name == name and step.time > killed:
                    first.setdefault(step.pid, step.time)
            end = max(first.values())
            phases[phase], begin = end - begin, end
        return phases | {"step": killed + seconds - begin}

    def _wait_until_steady(self) -> None:
        """Wait until all ranks have done some further steps, and a successor is warm."""
        begin = time.time()

        def is_steady() -> bool:
            steps = [step.rank for step in self._finished(begin)]
            return all(steps.count(rank) >= STEADY_STEPS for rank in range(RANKS))

        self._wait(is_steady)
        if self.is_gangline:
            log = self.folder / "log"
            self._wait(lambda: log.read_text().count(WARM) > self._kills)

    def _pause(self) -> None:
        """Let all ranks stop after the same step, which none has begun."""
        (self.folder / "new").write_text(str(self._finished()[-1].number + STEADY_STEPS))
        (self.folder / "new").rename(self.folder / "pause")

    def _launch_replica(self, number: int) -> None:
        self._launch(
            [TORCHFT, str(SCRIPT), "torchft", str(self.folder)],
            TORCHFT_LIGHTHOUSE=self._lighthouse, REPLICA_GROUP_ID=str(number),
        )  # fmt: skip

    def _launch(self, command: list[str], **variables: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "LOGLEVEL": "INFO", **variables}
        environment["PYTHONPATH"] = SOURCE
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self._processes.append(process)

    def _finished(self, after: float = 0.0) -> list[Step]:
        """Return the finished steps since a time in their order."""
        for file in self.folder.glob("steps-*"):
            with file.open() as lines:
                lines.seek(self._read.get(file, 0))
                complete = lines.read().rpartition("\n")[0]
            if complete:
                self._read[file] = self._read.get(file, 0) + len(complete) + 1
                self._steps += [Step(*json.loads(line)) for line in complete.splitlines()]
        self._steps.sort(key=lambda step: step.time)
        return [step for step in self._steps if step.name == "step" and step.time > after]

    def _wait(self, condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError((self.folder / "log").read_text()[-2000:])
            time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=int, nargs="?", default=RUNS)
    runs = parser.parse_args().runs
    kinds = ["gangline", "restart", "torchrun"]
    kinds += ["gangline, PyTorch 2.14"] if PYTHON_214 else []
    kinds += ["torchft"] if TORCHFT else []
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    phases: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as jobs:
        trainings = [Job(kind, Path(tempfile.mkdtemp(dir=folder))) for kind in kinds]
        for training in trainings:
            jobs.callback(training.end)
            training.start()
        for training in trainings:
            training.prepare()
        left_s = {job.kind: math.inf if job.is_gangline else PEER_S for job in trainings}
        for _ in range(runs):
            for training in trainings:
                if left_s[training.kind] <= 0:
                    continue
                begin = time.monotonic()
                taken, parts = training.measure()
                left_s[training.kind] -= math.inf if math.isinf(taken) else time.monotonic() - begin
                seconds[training.kind].append(taken)
                phases[training.kind].append(parts)
                print(f"{training.kind}: {taken:.3f} s", flush=True)
    for kind, parts_of_runs in phases.items():
        medians_of = {
            phase: statistics.median(parts[phase] for parts in parts_of_runs)
            for phase in parts_of_runs[0]
        }
        if medians_of:
            text = ", ".join(f"{phase} {1000 * s:.0f}" for phase, s in medians_of.items())
            print(f"{kind}: milliseconds to {text}")
    medians = {kind: statistics.median(values) for kind, values in seconds.items()}
    ours = medians.pop("gangline")
    for kind, peer in medians.items():
        print(f"{kind}: {peer:.3f} s, gangline {ours:.3f} s, ratio {peer / ours:.1f}")
    what = "one of three ranks is killed: until all train again"
    peers = {kind: None if math.isinf(peer) else peer for kind, peer in medians.items()}
    conditions = (
        f"a model of 4 MB over gloo; medians of at most {runs} runs in turn; a successor is warm; "
        "torchft at its defaults, without a successor"
    )
    figures = {"rank_lost": results.Figure(what, "s", ours, peers)}
    results.write("elastic_survivors", conditions, figures, results.training_versions())


if __name__ == "__main__":
    main()
