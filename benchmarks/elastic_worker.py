"""What benchmarks of the launcher train: a tiny model over gloo, noting when steps are done."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, STEP_S = 100_000, 0.1


def note(path: str, event: str) -> None:
    content = {"t": time.time(), "event": event, "pid": os.getpid(), "world": dist.get_world_size()}
    with open(f"{path}.{os.environ['RANK']}", "a") as file:
        file.write(json.dumps(content) + "\n")


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
        time.sleep(STEP_S)


if __name__ == "__main__":
    main()
