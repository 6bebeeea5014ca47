"""Train a small network to classify tumours, data-parallel over Paddle workers.

A plain Paddle script without any knowledge of Kubernetes. It reads the PADDLE_ variables that
PaddleJob sets, or those that ``python -m paddle.distributed.launch`` derives from them. The data
set is scikit-learn's: 569 tumours with 30 measurements each, malignant or benign. Rank 0 saves
checkpoints, from which restarted processes continue.
"""

import argparse
import importlib.util
import os
import pathlib
import sys
import time

import numpy
import paddle
import paddle.distributed
from paddle import nn


def join() -> tuple[int, int]:
    """Initialise communication; return this worker's rank and the number of workers."""
    rank = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
    world = int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
    if world > 1:
        # The launcher sets these two; without a launcher they are unset.
        endpoints = os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")
        os.environ.setdefault("PADDLE_CURRENT_ENDPOINT", endpoints[rank])
        os.environ.setdefault("PADDLE_DISTRI_BACKEND", "gloo")
        paddle.distributed.init_parallel_env()
    return rank, world


def load_data() -> tuple[paddle.Tensor, paddle.Tensor, paddle.Tensor, paddle.Tensor]:
    """Training and test data with labels; the same in every process."""
    # Read from scikit-learn's folder without importing it: the import would delay every start.
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        sys.exit("the data come with scikit-learn, which is not installed")
    path = pathlib.Path(package.origin).with_name("datasets") / "data" / "breast_cancer.csv"
    table = numpy.loadtxt(path, delimiter=",", skiprows=1, dtype=numpy.float32)
    table = table[numpy.random.default_rng(0).permutation(len(table))]
    measured, benign = table[:, :30], table[:, 30].astype(numpy.int64)
    measured = (measured - measured[:456].mean(0)) / measured[:456].std(0)
    parts = measured[:456], benign[:456], measured[456:], benign[456:]
    first, second, third, fourth = (paddle.to_tensor(part) for part in parts)
    return first, second, third, fourth


def batch_of(step: int, count: int, batch: int, rank: int, world: int) -> paddle.Tensor:
    """Which samples ``rank`` takes in ``step``; pure, so a restart sees the same order."""
    epoch, position = divmod(step, count // (batch * world))
    order = numpy.random.default_rng(epoch).permutation(count)
    start = (position * world + rank) * batch
    return paddle.to_tensor(order[start : start + batch])


def save(
    path: pathlib.Path, step: int, network: nn.Layer, optimizer: paddle.optimizer.Optimizer
) -> None:
    """Write the checkpoint to a temporary file and rename it atomically."""
    fresh = path.with_suffix(".new")
    state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
    paddle.save({"step": step} | state, str(fresh))
    fresh.replace(path)


def restore(path: pathlib.Path, network: nn.Layer, optimizer: paddle.optimizer.Optimizer) -> int:
    """Load the checkpoint, if there is one; return the step to continue from.

    Every rank reads the same file: it is not written before all have done a step together.
    """
    if not path.exists():
        return 0
    state = paddle.load(str(path))
    network.set_state_dict(state["network"])
    optimizer.set_state_dict(state["optimizer"])
    return int(state["step"])


def accuracy(network: nn.Layer, measured: paddle.Tensor, benign: paddle.Tensor) -> float:
    """The share of tumours that the network classifies correctly."""
    with paddle.no_grad():
        return float((network(measured).argmax(1) == benign).astype("float32").mean())


def main() -> None:
    """Train, resume from a checkpoint, print progress and the test accuracy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32, help="samples for each rank and step")
    parser.add_argument("--checkpoint", type=pathlib.Path, default=pathlib.Path("cancer.pdparams"))
    parser.add_argument("--checkpoint-every", type=int, default=25, metavar="STEPS")
    parser.add_argument("--print-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="let a step take longer")
    arguments = parser.parse_args()

    paddle.set_device("cpu")
    paddle.seed(0)
    rank, world = join()
    measured, benign, test_measured, test_benign = load_data()
    network = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = paddle.optimizer.Adam(1e-2, parameters=network.parameters())
    first = restore(arguments.checkpoint, network, optimizer)
    parallel = paddle.DataParallel(network) if world > 1 else network
    print(f"rank {rank} of {world} on {os.uname().nodename}: starts at step {first}", flush=True)

    for step in range(first, arguments.steps):
        chosen = batch_of(step, len(benign), arguments.batch, rank, world)
        loss = nn.functional.cross_entropy(parallel(measured[chosen]), benign[chosen])
        loss.backward()  # gradients are all-reduced here
        optimizer.step()
        optimizer.clear_grad()
        done = step + 1
        if done == first + 1 or done % arguments.print_every == 0:
            print(f"step {done}/{arguments.steps} loss {float(loss):.4f}", flush=True)
        if rank == 0 and (done % arguments.checkpoint_every == 0 or done == arguments.steps):
            save(arguments.checkpoint, done, network, optimizer)
        time.sleep(arguments.step_seconds)

    if rank == 0:
        print(f"test accuracy {accuracy(network, test_measured, test_benign):.4f}", flush=True)
    if world > 1:
        paddle.distributed.barrier()  # rank 0 hosts the store: it must end last


if __name__ == "__main__":
    main()
