"""A PyTorch training that saves its first step, and after that only when it is asked.

Two ranks train a linear model over gloo. Rank 0 notes each finished step in ``history``, one line
for each: the step, the pod's start time. Arguments: the folder of this file and of the checkpoints,
whose file ``end`` ends the training.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from gangline.elastic.checkpoint import Checkpointer
from gangline.elastic.progress import StepReporter

PAUSE_S = 0.05
NEVER = 1_000_000_000


def main(folder: Path) -> None:
    """Train until the file ``end`` exists."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    started, steps = time.time(), StepReporter()
    state = {"model": model, "optimizer": optimizer}
    with Checkpointer(folder / "checkpoints", interval=NEVER) as checkpointer:
        loaded = checkpointer.load(state)
        step, ended = (loaded.step if loaded else 0), torch.zeros(1)
        while not ended.item():
            step += 1
            optimizer.zero_grad()
            model(torch.ones(8, 64)).square().mean().backward()
            optimizer.step()
            steps.report_step(step)
            if dist.get_rank() == 0:
                with (folder / "history").open("a") as history:
                    history.write(f"{step} {started}\n")
                ended.fill_((folder / "end").exists())
            if checkpointer.due(step) or step == 1:
                checkpointer.save(step, state)
            dist.broadcast(ended, 0)
            time.sleep(PAUSE_S)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
