"""Train a small network to tell malignant from benign tumours, data-parallel over Paddle workers.

A plain Paddle script: it reads the PADDLE_ variables that PaddleJob sets, or those that ``python -m
paddle.distributed.launch`` makes of them, and knows nothing of Kubernetes. The data are the 569
tumours with 30 measurements each that scikit-learn ships. Rank 0 keeps a checkpoint; whoever is
started again goes on from there.
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
    """Meet the other workers; return this one's rank and how many there are."""
    rank = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
    world = int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
    if world > 1:
        # The launcher sets these two; without it nobody does.
        endpoints = os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")
        os.environ.setdefault("PADDLE_CURRENT_ENDPOINT", endpoints[rank])
        os.environ.setdefault("PADDLE_DISTRI_BACKEND", "gloo")
        paddle.distributed.init_parallel_env()
    return rank, world


def load_data() -> tuple[paddle.Tensor, paddle.Tensor, paddle.Tensor, paddle.Tensor]:
    """Training measurements and answers, test measurements and answers; the same everywhere."""
    # Read from scikit-learn's folder without importing it: every start would pay for the import.
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
    """Write the checkpoint beside the old one and put it in its place at once."""
    fresh = path.with_suffix(".new")
    state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
    paddle.save({"step": step} | state, str(fresh))
    fresh.replace(path)


def restore(path: pathlib.Path, network: nn.Layer, optimizer: paddle.optimizer.Optimizer) -> int:
    """Take what the checkpoint holds, if there is one; return the step to go on from.

    Every rank reads the same file: nobody writes it before all have made a step together.
    """
    if not path.exists():
        return 0
    state = paddle.load(str(path))
    network.set_state_dict(state["network"])
    optimizer.set_state_dict(state["optimizer"])
    return int(state["step"])


def accuracy(network: nn.Layer, measured: paddle.Tensor, benign: paddle.Tensor) -> float:
    """The share of tumours that the network names rightly."""
    with paddle.no_grad():
        return float((network(measured).argmax(1) == benign).astype("float32").mean())


def main() -> None:
    """Train, resume where a checkpoint is found, print progress and the test accuracy."""
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
        loss.backward()  # here the ranks exchange gradients
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
        paddle.distributed.barrier()  # rank 0 holds the meeting point: nobody leaves before all


if __name__ == "__main__":
    main()
