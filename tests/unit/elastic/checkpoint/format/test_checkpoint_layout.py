"""What is saved is what is loaded, to the bit, from memory and storage, by us and by PyTorch."""

import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import HealthCheck, given, settings

from gangline.elastic.checkpoint.errors import MemoryShortError, UnsavableError
from gangline.elastic.checkpoint.format.manifest import (
    find_layout_error,
    step_folder,
)
from gangline.elastic.checkpoint.restore.dcp_reader import load_state
from gangline.elastic.checkpoint.restore.source import MemorySource, StorageSource
from unit.elastic.checkpoint.checkpoint_states import blank, equal, trees

several = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def loaded_from(source: MemorySource | StorageSource, state: dict[str, Any]) -> dict[str, Any]:
    try:
        return load_state(source, blank(state))
    finally:
        source.close()


@several
@given(state=trees())
def test_any_state_is_restored_from_memory_and_storage(rig: Any, state: dict[str, Any]) -> None:
    rig.clear()
    rig.save(state, 7)
    layout = rig.held(7).layout
    assert find_layout_error(layout) is None
    assert layout.owned == len(layout.entries)
    assert equal(loaded_from(MemorySource([rig.held(7)]), state), state)
    rig.persist(7)
    assert equal(loaded_from(StorageSource(rig.target, 7), state), state)
    assert equal(load_state(StorageSource(rig.target, 7), None), plain_load(rig, state, None))


def plain_load(rig: Any, state: dict[str, Any], into: dict[str, Any] | None) -> dict[str, Any]:
    """Load the folder with PyTorch's own reader."""
    loaded = into if into is not None else load_state(StorageSource(rig.target, 7), None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning that there is no process group
        dcp.load(loaded, checkpoint_id=rig.folder / step_folder(7))
    return loaded


def test_random_states_of_numpy_are_restored(rig: Any) -> None:
    state = {"numpy": np.random.get_state(), "loss": np.float64(0.5)}
    rig.save(state, 1)
    loaded = loaded_from(MemorySource([rig.held(1)]), state)
    assert np.array_equal(loaded["numpy"][1], state["numpy"][1])
    assert loaded["loss"] == 0.5


class Opened:
    """Pickles, but only loads by running code."""

    def __reduce__(self) -> Any:
        return print, ("code ran",)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        pytest.param(threading.Lock(), "cannot be pickled", id="a lock"),
        pytest.param(Opened(), "running its code", id="an object with code"),
        pytest.param(lambda: 0, "cannot be pickled", id="a function"),
        pytest.param(torch.eye(2).to_sparse(), "sparse", id="a sparse tensor"),
    ],
)
def test_what_could_not_be_loaded_is_refused_by_name(rig: Any, value: object, message: str) -> None:
    with pytest.raises(UnsavableError, match=message) as caught:
        rig.save({"good": 1, "bad": {"thing": value}}, 1)
    assert "bad" in str(caught.value)


def test_memory_shortage_names_remedies(rig: Any, monkeypatch: Any) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(MemoryShortError, match="emptyDir"):
        rig.save({"w": torch.zeros(10)}, 1)


def test_a_layout_is_decoded_once(rig: Any) -> None:
    for step in (1, 2):
        rig.save({"w": torch.zeros(100), "b": torch.zeros(step)}, step)
    first, second = rig.held(1).layout, rig.held(2).layout
    assert rig.held(1).layout is first
    assert rig.held(2).layout is second
    assert first != second


def test_parameters_are_saved_and_loaded_as_they_are(rig: Any) -> None:
    weight = torch.nn.Parameter(torch.randn(70_000))
    rig.save({"w": weight, "still": weight.detach()[:5]}, 1)
    into = {"w": torch.nn.Parameter(torch.zeros(70_000)), "still": torch.zeros(5)}
    load_state(MemorySource([rig.held(1)]), into)
    assert torch.equal(into["w"], weight)
    assert into["w"].requires_grad
    assert torch.equal(into["still"], weight[:5])
