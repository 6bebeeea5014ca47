"""Files of DeepSpeed: tensors apart from the rest; and engines that are refused."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gangline.elastic.checkpoint.deepspeed import (
    FlashEngine,
    _empty_tensors,
    _extract_tensor,
    _insert_tensor,
    _map_tensors,
)
from gangline.elastic.checkpoint.errors import CheckpointError
from unit.elastic.checkpoint.checkpoint_states import equal

TENSORS = st.builds(
    lambda shape, dtype: torch.ones(shape, dtype=dtype) * 3,
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64]),
)
FILES = st.recursive(
    TENSORS | st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.dictionaries(st.text("a/[1]'\"", max_size=4) | st.integers(0, 3), inner, max_size=3)
        | st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=8,
)


@given(FILES)
def test_a_file_is_complete_after_tensors_are_inserted_again(file: Any) -> None:
    tensors: dict[str, torch.Tensor] = {}
    rest = _map_tensors(file, partial(_extract_tensor, tensors))
    room = dict(_empty_tensors(rest))
    assert {path: (one.shape, one.dtype) for path, one in room.items()} == {
        path: (one.shape, one.dtype) for path, one in tensors.items()
    }
    for path, tensor in room.items():
        tensor.copy_(tensors[path])
    assert equal(_map_tensors(rest, partial(_insert_tensor, room)), file)


@pytest.mark.parametrize("what", ["MoE", "pipeline", "NVMe"])
def test_an_engine_that_writes_its_own_files_is_refused(what: str) -> None:
    engine = SimpleNamespace(
        has_moe_layers=what == "MoE", zero_nvme_offload_optimizer=lambda: what == "NVMe"
    )
    if what == "pipeline":
        engine.is_first_stage = lambda: True
    with pytest.raises(CheckpointError, match=what):
        FlashEngine(engine, "/nowhere")
