"""FSDP2 with PyTorch's distributed checkpoints (DCP), random states included."""

import os
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from records import end, end_step, start
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

STEPS = 10
SAVED_EVERY = 2


class Application(Stateful):
    """What is saved; DCP calls it."""

    def __init__(self, model, optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


def main() -> None:
    device = "cpu"
    if torch.cuda.is_available():
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    start()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *[torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0) for _ in range(2)],
        torch.nn.Linear(16, 4),
    ).to(device)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    folder = pathlib.Path(sys.argv[1])
    application = Application(model, optimizer)
    first = 1
    if saved := sorted(folder.glob("step-*/.metadata")):
        dcp.load({"application": application}, checkpoint_id=saved[-1].parent)
        first = int(saved[-1].parent.name.removeprefix("step-")) + 1
    for step in range(first, STEPS + 1):
        generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
        batch = torch.randn(8, 4, 16, generator=generator).to(device)
        loss = model(batch).float().pow(2).mean() + model(batch).float().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % SAVED_EVERY == 0:
            dcp.save({"application": application}, checkpoint_id=folder / f"step-{step:04}")
        end_step(step, loss.item())
    end(model.state_dict())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
