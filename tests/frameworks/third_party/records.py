"""What a training program records of itself for a comparison, and where it is killed.

It stands for the user's own utilities: it knows nothing of what starts the program. The variables:

- ``RECORDS``: the folder of the records;
- ``KILLS``: ``RANK:STEP``, separated by commas. In the n-th life of the program that rank of the
  n-th kill kills itself with SIGKILL after that step;
- ``KILLS_WAIT_FOR``: the first kill waits until this file exists.
"""

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(os.environ["RECORDS"])
RANK = int(os.environ["RANK"])
LIFE = len(list(FOLDER.glob("killed-*")))
KILLS = [tuple(map(int, kill.split(":"))) for kill in os.environ["KILLS"].split(",") if kill]


def write(**values: Any) -> None:
    """Append a record."""
    with (FOLDER / f"life-{LIFE}.rank-{RANK}").open("a") as file:
        file.write(json.dumps(values) + "\n")


def start(**values: Any) -> None:
    """Record what the program sees before it trains."""
    write(
        environment=dict(os.environ),
        arguments=sys.argv,
        threads=[torch.get_num_threads(), torch.get_num_interop_threads()],
        dtype=str(torch.get_default_dtype()),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        folder=os.getcwd(),
        signals=[str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)],
        **values,
    )


def end_step(step: int, loss: float) -> None:
    """Record the loss of a step to the bit; be killed here if this is the place."""
    write(step=step, loss=float(loss).hex())
    if RANK == 0:
        print(f"step {step} loss {loss:.6f}", flush=True)
    if len(KILLS) > LIFE and KILLS[LIFE] == (RANK, step):
        gate = os.environ.get("KILLS_WAIT_FOR")
        while gate and LIFE == 0 and not Path(gate).exists():
            time.sleep(0.02)
        (FOLDER / f"killed-{LIFE}").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def end(state: Mapping[str, Any]) -> None:
    """Record the final weights, and the random number that would come next."""
    digests = {name: _digest(value) for name, value in sorted(state.items())}
    write(weights=digests, drawn=torch.rand(1).item().hex())


def _digest(tensor: torch.Tensor) -> str:
    plain = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    data = plain.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return f"{list(plain.shape)} {hashlib.sha256(data).hexdigest()[:16]}"
