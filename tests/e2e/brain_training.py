"""A PyTorch job whose steps take as long as their records, as on a device that computes.

Rank 0 records each global batch in ``history``: the step, the number of ranks, the loss, the
records in their order. Every tenth step is a checkpoint. While the file ``slow`` exists, exchanges
between ranks take longer, as on a bad network; ``end`` ends the training.

Arguments: the folder of these files, the seconds of one record, and the number of steps after which
the training ends (0: only ``end`` does).
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from gangline.elastic.trainer.loader import ElasticDataLoader, ElasticDistributedSampler
from gangline.elastic.trainer.trainer import ElasticTrainer

GLOBAL_BATCH, MICRO_BATCH = 12, 2
"""Each world of 1 to 6 ranks has shares of whole records."""
RECORDS = 4096
SLOW_S = 1.0
SAVE_EVERY = 10


def main(folder: Path, record_s: float, steps: int) -> None:
    """Train from the last checkpoint on."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(3)
    inputs = torch.randn(RECORDS, 8, dtype=torch.float64)
    data = TensorDataset(torch.arange(RECORDS), inputs, inputs.sin().sum(1, keepdim=True))
    sampler = ElasticDistributedSampler(data, global_batch_size=GLOBAL_BATCH, seed=9)
    loader = ElasticDataLoader(data, MICRO_BATCH, sampler)
    model = DistributedDataParallel(torch.nn.Linear(8, 1).double())
    model.register_comm_hook(folder, exchange)  # type: ignore[no-untyped-call]
    trainer = ElasticTrainer(model, loader)
    plain = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = trainer.prepare(plain)
    if saved := last_checkpoint(folder):
        model.module.load_state_dict(saved["model"])
        plain.load_state_dict(saved["optimizer"])
        trainer.load_state_dict(saved["trainer"])
    for epoch in range(sampler.epoch, 1_000_000):
        with trainer.epoch(epoch):
            records: list[int] = []
            total = 0.0
            for numbers, features, targets in loader:
                with trainer.step():
                    optimizer.zero_grad()
                    time.sleep(record_s * len(numbers))
                    loss = torch.nn.functional.mse_loss(model(features), targets)
                    loss.backward()
                    optimizer.step()
                records += numbers.tolist()
                total += loss.item() * len(numbers)
                if not trainer.is_first:
                    continue
                if record_step(folder, trainer.num_steps, records, total, steps):
                    dist.destroy_process_group()
                    return
                records, total = [], 0.0
                if trainer.num_steps % SAVE_EVERY == 0 and dist.get_rank() == 0:
                    state = {
                        "model": model.module.state_dict(),
                        "optimizer": plain.state_dict(),
                        "trainer": trainer.state_dict(),
                    }
                    torch.save(state, folder / "checkpoint.new")
                    (folder / "checkpoint.new").replace(folder / "checkpoint")


def exchange(folder: Path, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Sum the gradients of all ranks; slowly while the file ``slow`` exists."""
    if dist.get_world_size() > 1 and (folder / "slow").exists():
        time.sleep(SLOW_S)
    return allreduce_hook(dist.group.WORLD, bucket)


def last_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The last checkpoint, which is the same for all ranks."""
    found: list[Any] = [None]
    if dist.get_rank() == 0 and (folder / "checkpoint").exists():
        found[0] = torch.load(folder / "checkpoint", weights_only=True)
    dist.broadcast_object_list(found)
    state: dict[str, Any] | None = found[0]
    return state


def record_step(folder: Path, step: int, records: list[int], total: float, steps: int) -> bool:
    """Record a global batch; returns whether the training ends, the same on all ranks."""
    world = dist.get_world_size()
    parts: list[Any] = [None] * world
    is_over = (folder / "end").exists() or step == steps
    dist.all_gather_object(parts, (records, total, is_over))
    if dist.get_rank() == 0:
        loss = sum(part[1] for part in parts) / GLOBAL_BATCH
        order = ",".join(str(number) for part in parts for number in part[0])
        with (folder / "history").open("a") as history:
            history.write(f"{step} {world} {loss!r} {order}\n")
    return any(part[2] for part in parts)


if __name__ == "__main__":
    os.umask(0)
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
