"""Train a small convolutional network on handwritten digits with DistributedDataParallel.

A plain PyTorch script without any knowledge of Kubernetes. It reads RANK, WORLD_SIZE, MASTER_ADDR
and MASTER_PORT, which PyTorchJob (and torchrun) set. The data set is scikit-learn's: 1,797 images
of 8 x 8 pixels. Rank 0 saves checkpoints, from which restarted processes continue, so a killed
worker costs only the steps since the last one.
"""

import argparse
import importlib.util
import os
import pathlib
import sys
import time
from datetime import timedelta

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def build_network() -> nn.Module:
    """Two convolutions and two linear layers: 8 x 8 pixels in, ten classes out."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def load_data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, test images and labels; the split is the same on every rank."""
    # Read from scikit-learn's folder without importing it: the import takes nearly as long as
    # that of torch, at every restart.
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        sys.exit("the digits come with scikit-learn, which is not installed")
    path = pathlib.Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz"
    table = torch.from_numpy(numpy.loadtxt(path, delimiter=",", dtype=numpy.float32))
    images, labels = table[:, :64].reshape(-1, 1, 8, 8) / 16, table[:, 64].long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    return images[train], labels[train], images[test], labels[test]


def batch_of(step: int, count: int, batch: int, rank: int, world: int) -> Tensor:
    """Which samples ``rank`` takes in ``step``; pure, so a restart sees the same order."""
    per_epoch = count // (batch * world)
    epoch, position = divmod(step, per_epoch)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
    start = (position * world + rank) * batch
    return order[start : start + batch]


def save(
    path: pathlib.Path, step: int, network: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Write the checkpoint to a temporary file and rename it atomically."""
    fresh = path.with_suffix(".new")
    torch.save(
        {"step": step, "network": network.state_dict(), "optimizer": optimizer.state_dict()}, fresh
    )
    fresh.replace(path)


def restore(path: pathlib.Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Broadcast the checkpoint of rank 0; return the step to continue from."""
    found = [
        torch.load(path, weights_only=True) if dist.get_rank() == 0 and path.exists() else None
    ]
    dist.broadcast_object_list(found)
    if (state := found[0]) is None:
        return 0
    network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The share of ``images`` that the network classifies correctly."""
    with torch.no_grad():
        return float((network(images).argmax(1) == labels).float().mean())


def main() -> None:
    """Train, resume from a checkpoint, print progress and the test accuracy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=450)
    parser.add_argument("--batch", type=int, default=32, help="samples for each rank and step")
    parser.add_argument("--checkpoint", type=pathlib.Path, default=pathlib.Path("checkpoint.pt"))
    parser.add_argument("--checkpoint-every", type=int, default=25, metavar="STEPS")
    parser.add_argument("--print-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="let a step take longer")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    train_images, train_labels, test_images, test_labels = load_data()
    network = build_network()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    first = restore(arguments.checkpoint, network, optimizer)
    parallel = DistributedDataParallel(network)
    print(f"rank {rank} of {world} on {os.uname().nodename}: starts at step {first}", flush=True)

    for step in range(first, arguments.steps):
        chosen = batch_of(step, len(train_labels), arguments.batch, rank, world)
        loss = nn.functional.cross_entropy(parallel(train_images[chosen]), train_labels[chosen])
        done = step + 1
        optimizer.zero_grad()
        try:
            loss.backward()  # gradients are all-reduced here, so a dead rank is detected here
        except RuntimeError as error:
            # Immediately: while rank 0 cleans up, a restarted rank would still find its old store.
            print(
                f"rank {rank} lost another rank in step {done}: {str(error)[:200]}",
                file=sys.stderr,
                flush=True,
            )
            os._exit(1)
        optimizer.step()
        if done == first + 1 or done % arguments.print_every == 0:
            print(f"step {done}/{arguments.steps} loss {loss.item():.4f}", flush=True)
        if rank == 0 and (done % arguments.checkpoint_every == 0 or done == arguments.steps):
            save(arguments.checkpoint, done, network, optimizer)
        time.sleep(arguments.step_seconds)

    if rank == 0:
        print(f"test accuracy {accuracy(network, test_images, test_labels):.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
