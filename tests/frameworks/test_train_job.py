"""TrainJobs of the runtimes jax, xgboost, deepspeed and mlx train, from ``gangline submit train``.

They run at the same time on one cluster: each waits for the import of its framework for most of its
time.
"""

import copy
import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from frameworks.training import EXAMPLES, NAMESPACE, Training, training_cluster
from gangline.api.resources import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS
from gangline.api.trainer.builtin_runtimes import builtin_runtimes
from integration.cluster.embedded import until

pytestmark = pytest.mark.timeout(600)

SCRIPTS = Path(__file__).parent / "train_scripts"
PATIENCE_S = 400.0
SSH_PORT = 2222
SSH_SERVER = (
    "mkdir -p /run/sshd; ssh-keygen -q -t ed25519 -N '' -f /scratch/host; "
    f"exec /usr/sbin/sshd -De -f /dev/null -p {SSH_PORT} -h /scratch/host "
    "-o StrictModes=no -o PidFile=none -o UsePAM=yes"
)
SSH_CLIENT = (
    f"ssh -p {SSH_PORT} -o BatchMode=yes -o StrictHostKeyChecking=no "
    "-o UserKnownHostsFile=/dev/null"
)


async def submit(training: Training, runtime: str, script: Path, *arguments: str) -> None:
    """Submit a job of two nodes, named after its runtime, whose pods have the script."""
    place = f"{script}:/opt/train/{script.name}"
    sizes = ("--nodes", "2", "--cpu", "500m", "--memory", "1Gi")
    given = ("submit", "train", "--name", runtime, "--runtime", runtime, "--config-file", place)
    done = training.cluster.run(*given, *sizes, *arguments)
    assert done.returncode == 0, done.stderr


async def log_of(training: Training, job: str, pod: str) -> str:
    """Wait until a job is complete; return the log of one of its pods.

    Raises:
        AssertionError: it failed, or takes too long; the message has the log.
    """
    state = ""

    async def ended() -> bool:
        nonlocal state
        conditions = (await training.client.get(TRAIN_JOBS, job, NAMESPACE)).status.conditions
        state = next((c.type for c in conditions if c.status == "True"), "")
        return state in {"Complete", "Failed"}

    await until(ended, PATIENCE_S, training.cluster.said)
    lines = training.client.logs(f"{job}-{pod}", NAMESPACE)
    text = "".join([line.decode(errors="replace") async for line in lines])
    assert state == "Complete", text
    return text


def environment(image_map: Path, framework: str) -> Path:
    """The Python environment of an example."""
    images = yaml.safe_load(image_map.read_text())
    return Path(images[f"gangline/examples-{framework}:*"]["env"])


@pytest.fixture
async def training(image_map: Path, tmp_path: Path) -> AsyncIterator[Training]:
    async with training_cluster(image_map, tmp_path / "home") as made:
        yield made


async def test_jax_xgboost_deepspeed_and_mlx_runtimes_train(
    training: Training, image_map: Path
) -> None:
    await submit_jax(training)
    await submit_xgboost(training)
    has_ssh_server = os.geteuid() == 0 and shutil.which("/usr/sbin/sshd") is not None
    if has_ssh_server:
        await submit_deepspeed(training, image_map)
        await submit_mlx(training, image_map)
    output = await log_of(training, "xgboost-distributed", "node-0-0")
    other = await log_of(training, "xgboost-distributed", "node-0-1")
    trees = {re.search(r"trees (\w+)", text) for text in (output, other)}
    assert len({found and found.group(1) for found in trees}) == 1, (output, other)
    assert accuracy(output) >= 0.93
    output = await log_of(training, "jax-distributed", "node-0-0")
    assert accuracy(output) >= 0.94
    other = await log_of(training, "jax-distributed", "node-0-1")
    losses = [re.findall(r"step \d+/\d+ loss \d\.\d+", text) for text in (output, other)]
    assert losses[0]
    assert losses[0] == losses[1], "each has the mean over all samples"
    for runtime in ("deepspeed-distributed", "mlx-distributed") if has_ssh_server else ():
        check_ranks(await log_of(training, runtime, "launcher-0-0"), runtime)


def accuracy(output: str) -> float:
    found = re.search(r"test accuracy (\d\.\d+)", output)
    assert found is not None, output
    return float(found.group(1))


async def submit_jax(training: Training) -> None:
    command = "python /opt/train/cancer.py --checkpoint /tmp/cancer.npz"
    image = ("--image", "gangline/examples-jax:1", "--env", "OMP_NUM_THREADS=1")
    await submit(training, "jax-distributed", EXAMPLES / "jax" / "cancer.py", *image, command)


async def submit_xgboost(training: Training) -> None:
    image = ("--image", "gangline/examples-xgboost:1")
    script = EXAMPLES / "xgboost" / "cancer.py"
    await submit(training, "xgboost-distributed", script, *image, "python /opt/train/cancer.py")


async def submit_deepspeed(training: Training, image_map: Path) -> None:
    variables = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    script = SCRIPTS / "deepspeed_digits.py"
    python = environment(image_map, "checkpoint") / "bin" / "python"
    await submit_mpi(training, image_map, "deepspeed-distributed", python, script, variables)


async def submit_mlx(training: Training, image_map: Path) -> None:
    folder = environment(image_map, "mpi")
    # The wheel of Open MPI has no link libmpi.so, by which MLX looks for it.
    variables = {"MLX_MPI_LIBNAME": str(folder / "lib" / "libmpi.so.40")}
    script, python = SCRIPTS / "mlx_digits.py", folder / "bin" / "python"
    await submit_mpi(training, image_map, "mlx-distributed", python, script, variables)


async def submit_mpi(
    training: Training,
    image_map: Path,
    name: str,
    python: Path,
    script: Path,
    variables: dict[str, str],
) -> None:
    """Submit a job of a shipped runtime whose launcher starts a script by mpirun.

    Upstream's image has an SSH server of its user; here the machine's server stands for it, which
    needs root. Nothing else of the runtime is changed.
    """
    runtime = copy.deepcopy(
        next(each for each in builtin_runtimes() if each["metadata"]["name"] == name)
    )
    runtime["spec"]["mlPolicy"]["mpi"]["sshAuthMountPath"] = "/root/.ssh"
    for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
        pod = job["template"]["spec"]["template"]["spec"]
        del pod["securityContext"]
        container = pod["containers"][0]
        container["image"] = "gangline/examples-checkpoint:1"
        if job["name"] == "node":
            container["command"], container["args"] = ["sh", "-c", SSH_SERVER], []
            container["readinessProbe"] = {"tcpSocket": {"port": SSH_PORT}, "periodSeconds": 1}
            container["volumeMounts"] = [{"name": "scratch", "mountPath": "/scratch"}]
            pod["volumes"] = [{"name": "scratch", "emptyDir": {}}]
    await training.client.patch(CLUSTER_TRAINING_RUNTIMES, name, {"spec": runtime["spec"]})
    variables = {
        **variables,
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "PRTE_MCA_plm_ssh_agent": SSH_CLIENT,
    }
    given = [part for each, value in variables.items() for part in ("--env", f"{each}={value}")]
    exported = " ".join(f"-x {each}" for each in (*variables, "LEADER"))
    mpirun = environment(image_map, "mpi") / "bin" / "mpirun"
    command = (
        "export LEADER=$(hostname -i); "
        f"{mpirun} --allow-run-as-root --bind-to none {exported} {python} /opt/train/{script.name}"
    )
    await submit(training, name, script, *given, command)


def check_ranks(output: str, runtime: str) -> None:
    """Check that two processes on two nodes have trained one model."""
    found = re.findall(
        r"rank (\d) of 2 on (\S+): loss (\d\.\d+) to (\d\.\d+), weights (\d+\.\d+)", output
    )
    assert sorted((rank, host) for rank, host, *_ in found) == [
        ("0", f"{runtime}-launcher-0-0"),
        ("1", f"{runtime}-node-0-0"),
    ], output
    assert len({weights for *_, weights in found}) == 1, output
    assert all(float(last) < float(first) for _, _, first, last, _ in found), output
