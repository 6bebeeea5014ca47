"""Non-negative least squares on 5,000 random problems, beside SciPy.

Prints the largest violation of the conditions of the optimum (Karush, Kuhn and Tucker; relative to
the norms of the column and of the right side), the largest difference of the residual from that of
SciPy where SciPy is installed, and the processor time of one problem.
"""

import importlib.util
import time

import numpy as np

from gangline.brain.models.nnls import Array, nnls

PROBLEMS = 5_000
SEED = 20261123


def random_problem(random: np.random.Generator) -> tuple[Array, Array]:
    """Random, with columns of other scales, equal columns, and exact solutions."""
    rows, columns = int(random.integers(1, 30)), int(random.integers(1, 8))
    a = random.normal(size=(rows, columns))
    kind = int(random.integers(0, 5))
    if kind == 0:
        a = np.abs(a)
    if kind == 1 and columns > 1:
        a[:, 1] = 2 * a[:, 0]
    if kind == 2:
        a *= 10.0 ** random.integers(-6, 6, size=columns)
    b = random.normal(size=rows)
    if kind == 3:
        b = a @ np.maximum(random.normal(size=columns), 0)
    return a, b


def violation(a: Array, b: Array, x: Array) -> float:
    """How far a solution is from the conditions of the optimum: no value is negative, no direction
    descends, and none ascends at a positive value.
    """
    descent = a.T @ (b - a @ x)
    descent /= np.linalg.norm(a, axis=0) * max(float(np.linalg.norm(b)), 1e-300) + 1e-300
    worst = np.concatenate([-x, descent, -descent[x > 0]])
    return max(0.0, float(worst.max()))


def main() -> None:
    random = np.random.default_rng(SEED)
    problems = [random_problem(random) for _ in range(PROBLEMS)]
    began = time.process_time()
    found = [nnls(a, b) for a, b in problems]
    took_us = (time.process_time() - began) / PROBLEMS * 1e6
    worst = max(violation(a, b, each.x) for (a, b), each in zip(problems, found, strict=True))
    print(f"{PROBLEMS} problems: {took_us:.0f} us each, largest violation {worst:.1e}")
    if importlib.util.find_spec("scipy") is None:
        print("SciPy is not installed")
        return
    optimize = importlib.import_module("scipy.optimize")
    norms = [optimize.nnls(a, b)[1] for a, b in problems]
    differences = [
        abs(each.squares**0.5 - norm) / max(float(np.linalg.norm(b)), 1e-300)
        for (_, b), each, norm in zip(problems, found, norms, strict=True)
    ]
    print(f"largest difference from SciPy's residual: {max(differences):.1e} of the right side")


if __name__ == "__main__":
    main()
