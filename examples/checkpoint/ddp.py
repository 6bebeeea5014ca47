"""DDP with flash checkpoints; run it with ``gangline run`` or torchrun, kill it, run it again.

torchrun --nproc-per-node 2 ddp.py /tmp/checkpoints
"""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gangline.elastic.checkpoint import Checkpointer
from gangline.elastic.checkpoint.training import TrainingState

STEPS = 50


def main() -> None:
    """Train a small model, saving each step to memory and each tenth to storage."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"training": TrainingState(model, optimizer)}
    with Checkpointer(sys.argv[1]) as checkpointer:
        loaded = checkpointer.load(state)
        for step in range(loaded.step + 1 if loaded else 1, STEPS + 1):
            loss = model(torch.randn(32, 16)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            checkpointer.save(step, state, "storage" if step % 10 == 0 else "memory")
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        checkpointer.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
