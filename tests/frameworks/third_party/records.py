"""What a training program records of itself for a comparison, and where it is killed.

It stands for the user's own utilities: it knows nothing of what starts the program. The variables:

- ``RECORDS``: the folder of the records;
- ``KILLS``: ``RANK:STEP`` for each attempt, separated by commas; that rank kills itself with
  SIGKILL after that step. The next attempt trains on from the script's own checkpoints;
- ``KILLS_WAIT_FOR``: the first kill waits until this file exists.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

RANK = int(os.environ["RANK"])
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
KILLS = [
    tuple(map(int, kill.split(":"))) for kill in os.environ.get("KILLS", "").split(",") if kill
]
_PATH = Path(os.environ["RECORDS"], f"attempt-{ATTEMPT}.rank-{RANK}")


def write(**values: Any) -> None:
    """Append a record."""
    with _PATH.open("a") as file:
        file.write(json.dumps(values) + "\n")


def start() -> None:
    """Record what the program sees before it trains."""
    write(
        environment=dict(os.environ),
        arguments=sys.argv,
        threads=[torch.get_num_threads(), torch.get_num_interop_threads()],
        dtype=str(torch.get_default_dtype()),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        folder=os.getcwd(),
        signals=[str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)],
    )


def end_step(step: int, loss: float) -> None:
    """Record the loss of a step to the bit; be killed here if this is the place."""
    write(step=step, loss=float(loss).hex())
    if RANK == 0:
        print(f"step {step} loss {loss:.6f}", flush=True)
    if len(KILLS) > ATTEMPT and KILLS[ATTEMPT] == (RANK, step):
        gate = os.environ.get("KILLS_WAIT_FOR")
        while gate and ATTEMPT == 0 and not Path(gate).exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)


def end(state: Mapping[str, Any]) -> None:
    """Record the final weights, and the random numbers that would come next."""
    digests = {name: _digest(value) for name, value in sorted(state.items())}
    write(weights=digests, drawn=[torch.rand(1).item().hex(), random.getrandbits(64)])


def _digest(tensor: torch.Tensor) -> str:
    plain = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    data = plain.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return f"{list(plain.shape)} {hashlib.sha256(data).hexdigest()[:16]}"
