"""Fit a linear model to the progression of diabetes, data-parallel over MPI processes.

A plain mpi4py script without any knowledge of Kubernetes. The data set is scikit-learn's: 442
patients with 10 measurements each. Every process has a share of the training patients; the gradient
is summed over all of them in each step. Process 0 compares the result with the exact solution.
"""

import socket

import numpy
from mpi4py import MPI
from sklearn.datasets import load_diabetes

TRAINED_ON = 354
STEPS = 500
STEP = 0.4


def load_data() -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    """Training and test data with targets; the same in every process."""
    measured, course = load_diabetes(return_X_y=True)
    order = numpy.random.default_rng(0).permutation(len(course))
    measured, course = measured[order], course[order]
    train = slice(TRAINED_ON)
    measured = (measured - measured[train].mean(0)) / measured[train].std(0)
    measured = numpy.hstack([measured, numpy.ones((len(course), 1))])
    return measured[train], course[train], measured[TRAINED_ON:], course[TRAINED_ON:]


def explained(weights: numpy.ndarray, measured: numpy.ndarray, course: numpy.ndarray) -> float:
    """The share of the target's variance that the model explains (1 is all of it)."""
    missed = ((measured @ weights - course) ** 2).sum()
    return 1 - float(missed / ((course - course.mean()) ** 2).sum())


def main() -> None:
    """Train; process 0 prints the result."""
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    measured, course, test_measured, test_course = load_data()
    own_measured, own_course = measured[rank::size], course[rank::size]
    print(
        f"rank {rank} of {size} on {socket.gethostname()}: {len(own_course)} patients", flush=True
    )
    weights = numpy.zeros(measured.shape[1])
    summed = numpy.empty_like(weights)
    for _ in range(STEPS):
        gradient = own_measured.T @ (own_measured @ weights - own_course)
        world.Allreduce(gradient, summed)
        weights -= STEP * summed / len(course)
    counted = world.allreduce(len(own_course))
    if rank == 0:
        exact = numpy.linalg.lstsq(measured, course, rcond=None)[0]
        found = explained(weights, test_measured, test_course)
        best = explained(exact, test_measured, test_course)
        print(f"trained on {counted} patients", flush=True)
        print(f"explained variance {found:.4f}, solved at once {best:.4f}", flush=True)


if __name__ == "__main__":
    main()
