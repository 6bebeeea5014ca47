"""A training whose rank 1 is killed in its first attempt: shows what a restart looks like."""

import os
import signal

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if rank == 1 and attempt == 0:
    os.kill(os.getpid(), signal.SIGKILL)
total = torch.ones(1)
dist.all_reduce(total)
print(f"attempt {attempt}, rank {rank}: the sum is {total.item():.0f}", flush=True)
dist.barrier()
dist.destroy_process_group()
