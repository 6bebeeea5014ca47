"""The walkthrough of Arena, command by command with ``gangline``.

On the embedded cluster GPUs are pretended and images are environments of this machine; where no
TensorBoard is installed ('make test-frameworks' does), a stand-in serves the names of its files.
The real Kubernetes pulls nothing: git's image and TensorBoard's are made of this machine's
programs, and the job trains with this machine's Python.

Takes 70 s: every command of the page is a process, and two jobs train.
"""

import functools
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from e2e.images import git_image, python_image
from e2e.kubernetes_cluster import Kubernetes
from e2e.scenario import Scenario
from e2e.waiting import eventually
from e2e.walk import HERE, VOLUME_AND_CLAIM, Walk, walk_through
from gangline.api.resources import PERSISTENT_VOLUMES
from integration.cluster.embedded import EmbeddedCluster, embedded

IMAGE_MAP = Path(__file__).parents[2] / ".cache" / "frameworks-image-map.yaml"

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("git") is None, reason="git serves the code"),
]

CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: training-data}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 100Mi}}}
"""


@functools.cache  # it may be installed while a test runs, which has decided for the stand-in
def installed_board() -> str:
    """The environment with TensorBoard; empty if there is none."""
    known = json.loads(IMAGE_MAP.read_text()) if IMAGE_MAP.exists() else {}
    folder: str = known.get("gangline/examples-clients:*", {}).get("env", "")
    return folder if Path(folder, "bin", "tensorboard").exists() else ""


@pytest.fixture
async def small_cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    """Three nodes with two GPUs each."""
    # In a directory that pods see only because the image map names it.
    programs = shutil.copytree(HERE / "bin", tmp_path / "bin")
    stand_in = {"env": sys.prefix, "path": str(programs)}
    board = {"env": installed_board()} if installed_board() else stand_in
    images = tmp_path / "images.json"
    images.write_text(json.dumps({"tensorflow/*": board}))
    nodes = ("--nodes", "3", "--gpus", "2", "--image-map", str(images))
    async with embedded(tmp_path / "home", *nodes) as started:
        walk = Walk(started.environment)

        async def ready() -> bool:
            return walk.typed("top", "node").count(" Ready ") == 3

        await eventually(ready, "three nodes are ready")
        yield started


@pytest.mark.embedded_only("a cluster of its own, whose GPUs are pretended")
async def test_the_walkthrough_is_typed_as_it_is_written(
    small_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    walk = Walk(small_cluster.environment, has_board=bool(installed_board()))
    await walk_through(walk, CLAIM, tmp_path)


@pytest.mark.kubernetes_only("the embedded cluster has a test of its own")
async def test_the_walkthrough_is_typed_on_kubernetes(
    scenario: Scenario, gpus: None, tmp_path: Path
) -> None:
    cluster = scenario.cluster
    assert isinstance(cluster, Kubernetes)
    cluster.load(tmp_path / "git.tar", git_image(tmp_path / "git.tar"))
    # The stand-in needs nothing but the standard library.
    board = Path(installed_board() or HERE)
    cluster.load(tmp_path / "board.tar", python_image(tmp_path / "board.tar", "board:1", board))
    container = cluster.python(HERE / "mnist.py")["containers"][0]
    (path,) = (each["value"] for each in container["env"] if each["name"] == "PATH")
    folders = [f"--data-dir={source}:{mount}" for mount, source in cluster.host_folders().items()]
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(cluster.kubeconfig.read_text())
    kubeconfig.chmod(0o600)
    cluster.kubectl(
        f"--kubeconfig={kubeconfig}", "config", "set-context", "--current",
        f"--namespace={scenario.namespace}",
    )  # fmt: skip
    walk = Walk(
        os.environ | cluster.environment | {"KUBECONFIG": str(kubeconfig)},
        scenario.namespace,
        image="hostroot:1",
        # A pod without a cpu request gets no time while the machine is busy.
        flags=(f"--env=PATH={path}", *folders, "--tensorboard-image=board:1", "--cpu=500m"),
        git_flags=("--sync-image=git:1", "--image-pull-policy=IfNotPresent"),
        has_board=bool(installed_board()),
    )
    volume = f"{scenario.namespace}-data"
    claim = VOLUME_AND_CLAIM.format(
        volume=volume, folder=scenario.shared, namespace=scenario.namespace
    )
    try:
        with cluster.default_scheduler():  # TensorBoard's pod belongs to no job
            await walk_through(walk, claim, tmp_path)
    finally:
        await scenario.client.delete(PERSISTENT_VOLUMES, volume)
