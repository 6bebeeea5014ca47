"""Any placements on any mesh are saved, and loaded to the bit into any others.

The ranks of a world are threads that agree through a table, their meshes are made with PyTorch's
fake process group, one after the other: what a rank holds and where follows from its mesh alone.
"""

import pickle
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from gangline.elastic.checkpoint.format.manifest import find_layout_error
from gangline.elastic.checkpoint.format.plan import SavePlan
from gangline.elastic.checkpoint.ranks import SaveGroup
from gangline.elastic.checkpoint.restore.dcp_reader import load_state
from gangline.elastic.checkpoint.restore.source import MemorySource, RestoreSource, StorageSource
from gangline.elastic.checkpoint.snapshot import inventory
from gangline.elastic.checkpoint.snapshot.inventory import SnapshotInfo
from gangline.elastic.checkpoint.snapshot.ring import SaveRequest, SnapshotRing
from gangline.elastic.checkpoint.storage import commit
from gangline.elastic.checkpoint.storage.target import LocalTarget
from unit.elastic.checkpoint.checkpoint_states import DTYPES, bits, blank, equal, write_part

STEP = 3
MESHES = [(1,), (2,), (3,), (4,), (2, 2)]
PATIENCE_S = 60


@dataclass
class Table:
    """Shared values of the ranks of a world."""

    world: int
    places: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.places = [b""] * self.world
        self.barrier = threading.Barrier(self.world, timeout=PATIENCE_S)


class Seat(SaveGroup):
    """A rank that is a thread."""

    def __init__(self, rank: int, table: Table) -> None:
        self.rank, self.world, self.table, self.group = rank, table.world, table, None

    def all_gather(self, value: Any) -> list[Any]:
        self.table.places[self.rank] = pickle.dumps(value)
        self.table.barrier.wait()
        values = [pickle.loads(place) for place in self.table.places]
        self.table.barrier.wait()
        return values

    def broadcast(self, value: Any) -> Any:
        return self.all_gather(value)[0]

    def scatter(self, values: Any) -> Any:
        return self.all_gather(values)[0][self.rank]

    def any_rank(self, claim: bool) -> bool:
        return any(self.all_gather(claim))


@dataclass(frozen=True)
class Spread:
    """How the tensors of a state are distributed over a world."""

    mesh: tuple[int, ...]
    placements: list[list[Placement]]
    """For each tensor."""

    @property
    def world(self) -> int:
        return torch.Size(self.mesh).numel()

    def states(self, full_tensors: list[torch.Tensor]) -> list[dict[str, Any]]:
        """What each rank holds."""
        states = []
        for rank in range(self.world):
            with a_mesh(self.mesh, rank) as mesh:
                states.append({
                    f"w{n}": distribute_tensor(full_tensor, mesh, places, src_data_rank=None)
                    for n, (full_tensor, places) in enumerate(
                        zip(full_tensors, self.placements, strict=True)
                    )
                })  # fmt: skip
        return states


@contextmanager
def a_mesh(shape: tuple[int, ...], rank: int) -> Iterator[DeviceMesh]:
    """A mesh as one rank sees it; it knows its coordinates also after the group is destroyed."""
    dist.init_process_group(
        "fake", store=FakeStore(), rank=rank, world_size=torch.Size(shape).numel()
    )
    try:
        yield init_device_mesh("cpu", shape)
    finally:
        dist.destroy_process_group()


@st.composite
def spreads(draw: st.DrawFn, shapes: list[list[int]]) -> Spread:
    mesh = draw(st.sampled_from(MESHES))
    return Spread(mesh, [[draw(placement(len(shape))) for _ in mesh] for shape in shapes])


def placement(dimensions: int) -> st.SearchStrategy[Placement]:
    if not dimensions:
        return st.just(Replicate())
    return st.one_of(st.just(Replicate()), st.builds(Shard, st.integers(0, dimensions - 1)))


@st.composite
def scenes(draw: st.DrawFn) -> tuple[list[torch.Tensor], Spread, Spread, int]:
    """Whole tensors, how they are spread when saved and when loaded, and the number of nodes."""
    shapes = draw(st.lists(st.lists(st.integers(1, 6), max_size=3), min_size=1, max_size=3))
    seed = draw(st.integers(0, 2**16))
    generator = torch.Generator().manual_seed(seed)
    full_tensors = [
        torch.randint(-9, 9, shape, generator=generator).to(draw(st.sampled_from(DTYPES)))
        for shape in shapes
    ]
    return full_tensors, draw(spreads(shapes)), draw(spreads(shapes)), draw(st.integers(1, 2))


def nodes_of(world: int, nodes: int) -> list[int]:
    return [rank * nodes // world for rank in range(world)]


class World:
    """The ranks of a world, the memories of their nodes, and storage."""

    def __init__(self, job_folders: list[Path], folder: Path, world: int) -> None:
        self.job_folders, self.world = job_folders, world
        self.places = nodes_of(world, len(job_folders))
        self.target = LocalTarget(str(folder))

    def save(self, states: list[dict[str, Any]]) -> None:
        table = Table(self.world)
        with ThreadPoolExecutor(self.world) as pool:
            saves = [
                pool.submit(self._save_one, Seat(rank, table), state)
                for rank, state in enumerate(states)
            ]
            for one in saves:
                one.result(PATIENCE_S)

    def _save_one(self, seat: Seat, state: dict[str, Any]) -> None:
        node = self.places[seat.rank]
        buffers = SnapshotRing(self.job_folders[node], seat.rank, 1)
        fitted = SavePlan(seat, f"node-{node}").fit(state)
        buffers.save(SaveRequest(fitted, STEP, for_storage=True))
        buffers.close()

    def held(self, node: int | None = None) -> list[SnapshotInfo]:
        job_folders = self.job_folders if node is None else [self.job_folders[node]]
        return [one for job_folder in job_folders for one in inventory.list_snapshots(job_folder)]

    def persist(self) -> None:
        for held in self.held():
            assert find_layout_error(held.layout) is None
            write_part(self.target, held)
        assert commit.try_commit(self.target, STEP, held.layout.plan, self.world)


@contextmanager
def a_world(world: int, nodes: int = 1) -> Iterator[World]:
    with ExitStack() as stack:
        *job_folders, folder = (
            Path(
                stack.enter_context(tempfile.TemporaryDirectory(dir=base, prefix="gangline-test-"))
            )
            for base in ["/dev/shm"] * min(nodes, world) + [None]
        )
        yield World(job_folders, folder, world)


def holds(source: RestoreSource, states: list[dict[str, Any]]) -> bool:
    """Return whether each rank gets its own values from the source."""
    try:
        return all(gets(source, state) for state in states)
    finally:
        source.close()


def gets(source: RestoreSource, state: dict[str, Any]) -> bool:
    into = {
        key: DTensor.from_local(
            torch.zeros_like(value.to_local(), memory_format=torch.contiguous_format),
            value.device_mesh,
            value.placements,
            run_check=False,
            shape=value.shape,
            stride=value.stride(),
        )
        for key, value in state.items()
    }
    load_state(source, into)
    return all(bits(into[key].to_local()) == bits(state[key].to_local()) for key in state)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


several = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


@several
@given(scene=scenes())
def test_any_placements_are_loaded_into_any_others_from_memory_and_storage(
    scene: tuple[list[torch.Tensor], Spread, Spread, int],
) -> None:
    full_tensors, before, after, nodes = scene
    saved, expected = before.states(full_tensors), after.states(full_tensors)
    with a_world(before.world, nodes) as world:
        world.save(saved)
        assert holds(MemorySource(world.held()), expected)
        world.persist()
        assert holds(StorageSource(world.target, STEP), expected)
        for node in range(len(world.job_folders)):
            mine = [state for rank, state in enumerate(saved) if world.places[rank] == node]
            assert holds(MemorySource(world.held(node)), mine), "a node's own memory is enough"


def test_a_dictionary_that_is_empty_on_one_rank_has_the_content_of_the_other() -> None:
    """DeepSpeed's files of the model, which only the first rank writes."""
    full = {"files": {"model.pt": {"rest": 7, "w": torch.ones(3)}}}
    with a_world(2) as world:
        world.save([full, {"files": {}}])
        world.persist()
        for state in (blank(full), {"files": {}}, None):
            assert equal(load_state(StorageSource(world.target, STEP), state), full)
