"""Learn the progression of diabetes with Paddle's parameter server, which stores the weights.

A plain Paddle script without any knowledge of Kubernetes, in static-graph style, which parameter
servers require. It reads the variables that PaddleJob sets (TRAINING_ROLE,
PADDLE_PSERVERS_IP_PORT_LIST, POD_IP, PADDLE_PORT, ...). The data set is scikit-learn's: 442
patients
with 10 measurements each. Workers send gradients and fetch weights asynchronously; gloo
(``withGloo: 1`` of the PaddleJob) provides barriers at start and end.
"""

import argparse
import importlib.util
import os
import pathlib
import socket
import sys
import tempfile
import time

# Parameter servers need Paddle 2's programs; read at the import of paddle.
os.environ.setdefault("FLAGS_enable_pir_api", "0")

import numpy
import paddle
from paddle import static
from paddle.distributed import fleet

TEST = 88
"""Number of patients in the test set."""


def load_data() -> tuple[numpy.ndarray, numpy.ndarray]:
    """Normalised measurements and progression of all patients; the same in every process."""
    # Read from scikit-learn's folder without importing it: the import would delay every start.
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        sys.exit("the data come with scikit-learn, which is not installed")
    folder = pathlib.Path(package.origin).with_name("datasets") / "data"
    measured = numpy.loadtxt(folder / "diabetes_data_raw.csv.gz", dtype=numpy.float32)
    progress = numpy.loadtxt(folder / "diabetes_target.csv.gz", dtype=numpy.float32)
    order = numpy.random.default_rng(0).permutation(len(progress))
    measured, progress = measured[order], progress[order, None]
    measured = (measured - measured[TEST:].mean(0)) / measured[TEST:].std(0)
    progress = (progress - progress[TEST:].mean()) / progress[TEST:].std()
    return measured, progress


def build() -> tuple[list[static.Variable], static.Variable]:
    """Put a linear model into the default program; return its inputs and its loss."""
    measured = static.data("measured", [None, 10], "float32")
    progress = static.data("progress", [None, 1], "float32")
    names = {"weight_attr": paddle.ParamAttr("weights"), "bias_attr": paddle.ParamAttr("bias")}
    guess = static.nn.fc(measured, 1, **names)
    loss = paddle.mean(paddle.nn.functional.square_error_cost(guess, progress))
    return [measured, progress], loss


def explained(measured: numpy.ndarray, progress: numpy.ndarray) -> float:
    """The share of the variance in ``progress`` that the weights last fetched explain."""
    scope = static.global_scope()
    weights, bias = (numpy.array(scope.find_var(name).get_tensor()) for name in ("weights", "bias"))
    error = ((measured @ weights.reshape(10, 1) + bias - progress) ** 2).mean()
    return float(1 - error / progress.var())


def wait_for(endpoints: list[str], patience_s: float = 120.0) -> None:
    """Wait until all servers listen: a worker that connects too early fails immediately.

    Raises:
        OSError: one does not listen within ``patience_s`` seconds.
    """
    deadline = time.monotonic() + patience_s
    for endpoint in endpoints:
        host, port = endpoint.rsplit(":", 1)
        while True:
            try:
                socket.create_connection((host, int(port)), 5).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)


def serve() -> None:
    """Serve weights until the first worker reports that all have finished."""
    fleet.init_server()
    print(f"server {fleet.server_index()} of {fleet.server_num()} serves", flush=True)
    fleet.run_server()


def share_of(
    index: int, count: int, measured: numpy.ndarray, progress: numpy.ndarray, path: pathlib.Path
) -> None:
    """Write this worker's share of the patients one line per patient, as Paddle expects."""
    with path.open("w") as file:
        for patient in range(TEST + index, len(progress), count):
            inputs = " ".join(f"{value:.6f}" for value in measured[patient])
            file.write(f"10 {inputs} 1 {progress[patient, 0]:.6f}\n")


def work(inputs: list[static.Variable], epochs: int, batch: int) -> None:
    """Train on this worker's share; the first one tests the result and stops the servers."""
    index, count = fleet.worker_index(), fleet.worker_num()
    executor = static.Executor(paddle.CPUPlace())
    executor.run(static.default_startup_program())
    wait_for(fleet.server_endpoints())
    fleet.init_worker()
    print(f"worker {index} of {count} on {os.uname().nodename}: starts", flush=True)
    measured, progress = load_data()
    with tempfile.TemporaryDirectory() as folder:
        share = pathlib.Path(folder, "share.txt")
        share_of(index, count, measured, progress, share)
        dataset = paddle.distributed.QueueDataset()
        dataset.init(batch_size=batch, thread_num=1, use_var=inputs, pipe_command="cat")
        dataset.set_filelist([str(share)])
        for epoch in range(epochs):
            # This sends gradients to the server and fetches weights from it.
            executor.train_from_dataset(static.default_main_program(), dataset)
            if (epoch + 1) % 5 == 0:
                result = explained(measured[TEST:], progress[TEST:])
                print(f"epoch {epoch + 1}/{epochs} variance explained {result:.4f}", flush=True)
    fleet.barrier_worker()
    if fleet.is_first_worker():
        result = explained(measured[:TEST], progress[:TEST])
        print(f"test variance explained {result:.4f}", flush=True)
        # stop_worker() leaves the servers running, and Paddle has no public call that stops them.
        fleet.fleet._runtime_handle._worker.stop_server()
    fleet.stop_worker()


def main() -> None:
    """Run the role of this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args()

    paddle.enable_static()
    paddle.seed(0)
    fleet.init(fleet.PaddleCloudRoleMaker(is_collective=False))
    inputs, loss = build()
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    optimizer = fleet.distributed_optimizer(paddle.optimizer.SGD(0.01), strategy)
    optimizer.minimize(loss)
    if fleet.is_server():
        serve()
    else:
        work(inputs, arguments.epochs, arguments.batch)


if __name__ == "__main__":
    main()
