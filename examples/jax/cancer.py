"""Train a small network to classify tumours, data-parallel over JAX processes.

A plain JAX script without any knowledge of Kubernetes. It reads COORDINATOR_ADDRESS,
COORDINATOR_PORT, NUM_PROCESSES and PROCESS_ID, which JAXJob sets, or JAX_COORDINATOR_ADDRESS,
JAX_NUM_PROCESSES and JAX_PROCESS_ID, which a TrainJob with the jax runtime sets. The data set is
scikit-learn's: 569 tumours with 30 measurements each, malignant or benign. Every process has a
share of the training samples; XLA sums the gradient over all processes (by gloo, as these are
CPUs). Process 0 saves checkpoints, from which restarted processes continue.
"""

import argparse
import importlib.util
import os
import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Parameters = dict[str, jax.Array]


def join() -> tuple[int, int]:
    """Initialise the process group; return this process's index and the number of processes."""
    if address := os.environ.get("JAX_COORDINATOR_ADDRESS"):
        number, count = int(os.environ["JAX_PROCESS_ID"]), int(os.environ["JAX_NUM_PROCESSES"])
    else:
        number, count = int(os.environ["PROCESS_ID"]), int(os.environ["NUM_PROCESSES"])
        address = f"{os.environ['COORDINATOR_ADDRESS']}:{os.environ['COORDINATOR_PORT']}"
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # The next collective detects a lost process immediately; the heartbeat detects one that is
    # lost between collectives.
    jax.distributed.initialize(
        address, count, number, initialization_timeout=60, heartbeat_timeout_seconds=20
    )
    return number, count


def load_data() -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    """Training and test data with labels; the same in every process."""
    # Read from scikit-learn's folder without importing it: the import takes longer than jax's.
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        sys.exit("the data come with scikit-learn, which is not installed")
    path = pathlib.Path(package.origin).with_name("datasets") / "data" / "breast_cancer.csv"
    table = numpy.loadtxt(path, delimiter=",", skiprows=1, dtype=numpy.float32)
    table = table[numpy.random.default_rng(0).permutation(len(table))]
    train, test = table[:456], table[456:]
    mean, spread = train[:, :30].mean(0), train[:, :30].std(0)
    return (
        (train[:, :30] - mean) / spread,
        train[:, 30],
        (test[:, :30] - mean) / spread,
        test[:, 30],
    )


def first_parameters() -> Parameters:
    """One hidden layer of 16; the same numbers in every process."""
    key = jax.random.key(0)
    return {
        "hidden": jax.random.normal(key, (30, 16)) / 30**0.5,
        "hidden_bias": jnp.zeros(16),
        "out": jnp.zeros(16),
        "out_bias": jnp.zeros(()),
    }


def scores(parameters: Parameters, measured: jax.Array) -> jax.Array:
    """Above zero means benign."""
    hidden = jnp.tanh(measured @ parameters["hidden"] + parameters["hidden_bias"])
    return hidden @ parameters["out"] + parameters["out_bias"]


def loss(parameters: Parameters, measured: jax.Array, answers: jax.Array) -> jax.Array:
    """The mean cross-entropy over the samples of all processes."""
    found = scores(parameters, measured)
    return jnp.mean(jnp.logaddexp(0, found) - answers * found)


@jax.jit
def train_step(
    parameters: Parameters, measured: jax.Array, answers: jax.Array
) -> tuple[Parameters, jax.Array]:
    """One step of gradient descent. Compiled once for all processes, sums included."""
    value, gradient = jax.value_and_grad(loss)(parameters, measured, answers)
    return jax.tree.map(lambda old, slope: old - 0.3 * slope, parameters, gradient), value


def save(path: pathlib.Path, step: int, parameters: Parameters) -> None:
    """Write the checkpoint to a temporary file and rename it atomically."""
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        numpy.savez(file, step=step, **parameters)
    fresh.replace(path)


def restore(path: pathlib.Path, number: int) -> tuple[int, Parameters]:
    """Broadcast the checkpoint of process 0, else the initial state."""
    step, parameters = numpy.asarray(0), first_parameters()
    if number == 0 and path.exists():
        with numpy.load(path) as found:
            step = found["step"]
            parameters = {name: jnp.asarray(found[name]) for name in parameters}
    step, parameters = multihost_utils.broadcast_one_to_all((step, parameters))
    return int(step), parameters


def main() -> None:
    """Train, resume from a checkpoint, print progress and the test accuracy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--checkpoint", type=pathlib.Path, default=pathlib.Path("checkpoint.npz"))
    parser.add_argument("--checkpoint-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--print-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="let a step take longer")
    arguments = parser.parse_args()

    number, count = join()
    measured, answers, test_measured, test_answers = load_data()
    mesh = Mesh(jax.devices(), ("processes",))
    split, whole = (
        NamedSharding(mesh, PartitionSpec("processes")),
        NamedSharding(mesh, PartitionSpec()),
    )
    share = len(answers) // count
    mine = slice(number * share, (number + 1) * share)
    measured = jax.make_array_from_process_local_data(split, measured[mine])
    answers = jax.make_array_from_process_local_data(split, answers[mine])

    first, parameters = restore(arguments.checkpoint, number)
    parameters = jax.device_put(parameters, whole)
    print(
        f"process {number} of {count} on {os.uname().nodename}: starts at step {first}", flush=True
    )
    for step in range(first + 1, arguments.steps + 1):
        try:
            parameters, value = train_step(parameters, measured, answers)
            value.block_until_ready()  # the all-reduce is here, so a dead process is detected here
        except jax.errors.JaxRuntimeError as error:
            reason = str(error).rpartition("computation: ")[2][:200]
            print(f"process {number} lost another in step {step}: {reason}", flush=True)
            os._exit(1)  # the regular shutdown waits minutes for the other processes
        if step == first + 1 or step % arguments.print_every == 0:
            print(f"step {step}/{arguments.steps} loss {float(value):.4f}", flush=True)
        if number == 0 and (step % arguments.checkpoint_every == 0 or step == arguments.steps):
            save(arguments.checkpoint, step, jax.device_get(parameters))
        time.sleep(arguments.step_seconds)

    if number == 0:
        benign = scores(jax.device_get(parameters), test_measured) > 0
        print(f"test accuracy {float(numpy.mean(benign == test_answers)):.4f}", flush=True)
    jax.distributed.shutdown()  # waits for the others


if __name__ == "__main__":
    main()
