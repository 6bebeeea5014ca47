"""Scenes with several ranks, each a forked process; "nodes" are folders of shared memory.

Run as a script, ``rank_scenes.py SCENE FOLDER MEMORY``, so that PyTorch is imported once and
forked. Each rank returns what it saw; the script prints the list of these as JSON.
"""

import json
import logging
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gangline.elastic.checkpoint import (
    Checkpointer,
    FlashReader,
    FlashWriter,
    UnsharedFolderError,
    failpoints,
    shared_folder,
)
from gangline.elastic.checkpoint.checkpointer import SaveLevel
from gangline.elastic.checkpoint.saver import replication
from gangline.elastic.checkpoint.snapshot import segment
from gangline.elastic.checkpoint.training import TrainingState

Scene = Callable[[int, int, str], Any]


def run(world: int, scene: Scene, folder: str, memory: str, nodes: int = 1) -> list[Any]:
    """Run a scene on ``world`` ranks; the result of a killed rank is ``None``."""
    store = Path(memory) / "store"
    store.unlink(missing_ok=True)
    children = []
    for rank in range(world):
        listen, say = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                node = Path(memory) / f"node-{rank * nodes // world}"
                node.mkdir(exist_ok=True)
                os.environ["GANGLINE_CHECKPOINT_MEMORY"] = str(node)
                dist.init_process_group(
                    "gloo", store=dist.FileStore(str(store), world), rank=rank, world_size=world
                )
                os.write(say, json.dumps(scene(rank, world, folder)).encode())
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(say)
        children.append((child, listen))
    found = []
    for child, listen in children:
        with open(listen, "rb") as stream:
            said = stream.read()
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert killed or status == 0, "a rank failed"
        found.append(json.loads(said) if said else None)
    return found


def lose_node(memory: str, node: int) -> None:
    """Remove a node: its processes and its memory."""
    gone = Path(memory) / f"node-{node}"
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = process.read_bytes()
        except OSError:
            continue
        if b"checkpoint.saver" in arguments and str(gone).encode() in arguments:
            os.kill(int(process.parent.name), signal.SIGKILL)
    shutil.rmtree(gone)


def model_of(world: int) -> torch.nn.Module:
    """Return a model that is sharded over all ranks."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Tanh(), torch.nn.Linear(10, 3))
    if world > 1:
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    return model


def full(state: dict[str, Any]) -> dict[str, Any]:
    """Return the full values from all ranks."""
    return {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).tolist()
        for name, value in state.items()
    }


def train(model: torch.nn.Module, state: TrainingState, steps: int) -> list[float]:
    """Train on data that depend on the random state; returns the losses."""
    losses = []
    for _ in range(steps):
        x = torch.randn(8, 6)
        loss = model(x).pow(2).mean()
        loss.backward()
        state.optimizer.step()
        state.optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def training(world: int) -> tuple[torch.nn.Module, TrainingState]:
    model = model_of(world)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    return model, TrainingState(model, optimizer)


def sharded_save(rank: int, world: int, folder: str) -> Any:
    model, state = training(world)
    torch.manual_seed(rank)
    checkpointer = Checkpointer(folder, linger_s=60)
    loaded = checkpointer.load({"training": state})
    train(model, state, 3)
    checkpointer.save(3, {"training": state}, "storage")
    assert checkpointer.wait(60)
    dcp.save(model.state_dict(), storage_writer=FlashWriter(f"{folder}/beside", 3))
    losses = train(model, state, 3)
    checkpointer.close(finished=False)
    return {"loaded": loaded is not None, "losses": losses}


def sharded_load(rank: int, world: int, folder: str) -> Any:
    other = model_of(world).state_dict()
    model, state = training(world)
    checkpointer = Checkpointer(folder, linger_s=60)
    loaded = checkpointer.load({"training": state})
    assert loaded is not None
    values = full(model.state_dict())
    dcp.load(other, storage_reader=FlashReader.of_step(f"{folder}/beside", 3))
    beside = full(other) == values
    losses = train(model, state, 3)
    checkpointer.close(finished=False)
    return {
        "step": loaded.step,
        "source": loaded.source,
        "values": values,
        "losses": losses,
        "beside": beside,
    }


def shards(rank: int) -> dict[str, Any]:
    """Return a state in which each rank has values of its own."""
    return {f"mine-{rank}": torch.full((500,), float(rank + 1)), "all": torch.arange(5.0)}


def memory_save(rank: int, world: int, folder: str, level: SaveLevel = "memory") -> Any:
    checkpointer = Checkpointer(folder, linger_s=60)
    checkpointer.save(7, shards(rank), level)
    assert checkpointer.wait(60)
    dist.barrier()
    copies = sorted(checkpointer.job_folder.glob("copy-*.seg"))
    for _ in range(600):
        if copies:
            break
        checkpointer.saver_client.poll(0.1)
        copies = sorted(checkpointer.job_folder.glob("copy-*.seg"))
    dist.barrier()
    checkpointer.close(finished=False)
    return [path.name for path in copies]


def memory_load(rank: int, world: int, folder: str) -> Any:
    checkpointer = Checkpointer(folder, linger_s=60)
    state = {key: torch.zeros_like(value) for key, value in shards(rank).items()}
    loaded = checkpointer.load(state)
    assert loaded is not None
    right = all(torch.equal(state[key], value) for key, value in shards(rank).items())
    checkpointer.close(finished=False)
    return {"step": loaded.step, "source": loaded.source, "right": right}


def save_apart(rank: int, world: int, folder: str) -> Any:
    """Save to another folder on each rank, as to a path that is a disk of its own on each node."""
    checkpointer = Checkpointer(f"{folder}/{rank}", linger_s=1)
    checkpointer.save(1, shards(rank))
    shared_folder.READ_TIMEOUT_S = 0.5
    with pytest.raises(UnsharedFolderError) as raised:
        checkpointer.save(2, shards(rank), "storage")
    checkpointer.close(finished=False)
    while checkpointer.job_folder.exists():  # the saver would write the save to memory
        time.sleep(0.02)
    return [str(raised.value), os.listdir(f"{folder}/{rank}") if rank == 0 else []]


def die_in_save(point: str) -> Scene:
    """Kill rank 1 during its copy of step 8; the save of rank 0 returns."""

    def act(rank: int, world: int, folder: str) -> Any:
        checkpointer = Checkpointer(folder, linger_s=60)
        checkpointer.save(7, shards(rank))
        dist.barrier()
        if rank == 1:
            failpoints.arm_failpoint(f"{point}:1")
        checkpointer.save(8, {key: value + 1 for key, value in shards(rank).items()})
        checkpointer.buffers.close()
        return "returned"  # and dies without a goodbye, as when its agent ends it

    return act


def memory_load_why(rank: int, world: int, folder: str) -> Any:
    """Load, and return the reasons given for skipped steps."""
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(getattr(record, "reason", ""))  # type: ignore[method-assign]
    logging.getLogger("gangline").addHandler(handler)
    return memory_load(rank, world, folder) | {"heard": sorted(set(heard))}


def load_without_room(rank: int, world: int, folder: str) -> Any:
    """Load, where the memory of the last rank's node is too small for a copy from a peer."""
    if rank == world - 1:

        def create(path: Path, size: int, reserve: bool) -> segment.Segment:
            with mock.patch.object(segment, "free_bytes", return_value=0):
                return segment.create_segment(path, size, reserve)

        replication.create_segment = create
    return memory_load_why(rank, world, folder)


def own_values(rank: int, counter: int) -> dict[str, Any]:
    """Return a state whose random state and counter differ between ranks."""
    torch.manual_seed(rank)
    return {
        "weights": torch.arange(50_000.0),
        "rng": torch.get_rng_state(),
        "position": {"counter": counter, "epoch": 3},
    }


def own_save(rank: int, world: int, folder: str) -> Any:
    checkpointer = Checkpointer(folder, linger_s=60)
    checkpointer.prepare(own_values(0, 0))
    checkpointer.save(1, own_values(0, 0))  # all values are equal, then they are not
    checkpointer.save(2, own_values(rank, 100 + rank), "storage")
    assert checkpointer.wait(60)
    checkpointer.close()
    return None


def own_load(rank: int, world: int, folder: str) -> Any:
    state = own_values(90 + rank, -1)
    plain = {"rng": torch.zeros(5056, dtype=torch.uint8), "position": {"counter": -2}}
    checkpointer = Checkpointer(folder, linger_s=60)
    loaded = checkpointer.load(state)
    everything = checkpointer.load()
    assert loaded is not None
    assert everything is not None
    dcp.load(plain, storage_reader=FlashReader.of_step(folder, 2))
    checkpointer.close()

    def seed_of(rng: torch.Tensor) -> int:
        return int(rng[:8].view(torch.int64))

    def seen(state: dict[str, Any]) -> list[int]:
        return [seed_of(state["rng"]), state["position"]["counter"]]

    assert state["position"]["epoch"] == 3
    assert torch.equal(state["weights"], torch.arange(50_000.0))
    return [seen(state), seen(everything.state), seen(plain)]


def listen() -> list[str]:
    """Return a list to which our log messages are appended."""
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("gangline").addHandler(handler)
    return heard


def diverge_in_a_mesh(rank: int, world: int, folder: str) -> Any:
    """Two replicas of two shards: ranks 0 and 2 have the first shard, 1 and 3 the second."""
    heard = listen()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 3))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    checkpointer = Checkpointer(folder, linger_s=60)
    state = {"training": TrainingState(model, optimizer), "own": torch.full((9,), float(rank))}
    found = []
    for step in (1, 2, 3, 4):
        loss = model(torch.randn(4, 8)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 3 and rank == 3:
            with torch.no_grad():
                model[0].weight.to_local()[0, 0] += 1e-3
        checkpointer.save(step, state, "storage")
        assert checkpointer.wait(60)
        found.append(sorted(checkpointer.replicas.diverged))
    checkpointer.close()
    return [found, [one for one in heard if "diverged" in one]]


def play(scene: str, folder: str, memory: str) -> list[Any]:
    """Run a complete scene; return the results of its acts."""
    match scene:
        case "reshard":
            acts = [run(2, sharded_save, folder, memory), run(2, sharded_load, folder, memory)]
            lose_node(memory, 0)
            return [
                *acts,
                run(3, sharded_load, folder, memory),
                run(1, sharded_load, folder, memory),
            ]
        case "lost node":
            acts = [run(2, memory_save, folder, memory, nodes=2)]
            lose_node(memory, 1)
            return [*acts, run(2, memory_load, folder, memory, nodes=2)]
        case "apart":
            return run(2, save_apart, folder, memory, nodes=2)
        case "no room":
            run(2, partial(memory_save, level="storage"), folder, memory, nodes=2)
            lose_node(memory, 1)
            return run(2, load_without_room, folder, memory, nodes=2)
        case "torn":
            acts = []
            for point in ("save-begun", "save-half", "save-copied"):
                where = f"{folder}/{point}"
                acts.append(run(2, die_in_save(point), where, memory))
                acts.append(run(2, memory_load_why, where, memory))
            return acts
        case "own values":
            run(2, own_save, folder, memory)
            return [run(world, own_load, folder, memory) for world in (2, 3, 1)]
        case "diverged in a mesh":
            return run(4, diverge_in_a_mesh, folder, memory)
        case _:
            raise ValueError(scene)


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        print(json.dumps(play(*sys.argv[1:])))
    finally:
        for number in range(4):
            if (Path(sys.argv[3]) / f"node-{number}").exists():
                lose_node(sys.argv[3], number)
