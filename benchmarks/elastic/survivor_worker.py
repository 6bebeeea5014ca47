"""The training script of the benchmark of lost ranks: records the time of each finished step.

While there is a file ``pause`` with the number of a step, all ranks wait after that step.

python survivor_worker.py plain|survive|torchft FOLDER
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

MODE, FOLDER = sys.argv[1], Path(sys.argv[2])
STEPS, PAUSE_S, WIDTH = 100_000, 0.02, 1024


def note(name: str, step: int, rank: int) -> None:
    with (FOLDER / f"steps-{os.getpid()}").open("a") as file:
        file.write(json.dumps([name, step, rank, os.getpid(), time.time()]) + "\n")


def end_step(step: int, rank: int) -> None:
    note("step", step, rank)
    time.sleep(PAUSE_S)
    while is_paused(step):
        time.sleep(PAUSE_S)


def is_paused(step: int) -> bool:
    try:
        return step >= int((FOLDER / "pause").read_text())
    except FileNotFoundError:
        return False


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(WIDTH, WIDTH, bias=False)


def train_step(net: torch.nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    net(torch.ones(2, WIDTH)).sum().backward()
    optimizer.step()


def train_plainly() -> None:
    dist.init_process_group("gloo")
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    for step in range(STEPS):
        train_step(net, optimizer)
        end_step(step + 1, dist.get_rank())


def survive() -> None:
    from gangline.elastic.survivors.orders import OrderClient
    from gangline.elastic.trainer.group_links import GroupLinks
    from gangline.elastic.trainer.survivors import SurvivorGroup

    def send(client: Any, message: Any) -> None:
        note(type(message).__name__, 0, 0)
        send_message(client, message)

    def form(links: Any, *arguments: Any) -> str:
        note("form", 0, 0)
        return form_group(links, *arguments)

    send_message, OrderClient.send = OrderClient.send, send
    form_group, GroupLinks.form = GroupLinks.form, form
    group = SurvivorGroup("gloo")
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    group.protect(net, optimizer)
    for step in group.steps(STEPS):
        with step:
            train_step(net, optimizer)
        if step.is_committed:
            end_step(step.number, step.rank)


def train_with_torchft() -> None:
    import torchft

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    rank = int(os.environ["REPLICA_GROUP_ID"])
    net = model()
    inner = torch.optim.SGD(net.parameters(), lr=1e-6)

    def load(state: dict[str, Any]) -> None:
        net.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=30)), min_replica_size=2,
        load_state_dict=load, replica_id=f"rank{rank}_", timeout=timedelta(seconds=30), rank=0,
        state_dict=lambda: {"model": net.state_dict(), "optimizer": inner.state_dict()},
        world_size=1, store_addr="127.0.0.1", store_port=store.port, use_async_quorum=True,
    )  # fmt: skip
    optimizer = torchft.Optimizer(manager, inner)
    while manager.current_step() < STEPS:
        before = manager.current_step()
        optimizer.zero_grad()
        net(torch.ones(2, WIDTH)).sum().backward()
        for weight in net.parameters():
            manager.allreduce(weight.grad).wait()
        optimizer.step()
        if manager.current_step() > before:
            end_step(manager.current_step(), rank)


torch.set_num_threads(1)
{"plain": train_plainly, "survive": survive, "torchft": train_with_torchft}[MODE]()
