"""Start and recovery of ``gangline run``, compared with torchrun and dlrover-run, over gloo.

Measured in turn, medians: from the launcher's start to the first step of all ranks; from SIGKILL of
a worker to the first step of all ranks, on one node of two workers and on two nodes of one; a node
lost and added again with ``--nnodes 1:2`` (torchrun's figures for these two are in docs/elastic.md:
it takes a minute or fails). A worker is killed when training is steady; in further runs as soon as
all ranks have done their first step, and ten times in a row, each time one second after the
first step that followed the last kill. Then one job is killed many times. DLRover is measured if
``GANGLINE_DLROVER_PYTHON`` names its interpreter; its master is started beforehand and does not
count.

    python -m benchmarks.elastic.recovery [RUNS] [KILLS]

With ``--busy`` one other case is measured: a worker is killed four seconds after the first step,
while so many endless loops for each processor run beside the job. The first start of Gangline is
one without modules of an earlier start.

    python -m benchmarks.elastic.recovery [RUNS] --busy LOOPS
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks import results

RUNS, KILLS = 7, 30
ROW, ROW_PAUSE_S = 10, 1.0
BUSY_PAUSE_S = 4.0
PATIENCE_S = 120.0
DLROVER = os.environ.get("GANGLINE_DLROVER_PYTHON", "")
LAUNCHERS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    **({"dlrover-run": [str(Path(DLROVER).with_name("dlrover-run"))]} if DLROVER else {}),
    "gangline": [sys.executable, "-m", "gangline.elastic.launcher"],
}
WARM = "spare interpreters are warm"
STEP_S = 0.1
"""Time between steps, as in the worker's script."""
WORKER = Path(__file__).with_name("worker.py")


class Job:
    """Launchers that train together; their workers write events to files."""

    def __init__(self, kind: str, folder: str) -> None:
        self.kind = kind
        self.notes = Path(tempfile.mkdtemp(dir=folder)) / "notes"
        self.launchers: list[subprocess.Popen[bytes]] = []
        self.master: subprocess.Popen[bytes] | None = None
        self.nodes = 0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def start(self, *flags: str, variables: Mapping[str, str] | None = None) -> float:
        """Start a launcher with further environment variables; return the time."""
        command = [*LAUNCHERS[self.kind], "--max-restarts", "1000"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "LOGLEVEL": "INFO"}
        environment |= self._beside_master() if self.master else {}
        environment |= variables or {}
        return self._launch([*command, "--monitor-interval", "0.1", *flags], environment)

    def start_bare(self) -> float:
        """Start a world of one process without a launcher; return the time."""
        world = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        return self._launch([sys.executable], {**os.environ, **world, "OMP_NUM_THREADS": "1"})

    def _launch(self, command: list[str], environment: Mapping[str, str]) -> float:
        begun = time.time()
        with self.notes.with_name(f"log{len(self.launchers)}").open("wb") as log:
            process = subprocess.Popen(
                [*command, str(WORKER), str(self.notes)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        self.launchers.append(process)
        return begun

    def start_alone(self, *flags: str) -> float:
        """Start the only node, with two workers."""
        if self.kind != "dlrover-run":
            return self.start("--standalone", "--nproc-per-node", "2", *flags)
        # Its standalone mode does not work with this release of PyTorch.
        self._start_master(1)
        return self.start("--nnodes", "1", "--nproc-per-node", "2", *flags)

    def _start_master(self, nodes: int) -> None:
        self.nodes = nodes
        command = [DLROVER, "-m", "dlrover.python.master.main", "--platform", "local"]
        command += ["--port", str(self.port), "--node_num", str(nodes), "--job_name", "bench"]
        with self.notes.with_name("master").open("wb") as log:
            self.master = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        self._wait(listens)

    def _beside_master(self) -> dict[str, str]:
        """The environment variables that DLRover's operator would set on a node."""
        rank = str(len(self.launchers))
        return {
            "DLROVER_MASTER_ADDR": f"127.0.0.1:{self.port}",
            "NODE_RANK": rank,
            "NODE_ID": rank,
            "NODE_NUM": str(self.nodes),
            "POD_IP": "127.0.0.1",
            "ELASTIC_JOB_NAME": f"bench-{self.port}-{rank}",
        }

    def start_node(
        self, nodes: str, *flags: str, hosts: bool, variables: Mapping[str, str] | None = None
    ) -> float:
        """Start one node of several."""
        if self.kind == "dlrover-run":
            if hosts:
                self._start_master(int(nodes.rpartition(":")[2]))
            return self.start(
                "--nnodes", nodes, "--nproc-per-node", "1", *flags, variables=variables
            )
        conf = ["--rdzv-conf", f"is_host={int(hosts)},last_call_timeout=1"]
        return self.start(
            "--nnodes", nodes, "--nproc-per-node", "1", "--rdzv-id", "bench",
            "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.port}", *conf, *flags,
            variables=variables,
        )  # fmt: skip

    def train_on_two(self, nodes: str) -> None:
        """Start two nodes; return when training is steady and spares are warm."""
        begun = self.start_node(nodes, hosts=True)
        self.start_node(nodes, hosts=False)
        self.until("steady", begun, 2)
        self.until_warm()

    def events(self, event: str, since: float) -> list[dict[str, float]]:
        """Return the first such event of each rank after a time."""
        found: dict[str, dict[str, float]] = {}
        for path in self.notes.parent.glob("notes.*"):
            for line in path.read_text().splitlines():
                content = json.loads(line)
                if content["event"] == event and content["t"] > since:
                    found.setdefault(path.suffix, content)
        return list(found.values())

    def until(self, event: str, since: float, ranks: int) -> float:
        """Wait for an event of all ranks; return the time of the last one."""
        found: list[dict[str, float]] = []

        def all_there() -> bool:
            found[:] = [each for each in self.events(event, since) if each["world"] == ranks]
            return len(found) >= ranks

        self._wait(all_there)
        return max(each["t"] for each in found)

    def again(self, killed: float) -> float:
        """Wait for the first step after a kill; return infinity if it never comes: torchrun may
        hang.
        """
        try:
            return self.until("first", killed, 2)
        except TimeoutError:
            if self.kind == "gangline":
                raise
            return math.inf

    def until_warm(self) -> None:
        """Wait until every launcher has logged that its workers restart without imports."""
        if self.kind == "gangline":
            self._wait(lambda: all(WARM in log for log in self._logs()))

    def pid(self, rank: int) -> int:
        lines = Path(f"{self.notes}.{rank}").read_text().splitlines()
        return int(json.loads(lines[-1])["pid"])

    def end(self) -> None:
        for process in self.launchers:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.launchers:
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                if self.kind == "gangline":
                    raise
                process.kill()
        if self.master is not None:
            self.master.kill()
            self.master.wait()

    def _logs(self) -> list[str]:
        paths = sorted(self.notes.parent.glob("log*"))
        alive = [process.poll() is None for process in self.launchers]
        return [path.read_text() for path, is_alive in zip(paths, alive, strict=True) if is_alive]

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError("\n".join(self._logs()))
            time.sleep(0.05)


def one_node(kind: str, folder: str) -> tuple[float, float]:
    """Seconds to the first step, and to the first step after a worker was killed."""
    job = Job(kind, folder)
    try:
        begun = job.start_alone()
        first = job.until("first", begun, 2) - begun
        job.until("steady", begun, 2)
        job.until_warm()
        killed = time.time()
        os.kill(job.pid(1), signal.SIGKILL)
        return first, job.again(killed) - killed
    finally:
        job.end()


def early_kill(kind: str, folder: str) -> float:
    """Seconds to the first step after a worker was killed right after the first step of all."""
    job = Job(kind, folder)
    try:
        begun = job.start_alone()
        job.until("first", begun, 2)
        killed = time.time()
        os.kill(job.pid(1), signal.SIGKILL)
        return job.again(killed) - killed
    finally:
        job.end()


@contextlib.contextmanager
def busy_processors(loops: int) -> Iterator[None]:
    """Keep all processors busy with loops at normal priority, each in a session of its own."""
    count = loops * len(os.sched_getaffinity(0))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the loops do not end by themselves
    processes = [
        subprocess.Popen(["sh", "-c", "while :; do :; done"], start_new_session=True)
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def kill_while_busy(kind: str, folder: str) -> tuple[float, float]:
    """Seconds to the first step, and to the first step after a kill some seconds later."""
    job = Job(kind, folder)
    try:
        begun = job.start_alone()
        first = job.until("first", begun, 2)
        time.sleep(BUSY_PAUSE_S)
        killed = time.time()
        os.kill(job.pid(1), signal.SIGKILL)
        return first - begun, job.again(killed) - killed
    finally:
        job.end()


def measure_busy(runs: int, loops: int) -> None:
    start: dict[str, list[float]] = {kind: [] for kind in LAUNCHERS}
    again: dict[str, list[float]] = {kind: [] for kind in LAUNCHERS}
    with tempfile.TemporaryDirectory() as folder, busy_processors(loops):
        os.environ["XDG_CACHE_HOME"] = folder
        for _ in range(runs):
            for kind in LAUNCHERS:
                first, recovered = kill_while_busy(kind, folder)
                start[kind].append(first)
                again[kind].append(recovered)
    figures = {
        "busy_killed": report("a worker is killed: until both train again", again),
        "busy_start": report("from the launcher's start to the first step", start),
    }
    conditions = (
        f"a tiny model over gloo on one node of two workers, beside {loops} busy loops for each "
        f"processor; medians of {runs} runs in turn"
    )
    results.write("elastic_recovery_busy", conditions, figures, results.training_versions())


def kills_in_a_row(kind: str, folder: str) -> list[float]:
    """Seconds to the first step after each of several kills, one second after the last recovery."""
    job = Job(kind, folder)
    taken: list[float] = []
    try:
        since = job.start_alone()
        job.until("first", since, 2)
        for number in range(ROW):
            time.sleep(ROW_PAUSE_S)
            since = time.time()
            os.kill(job.pid(number % 2), signal.SIGKILL)
            taken.append(job.again(since) - since)
            if math.isinf(taken[-1]):
                break
        return taken
    finally:
        job.end()


def two_nodes(kind: str, folder: str) -> float:
    """Seconds to the first step of both nodes after the worker of one was killed."""
    job = Job(kind, folder)
    try:
        job.train_on_two("2")
        killed = time.time()
        os.kill(job.pid(1), signal.SIGKILL)
        return job.again(killed) - killed
    finally:
        job.end()


def started_bare(folder: str) -> float:
    """Seconds until a process without a launcher has done its first step."""
    job = Job("bare", folder)
    try:
        begun = job.start_bare()
        return job.until("first", begun, 1) - begun
    finally:
        job.end()


def node_lost_and_back(folder: str) -> tuple[float, float, float]:
    """Seconds until the remaining node trains again, and until both train after a new one was
    started.

    The third value is the time without any step.
    """
    job = Job("gangline", folder)
    try:
        job.train_on_two("1:2")
        lost = time.time()
        job.launchers[1].kill()
        alone = job.until("first", lost, 1)
        job.until("steady", lost, 1)
        job.until_warm()
        back = job.start_node("1:2", hosts=False)
        both = job.until("first", back, 2)
        before = max(each["before"] for each in job.events("first", back))
        return alone - lost, both - back, both - before
    finally:
        job.end()


def many_kills(folder: str, kills: int) -> tuple[float, float]:
    """Kill workers of one job repeatedly; return the median and the longest recovery."""
    job = Job("gangline", folder)
    taken = []
    try:
        since = job.start_alone()
        for number in range(kills):
            job.until("steady", since, 2)
            job.until_warm()
            since = time.time()
            os.kill(job.pid(number % 2), signal.SIGKILL)
            taken.append(job.until("first", since, 2) - since)
        return statistics.median(taken), max(taken)
    finally:
        job.end()


def report(name: str, seconds: dict[str, list[float]]) -> results.Figure:
    """Print the medians, ranges and ratios; return the medians."""
    medians = {kind: statistics.median(values) for kind, values in seconds.items()}
    spread = ", ".join(
        f"{kind} {medians[kind]:.2f} s ({min(values):.2f} to {max(values):.2f})"
        for kind, values in seconds.items()
    )
    ratios = ", ".join(
        f"{medians[kind] / medians['gangline']:.1f} times as fast as {kind}"
        for kind in medians
        if kind != "gangline"
    )
    print(f"{name}: {spread}; {ratios}", flush=True)
    ours = medians.pop("gangline")
    return results.Figure(name, "s", ours, dict(medians))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=int, nargs="?", default=RUNS)
    parser.add_argument("kills", type=int, nargs="?", default=KILLS)
    parser.add_argument("--busy", type=int, metavar="LOOPS")
    options = parser.parse_args()
    runs, kills = options.runs, options.kills
    if options.busy is not None:
        measure_busy(runs, options.busy)
        return
    start: dict[str, list[float]] = {kind: [] for kind in LAUNCHERS}
    one: dict[str, list[float]] = {kind: [] for kind in LAUNCHERS}
    two: dict[str, list[float]] = {kind: [] for kind in LAUNCHERS}
    early: dict[str, list[float]] = {kind: [] for kind in LAUNCHERS}
    row: dict[str, list[float]] = {kind: [] for kind in LAUNCHERS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(runs):
            for kind in LAUNCHERS:
                first, again = one_node(kind, folder)
                start[kind].append(first)
                one[kind].append(again)
                two[kind].append(two_nodes(kind, folder))
                early[kind].append(early_kill(kind, folder))
                row[kind] += kills_in_a_row(kind, folder)
        figures = {
            "killed_one_node": report(
                "one node of two workers, one is killed: until both train again", one
            ),
            "killed_two_nodes": report(
                "two nodes of one worker, one is killed: until both train again", two
            ),
            "start": report(
                "from the launcher's start to the first step, one node of two workers", start
            ),
        }
        report("worker killed right after the first step", early)
        report(f"{ROW} kills in a row, {ROW_PAUSE_S:g} s apart", row)
        lost, back, still = zip(
            *(node_lost_and_back(folder) for _ in range(max(runs // 2, 1))), strict=True
        )
        bare = statistics.median(started_bare(folder) for _ in range(max(runs // 2, 1)))
        figures["node_lost"] = results.Figure(
            "a node lost: to the next step of the other one", "s", statistics.median(lost)
        )
        figures["node_added"] = results.Figure(
            "a new node: from its start to its first step", "s", statistics.median(back)
        )
        print(f"node lost: {statistics.median(lost):.2f} s")
        print(
            f"a new node: {statistics.median(back):.2f} s until both train, "
            f"{statistics.median(back) / bare:.2f} of what a process without any launcher takes to "
            f"its first step ({bare:.2f} s); the other one's steps, {STEP_S:g} s apart, stood "
            f"still for {statistics.median(still) - STEP_S:.2f} s of it"
        )
        middle, worst = many_kills(folder, kills)
        print(f"{kills} kills: none hung; median {middle:.2f} s, worst {worst:.2f} s", flush=True)
    conditions = (
        f"a tiny model over gloo; medians of {runs} runs in turn; spare interpreters are warm"
    )
    results.write("elastic_recovery", conditions, figures, results.training_versions())


if __name__ == "__main__":
    main()
