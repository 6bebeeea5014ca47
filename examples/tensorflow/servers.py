"""Train a small network on handwritten digits with ParameterServerStrategy.

A plain TensorFlow script without any knowledge of Kubernetes: it reads TF_CONFIG, which TFJob sets.
The chief coordinates: it gives steps to idle workers, and the weights are on the parameter servers.
So a slow worker delays no other, and a killed one costs only its current steps. Workers and
parameter servers run until they are stopped: the TFJob ends with its chief, and ``cleanPodPolicy:
Running`` stops the others. The data set is scikit-learn's: 1,797 images of 8 x 8 pixels.
"""

import argparse
import importlib.util
import os
import pathlib
import sys

import numpy
import tensorflow as tf

Data = tuple[numpy.ndarray, numpy.ndarray]

HIDDEN = 64


def load_data() -> tuple[Data, Data]:
    """Training images and labels, test images and labels; the split is the same everywhere."""
    # Read from scikit-learn's folder without importing it: the import takes seconds.
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        sys.exit("the digits come with scikit-learn, which is not installed")
    path = pathlib.Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz"
    table = numpy.loadtxt(path, delimiter=",", dtype=numpy.float32)
    table = table[numpy.random.default_rng(0).permutation(len(table))]
    images, labels = table[:, :64] / 16, table[:, 64].astype(numpy.int64)
    test = len(labels) // 5
    return (images[test:], labels[test:]), (images[:test], labels[:test])


def batches(training: Data, batch: int) -> tf.data.Dataset:
    """Training batches without end; each worker gets an order of its own."""
    return tf.data.Dataset.from_tensor_slices(training).shuffle(2000).repeat().batch(batch)


class Network(tf.Module):
    """64 pixels in, one hidden layer, ten classes out."""

    def __init__(self) -> None:
        super().__init__()
        generator = numpy.random.default_rng(0)
        first = generator.normal(0, 64**-0.5, (64, HIDDEN)).astype(numpy.float32)
        second = generator.normal(0, HIDDEN**-0.5, (HIDDEN, 10)).astype(numpy.float32)
        self.first, self.first_bias = tf.Variable(first), tf.Variable(tf.zeros(HIDDEN))
        self.second, self.second_bias = tf.Variable(second), tf.Variable(tf.zeros(10))

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        hidden = tf.nn.relu(images @ self.first + self.first_bias)
        return hidden @ self.second + self.second_bias

    def learn(self, images: tf.Tensor, labels: tf.Tensor, rate: float) -> tf.Tensor:
        """Do one step of gradient descent; return the loss before it."""
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self(images))
            loss = tf.reduce_mean(losses)
        for weights, slope in zip(
            self.trainable_variables, tape.gradient(loss, self.trainable_variables), strict=True
        ):
            weights.assign_sub(rate * slope)  # on the parameter server, without locking
        return loss


def coordinate(
    resolver: tf.distribute.cluster_resolver.ClusterResolver, arguments: argparse.Namespace
) -> None:
    """Schedule the steps in rounds, and print the test accuracy at the end."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    training, (test_images, test_labels) = load_data()
    with strategy.scope():
        network = Network()
        done = tf.Variable(0, dtype=tf.int64)
    checkpoints = tf.train.CheckpointManager(
        tf.train.Checkpoint(network=network, done=done), arguments.checkpoints, max_to_keep=2
    )
    checkpoints.restore_or_initialize()

    @tf.function
    def step(samples: tf.data.Iterator) -> tf.Tensor:
        images, labels = next(samples)
        return strategy.run(network.learn, args=(images, labels, arguments.rate))

    samples = iter(
        coordinator.create_per_worker_dataset(lambda: batches(training, arguments.batch))
    )
    homes = sorted({weights.device for weights in network.trainable_variables})
    print(f"chief on {os.uname().nodename}: weights on {', '.join(homes)}", flush=True)
    print(f"starts at step {done.numpy()}", flush=True)
    while done.numpy() < arguments.steps:
        losses = [coordinator.schedule(step, args=(samples,)) for _ in range(arguments.round)]
        coordinator.join()  # the step of a dead worker is given to another one
        done.assign_add(arguments.round)
        if done.numpy() % arguments.checkpoint_every == 0:
            checkpoints.save()
        loss = numpy.mean([loss.fetch() for loss in losses])
        print(f"step {done.numpy()}/{arguments.steps} loss {loss:.4f}", flush=True)

    named = tf.argmax(network(test_images), axis=1).numpy()
    print(f"test accuracy {float(numpy.mean(named == test_labels)):.4f}", flush=True)


def main() -> None:
    """Run the role in TF_CONFIG: the coordinator, or a server for it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--round", type=int, default=50, help="steps handed out at once")
    parser.add_argument("--batch", type=int, default=32, help="samples of a step")
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--checkpoints", type=pathlib.Path, default=pathlib.Path("checkpoints"))
    parser.add_argument("--checkpoint-every", type=int, default=250, metavar="STEPS")
    arguments = parser.parse_args()

    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    role, index = resolver.task_type, resolver.task_id
    if role == "chief":
        coordinate(resolver, arguments)
        return
    print(f"{role} {index} on {os.uname().nodename}: serves", flush=True)
    server = tf.distribute.Server(resolver.cluster_spec(), role, index, protocol="grpc")
    server.join()


if __name__ == "__main__":
    main()
