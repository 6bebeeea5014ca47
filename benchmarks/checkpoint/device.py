"""Saves of a state in GPU memory, compared with a copy to pinned memory, PyTorch and DLRover.

``python -m benchmarks.checkpoint.device [GIGABYTES...]``, 4 and 16 by default. The bare copy of one
large tensor to pinned memory is the limit of the bus. PyTorch's ``async_save`` reuses its pinned
memory between saves. DLRover is measured if ``GANGLINE_DLROVER_PYTHON`` names its interpreter.
Without a GPU nothing is measured.
"""

import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from benchmarks import results
from benchmarks.checkpoint.dlrover_peer import DLRover
from gangline.elastic.checkpoint import Checkpointer

TENSORS = 64
TURNS = 7
PRODUCT = 4096


def a_training(gigabytes: float) -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
    """Parameters and momenta of this size, after one step of the optimizer."""
    elements = int(gigabytes * 1e9 / 4 / TENSORS / 2)
    parameters = [torch.randn(elements, device="cuda", requires_grad=True) for _ in range(TENSORS)]
    optimizer = torch.optim.SGD(parameters, lr=1e-6, momentum=0.9)
    return parameters, optimizer


def train(parameters: list[torch.Tensor], optimizer: torch.optim.Optimizer) -> None:
    """One step, with a computation of some duration between two updates."""
    product = torch.randn(PRODUCT, PRODUCT, device="cuda")
    for _ in range(60):
        product = product @ product
        product = product / product.norm()
    for parameter in parameters:
        parameter.grad = parameter.detach() * product[0, 0]
    optimizer.step()
    optimizer.zero_grad()


def state_of(parameters: list[torch.Tensor], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    momenta = [optimizer.state[one]["momentum_buffer"] for one in parameters]
    return {
        "model": {f"p{n}": one.detach() for n, one in enumerate(parameters)},
        "momentum": {f"p{n}": one for n, one in enumerate(momenta)},
    }


def timed(work: Callable[[], object]) -> float:
    """Seconds until ``work`` returns; earlier GPU work is awaited first."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def line(what: str, seconds: float, limit: float) -> None:
    print(f"  {what:<52} {seconds:7.3f} s   {seconds / limit:5.2f} x the bare copy", flush=True)


def bare_copy(gigabytes: float) -> float:
    origin = torch.empty(int(gigabytes * 1e9), dtype=torch.uint8, device="cuda")
    place = torch.empty(origin.shape, dtype=torch.uint8, pin_memory=True)

    def copy() -> None:
        place.copy_(origin, non_blocking=True)
        torch.cuda.synchronize()

    return statistics.median(timed(copy) for _ in range(TURNS))


def ours(gigabytes: float, folder: Path, limit: float, overlap: bool) -> float:
    """Measure saves beside training; return how much longer a step with one takes."""
    parameters, optimizer = a_training(gigabytes)
    train(parameters, optimizer)
    state = state_of(parameters, optimizer)
    with Checkpointer(folder, overlap=overlap) as checkpointer:
        checkpointer.prepare(state)
        checkpointer.buffers.wait_for_memory()
        blocked, steps, plain = [], [], []
        for step in range(1, TURNS + 1):
            train(parameters, optimizer)
            plain.append(timed(lambda: (train(parameters, optimizer), torch.cuda.synchronize())))
            begin = time.perf_counter()
            blocked.append(timed(lambda step=step: checkpointer.save(step, state)))  # type: ignore[misc]
            train(parameters, optimizer)
            torch.cuda.synchronize()
            steps.append(time.perf_counter() - begin)
        checkpointer.buffers.wait_for_transfers()
        found = [tensor.clone() for tensor in state["model"].values()]
        checkpointer.save(TURNS + 1, state)
        train(parameters, optimizer)
        assert checkpointer.load(state) is not None
        assert all(map(torch.equal, found, state["model"].values())), "what was loaded differs"
    how = "overlapped" if overlap else "in all"
    line(f"save to memory, blocking, {how}", statistics.median(blocked), limit)
    longer = statistics.median(steps) - statistics.median(plain)
    line(f"save to memory, what a step takes longer, {how}", longer, limit)
    return longer


def pytorch(gigabytes: float, folder: Path, limit: float) -> dict[str, float]:
    parameters, optimizer = a_training(gigabytes)
    train(parameters, optimizer)
    state = state_of(parameters, optimizer)
    stager = DefaultStager(StagingOptions(use_async_staging=False))
    blocked = []
    for turn in range(3):
        waiting: list[Any] = []

        def save(turn: int = turn, waiting: list[Any] = waiting) -> None:
            place = folder / f"async-{turn}"
            waiting.append(
                dcp.async_save(state, checkpoint_id=place, no_dist=True, async_stager=stager)
            )

        blocked.append(timed(save))
        waiting[0].result()
        shutil.rmtree(folder / f"async-{turn}")
    stager.close()
    line("PyTorch's async_save, blocking, first", blocked[0], limit)
    later = statistics.median(blocked[1:])
    line("PyTorch's async_save, blocking, later", later, limit)
    return {"async_save": later}


def dlrover(gigabytes: float, folder: Path, limit: float) -> dict[str, float]:
    peer = DLRover.found(folder)
    if peer is None:
        return {}
    peer.measure("device", str(gigabytes), "cuda")
    found = peer.close()
    line("DLRover, save to memory, blocking, first", found["first"][0], limit)
    later = statistics.median(found["steady"])
    line("DLRover, save to memory, blocking, later", later, limit)
    return {"DLRover": later}


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("no GPU here: nothing was measured")
    warnings.simplefilter("ignore")
    figures: dict[str, results.Figure] = {}
    for gigabytes in [float(one) for one in sys.argv[1:]] or [4.0, 16.0]:
        folder = Path(tempfile.mkdtemp(prefix="checkpoint-device-"))
        limit = bare_copy(gigabytes)
        speed = gigabytes / limit
        print(f"{gigabytes:g} GB on {torch.cuda.get_device_name()}; a bare copy {speed:.1f} GB/s")
        try:
            peers = pytorch(gigabytes, folder, limit) | dlrover(gigabytes, folder, limit)
            for overlap in (False, True):
                how = "overlapped" if overlap else "waited"
                figures[f"{how}_{gigabytes:g}"] = results.Figure(
                    f"a step with a save of {gigabytes:g} GB takes longer, {how}",
                    "s",
                    ours(gigabytes, folder / how, limit, overlap=overlap),
                    {"bare copy": limit, **peers},
                )
        finally:
            shutil.rmtree(folder)
    conditions = (
        f"{torch.cuda.get_device_name()}; peers: the time for which training stops; medians"
    )
    results.write("checkpoint_device", conditions, figures, results.training_versions())


if __name__ == "__main__":
    main()
