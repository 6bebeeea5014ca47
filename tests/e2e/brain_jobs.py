"""A Brain beside the tested cluster, and the jobs that it observes, advises and changes."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from e2e.clusters import GANGLINE, Component
from e2e.jobs import Manifest
from e2e.scenario import Scenario
from e2e.waiting import eventually
from gangline.api.resources import CONFIG_MAPS, SCALE_PLANS
from gangline.brain.collection.policy_config import POLICY_KEY, POLICY_NAME
from gangline.sdk.advice import BRAIN_URL_VARIABLE, BrainClient, BrainUnavailable

SCRIPT = Path(__file__).parent / "brain_training.py"
SEGMENT_S = 2
RECORD_S = 0.02
FAST_GUARD: dict[str, float] = {
    "stable_evaluations": 2,
    "stable_s": 0,
    "worth": 0,
    "cooldown_s": 2,
    "cooldown_restarts": 0,
    "trial_segments": 2,
    "trial_steps": 20,
    "trial_s": 60,
    "watch_segments": 2,
}
"""Pauses and trials that suit segments of seconds instead of minutes."""


@dataclass(frozen=True)
class Step:
    """One global batch of a training."""

    number: int
    world: int
    loss: float
    records: tuple[int, ...]


class ObservedTraining:
    """An elastic training whose steps take ``record_s`` for each record of a rank."""

    def __init__(
        self, scenario: Scenario, name: str, nodes: str, record_s: float = RECORD_S
    ) -> None:
        """Set the name, and the range of ``--nnodes``."""
        self.scenario, self.name, self.nodes, self.record_s = scenario, name, nodes, record_s
        # Successive runs of a job have the same specification, so they train in the same folder.
        self.folder = scenario.shared / name.rpartition("-")[0]
        self.folder.mkdir(exist_ok=True)
        self.folder.chmod(0o777)
        for left in self.folder.iterdir():
            left.unlink()

    def manifest(self, replicas: int | None, memory: str, **annotations: str) -> Manifest:
        """The job as a user writes it; without ``replicas`` or ``memory`` these are left out."""
        command = (
            f"exec python -m gangline.elastic.launcher --nnodes={self.nodes} --nproc_per_node=1 "
            f"--rdzv-conf last_call_timeout=1 --shutdown-timeout 1 --max-restarts 50 "
            f"{SCRIPT} /training {self.record_s} 0"
        )
        spec, container = self._pod(["bash", "-c", command])
        container["volumeMounts"].append({"name": "training", "mountPath": "/training"})
        spec["volumes"].append({"name": "training", "hostPath": {"path": str(self.folder)}})
        container["resources"] = {"requests": {"cpu": "10m"}}
        if memory:
            container["resources"]["requests"]["memory"] = memory
        worker: Manifest = {"template": {"spec": {"restartPolicy": "Always", **spec}}}
        if replicas is not None:
            worker["replicas"] = replicas
        master, container = self._pod([])
        container["env"].append({"name": "GANGLINE_SEGMENT_SECONDS", "value": str(SEGMENT_S)})
        container["resources"] = {"requests": {"cpu": "10m", "memory": "16Mi"}}
        return {
            "apiVersion": "elastic.iml.github.io/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {
                "name": self.name,
                "annotations": {
                    f"gangline.dev/{key.replace('_', '-')}": value
                    for key, value in annotations.items()
                },
            },
            "spec": {
                "distributionStrategy": "AllreduceStrategy",
                "optimizeMode": "cluster",
                "replicaSpecs": {
                    "worker": worker,
                    "dlrover-master": {"template": {"spec": master}},
                },
            },
        }

    def _pod(self, command: list[str]) -> tuple[Manifest, Manifest]:
        spec = self.scenario.cluster.python(SCRIPT)
        (container,) = spec["containers"]
        container["name"] = "main"
        del container["command"]
        if command:
            container["command"] = command
        if self.scenario.cluster.kind == "kubernetes":
            _mount_packages(spec, container)
        return spec, container

    @property
    def steps(self) -> list[Step]:
        """All steps in the order in which they were made; repeated ones are there repeatedly."""
        path = self.folder / "history"
        lines = path.read_text().splitlines() if path.exists() else []
        return [_step(line) for line in lines if line.count(" ") == 3]

    def trains_with(self, world: int, count: int = 10) -> Any:
        """A condition: the last steps are of this number of ranks."""

        async def probe() -> bool:
            last = self.steps[-count:]
            return len(last) == count and all(step.world == world for step in last)

        return probe

    async def ends(self) -> None:
        """End the training; it succeeds."""
        (self.folder / "end").touch()
        assert await self.scenario.outcome(self.name) == "Succeeded"

    def unscaled(self, folder: Path, steps: int) -> list[Step]:
        """The same steps of one process that nothing interrupts."""
        folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
        subprocess.run(
            [sys.executable, str(SCRIPT), str(folder), "0", str(steps)],
            env=os.environ | alone | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
            check=True,
            timeout=120,
        )
        return [_step(line) for line in (folder / "history").read_text().splitlines()]


def _mount_packages(spec: Manifest, container: Manifest) -> None:
    """Mount Gangline and torch where they are outside of the Python installation of the test."""
    found = [find_spec(name) for name in ("gangline", "torch")]
    folders = sorted({str(Path(one.origin).parents[1]) for one in found if one and one.origin})
    for number, folder in enumerate(folders):
        name = f"package{number}"
        spec["volumes"].append({"name": name, "hostPath": {"path": folder}})
        container["volumeMounts"].append({"name": name, "mountPath": folder, "readOnly": True})
    container["env"].append({"name": "PYTHONPATH", "value": ":".join(folders)})


def _step(line: str) -> Step:
    number, world, loss, records = line.split()
    return Step(int(number), int(world), float(loss), tuple(map(int, records.split(","))))


@dataclass
class TestedBrain:
    """A Brain process that watches the namespace of a scenario."""

    __test__ = False

    scenario: Scenario
    component: Component
    url: str = ""

    def said(self) -> str:
        """The end of its log, for messages."""
        return self.component.log.read_text(errors="replace")[-3000:]

    async def run_of(self, job: str) -> dict[str, Any]:
        """A job of the history with its segments and pods; empty while there is none."""
        try:
            async with BrainClient(self.url) as client:
                return await client.run(self.scenario.namespace, job)
        except BrainUnavailable:
            return {}

    async def segments(self, job: str, nodes: int, count: int = 1) -> list[dict[str, Any]]:
        """Wait for so many good segments of a world of this size."""

        async def found() -> list[dict[str, Any]]:
            segments = (await self.run_of(job)).get("segments", [])
            good = [each for each in segments if each.get("quality", "good") == "good"]
            fitting = [each for each in good if each["nodes"] == nodes]
            return fitting if len(fitting) >= count else []

        return await eventually(found, f"{count} segments of {nodes} nodes of {job}; {self.said()}")

    async def plans(self, job: str) -> list[tuple[str, int | None, str]]:
        """The plans of a job, oldest first: name, number of workers, phase."""
        found = (await self.scenario.client.list(SCALE_PLANS, self.scenario.namespace)).items
        own = [plan for plan in found if plan.spec.owner_job == job]
        own.sort(key=lambda plan: int(plan.metadata.name.rpartition("-")[2]))
        return [
            (
                plan.metadata.name,
                plan.spec.replica_resource_specs["worker"].replicas,
                plan.status.phase,
            )
            for plan in own
        ]

    async def plan_number(self, job: str, number: int) -> int | None:
        """Wait until a job has so many plans; returns the workers of the last of them."""

        async def made() -> list[tuple[str, int | None, str]]:
            found = await self.plans(job)
            return found if len(found) >= number else []

        found = await eventually(made, f"plan {number} of {job}; {self.said()}")
        assert len(found) == number, found
        return found[-1][1]

    def command(self, *arguments: str) -> str:
        """The output of a ``gangline`` command in the namespace of the scenario."""
        known = self.scenario.cluster.environment | {BRAIN_URL_VARIABLE: self.url}
        done = subprocess.run(
            [*GANGLINE, *arguments, "-n", self.scenario.namespace],
            env=os.environ | known,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr


async def allow_all(scenario: Scenario, **guard: float) -> None:
    """Write a policy that lets the Brain apply everything, with these numbers of the guard."""
    rule = {"mode": "apply", "guard": FAST_GUARD | guard}
    policy = {
        "metadata": {"name": POLICY_NAME},
        "data": {POLICY_KEY: yaml.safe_dump({"rules": [rule]})},
    }
    await scenario.client.create(CONFIG_MAPS, policy, scenario.namespace)


@contextmanager
def brain(scenario: Scenario, folder: Path) -> Iterator[TestedBrain]:
    """Run a Brain for a scenario's namespace, with its database in ``folder``, within the block."""
    namespace = scenario.namespace
    copy = f"-{namespace}"
    component = scenario.cluster.start_component(
        "brain",
        scenario.cluster.kubeconfig,
        arguments=[
            *("--database", f"sqlite:///{folder}/brain.db", "--namespace", namespace),
            *("--policy-namespace", namespace, "--leader-election-namespace", namespace),
            *("--interval", "0.5", "--usage-interval", "1"),
        ],
        copy=copy,
    )
    try:
        yield TestedBrain(scenario, component)
    finally:
        scenario.cluster.stop_component(f"brain{copy}")


async def address(tested: TestedBrain) -> None:
    """Wait until the Brain serves."""

    async def published() -> str:
        found = await tested.scenario.client.list(CONFIG_MAPS, tested.scenario.namespace)
        return next((each.data["url"] for each in found.items if "url" in each.data), "")

    tested.url = await eventually(published, f"the address of the Brain; {tested.said()}")
