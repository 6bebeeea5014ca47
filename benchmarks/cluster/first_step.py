"""From submission to the first training step of a one-pod job, compared with manual torchrun.

Both run examples/pytorch/digits.py for one step, in turn; medians of several runs. The difference
is the cost of scheduling, pod start and log streaming.
"""

import asyncio
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.cluster.servers import embedded

SCRIPT = Path(__file__).parents[2] / "examples" / "pytorch" / "digits.py"
RUNS = 7
FIRST_STEP = "step 1/1"


def by_hand(folder: Path) -> float:
    """Seconds from the start of torchrun until the script reports its first step."""
    begun = time.monotonic()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"),
            *(SCRIPT, "--steps=1", f"--checkpoint={folder}/none.pt"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(FIRST_STEP):
            taken = time.monotonic() - begun
    process.wait()
    Path(folder, "none.pt").unlink(missing_ok=True)
    return taken


def job(name: str) -> dict[str, Any]:
    """A PyTorchJob with one master that trains one step."""
    container = {
        "name": "pytorch",
        "image": "gangline/examples-pytorch:1",
        "command": ["python", str(SCRIPT), "--steps=1", "--checkpoint=/tmp/none.pt"],
        "volumeMounts": [{"name": "script", "mountPath": str(SCRIPT.parent), "readOnly": True}],
    }
    volume = {"name": "script", "hostPath": {"path": str(SCRIPT.parent)}}
    spec = {"containers": [container], "volumes": [volume]}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": {"Master": {"template": {"spec": spec}}}},
    }


async def submitted(kubeconfig: Path, name: str) -> float:
    """Seconds from submission until the log reports the first step."""
    from gangline.api.resources import PODS, PYTORCH_JOBS
    from gangline.kube.client.client import ApiClient
    from gangline.kube.config.config import load_config

    async with ApiClient(load_config(str(kubeconfig))) as client:
        begun = time.monotonic()
        await client.create(PYTORCH_JOBS, job(name), "default")
        selector = f"metadata.name={name}-master-0"
        async for event in client.watch(PODS, "default", fields=selector):
            if event.object.status.phase in ("Running", "Succeeded", "Failed"):
                break
        async for piece in client.logs(f"{name}-master-0", "default", follow=True):
            if FIRST_STEP.encode() in piece:
                return time.monotonic() - begun
    raise AssertionError("the job ended without a step")


def main() -> None:
    folder = Path("/tmp")
    with embedded() as (kubeconfig, _):
        hand, ours = [], []
        for number in range(RUNS):
            hand.append(by_hand(folder))
            ours.append(asyncio.run(submitted(kubeconfig, f"first-{number}")))
    print(f"first training step of a one-pod job, medians of {RUNS} runs in turn")
    print(f"  torchrun by hand    {statistics.median(hand):.2f} s  {_spread(hand)}")
    print(f"  submitted           {statistics.median(ours):.2f} s  {_spread(ours)}")
    difference = statistics.median(ours) - statistics.median(hand)
    ratio = statistics.median(ours) / statistics.median(hand)
    print(f"  difference {difference:+.2f} s (to reach: at most +1 s), ratio {ratio:.2f}")
    figure = results.Figure(
        "from submission (torchrun: from its start) to the first training step",
        "s",
        statistics.median(ours),
        {"torchrun": statistics.median(hand)},
    )
    conditions = f"a job of one pod; medians of {RUNS} runs in turn"
    results.write("first_step", conditions, {"first_step": figure}, results.training_versions())


def _spread(times: list[float]) -> str:
    return f"({min(times):.2f} to {max(times):.2f})"


if __name__ == "__main__":
    main()
