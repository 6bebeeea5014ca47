"""``gangline logs -f --all`` of 32 replicas that write 20,000 lines/s in total, vs ``kubectl``.

On the embedded cluster, so writers, kubelet, API server and reader share the machine. Each replica
numbers its lines and adds the time of writing. Lines that are missing, repeated or out of order are
counted, and their latency is measured. The peer, if available, is ``kubectl logs -f -l ...
--prefix`` on a second, equal job.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cluster.memory import resident_mb
from benchmarks.cluster.servers import GANGLINE, embedded

REPLICAS = 32
LINES_PER_S = 20_000
SECONDS = 10.0
READY_S = 20.0
"""Time from submission until all replicas begin to write: their pods start, and the tool finds
them.
"""
LABEL = "training.kubeflow.org/job-name"
LINE = re.compile(rb"line (\d+) (\d+) x")
WRITER = """
import sys, time
rate, seconds, begin = float(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
time.sleep(max(0.0, begin - time.time()))
total, written = int(rate * seconds), 0
while written < total:
    due = min(total, int((time.time() - begin) * rate))
    now = time.time_ns()
    sys.stdout.write("".join(f"line {n} {now} {'x' * 60}\\n" for n in range(written, due)))
    sys.stdout.flush()
    written = due
    time.sleep(0.05)
"""


@dataclass
class Tally:
    """What a tool printed."""

    lines: int = 0
    lost: int = 0
    """Missing numbers, also at the end."""
    repeated: int = 0
    late_ms: list[float] = field(default_factory=list)
    """Latency of every hundredth line, from writing to reading."""
    memory_mb: list[float] = field(default_factory=list)
    processor_s: float = 0.0

    def say(self, name: str) -> str:
        """Format as one line."""
        late = sorted(self.late_ms)
        first, most = self.memory_mb[0], max(self.memory_mb)
        return (
            f"  {name:10} {self.lines} lines, {self.lost} lost, {self.repeated} repeated; "
            f"late by p50 {statistics.median(late):.0f} ms, p99 {late[len(late) * 99 // 100]:.0f}; "
            f"memory {first:.0f} MB at first, {most:.0f} at most; "
            f"processor {self.processor_s:.1f} s"
        )


def submit(name: str, begin: float, environment: dict[str, str], folder: Path) -> None:
    """Submit the job; return when all of its replicas run."""
    script = folder / "writer.py"
    script.write_text(WRITER)
    arguments = [str(LINES_PER_S / REPLICAS), str(SECONDS), str(begin)]
    container = {
        "name": "pytorch",
        "image": "any",
        "command": ["python", str(script), *arguments],
        "resources": {"requests": {"cpu": "10m"}},
        "volumeMounts": [{"name": "script", "mountPath": str(folder), "readOnly": True}],
    }
    volume = {"name": "script", "hostPath": {"path": str(folder)}}
    template = {"spec": {"containers": [container], "volumes": [volume]}}
    roles = {"Master": {"replicas": 1}, "Worker": {"replicas": REPLICAS - 1}}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "None"},
            "pytorchReplicaSpecs": {
                role: spec | {"template": template} for role, spec in roles.items()
            },
        },
    }
    file = folder / f"{name}.json"
    file.write_text(json.dumps(job))
    subprocess.run(
        [*GANGLINE, "submit", "-f", file], env=environment, check=True, capture_output=True
    )
    ask = [*GANGLINE, "get", name, "-o", "jsonpath={.running}"]
    while True:
        done = subprocess.run(ask, env=environment, check=True, capture_output=True, text=True)
        if int(done.stdout) == REPLICAS:
            return
        time.sleep(0.2)


def follow(command: Sequence[str], environment: dict[str, str]) -> Tally:
    """Run a tool to its end and count what it prints."""
    tally = Tally()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    _count(process.stdout, process, tally)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    tally.processor_s = usage.ru_utime + usage.ru_stime
    return tally


def _count(lines: Iterable[bytes], process: subprocess.Popen[bytes], tally: Tally) -> None:
    expected: defaultdict[bytes, int] = defaultdict(int)
    for line in lines:
        found = LINE.search(line)
        assert found is not None, line
        replica, number = line[: found.start()], int(found[1])
        tally.lines += 1
        tally.lost += max(0, number - expected[replica])
        tally.repeated += number < expected[replica]
        expected[replica] = max(expected[replica], number + 1)
        if tally.lines % 100 == 1:
            tally.late_ms.append((time.time_ns() - int(found[2])) / 1e6)
        if tally.lines % LINES_PER_S == LINES_PER_S // 2:
            tally.memory_mb.append(resident_mb(process))
    written = int(LINES_PER_S / REPLICAS * SECONDS) * REPLICAS
    tally.lost += written - sum(expected.values())


def main() -> None:
    with (
        embedded("--nodes", "1", "--cpus", "8", "--memory", "16Gi") as (kubeconfig, _),
        tempfile.TemporaryDirectory() as home,
    ):
        environment = os.environ | {"KUBECONFIG": str(kubeconfig), "HOME": home}
        tools = {"gangline": [*GANGLINE, "logs", "-f", "--all", "ours"]}
        if shutil.which("kubectl"):
            kubectl = ["kubectl", "logs", "-f", "--prefix", "--tail=-1"]
            kubectl += [f"--max-log-requests={REPLICAS}", "-l", f"{LABEL}=theirs"]
            tools = {"kubectl": kubectl} | tools
        print(f"{REPLICAS} replicas, {LINES_PER_S} lines/s in all, for {SECONDS:.0f} s")
        for name, command in tools.items():
            job = "ours" if name == "gangline" else "theirs"
            submit(job, time.time() + READY_S, environment, Path(home))
            print(follow(command, environment).say(f"{name}:"), flush=True)


if __name__ == "__main__":
    main()
