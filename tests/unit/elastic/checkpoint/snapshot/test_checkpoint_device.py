"""Saves from accelerators: order of streams, pinned memory, and saves that complete later.

Tests run without an accelerator; a stand-in for PyTorch's device module records its calls.
"""

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from accelerator_stand_in import Module, install
from gangline.elastic.checkpoint.format.plan import agree_on_layout, create_planner
from gangline.elastic.checkpoint.snapshot import copy, inventory
from gangline.elastic.checkpoint.snapshot.copy import (
    OptimizerBarrier,
    PendingTransfers,
    TransferStreams,
    find_accelerator,
)
from gangline.elastic.checkpoint.snapshot.ring import SnapshotRing
from gangline.elastic.checkpoint.snapshot.segment import create_segment


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    return install(monkeypatch)


@pytest.fixture
def updates() -> Iterator[OptimizerBarrier]:
    updates = OptimizerBarrier()
    yield updates
    updates.close()


def a_training() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    return model, torch.optim.Adam(model.parameters())


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()


def test_computation_continues_after_unstable_tensors_are_copied(module: Module) -> None:
    streams, lasting, fleeting = TransferStreams(), torch.ones(3), torch.ones(3)
    places = [torch.zeros(3), torch.zeros(3)]
    arrivals = streams.copy(
        list(zip(places, [lasting, fleeting], strict=True)), lambda tensor: tensor is lasting
    )
    assert all(bool(place.all()) for place in places)
    assert module.notes == [
        "a new stream",
        "copying waits for computing",
        "copying begins",
        "computing waits for copying",
        "copying begins",
        "copying records event 0",
    ]
    arrivals.delay_computation()
    assert module.notes[-1] == "computing waits for event 0"
    streams.copy([(places[0], lasting)], lambda _: True)
    assert module.notes.count("a new stream") == 1


class Lazy(torch.Tensor):
    """A destination that records whether its source has yet to be computed."""

    def copy_(self, other: torch.Tensor, non_blocking: bool = False) -> "Lazy":
        assert non_blocking
        assert not other.is_conj()
        assert not other.is_neg()
        torch.Tensor.copy_(self, other)
        return self


def test_conjugation_is_resolved_on_the_device(module: Module) -> None:
    origin = torch.tensor([1 + 2j, 3 - 4j])
    views = [origin.conj(), origin.conj().imag, origin]
    places = [torch.zeros_like(view, memory_format=torch.contiguous_format) for view in views]
    lazy = [place.as_subclass(Lazy) for place in places]
    TransferStreams().copy(list(zip(lazy, views, strict=True)), lambda _: False)
    assert all(torch.equal(place, view) for place, view in zip(places, views, strict=True))


def test_a_copy_of_nothing_has_no_transfers(module: Module) -> None:
    arrivals = TransferStreams().copy([], lambda _: True)
    assert not arrivals
    arrivals.wait()
    arrivals.delay_computation()
    assert module.notes == []


def test_only_tensors_of_optimizers_that_have_stepped_are_stable(updates: OptimizerBarrier) -> None:
    model, optimizer = a_training()
    assert not any(updates.optimizer_memory()(one) for one in model.state_dict().values())
    train(model, optimizer)
    is_theirs = updates.optimizer_memory()
    are_stable = {name: is_theirs(tensor) for name, tensor in model.state_dict().items()}
    assert are_stable == {
        "0.weight": True,
        "0.bias": True,
        "1.weight": True,
        "1.bias": True,
        "1.running_mean": False,
        "1.running_var": False,
        "1.num_batches_tracked": False,
    }
    states = optimizer.state_dict()["state"]
    assert all(is_theirs(one) for state in states.values() for one in state.values())


def test_a_deleted_optimizer_holds_no_tensors(updates: OptimizerBarrier) -> None:
    model, optimizer = a_training()
    train(model, optimizer)
    del optimizer
    assert not any(updates.optimizer_memory()(one) for one in model.state_dict().values())


def test_optimizer_steps_wait_for_pending_copies(module: Module, updates: OptimizerBarrier) -> None:
    model, optimizer = a_training()
    train(model, optimizer)
    assert module.notes == []
    updates.set_pending(TransferStreams().copy([(torch.zeros(3), torch.ones(3))], lambda _: True))
    train(model, optimizer)
    assert module.notes[-1] == "computing waits for event 0"
    waits = len(module.notes)
    updates.set_pending(PendingTransfers())
    train(model, optimizer)
    updates.close()
    train(model, optimizer)
    assert len(module.notes) == waits


def test_accelerator_of_a_state_is_that_of_its_first_device_tensor() -> None:
    with FakeTensorMode():
        there = torch.empty(2, device="cuda:1")
    near = torch.empty(2)
    assert find_accelerator({"a": 1, "b": [near, {"c": (near, there)}]}) == torch.device("cuda:1")
    assert find_accelerator({"a": near, "b": torch.empty(2, device="meta"), "c": "x"}) is None


class Runtime:
    """Replaces the result of ``torch.cuda.cudart()``."""

    def __init__(self, refuses: int) -> None:
        self.refuses, self.pinned = refuses, dict[int, int]()

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        assert flags == 1
        self.pinned[address] = size
        return self.refuses

    def cudaHostUnregister(self, address: int) -> None:
        del self.pinned[address]


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    runtime = Runtime(refuses=0)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    return runtime


def test_a_segment_is_pinned_completely_and_unpinned(runtime: Runtime, tmp_path: Path) -> None:
    segment = create_segment(tmp_path / "r0-0.seg", 1 << 16)
    unpin = copy.pin_segment(segment, torch.device("cuda:0"))
    assert unpin is not None
    assert list(runtime.pinned.values()) == [1 << 16]
    unpin()
    assert runtime.pinned == {}
    assert copy.pin_segment(segment, torch.device("xpu:0")) is None
    segment.close()


def test_memory_that_cannot_be_pinned_is_used_unpinned(
    runtime: Runtime, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runtime.refuses = 2
    segment = create_segment(tmp_path / "r0-0.seg", 1 << 16)
    with caplog.at_level(logging.WARNING):
        assert copy.pin_segment(segment, torch.device("cuda:0")) is None
    assert "pinned" in caplog.text
    segment.close()


def test_buffers_are_pinned_once_and_unpinned_when_they_are_closed(
    rig: Any, runtime: Runtime
) -> None:
    rig.save({"w": torch.ones(3)}, 1)
    rig.buffers.accelerator = torch.device("cuda:0")
    rig.buffers.prefault_existing()
    rig.buffers.prefault_existing()
    rig.buffers.wait_for_memory()
    assert len(runtime.pinned) == 1
    rig.buffers.close()
    assert runtime.pinned == {}


def overlapping(rig: Any) -> list[int]:
    completed: list[int] = []
    rig.buffers.close()
    rig.buffers = SnapshotRing(rig.job_folder, 0, 3, overlap=True, on_complete=completed.append)
    return completed


def test_without_overlap_a_save_waits_for_the_accelerator(rig: Any, module: Module) -> None:
    rig.save({"w": torch.ones(3)}, 1)
    assert rig.steps() == [1]
    assert "computing waits for copying" in module.notes


def test_a_save_is_complete_when_all_tensors_have_arrived(rig: Any, module: Module) -> None:
    completed = overlapping(rig)
    rig.save({"w": torch.full((3,), 1.0)}, 1)
    rig.buffers.wait_for_transfers()
    module.holds_back = True
    rig.save({"w": torch.full((3,), 2.0)}, 2)
    assert rig.steps() == [1], "as a kill would leave it"
    module.events[-1].happened.set()
    rig.buffers.wait_for_transfers()
    assert completed == rig.steps() == [1, 2]


def test_the_next_save_waits_for_the_previous_one(rig: Any, module: Module) -> None:
    completed = overlapping(rig)
    module.holds_back = True
    rig.save({"w": torch.ones(3)}, 1)
    saving = threading.Thread(target=rig.save, args=({"w": torch.ones(3)}, 2))
    saving.start()
    module.events[0].happened.set()
    module.holds_back = False
    saving.join()
    rig.buffers.wait_for_transfers()
    assert completed == [1, 2]
    assert len({one.path for one in inventory.list_snapshots(rig.job_folder)}) == 2


def test_a_failing_accelerator_leaves_the_previous_save(rig: Any, module: Module) -> None:
    completed = overlapping(rig)
    rig.save({"w": torch.ones(3)}, 1)
    rig.buffers.wait_for_transfers()
    module.holds_back = True
    rig.save({"w": torch.ones(3)}, 2)
    module.events[-1].failure = "device lost"
    module.events[-1].happened.set()
    with pytest.raises(RuntimeError, match="device lost"):
        rig.save({"w": torch.ones(3)}, 3)
    assert completed == rig.steps() == [1]
    module.holds_back = False
    rig.save({"w": torch.ones(3)}, 4)
    rig.buffers.wait_for_transfers()
    assert completed == [1, 4]


def test_a_failing_copy_waits_for_running_transfers(
    module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[bool] = []
    monkeypatch.setattr(PendingTransfers, "wait", lambda self: waited.append(True))
    place = torch.zeros(3)

    def fail() -> None:
        raise RuntimeError("half")

    move = (SimpleNamespace(tensor=place), torch.ones(3))
    with pytest.raises(RuntimeError, match="half"):
        copy.TensorCopier().copy([move], fail, lambda _: True)  # type: ignore[list-item]
    assert waited == [True]
    assert copy.TensorCopier().copy([move], lambda: None, lambda _: True).transfers  # type: ignore[list-item]
    assert waited == [True]


def test_memory_is_not_replaced_during_a_transfer(rig: Any, module: Module) -> None:
    completed = overlapping(rig)
    module.holds_back = True
    rig.save({"w": torch.ones(3)}, 1)
    larger = agree_on_layout(
        rig.ranks, "here", create_planner({"w": torch.ones(1 << 17)}, first=True), "larger"
    )
    rig.buffers.prepare(larger)
    rig.buffers.wait_for_memory()
    module.events[-1].happened.set()
    rig.buffers.wait_for_transfers()
    assert completed == rig.steps() == [1]


def test_a_state_on_the_cpu_is_complete_immediately(rig: Any) -> None:
    completed = overlapping(rig)
    rig.save({"w": torch.ones(1 << 17)}, 1)
    assert completed == rig.steps() == [1]
