"""Train a small network on handwritten digits, data-parallel over MindSpore workers.

A plain MindSpore script without any knowledge of Kubernetes. It reads MS_ROLE, which MSJob sets
together with the MS_ variables that MindSpore itself reads; without MS_ROLE it trains alone. The
data set is scikit-learn's: 1,797 images of 8 x 8 pixels. Rank 0 saves checkpoints, from which
restarted processes continue.
"""

import argparse
import importlib.util
import os
import pathlib
import sys
import time
from collections.abc import Callable

import mindspore
import numpy
from mindspore import Tensor, nn
from mindspore.communication import get_group_size, get_rank, init


def build_network() -> nn.Cell:
    """One hidden layer: 64 pixels in, ten classes out."""
    return nn.SequentialCell(nn.Dense(64, 64), nn.ReLU(), nn.Dense(64, 10))


def load_data() -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    """Training images and labels, test images and labels; the split is the same on every rank."""
    # Read from scikit-learn's folder without importing it: the import would delay every start.
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        sys.exit("the digits come with scikit-learn, which is not installed")
    path = pathlib.Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz"
    table = numpy.loadtxt(path, delimiter=",", dtype=numpy.float32)
    table = table[numpy.random.default_rng(0).permutation(len(table))]
    images, labels = table[:, :64] / 16, table[:, 64].astype(numpy.int32)
    test = len(table) // 5
    return images[test:], labels[test:], images[:test], labels[:test]


def batch_of(step: int, count: int, batch: int, rank: int, world: int) -> numpy.ndarray:
    """Which samples ``rank`` takes in ``step``; pure, so a restart sees the same order."""
    epoch, position = divmod(step, count // (batch * world))
    order = numpy.random.default_rng(epoch).permutation(count)
    start = (position * world + rank) * batch
    return order[start : start + batch]


def join() -> tuple[int, int]:
    """Initialise communication; return this process's rank and the number of workers.

    Does not return in a scheduler or a parameter server.
    """
    role = os.environ.get("MS_ROLE")
    if role is None:
        return 0, 1
    print(f"{role} waits for the others", flush=True)
    init()  # does not return in a scheduler: MindSpore exits when all workers have ended
    if role != "MS_WORKER":
        # MindSpore 2.10 has the role of parameter servers, but no parameters on them.
        print(f"{role} has met {os.environ['MS_WORKER_NUM']} workers", flush=True)
        sys.exit()
    return get_rank(), get_group_size()


def training_step(
    network: nn.Cell, optimizer: nn.Optimizer, world: int
) -> Callable[[Tensor, Tensor], Tensor]:
    """One training step, compiled into one graph; returns the loss before it."""
    loss_of = nn.CrossEntropyLoss()

    def forward(images: Tensor, labels: Tensor) -> Tensor:
        return loss_of(network(images), labels)

    gradients_of = mindspore.value_and_grad(forward, None, optimizer.parameters)
    if world == 1:

        def step(images: Tensor, labels: Tensor) -> Tensor:
            loss, gradients = gradients_of(images, labels)
            optimizer(gradients)
            return loss

    else:
        mean_over_workers = nn.DistributedGradReducer(optimizer.parameters, True, world)

        def step(images: Tensor, labels: Tensor) -> Tensor:
            loss, gradients = gradients_of(images, labels)
            optimizer(mean_over_workers(gradients))
            return loss

    return mindspore.jit(step)


def save(path: pathlib.Path, optimizer: nn.Optimizer) -> None:
    """Write the checkpoint to a temporary file and rename it atomically."""
    fresh = path.with_suffix(".new.ckpt")
    mindspore.save_checkpoint(optimizer, str(fresh))
    fresh.replace(path)


def restore(path: pathlib.Path, network: nn.Cell, optimizer: nn.Optimizer) -> int:
    """Load the checkpoint, if there is one; return the step to continue from.

    Every rank reads the same file: it is not written before all have done a step together.
    """
    if not path.exists():
        return 0
    state = mindspore.load_checkpoint(str(path), optimizer)
    mindspore.load_param_into_net(network, state)
    return int(optimizer.global_step.asnumpy()[0])


def main() -> None:
    """Train, resume from a checkpoint, print progress and the test accuracy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32, help="samples for each rank and step")
    parser.add_argument("--checkpoint", type=pathlib.Path, default=pathlib.Path("digits.ckpt"))
    parser.add_argument("--checkpoint-every", type=int, default=25, metavar="STEPS")
    parser.add_argument("--print-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="let a step take longer")
    arguments = parser.parse_args()

    mindspore.set_device("CPU")
    mindspore.set_seed(0)
    rank, world = join()
    train_images, train_labels, test_images, test_labels = load_data()
    network = build_network()
    optimizer = nn.Adam(network.trainable_params(), learning_rate=5e-3)
    first = restore(arguments.checkpoint, network, optimizer)
    step_once = training_step(network, optimizer, world)
    print(f"rank {rank} of {world} on {os.uname().nodename}: starts at step {first}", flush=True)

    for step in range(first, arguments.steps):
        chosen = batch_of(step, len(train_labels), arguments.batch, rank, world)
        loss = step_once(Tensor(train_images[chosen]), Tensor(train_labels[chosen]))
        done = step + 1
        if done == first + 1 or done % arguments.print_every == 0:
            print(f"step {done}/{arguments.steps} loss {float(loss.asnumpy()):.4f}", flush=True)
        if rank == 0 and (done % arguments.checkpoint_every == 0 or done == arguments.steps):
            save(arguments.checkpoint, optimizer)
        time.sleep(arguments.step_seconds)

    if rank == 0:
        guessed = network(Tensor(test_images)).asnumpy().argmax(1)
        print(f"test accuracy {(guessed == test_labels).mean():.4f}", flush=True)


if __name__ == "__main__":
    main()
