"""MLX on processors, started by mpirun: the processes train one model by their mean gradients."""

import os

import mlx.core as mx
from mlx import nn
from mlx.optimizers import Adam
from mlx.utils import tree_flatten

STEPS = 20


def main() -> None:
    # strict: without MPI each process would train a model of its own.
    group = mx.distributed.init(strict=True, backend="mpi")
    mx.random.seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    mx.eval(model.parameters())
    optimizer = Adam(learning_rate=0.05)

    def mean_loss(records: mx.array, labels: mx.array) -> mx.array:
        return nn.losses.cross_entropy(model(records), labels, reduction="mean")

    differentiate = nn.value_and_grad(model, mean_loss)
    mx.random.seed(group.rank() + 1)
    losses = []
    for _ in range(STEPS):
        records = mx.random.normal((32, 16))
        loss, gradients = differentiate(records, mx.argmax(records[:, :4], axis=1))
        optimizer.update(model, nn.average_gradients(gradients))
        mx.eval(model.parameters(), loss)
        losses.append(loss.item())
    weights = sum(mx.abs(value).sum().item() for _, value in tree_flatten(model.parameters()))
    print(
        f"rank {group.rank()} of {group.size()} on {os.uname().nodename}: "
        f"loss {losses[0]:.3f} to {losses[-1]:.3f}, weights {weights:.6f}",
        flush=True,
    )


main()
