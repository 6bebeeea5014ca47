"""The steps of Arena's walkthrough, with ``gangline``."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from e2e.git_server import address_of_machine, git_server, make_repository
from e2e.waiting import eventually
from gangline.api.resources import DEPLOYMENTS, PODS, SECRETS, SERVICES
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import load_config

HERE = Path(__file__).parent / "walkthrough"
USER, PASSWORD = "yourname", "y0urpwd-of-the-walkthrough"
IMAGE = "registry.example.org/ai-samples/pytorch:1.5.1"

VOLUME_AND_CLAIM = """
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {volume}}}
spec:
  accessModes: [ReadWriteMany]
  capacity: {{storage: 100Mi}}
  hostPath: {{path: {folder}}}
  claimRef: {{namespace: {namespace}, name: training-data}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: training-data}}
spec:
  accessModes: [ReadWriteMany]
  resources: {{requests: {{storage: 100Mi}}}}
  storageClassName: ""
"""
"""A directory of the node as the claim ``training-data``, as there is no provisioner."""


@contextmanager
def going_on(
    command: Sequence[str], environment: Mapping[str, str]
) -> Iterator["subprocess.Popen[str]"]:
    """A command that runs until it is stopped."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


@dataclass(frozen=True)
class Walk:
    """The user, the cluster, and the options that the cluster needs in addition."""

    environment: Mapping[str, str]
    namespace: str = "default"
    image: str = IMAGE
    flags: tuple[str, ...] = ()
    """Further flags of the job."""
    git_flags: tuple[str, ...] = ()
    """Further flags of each job that clones code."""
    has_board: bool = False
    """Whether TensorBoard itself is available."""

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command; it may fail."""
        return subprocess.run(
            [sys.executable, "-m", "gangline", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def typed(self, *words: str) -> str:
        """The output of a command that succeeds."""
        done = self.run(*words)
        assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def waited(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """``gangline wait``, repeated for as long as a slow machine may take."""
        for _ in range(12):
            done = self.run("wait", *words, "--timeout", "20s")
            if "still not" not in done.stderr:
                break
        return done

    def running(self, *words: str) -> AbstractContextManager["subprocess.Popen[str]"]:
        """A command that runs until it is interrupted."""
        return going_on([sys.executable, "-m", "gangline", *words], self.environment)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[ApiClient]:
        """A client of the cluster."""
        async with ApiClient(load_config(self.environment["KUBECONFIG"])) as client:
            yield client


async def walk_through(walk: Walk, claim: str, folder: Path) -> None:
    """Run all steps; the cluster has six simulated GPUs.

    Args:
        walk: where.
        claim: the manifest of the claim ``training-data``.
        folder: an empty folder for the repository.
    """
    make_repository(folder / "repositories" / "mnist-pytorch.git", HERE / "mnist.py")
    (folder / "claim.yaml").write_text(claim)
    # 1. The available GPUs, and the data.
    assert walk.typed("top", "node").endswith("Allocated/Total GPUs In Cluster:\n0/6 (0.0%)\n")
    walk.typed("submit", "-f", str(folder / "claim.yaml"))

    async def bound() -> bool:
        return "training-data  ReadWriteMany" in walk.typed("data", "list")

    await eventually(bound, "the claim has a volume")
    with git_server(folder / "repositories", USER, PASSWORD) as port:
        # 2. The job.
        source = f"http://{address_of_machine()}:{port}/mnist-pytorch.git"
        await _submitted(walk, source)
        await _looked_at(walk)
        await _board_is_shown(walk)
        await _read(walk)
        await _kept_secret(walk)
        await _ended(walk)
        # A wrong password is reported.
        wrong = source.replace("//", "//yourname:wrong@")
        walk.typed(
            "submit", "pytorch", "--name=denied", "--image=i:1", "--retry=0", "--sync-mode=git",
            f"--sync-source={wrong}", *walk.git_flags, "true",
        )  # fmt: skip
        assert walk.waited("denied").returncode == 6
        assert "GitAccessDenied" in walk.typed("diagnose", "denied")


async def page_of(port: int, path: str = "") -> str:
    address = f"http://127.0.0.1:{port}/{path}"
    async with aiohttp.ClientSession() as session, session.get(address) as answer:
        return await answer.text()


def columns(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


async def _submitted(walk: Walk, source: str) -> None:
    said = walk.typed("submit", "pytorch", "--name=pytorch-dist", "--gpus=1", "--workers=3",
        "--working-dir=/root", f"--image={walk.image}",
        "--sync-mode=git", f"--sync-source={source}", "--data=training-data:/mnist_data",
        f"--env=GIT_SYNC_USERNAME={USER}", f"--env=GIT_SYNC_PASSWORD={PASSWORD}",
        "--env=OMP_NUM_THREADS=1", *walk.git_flags, *walk.flags,
        "--tensorboard", "--logdir=/mnist_data/pytorch_data/logs",
        "python /root/code/mnist-pytorch/mnist.py --epochs 10 --backend gloo "
        "--dir /mnist_data/pytorch_data/logs --until /mnist_data/enough",
    )  # fmt: skip
    assert said.splitlines() == [
        "pytorchjob/pytorch-dist created",
        "service/pytorch-dist-tensorboard created",
        "deployment/pytorch-dist-tensorboard created",
        "secret/pytorch-dist-code-sync created",
    ]
    begun = walk.waited("pytorch-dist", "--for", "running")
    assert begun.returncode == 0, walk.typed("diagnose", "pytorch-dist")


async def _looked_at(walk: Walk) -> None:
    async def trained() -> bool:
        return "Train Epoch: 10" in walk.typed("logs", "pytorch-dist")

    await eventually(trained, "ten epochs are trained")
    # 3. to 6.: the list, the jobs' GPUs, the nodes' GPUs, the job.
    head, row = columns(walk.typed("list"))
    assert head[:3] == ["NAME", "STATUS", "TRAINER"]
    assert row[:3] == ["pytorch-dist", "RUNNING", "PYTORCHJOB"]
    top = walk.typed("top", "job")
    assert columns(top)[1][4:6] == ["3", "3"]
    assert top.endswith("Total Allocated/Requested GPUs of Training Jobs: 3/3\n")
    assert walk.typed("top", "node").endswith("3/6 (50.0%)\n")

    async def all_run() -> str | None:  # a busy kubelet reports late
        shown = walk.typed("get", "pytorch-dist")
        replicas = ("master-0", "worker-0", "worker-1")
        run = all(re.search(rf"pytorch-dist-{each} +Running", shown) for each in replicas)
        return shown if run else None

    shown = await eventually(all_run, "all replicas are shown as running")
    assert re.search(r"Your tensorboard will be available on:\s+http://\S+:6006", shown)
    assert re.search(r"Priority: +N/A", shown)
    spec = walk.typed("get", "pytorch-dist", "-o", "jsonpath={.instances[*].status}")
    assert spec == "Running Running Running\n"


async def _board_is_shown(walk: Walk) -> None:
    # 7. TensorBoard, through a port of this machine.
    async def serves() -> bool:
        async with walk.client() as client:
            board = await client.get(DEPLOYMENTS, "pytorch-dist-tensorboard", walk.namespace)
            return board.status.ready_replicas == 1

    await eventually(serves, "TensorBoard is ready")
    service = "svc/pytorch-dist-tensorboard"
    for words in (("port-forward", service, "0:6006"), ("tensorboard", "pytorch-dist")):
        with walk.running(*words) as forwarding:
            assert forwarding.stdout is not None
            line = await asyncio.to_thread(forwarding.stdout.readline)
            port = re.search(r"127\.0\.0\.1:(\d+)", line)
            assert port is not None, line
            page = await page_of(int(port[1]))
            assert "TensorBoard" in page
            if walk.has_board:
                await _curve_is_drawn(int(port[1]))
            else:
                assert page.count("events.out.tfevents") == 3


async def _curve_is_drawn(port: int) -> None:
    async def drawn() -> bool:
        tags = json.loads(await page_of(port, "data/plugin/scalars/tags"))
        return "loss" in tags.get(".", {})

    await eventually(drawn, "TensorBoard has read the events")
    points = json.loads(await page_of(port, "data/plugin/scalars/scalars?run=.&tag=loss"))
    assert {step for _, step, _ in points} == set(range(1, 11))


async def _read(walk: Walk) -> None:
    # 8. The logs: of rank 0, of another instance, the last lines, all.
    log = walk.typed("logs", "pytorch-dist").splitlines()
    # A worker that starts before the master's store may log that first.
    assert "WORLD_SIZE: 3, CURRENT_RANK: 0" in log
    other = walk.typed("logs", "pytorch-dist", "-i", "pytorch-dist-worker-0").splitlines()
    assert "WORLD_SIZE: 3, CURRENT_RANK: 1" in other
    assert walk.typed("logs", "pytorch-dist", "-t", "5").splitlines() == log[-5:]
    first = walk.typed("logs", "pytorch-dist", "--all", "--grep", "WORLD_SIZE")
    assert sorted(re.findall(r"RANK: (\d)", first)) == ["0", "1", "2"]
    cloned = walk.typed("logs", "pytorch-dist", "-c", "init-code")
    assert "code is at commit" in cloned


async def _kept_secret(walk: Walk) -> None:
    async with walk.client() as client:
        told = [
            await client.request_json("GET", path)
            for path in ("/api/v1/pods", "/api/v1/configmaps", "/api/v1/events",
                         "/apis/kubeflow.org/v1/pytorchjobs", "/apis/apps/v1/deployments")
        ]  # fmt: skip
        secret = await client.get(SECRETS, "pytorch-dist-code-sync", walk.namespace)
        assert secret.metadata.owner_references[0].name == "pytorch-dist"
    said = [
        walk.typed(*words)
        for words in (("get", "pytorch-dist", "-o", "yaml"), ("describe", "pytorch-dist"),
                      ("logs", "pytorch-dist", "--all", "-c", "init-code"),
                      ("exec", "pytorch-dist", "--", "env"))
    ]  # fmt: skip
    assert PASSWORD not in json.dumps(told) + "".join(said)


async def _ended(walk: Walk) -> None:
    with walk.running("logs", "-f", "pytorch-dist") as following:
        walk.typed("exec", "pytorch-dist", "--", "touch", "/mnist_data/enough")
        lines, _ = await asyncio.to_thread(following.communicate)
    assert lines.splitlines()[-1] == "accuracy=0.9904"
    assert walk.waited("pytorch-dist").returncode == 0
    assert "Status:     SUCCEEDED" in walk.typed("get", "pytorch-dist")
    assert columns(walk.typed("list"))[1][:2] == ["pytorch-dist", "SUCCEEDED"]
    walk.typed("delete", "pytorch-dist")
    async with walk.client() as client:

        async def gone() -> bool:
            left = [
                *(await client.list(PODS, walk.namespace)).items,
                *(await client.list(SECRETS, walk.namespace, labels="release=pytorch-dist")).items,
                *(await client.list(SERVICES, walk.namespace, labels="release=pytorch-dist")).items,
                *(await client.list(DEPLOYMENTS, walk.namespace)).items,
            ]
            return not left

        await eventually(gone, "everything that belonged to the job is gone")
