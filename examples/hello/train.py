"""Add one from each rank, and print the sum: the shortest distributed program."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: the sum is {total.item():.0f}")
# Without these lines a rank may leave while another still reads from it, which aborts the other.
dist.barrier()
dist.destroy_process_group()
