"""The walkthrough that users of Arena know, typed command by command with ``gangline``.

GPUs are pretended. Where no TensorBoard is installed ('make test-frameworks' does), a stand-in
serves the names of its files.
"""

import asyncio
import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from e2e.git_server import git_server, make_repository
from e2e.waiting import eventually
from gangline.api.resources import DEPLOYMENTS, PODS, SECRETS, SERVICES
from integration.cluster.embedded import EmbeddedCluster, embedded

HERE = Path(__file__).parent / "walkthrough"
IMAGE_MAP = Path(__file__).parents[2] / ".cache" / "frameworks-image-map.yaml"
USER, PASSWORD = "yourname", "y0urpwd-of-the-walkthrough"

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.embedded_only("its GPUs are pretended"),
    pytest.mark.skipif(shutil.which("git") is None, reason="git serves the code"),
]

CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: training-data}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 100Mi}}}
"""


def installed_board() -> str:
    """The environment that TensorBoard is in; empty if none was made."""
    known = json.loads(IMAGE_MAP.read_text()) if IMAGE_MAP.exists() else {}
    folder: str = known.get("gangline/examples-clients:*", {}).get("env", "")
    return folder if Path(folder, "bin", "tensorboard").exists() else ""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    """Three nodes with two GPUs each."""
    # In a folder that pods would not see, had the image map not named it.
    programs = shutil.copytree(HERE / "bin", tmp_path / "bin")
    stand_in = {"env": sys.prefix, "path": str(programs)}
    board = {"env": installed_board()} if installed_board() else stand_in
    images = tmp_path / "images.json"
    images.write_text(json.dumps({"tensorflow/*": board}))
    nodes = ("--nodes", "3", "--gpus", "2", "--image-map", str(images))
    async with embedded(tmp_path / "home", *nodes) as started:

        async def ready() -> bool:
            return typed(started, "top", "node").count(" Ready ") == 3

        await eventually(ready, "three nodes are ready")
        yield started


def typed(cluster: EmbeddedCluster, *words: str) -> str:
    """What a command prints that goes well."""
    done = cluster.run(*words)
    assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
    return done.stdout


def waited(cluster: EmbeddedCluster, *words: str) -> "subprocess.CompletedProcess[str]":
    """``gangline wait``, again and again for as long as a slow machine may take."""
    for _ in range(6):
        done = cluster.run("wait", *words, "--timeout", "20s")
        if "still not" not in done.stderr:
            break
    return done


@contextmanager
def running(cluster: EmbeddedCluster, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """A command that goes on until it is interrupted."""
    command = [sys.executable, "-m", "gangline", *words]
    process = subprocess.Popen(command, env=cluster.environment, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


async def page_of(port: int, path: str = "") -> str:
    address = f"http://127.0.0.1:{port}/{path}"
    async with aiohttp.ClientSession() as session, session.get(address) as answer:
        return await answer.text()


def columns(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


async def test_the_walkthrough_is_typed_as_it_is_written(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    make_repository(tmp_path / "repositories" / "mnist-pytorch.git", HERE / "mnist.py")
    (tmp_path / "claim.yaml").write_text(CLAIM)
    # 1. The GPUs that there are, and the data.
    assert typed(cluster, "top", "node").endswith("Allocated/Total GPUs In Cluster:\n0/6 (0.0%)\n")
    typed(cluster, "submit", "-f", str(tmp_path / "claim.yaml"))

    async def bound() -> bool:
        return "training-data  ReadWriteMany" in typed(cluster, "data", "list")

    await eventually(bound, "the claim has a volume")
    with git_server(tmp_path / "repositories", USER, PASSWORD) as port:
        # 2. The job.
        source = f"http://{_address()}:{port}/mnist-pytorch.git"
        await _submitted(cluster, source)
        await _looked_at(cluster)
        await _board_is_shown(cluster)
        await _read(cluster)
        await _kept_secret(cluster)
        await _ended(cluster)
        # A wrong password is found out.
        wrong = source.replace("//", "//yourname:wrong@")
        typed(cluster, "submit", "pytorch", "--name=denied", "--image=i:1", "--retry=0",
              "--sync-mode=git", f"--sync-source={wrong}", "true")  # fmt: skip
        assert waited(cluster, "denied").returncode == 6
        assert "GitAccessDenied" in typed(cluster, "diagnose", "denied")


def _address() -> str:
    """Where pods reach this machine: at the address that it uses to the outside."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outward:
        outward.connect(("203.0.113.1", 9))  # nothing is sent by this
        return str(outward.getsockname()[0])


async def _submitted(cluster: EmbeddedCluster, source: str) -> None:
    said = typed(
        cluster, "submit", "pytorch", "--name=pytorch-dist", "--gpus=1", "--workers=3",
        "--working-dir=/root", "--image=registry.example.org/ai-samples/pytorch:1.5.1",
        "--sync-mode=git", f"--sync-source={source}", "--data=training-data:/mnist_data",
        f"--env=GIT_SYNC_USERNAME={USER}", f"--env=GIT_SYNC_PASSWORD={PASSWORD}",
        "--env=OMP_NUM_THREADS=1", "--tensorboard", "--logdir=/mnist_data/pytorch_data/logs",
        "python /root/code/mnist-pytorch/mnist.py --epochs 10 --backend gloo "
        "--dir /mnist_data/pytorch_data/logs --until /mnist_data/enough",
    )  # fmt: skip
    assert said.splitlines() == [
        "pytorchjob/pytorch-dist created",
        "service/pytorch-dist-tensorboard created",
        "deployment/pytorch-dist-tensorboard created",
        "secret/pytorch-dist-code-sync created",
    ]
    begun = waited(cluster, "pytorch-dist", "--for", "running")
    assert begun.returncode == 0, typed(cluster, "diagnose", "pytorch-dist")


async def _looked_at(cluster: EmbeddedCluster) -> None:
    async def trained() -> bool:
        return "Train Epoch: 10" in typed(cluster, "logs", "pytorch-dist")

    await eventually(trained, "ten epochs are trained")
    # 3. to 6.: the list, the jobs' GPUs, the nodes' GPUs, the job.
    head, row = columns(typed(cluster, "list"))
    assert head[:3] == ["NAME", "STATUS", "TRAINER"]
    assert row[:3] == ["pytorch-dist", "RUNNING", "PYTORCHJOB"]
    top = typed(cluster, "top", "job")
    assert columns(top)[1][4:6] == ["3", "3"]
    assert top.endswith("Total Allocated/Requested GPUs of Training Jobs: 3/3\n")
    assert typed(cluster, "top", "node").endswith("3/6 (50.0%)\n")
    shown = typed(cluster, "get", "pytorch-dist")
    for replica in ("master-0", "worker-0", "worker-1"):
        assert re.search(rf"pytorch-dist-{replica} +Running", shown)
    assert re.search(r"Your tensorboard will be available on:\s+http://\S+:6006", shown)
    assert re.search(r"Priority: +N/A", shown)
    spec = typed(cluster, "get", "pytorch-dist", "-o", "jsonpath={.instances[*].status}")
    assert spec == "Running Running Running\n"


async def _board_is_shown(cluster: EmbeddedCluster) -> None:
    # 7. TensorBoard, through a port of this machine.
    async def serves() -> bool:
        async with cluster.client() as client:
            board = await client.get(DEPLOYMENTS, "pytorch-dist-tensorboard", "default")
            return board.status.ready_replicas == 1

    await eventually(serves, "TensorBoard is ready")
    service = "svc/pytorch-dist-tensorboard"
    for words in (("port-forward", service, "0:6006"), ("tensorboard", "pytorch-dist")):
        with running(cluster, *words) as forwarding:
            assert forwarding.stdout is not None
            line = await asyncio.to_thread(forwarding.stdout.readline)
            port = re.search(r"127\.0\.0\.1:(\d+)", line)
            assert port is not None, line
            page = await page_of(int(port[1]))
            assert "TensorBoard" in page
            if installed_board():
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


async def _read(cluster: EmbeddedCluster) -> None:
    # 8. The logs: of rank 0, of another instance, the last lines, all.
    log = typed(cluster, "logs", "pytorch-dist").splitlines()
    assert log[0] == "WORLD_SIZE: 3, CURRENT_RANK: 0"
    other = typed(cluster, "logs", "pytorch-dist", "-i", "pytorch-dist-worker-0").splitlines()
    assert other[0] == "WORLD_SIZE: 3, CURRENT_RANK: 1"
    assert typed(cluster, "logs", "pytorch-dist", "-t", "5").splitlines() == log[-5:]
    first = typed(cluster, "logs", "pytorch-dist", "--all", "--grep", "WORLD_SIZE")
    assert sorted(re.findall(r"RANK: (\d)", first)) == ["0", "1", "2"]
    cloned = typed(cluster, "logs", "pytorch-dist", "-c", "init-code")
    assert "code is at commit" in cloned


async def _kept_secret(cluster: EmbeddedCluster) -> None:
    async with cluster.client() as client:
        told = [
            await client.request_json("GET", path)
            for path in ("/api/v1/pods", "/api/v1/configmaps", "/api/v1/events",
                         "/apis/kubeflow.org/v1/pytorchjobs", "/apis/apps/v1/deployments")
        ]  # fmt: skip
        secret = await client.get(SECRETS, "pytorch-dist-code-sync", "default")
        assert secret.metadata.owner_references[0].name == "pytorch-dist"
    said = [
        typed(cluster, *words)
        for words in (("get", "pytorch-dist", "-o", "yaml"), ("describe", "pytorch-dist"),
                      ("logs", "pytorch-dist", "--all", "-c", "init-code"),
                      ("exec", "pytorch-dist", "--", "env"))
    ]  # fmt: skip
    assert PASSWORD not in json.dumps(told) + "".join(said)


async def _ended(cluster: EmbeddedCluster) -> None:
    with running(cluster, "logs", "-f", "pytorch-dist") as following:
        typed(cluster, "exec", "pytorch-dist", "--", "touch", "/mnist_data/enough")
        lines, _ = await asyncio.to_thread(following.communicate)
    assert lines.splitlines()[-1] == "accuracy=0.9904"
    assert waited(cluster, "pytorch-dist").returncode == 0
    assert "Status:     SUCCEEDED" in typed(cluster, "get", "pytorch-dist")
    assert columns(typed(cluster, "list"))[1][:2] == ["pytorch-dist", "SUCCEEDED"]
    typed(cluster, "delete", "pytorch-dist")
    async with cluster.client() as client:

        async def gone() -> bool:
            left = [
                *(await client.list(PODS, "default")).items,
                *(await client.list(SECRETS, "default", labels="release=pytorch-dist")).items,
                *(await client.list(SERVICES, "default", labels="release=pytorch-dist")).items,
                *(await client.list(DEPLOYMENTS, "default")).items,
            ]
            return not left

        await eventually(gone, "everything that belonged to the job is gone")
