"""Train a small network on handwritten digits with MultiWorkerMirroredStrategy.

A plain TensorFlow script without any knowledge of Kubernetes: the strategy reads TF_CONFIG, which
TFJob sets. Chief and workers each have the complete network and sum their gradients in every step.
The data set is scikit-learn's: 1,797 images of 8 x 8 pixels. The chief saves checkpoints, from
which restarted processes continue, so a killed worker costs the steps since the last one.
"""

import argparse
import importlib.util
import os
import pathlib
import sys
import time

import numpy
import tensorflow as tf
from tensorflow import keras

LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.InternalError)
"""Exceptions of a step when another process is lost."""


def load_data() -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    """Training images and labels, test images and labels; the split is the same everywhere."""
    # Read from scikit-learn's folder without importing it: the import takes seconds at
    # every start.
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        sys.exit("the digits come with scikit-learn, which is not installed")
    path = pathlib.Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz"
    table = numpy.loadtxt(path, delimiter=",", dtype=numpy.float32)
    table = table[numpy.random.default_rng(0).permutation(len(table))]
    images, labels = table[:, :64].reshape(-1, 8, 8, 1) / 16, table[:, 64].astype(numpy.int64)
    test = len(labels) // 5
    return images[test:], labels[test:], images[:test], labels[:test]


def batch_of(step: int, count: int, batch: int, rank: int, world: int) -> numpy.ndarray:
    """Which samples ``rank`` takes in ``step``; pure, so a restart sees the same order."""
    per_epoch = count // (batch * world)
    epoch, position = divmod(step, per_epoch)
    order = numpy.random.default_rng(epoch).permutation(count)
    start = (position * world + rank) * batch
    return order[start : start + batch]


def build_network() -> keras.Model:
    """Two convolutions and two linear layers: 8 x 8 pixels in, ten classes out."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPool2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


class Trainer:
    """The network and its optimizer, mirrored over all processes."""

    def __init__(self, strategy: tf.distribute.Strategy, checkpoints: pathlib.Path) -> None:
        self.strategy = strategy
        resolver = strategy.cluster_resolver
        chiefs = len(resolver.cluster_spec().as_dict().get("chief", []))
        self.world = strategy.num_replicas_in_sync
        self.rank = resolver.task_id + (chiefs if resolver.task_type == "worker" else 0)
        self.prefix = checkpoints / "step"
        with strategy.scope():
            self.network = build_network()
            self.optimizer = keras.optimizers.Adam(1e-3)
            self.optimizer.build(self.network.trainable_variables)
            # All must start from the same checkpoint, so the chief selects it. If each process
            # selected its own, one might find a newer one than the others.
            self.done = tf.Variable(self._newest() if self.rank == 0 else 0, dtype=tf.int64)
        self.checkpoint = tf.train.Checkpoint(network=self.network, optimizer=self.optimizer)
        if self.done.numpy() > 0:
            self.checkpoint.read(f"{self.prefix}-{self.done.numpy()}").assert_consumed()

    def _newest(self) -> int:
        steps = [int(path.stem.partition("-")[2]) for path in self.prefix.parent.glob("*.index")]
        return max(steps, default=0)

    def save(self, step: int) -> None:
        """Write a checkpoint; it is complete once its index exists, which is written last."""
        older = self._newest()
        self.checkpoint.write(f"{self.prefix}-{step}")
        for path in self.prefix.parent.glob("step-*"):
            if path.stem not in {f"step-{older}", f"step-{step}"}:
                path.unlink()

    @tf.function
    def wait_for_all(self) -> None:
        """Wait until every process has reached this point."""
        one = self.strategy.run(lambda: tf.constant(1))
        self.strategy.reduce("SUM", one, axis=None)

    @tf.function
    def step(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Train on one batch per process; return the mean loss."""
        losses = self.strategy.run(self._step_of_this_process, args=(images, labels))
        return self.strategy.reduce("SUM", losses, axis=None)

    def _step_of_this_process(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            scores = self.network(images)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
            loss = tf.reduce_mean(losses) / self.world  # the optimizer sums over processes
        weights = self.network.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss


def main() -> None:
    """Train, resume from a checkpoint, print progress and the test accuracy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=450)
    parser.add_argument("--batch", type=int, default=32, help="samples for each process and step")
    parser.add_argument("--checkpoints", type=pathlib.Path, default=pathlib.Path("checkpoints"))
    parser.add_argument("--checkpoint-every", type=int, default=25, metavar="STEPS")
    parser.add_argument("--print-every", type=int, default=25, metavar="STEPS")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="let a step take longer")
    arguments = parser.parse_args()

    keras.utils.set_random_seed(0)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    trainer = Trainer(tf.distribute.MultiWorkerMirroredStrategy(), arguments.checkpoints)
    rank, world, first = trainer.rank, trainer.world, int(trainer.done.numpy())
    train_images, train_labels, test_images, test_labels = load_data()
    print(f"rank {rank} of {world} on {os.uname().nodename}: starts at step {first}", flush=True)

    for step in range(first, arguments.steps):
        chosen = batch_of(step, len(train_labels), arguments.batch, rank, world)
        done = step + 1
        try:
            loss = float(trainer.step(train_images[chosen], train_labels[chosen]))
        except LOST as error:  # the all-reduce is here, so a dead process is detected here
            reason = type(error).__name__
            print(f"rank {rank} lost another in step {done}: {reason}", flush=True)
            os._exit(1)  # the regular shutdown waits for the other processes
        if done == first + 1 or done % arguments.print_every == 0:
            print(f"step {done}/{arguments.steps} loss {loss:.4f}", flush=True)
        if rank == 0 and (done % arguments.checkpoint_every == 0 or done == arguments.steps):
            trainer.save(done)
        time.sleep(arguments.step_seconds)

    if rank == 0:
        named = numpy.argmax(trainer.network(test_images), axis=1)
        print(f"test accuracy {float(numpy.mean(named == test_labels)):.4f}", flush=True)
    trainer.wait_for_all()  # a chief that fails after the others have ended could not recover


if __name__ == "__main__":
    main()
