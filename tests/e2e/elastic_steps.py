"""A minimal training: nodes rendezvous, sum a number in each step, and stop on request.

Each step goes on from the last one that all had taken, which rank 0 notes in a file, as a
checkpoint would. Arguments: that file, and the one whose presence ends the training.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

PAUSE_S = 0.1


def main(steps: Path, end: Path) -> None:
    """Train until ``end`` exists."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    step = int(steps.read_text()) if steps.exists() else 0
    while True:
        numbers = torch.tensor([1, step, int(end.exists())])
        dist.all_reduce(numbers)
        assert int(numbers[0]) == world
        step = int(numbers[1]) // world + 1
        if rank == 0:
            new = steps.with_suffix(".new")
            new.write_text(str(step))
            new.replace(steps)
        print(f"step {step} of {world} nodes", flush=True)
        if int(numbers[2]):
            break
        time.sleep(PAUSE_S)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
