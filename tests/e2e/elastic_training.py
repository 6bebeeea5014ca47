"""An elastic training on the embedded cluster, and faults of its processes and pods."""

import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e.jobs import Manifest
from e2e.scenario import Scenario
from e2e.waiting import eventually
from gangline.api.core.pod import Pod
from gangline.api.resources import PODS

API = "elastic.iml.github.io/v1alpha1"
SCRIPT = Path(__file__).parent / "elastic_sums.py"
LAUNCHER = "gangline.elastic.launcher"
MASTER = "gangline.elastic.master"
PATIENCE_S = 180.0


class Training:
    """A job whose workers sum numbers (``elastic_sums.py``)."""

    def __init__(
        self, scenario: Scenario, name: str, silence_s: float = 15, script: Path = SCRIPT
    ) -> None:
        """Set the name, the time after which the master considers a silent node dead, and the
        script of the workers.
        """
        self.scenario, self.name, self.silence_s = scenario, name, silence_s
        self.script = script
        self.folder = scenario.shared / name
        self.folder.mkdir()
        self.master = f"elasticjob-{name}-dlrover-master"

    def manifest(
        self, workers: int, nodes: str, *flags: str, first: str = "", cpu: str = "10m"
    ) -> Manifest:
        """The job; ``first`` is a shell script that runs before the launcher."""
        spec = self.scenario.cluster.python(self.script)
        (container,) = spec["containers"]
        conf = "--rdzv-conf last_call_timeout=1"
        agent = (
            f"python -m {LAUNCHER} --nnodes {nodes} --max-restarts 50 --no-standby "
            f"--shutdown-timeout 1 {conf} {' '.join(flags)} {self.script} {self.folder}"
        )
        container |= {"name": "main", "command": ["bash", "-c", f"{first} exec {agent}"]}
        container["volumeMounts"].append({"name": "shared", "mountPath": str(self.folder)})
        container["resources"] = {"requests": {"cpu": cpu, "memory": "16Mi"}}
        spec["volumes"].append({"name": "shared", "hostPath": {"path": str(self.folder)}})
        replicas = {"replicas": workers, "template": {"spec": {"restartPolicy": "Always", **spec}}}
        return {
            "apiVersion": API,
            "kind": "ElasticJob",
            "metadata": {"name": self.name},
            "spec": {
                "distributionStrategy": "AllreduceStrategy",
                "replicaSpecs": {"worker": replicas, "dlrover-master": self._master()},
            },
        }

    def _master(self) -> Manifest:
        journal = f"{self.scenario.namespace}/{self.master}"
        command = (
            f"exec python -m {MASTER} --port 50001 --job-name {self.name} "
            f"--journal-configmap {journal} --silence {self.silence_s}"
        )
        container = {
            "name": "main",
            "command": ["bash", "-c", command],
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        }
        return {"template": {"spec": {"containers": [container]}}}

    def pod(self, number: int) -> str:
        """The name of the pod with this number."""
        return f"{self.name}-edljob-worker-{number}"

    # Records of the workers

    @property
    def steps(self) -> int:
        """Number of steps so far."""
        steps = self.folder / "steps"
        return int(steps.read_text()) if steps.exists() else 0

    @property
    def history(self) -> list[tuple[int, int, str]]:
        """Each step: its number, the number of ranks, the pod of rank 0."""
        lines = (self.folder / "history").read_text().splitlines()
        return [(int(step), int(world), pod) for step, world, pod in map(str.split, lines)]

    @property
    def starts(self) -> Counter[str]:
        """How often workers were started in each pod."""
        lines = (self.folder / "starts").read_text().splitlines()
        return Counter(line.split()[0] for line in lines)

    async def goes_on(self, world: int, what: str) -> None:
        """Wait until this number of ranks has done ten more steps."""
        before = len(self.history) if self.steps else 0

        async def probe() -> bool:
            return sum(size == world for _, size, _ in self.history[before:]) > 10

        async def began() -> bool:
            return self.steps > 0

        await eventually(began, f"{what}: the first step", PATIENCE_S)
        await eventually(probe, f"{what}: steps of {world} ranks; {self.tail()}", PATIENCE_S)

    async def started(self, times: Mapping[str, int], what: str) -> None:
        """Wait until the workers of pods were started this many times."""

        async def probe() -> bool:
            return all(self.starts[pod] >= count for pod, count in times.items())

        await eventually(probe, f"{what}: {dict(times)}", PATIENCE_S)

    def tail(self) -> str:
        """The last steps, for messages."""
        return str(self.history[-3:]) if self.steps else "no step yet"

    def check_history(self) -> None:
        """Check that steps are repeated or lost only around restarts."""
        writers: list[str] = []
        last = 0
        for step, _, pod in self.history:
            assert step <= last + 1, f"step {step} after {last}"
            assert step >= last, f"step {step} of {pod} after {last}: two worlds at once"
            last = step
            if not writers or writers[-1] != pod:
                writers.append(pod)

    # Processes and networks of the machine

    def processes(self, pod: str, words: str, but: str = "nothing of the kind") -> list[int]:
        """The processes of a pod whose command line contains this text."""
        marks = (str(self.folder), f"{self.scenario.namespace}/")
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                is_here = f"POD_NAME={pod}\0" in (process / "environ").read_text()
            except (OSError, UnicodeDecodeError):
                continue
            if is_here and words in line and but not in line and any(m in line for m in marks):
                found.append(int(process.name))
        return found

    def worker(self, number: int) -> int:
        """The training process of a pod."""
        (found,) = self.processes(self.pod(number), SCRIPT.name, but=LAUNCHER)
        return found

    def agent(self, number: int) -> int:
        """The agent of a pod."""
        found = self.processes(self.pod(number), LAUNCHER, but="bash -c")
        (agent,) = (process for process in found if parent(process) not in found)
        return agent

    def masters(self, number: int = 0) -> list[int]:
        """The processes in the master's pod with this number."""
        return self.processes(f"{self.master}-{number}", MASTER)

    def link(self, number: int) -> str:
        """The host's end of a pod's link."""
        inside = ["nsenter", "-t", str(self.agent(number)), "-n"]
        index = re.search(r"eth0@if(\d+)", output(*inside, "ip", "-o", "link", "show", "eth0"))
        assert index
        found = re.search(rf"^{index[1]}: ([^@:]+)[@:]", output("ip", "-o", "link"), re.MULTILINE)
        assert found
        return found[1]

    # State of the cluster

    async def log(self, number: int) -> str:
        """The log of the pod with this number."""
        scenario = self.scenario
        lines = [line async for line in scenario.client.logs(self.pod(number), scenario.namespace)]
        return b"\n".join(lines).decode()

    async def running(self, *numbers: int, master: int | None = 0) -> dict[str, Pod]:
        """The pods, once exactly these run."""
        wanted = {self.pod(number) for number in numbers}
        if master is not None:
            wanted.add(f"{self.master}-{master}")

        def just_these(pods: Mapping[str, Pod]) -> bool:
            alive = {n for n, pod in pods.items() if pod.metadata.deletion_timestamp is None}
            at_work = {n for n, pod in pods.items() if pod.status.phase == "Running"}
            return alive >= wanted and at_work == wanted

        return await self.scenario.pods_when(self.name, just_these, f"{wanted} run", PATIENCE_S)

    async def delete(self, number: int) -> None:
        """Delete a pod as users do."""
        await self.scenario.client.delete(PODS, self.pod(number), self.scenario.namespace)

    async def ends(self) -> Any:
        """End the training, check that it succeeded; return the job."""
        (self.folder / "end").touch()
        assert await self.scenario.outcome(self.name, PATIENCE_S) == "Succeeded"
        self.check_history()
        return await self.scenario.job(self.name)


def output(*command: str) -> str:
    """The output of a command."""
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def parent(process: int) -> int:
    """The parent of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1])
