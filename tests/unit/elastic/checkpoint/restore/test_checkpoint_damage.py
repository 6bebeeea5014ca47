"""Nothing damaged is loaded: every bit of every file and segment counts, and every length."""

import contextlib
import io
import os
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata

from gangline.elastic.checkpoint.errors import CorruptError
from gangline.elastic.checkpoint.format.manifest import MANIFEST, step_folder
from gangline.elastic.checkpoint.format.torch_framing import read_metadata, safe_unpickle
from gangline.elastic.checkpoint.restore.dcp_reader import load_state
from gangline.elastic.checkpoint.restore.source import MemorySource, StorageSource
from gangline.elastic.checkpoint.saver.process import Uploader
from gangline.elastic.checkpoint.snapshot import copy, inventory
from gangline.elastic.checkpoint.snapshot.inventory import SnapshotInfo
from gangline.elastic.checkpoint.snapshot.segment import HEADER_BYTES, PAGE, Segment
from gangline.elastic.checkpoint.storage import commit
from unit.elastic.checkpoint.checkpoint_states import equal

FILES = ["__0_0.distcp", ".metadata", MANIFEST]


def state() -> dict[str, Any]:
    return {"w": torch.arange(300.0), "b": torch.ones(3, dtype=torch.bool), "n": [1, 2]}


def flip(path: Path, bit: int) -> None:
    with open(path, "r+b") as stream:
        stream.seek(bit // 8)
        byte = stream.read(1)[0]
        stream.seek(bit // 8)
        stream.write(bytes([byte ^ (1 << bit % 8)]))


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_bit_in_storage_is_found(rig: Any, file: str) -> None:
    rig.save(state(), 5)
    rig.persist(5)
    path = rig.folder / step_folder(5) / file
    bits = random.Random(1).sample(range(path.stat().st_size * 8), 60)
    for bit in bits:
        flip(path, bit)
        with pytest.raises(CorruptError):
            StorageSource(rig.target, 5).verify()
        with pytest.raises(CorruptError):
            load_state(StorageSource(rig.target, 5), None)
        flip(path, bit)
    StorageSource(rig.target, 5).verify()


@pytest.mark.parametrize("file", FILES)
def test_a_truncated_missing_or_longer_file_is_detected(rig: Any, file: str) -> None:
    rig.save(state(), 5)
    rig.persist(5)
    path = rig.folder / step_folder(5) / file
    content = path.read_bytes()
    for length in [0, 1, len(content) // 2, len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(CorruptError):
            StorageSource(rig.target, 5).verify()
    path.write_bytes(content + b"\0")
    with pytest.raises(CorruptError):
        StorageSource(rig.target, 5).verify()
    path.unlink()
    with pytest.raises((CorruptError, FileNotFoundError)):
        StorageSource(rig.target, 5).verify()


def readable(rig: Any) -> bool:
    """Return whether step 5 can be loaded from memory, with the right content."""
    ways = {_readable(rig, mapped) for mapped in (None, rig.buffers.mapped_segment)}
    assert len(ways) == 1, "it makes no difference whether the memory was mapped before"
    return ways.pop()


def _readable(rig: Any, mapped: Any) -> bool:
    held = [one for one in inventory.list_snapshots(rig.job_folder) if one.step == 5]
    if not held:
        return False
    try:
        source = MemorySource(held, None, mapped)
        loaded = load_state(source, None)
        source.close()
    except CorruptError:
        return False
    assert equal(loaded, state())
    return True


def test_a_flipped_bit_in_memory_is_found(rig: Any) -> None:
    rig.save(state(), 5)
    held = rig.held(5)
    header = held.header
    part = range(header.part_offset * 8, (header.part_offset + header.part_bytes) * 8)
    layout = range(PAGE * 8, (PAGE + header.layout_bytes) * 8)
    choose = random.Random(2)
    bits = [*choose.sample(part, 60), *choose.sample(layout, 30), *range(0, HEADER_BYTES * 8, 5)]
    for bit in bits:
        flip(held.path, bit)
        assert not readable(rig), f"bit {bit}"
        flip(held.path, bit)
    assert readable(rig)


def test_a_truncated_segment_is_detected(rig: Any) -> None:
    rig.save(state(), 5)
    held = rig.held(5)
    for length in [held.header.part_offset + held.header.part_bytes - 1, PAGE + 10, PAGE, 100, 0]:
        os.truncate(held.path, length)
        assert not readable(rig)


@pytest.mark.parametrize("is_mapped", [False, True])
def test_a_segment_truncated_during_restore_is_an_error(rig: Any, is_mapped: bool) -> None:
    rig.save({"w": torch.arange(90_000.0)}, 5)
    held = rig.held(5)
    source = MemorySource([held], None, rig.buffers.mapped_segment if is_mapped else None)
    os.truncate(held.path, held.header.part_offset + 100_000)
    with pytest.raises(CorruptError, match="ends too early"):
        source.copy(("w", (0,)), memoryview(bytearray(360_000)))
    with pytest.raises(CorruptError, match="shape says 4"):
        source.copy(("w", (0,)), memoryview(bytearray(4)))
    source.close()


@pytest.fixture
def unsealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves without checksums, as for large tensors of a device."""
    monkeypatch.setattr(copy, "_checksums", lambda *_: None)


def has_checksums(held: SnapshotInfo) -> bool:
    with contextlib.closing(Segment(held.path)) as segment:
        seal = segment.read_seal(held.header, len(held.layout.entries))
        return seal == commit.entry_checksums(segment, held.header, held.layout)


def test_save_has_checksums_when_it_returns(rig: Any) -> None:
    writer = Uploader(rig.job_folder, lambda outcome: None)
    large = torch.randn(3, 500_000)
    values = {"l": large, "t": large.t(), "w": torch.ones(3), "none": torch.empty(0, 2), "n": [1]}
    for step in range(1, 5):
        large += 1
        rig.save(values, step)
        assert has_checksums(rig.held(step))
        assert writer.seal_snapshots(inventory.list_snapshots(rig.job_folder)) == 0, (
            "nothing is left to the saver"
        )
    writer.close()


@pytest.mark.usefixtures("unsealed")
def test_checksums_follow_a_segment_replaced_by_a_larger_one(rig: Any) -> None:
    writer = Uploader(rig.job_folder, lambda outcome: None)
    for step, size in enumerate((10, 10, 10, 90_000, 90_000, 90_000), start=1):
        rig.save({"w": torch.full((size,), float(step))}, step)
        assert writer.seal_snapshots(inventory.list_snapshots(rig.job_folder)) == 1
    rig.buffers.close()
    assert all(map(has_checksums, inventory.list_snapshots(rig.job_folder)))
    rig.clear()
    assert writer.seal_snapshots(inventory.list_snapshots(rig.job_folder)) == 0
    assert not writer._mapped, "what is gone is let go"
    writer.close()


def test_memory_that_changed_after_it_was_saved_is_not_written_to_storage(rig: Any) -> None:
    rig.save(state(), 5)
    held = rig.held(5)
    flip(held.path, held.header.part_offset * 8 + 4000)
    with pytest.raises(CorruptError, match="changed in memory"):
        rig.persist(5)
    assert commit.committed_steps(rig.target) == []


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("echo code ran",)


def test_metadata_that_would_run_code_are_refused() -> None:
    with pytest.raises(CorruptError, match="not allowed"):
        read_metadata(io.BytesIO(pickle.dumps(Evil())))


class Attribute:
    """What early Pythons 3.11 write for a member of an enum, as Debian 12's 3.11.2 does."""

    def __init__(self, owner: object, name: str) -> None:
        self.pickled = getattr, (owner, name)

    def __reduce__(self) -> Any:
        return self.pickled


def test_metadata_of_early_pythons_3_11_hold_members_of_enums() -> None:
    attribute = Attribute(_MEM_FORMAT_ENCODING, "TORCH_CONTIGUOUS_FORMAT")
    read = read_metadata(io.BytesIO(pickle.dumps(Metadata({}, attribute))))
    assert read.planner_data is _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT


def test_other_attributes_than_members_of_enums_are_refused_in_metadata() -> None:
    of_class = pickle.dumps(Metadata({}, Attribute(Metadata, "__init__")))
    with pytest.raises(CorruptError, match="not allowed"):
        read_metadata(io.BytesIO(of_class))
    of_enum = pickle.dumps(Metadata({}, Attribute(_MEM_FORMAT_ENCODING, "__class__")))
    with pytest.raises(CorruptError, match="damaged"):
        read_metadata(io.BytesIO(of_enum))


def test_safe_globals_of_the_script_stay_registered() -> None:
    plain = io.BytesIO()
    torch.save({"a": numpy.ones(3)}, plain)
    with torch.serialization.safe_globals([numpy.ndarray]):
        before = set(torch.serialization.get_safe_globals())
        plain.seek(0)
        assert safe_unpickle(plain)["a"].tolist() == [1, 1, 1]
        assert set(torch.serialization.get_safe_globals()) >= before
    assert set(torch.serialization.get_safe_globals()).isdisjoint({bytes, numpy.dtype})


def test_values_are_loaded_by_several_threads_concurrently() -> None:
    plain = io.BytesIO()
    torch.save({"a": numpy.ones(3), "b": b""}, plain)
    with ThreadPoolExecutor(8) as pool:
        loaded = list(pool.map(lambda _: safe_unpickle(io.BytesIO(plain.getvalue())), range(400)))
    assert all(one["b"] == b"" for one in loaded)
