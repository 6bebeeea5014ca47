"""Predictions of ``gangline plan`` beside measurements of real trainings on this machine.

    python -m benchmarks sizing            # six models, two batches each, DDP and FSDP
    python -m benchmarks.sizing.measured --report FILE --cases lstm:2x32 ...

Every prediction is made, and written to the report, before its training starts. Two processes
train on gloo, with one thread each. All processes are copies of one that has imported PyTorch,
because the import takes longer than a small training.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.sizing.predictions import Case, case_model, predict

CASES = (
    "mlp:64x784", "mlp:256x784", "resnet18:4x3x64x64", "resnet18:8x3x64x64", "gpt_10m:2x128",
    "gpt_10m:4x128", "gpt_124m:1x128", "gpt_124m:2x128", "mixture:2x128", "mixture:4x128",
    "lstm:2x32", "lstm:8x32",
)  # fmt: skip
SHARDINGS = ("ddp", "fsdp")
RANKS = 2
TIMEOUT_S = 540


def predictions(titles: tuple[str, ...]) -> list[dict[str, Any]]:
    """Predict all cases."""
    found = []
    for title in titles:
        name, _, shape = title.partition(":")
        model = case_model(Case(name, shape, SHARDINGS[0], RANKS))
        for sharding in SHARDINGS:
            case = Case(name, shape, sharding, RANKS)
            found.append({"case": title, "sharding": sharding, "predicted": predict(case, model)})
    return found


@contextmanager
def processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of processes that have imported PyTorch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.sizing.training"])
    with ProcessPoolExecutor(count, mp_context=context) as pool:
        yield pool


def measure(
    titles: tuple[str, ...], sharding: str, *, steps: int = 0, processor_time: bool = False
) -> dict[str, Any]:
    """Train the cases one after the other, and return what rank 0 measured of each.

    Raises:
        TimeoutError: the training took longer than nine minutes.
    """
    with tempfile.TemporaryDirectory() as folder, processes(RANKS) as pool:
        ranks = [
            pool.submit(_train, rank, f"{folder}/store", sharding, titles, steps, processor_time)
            for rank in range(RANKS)
        ]
        rows, *_ = [rank.result(TIMEOUT_S) for rank in ranks]
    return {row["case"]: row for row in rows}


def _train(
    rank: int, store: str, sharding: str, titles: tuple[str, ...], steps: int, processor_time: bool
) -> list[dict[str, Any]]:
    from benchmarks.sizing.training import train

    return train(rank, RANKS, store, sharding, titles, steps, processor_time=processor_time)


def compare(titles: tuple[str, ...], report: Path) -> list[dict[str, Any]]:
    """Predict, store, measure, and store both."""
    with processes(1) as pool:
        rows = pool.submit(predictions, titles).result(TIMEOUT_S)
    report.write_text(json.dumps(rows, indent=1))
    for sharding in SHARDINGS:
        measured = measure(titles, sharding)
        for row in rows:
            if row["sharding"] == sharding:
                row["measured"] = {name: measured[row["case"]][name] for name in row["predicted"]}
        report.write_text(json.dumps(rows, indent=1))
    return rows


def flat(values: dict[str, Any]) -> dict[str, float]:
    """Name each quantity by one word."""
    states = {f"state {name}": size for name, size in values["state_bytes"].items()}
    return states | {name: size for name, size in values.items() if name != "state_bytes"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", type=Path, default=Path("sizing-report.json"))
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="MODEL:SHAPE")
    given = parser.parse_args(sys.argv[1:] if __name__ == "__main__" else [])
    print("predicted before, measured in 2 processes on gloo; ratio = predicted / measured")
    print(f"{'case':20} {'':5} {'quantity':18} {'predicted':>15} {'measured':>15} ratio")
    for row in compare(tuple(given.cases), given.report):
        measured = flat(row["measured"])
        for name, size in flat(row["predicted"]).items():
            ratio = size / measured[name]
            print(
                f"{row['case']:20} {row['sharding']:5} {name:18} {size:15,.0f} "
                f"{measured[name]:15,.0f} {ratio:.3f}"
            )


if __name__ == "__main__":
    main()
