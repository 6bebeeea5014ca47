"""A training that prints each finished step, and whose ranks end themselves at given points.

python survivor_script.py plain|survive|elastic STEPS FOLDER [STEP:RANK:WHERE[:SIGNAL] ...]

``WHERE`` is ``step``, ``restore`` (when the state of a replica is taken over, by a successor) or
``save``. A point is reached once, and waits for the file ``go-N`` with its number; without a number
of a step, training goes on until there is that file. ``FAULT`` as the signal is a broken device.
"""

import os
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

MODE, STEPS, FOLDER = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
TOKEN = secrets.token_hex(4)  # processes of two pods may have the same number
POINTS = [point.split(":") for point in sys.argv[4:]]


def pass_point(step: int, rank: int, where: str) -> None:
    """End this process, or stop it, if it is meant."""
    for number, (at, whom, place, *kind) in enumerate(POINTS):
        passed = FOLDER / f"passed-{number}"
        go = FOLDER / f"go-{number}"
        is_meant = (int(whom), place) == (rank, where)
        is_meant = is_meant and (int(at) == step if at else go.exists())
        if MODE == "plain" or not is_meant or passed.exists():
            continue
        while not go.exists():
            time.sleep(0.005)
        passed.touch()
        if kind == ["FAULT"]:
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        os.kill(os.getpid(), getattr(signal, kind[0] if kind else "SIGKILL"))


def batch(step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(6, 40, generator=generator)


def build() -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    torch.manual_seed(7)
    layers = [
        torch.nn.Linear(40, 300), torch.nn.BatchNorm1d(300), torch.nn.Dropout(0.2),
        torch.nn.ReLU(), torch.nn.Linear(300, 200), torch.nn.Linear(200, 9),
    ]  # fmt: skip
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    torch.manual_seed(100 + dist.get_rank())  # other masks of dropout on each rank
    return model, optimizer


def train_step(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int, rank: int
) -> float:
    optimizer.zero_grad()
    loss = model(batch(step, rank)).pow(2).mean()
    pass_point(step, rank, "step")
    loss.backward()
    optimizer.step()
    return loss.item()


def report(step: int, rank: int, world: int, loss: float) -> None:
    line = f"step {step} rank {rank} of {world} pid {os.getpid()} loss {loss.hex()}\n"
    with (FOLDER / f"steps-{os.getpid()}-{TOKEN}").open("a") as file:
        file.write(line)


def train_plainly() -> None:
    dist.init_process_group("gloo")
    model, optimizer = build()
    for step in range(STEPS):
        loss = train_step(model, optimizer, step, dist.get_rank())
        report(step, dist.get_rank(), dist.get_world_size(), loss)


class Restored:
    """A part of the state that can end a successor while it takes it over."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if os.environ.get("GANGLINE_SUCCESSOR_AFTER") and dist.get_world_size() > 1:
            pass_point(0, 0, "restore")


def create_saver() -> Any:
    from gangline.elastic.checkpoint.checkpointer import Checkpointer

    return Checkpointer(FOLDER / "saved")


def train_and_survive() -> None:
    from gangline.elastic.trainer.survivors import SurvivorGroup

    group = SurvivorGroup("gloo")
    model, optimizer = build()
    group.protect(model, optimizer, point=Restored())
    saves = any(place == "save" for _, _, place, *_ in POINTS)
    saver = group.renewed(create_saver, lambda saver: saver.close(finished=False))
    for step in group.steps(STEPS):
        with step:
            loss = train_step(model, optimizer, step.number, step.rank)
            if saves:
                pass_point(step.number, step.rank, "save")
                saver().save(step.number, {"model": model.module.state_dict()})
        if step.is_committed:
            report(step.number - 1, step.rank, step.world_size, loss)


def train_elastically() -> None:
    """Train with global batches of one size, which the ranks share out; print the weights."""
    from gangline.elastic.trainer.loader import ElasticDataLoader, ElasticDistributedSampler
    from gangline.elastic.trainer.survivors import SurvivorGroup
    from gangline.elastic.trainer.trainer import ElasticTrainer

    group = SurvivorGroup("gloo")
    torch.manual_seed(7)
    records = torch.utils.data.TensorDataset(torch.randn(50, 40, dtype=torch.float64))
    sampler = ElasticDistributedSampler(records, global_batch_size=10)
    loader = ElasticDataLoader(records, batch_size=3, sampler=sampler)
    layers = torch.nn.Linear(40, 60), torch.nn.Tanh(), torch.nn.Linear(60, 1)
    model = DistributedDataParallel(torch.nn.Sequential(*layers).double())
    inner = torch.optim.Adam(model.parameters(), lr=1e-2)
    trainer = ElasticTrainer(model, loader)
    optimizer = trainer.prepare(inner)
    group.protect(model, inner, trainer=trainer)
    batches = group.batches(loader)
    for step in group.steps(STEPS):
        with step:
            for (inputs,) in batches:
                with trainer.step():
                    optimizer.zero_grad()
                    loss = model(inputs).pow(2).mean()
                    if trainer.is_last:
                        pass_point(step.number, step.rank, "step")
                    loss.backward()
                    optimizer.step()
        if step.is_committed:
            report(step.number - 1, step.rank, step.world_size, loss.item())
    weights = [weight.double().sum().item() for weight in model.parameters()]
    (FOLDER / "weights").write_text(" ".join(f"{weight:.9f}" for weight in weights))


torch.set_num_threads(1)
{"plain": train_plainly, "survive": train_and_survive, "elastic": train_elastically}[MODE]()
