"""DeepSpeed with ZeRO on processors: every process prints the losses that it sees.

mpirun or DeepSpeed's own launcher starts it.
"""

import os

import deepspeed
import torch

STEPS = 20


def set_variables() -> None:
    """Name the process by torch's variables, which DeepSpeed reads; mpirun has names of its own."""
    if "RANK" in os.environ:
        return
    for name, given in (("RANK", "RANK"), ("WORLD_SIZE", "SIZE"), ("LOCAL_RANK", "LOCAL_RANK")):
        os.environ[name] = os.environ[f"OMPI_COMM_WORLD_{given}"]
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = os.environ["LEADER"], "29500"


def main() -> None:
    set_variables()
    # It would compile an operator, for a minute, that serves processes of one node only.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    engine, *_ = deepspeed.initialize(
        model=model,
        config={
            "train_micro_batch_size_per_gpu": 32,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.05, "torch_adam": True}},
            "zero_optimization": {"stage": 2},
        },
    )
    torch.manual_seed(rank)
    losses = []
    for _ in range(STEPS):
        records = torch.randn(32, 16)
        loss = torch.nn.functional.cross_entropy(engine(records), records[:, :4].argmax(1))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    weights = float(sum(value.detach().abs().sum() for value in model.parameters()))
    print(
        f"rank {rank} of {size} on {os.uname().nodename}: "
        f"loss {losses[0]:.3f} to {losses[-1]:.3f}, weights {weights:.6f}",
        flush=True,
    )


main()
