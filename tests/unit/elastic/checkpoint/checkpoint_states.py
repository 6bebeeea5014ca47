"""States for tests: random trees of tensors and values, and how to compare them to the bit."""

import contextlib
import string
import threading
from typing import Any

import torch
from hypothesis import strategies as st

from gangline.elastic.checkpoint.snapshot.inventory import SnapshotInfo
from gangline.elastic.checkpoint.snapshot.segment import Segment
from gangline.elastic.checkpoint.storage import commit
from gangline.elastic.checkpoint.storage.target import StorageTarget

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.int8,
    torch.uint8,
    torch.int64,
    torch.bool,
    torch.complex64,
]
names = st.text(string.ascii_lowercase, min_size=1, max_size=4)
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.tuples(st.integers(), st.text(max_size=3)),
    st.sets(st.integers(0, 9), max_size=3),
)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Of any type and shape: empty, 0-d, transposed, strided, views of a larger storage."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    seed = draw(st.integers(0, 2**16))
    generator = torch.Generator().manual_seed(seed)
    size = [2 * n for n in shape]
    raw = torch.randint(0, 2, size, generator=generator, dtype=torch.uint8)
    tensor = raw.to(torch.float32).sub(0.25).to(dtype)
    match draw(st.integers(0, 3)):
        case 0:
            return tensor
        case 1:
            return tensor.t() if tensor.dim() == 2 else tensor
        case 2:
            return tensor[tuple(slice(None, None, 2) for _ in shape)]
        case _:
            return tensor[tuple(slice(n, None) for n in shape)]


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Any]:
    """Nested dictionaries and lists, none of them empty, because PyTorch does not save those."""
    leaves = st.one_of(tensors(), values)
    inner = st.recursive(
        leaves,
        lambda deeper: st.one_of(
            st.dictionaries(names, deeper, min_size=1, max_size=3),
            st.lists(deeper, min_size=1, max_size=3),
        ),
        max_leaves=8,
    )
    tree = draw(st.dictionaries(names, inner, min_size=1, max_size=4))
    shared = draw(tensors())
    tree["shared one"], tree["shared two"] = shared, {"again": shared}
    return tree


def write_part(target: StorageTarget, held: SnapshotInfo) -> str:
    """Write a save to storage with its note, and without commit; return its plan."""
    with contextlib.closing(Segment(held.path)) as segment:
        commit.seal_segment(segment, held.header, held.layout)
        pace = commit.BandwidthLimiter(0, threading.Event())
        commit.write_part(target, segment, held.header, held.layout, pace)
    return held.layout.plan


def equal(one: Any, other: Any) -> bool:
    """Return whether two states are bitwise equal."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and bits(one) == bits(other)
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and bool(one == other)


def bits(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor's values."""
    if tensor.numel() == 0:
        return b""
    flat = tensor.contiguous().as_strided((tensor.numel(),), (1,))
    return bytes(flat.view(torch.uint8).numpy())


def blank(state: Any) -> Any:
    """A state of the same form with other values, to load into."""
    if isinstance(state, torch.Tensor):
        return torch.empty_like(state, memory_format=torch.contiguous_format).zero_()
    if isinstance(state, dict):
        return {key: blank(value) for key, value in state.items()}
    if isinstance(state, list):
        return [blank(value) for value in state]
    return None
