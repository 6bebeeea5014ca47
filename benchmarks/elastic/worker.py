"""The training script of launcher benchmarks: a tiny model over gloo that records its steps."""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, STEP_S = 100_000, 0.1


def note(path: str, event: str) -> None:
    beats = Path(f"{path}-beat")
    content = {
        "t": time.time(),
        "event": event,
        "pid": os.getpid(),
        "world": dist.get_world_size(),
        "before": float(beats.read_text() or 0) if beats.exists() else 0,
    }
    with open(f"{path}.{os.environ['RANK']}", "a") as file:
        file.write(json.dumps(content) + "\n")


def beat(path: str) -> None:
    """Record the time of a step: one process writes; a later process reads it."""
    Path(f"{path}-beat").write_text(str(time.time()))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layers = torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(16, 32)).pow(2).mean().backward()
        optimizer.step()
        if step == 0:
            note(sys.argv[1], "first")
        elif step == 10:
            note(sys.argv[1], "steady")
        if dist.get_rank() == 0:
            beat(sys.argv[1])
        time.sleep(STEP_S)


if __name__ == "__main__":
    main()
