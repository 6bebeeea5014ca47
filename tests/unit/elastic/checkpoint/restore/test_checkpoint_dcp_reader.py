"""How reads are split among threads, and the requests to storage that follow."""

import contextlib
import io
import threading
from collections.abc import Iterator
from typing import IO, Any, cast

import fsspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gangline.elastic.checkpoint import CorruptError, StorageError
from gangline.elastic.checkpoint.format.manifest import step_folder
from gangline.elastic.checkpoint.restore import dcp_reader
from gangline.elastic.checkpoint.restore.dcp_reader import ReadTarget, load_state, split_reads
from gangline.elastic.checkpoint.restore.source import EntryLocation, StorageSource
from gangline.elastic.checkpoint.storage.target import LocalTarget, RemoteTarget
from unit.elastic.checkpoint.checkpoint_states import blank, equal

STEP = 3
places = st.lists(
    st.builds(EntryLocation, st.sampled_from(["a", "b"]), st.integers(0, 99), st.integers(1, 50)),
    max_size=40,
)


@given(places, st.integers(1, 5))
def test_runs_contain_each_read_once_in_order_and_overshoot_by_one(
    where: list[EntryLocation], readers: int
) -> None:
    targets = cast("list[ReadTarget]", where)  # only the order of locations matters
    rows = split_reads(targets, lambda one: cast("EntryLocation", one), readers)
    assert [one for row in rows for one in row] == sorted(where)
    assert all(rows)
    assert len(rows) <= readers, "as little as this is shared out evenly"


def test_large_reads_are_split_into_runs_for_all_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dcp_reader, "READ_RUN_BYTES", 40)
    monkeypatch.setattr(dcp_reader, "LAST_READ_RUN_BYTES", 8)
    where = [EntryLocation("a", at, 4) for at in range(0, 400, 4)]
    rows = split_reads(cast("list[ReadTarget]", where), lambda one: cast("EntryLocation", one), 2)
    assert [one for row in rows for one in row] == where
    lengths = [len(row) for row in rows]
    assert lengths[:6] == [10] * 6, "long ones while there is much"
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-2:] == [2, 2], "short ones at the end: no thread reads on alone"


class Watched(LocalTarget):
    """A folder that records which thread reads which part of its files."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.opened: list[list[int]] = []

    def open(self, path: str) -> IO[bytes]:
        stream, seen = super().open(path), list[int]()
        self.opened.append(seen)
        seek = stream.seek

        class Stream:
            readinto = staticmethod(cast("Any", stream).readinto)

            def seek(self, offset: int, whence: int = 0) -> int:
                seen.append(offset)
                return seek(offset, whence)

        @contextlib.contextmanager
        def closing() -> Iterator[Stream]:
            with stream:
                yield Stream()

        return cast("IO[bytes]", closing())


def a_state() -> dict[str, Any]:
    weights = {f"w{number:02}": torch.randn(3000) for number in range(40)}
    return {"weights": weights, "strided": torch.randn(50, 50).t(), "step": 7, "words": ["a"]}


def test_a_step_of_many_tensors_is_read_from_front_to_back_by_few(rig: Any) -> None:
    state = a_state()
    rig.save(state, STEP)
    rig.persist(STEP)
    target = Watched(str(rig.folder))
    into = blank(state)
    load_state(StorageSource(target, STEP), into)
    assert equal(into, state)
    tensors = [seen for seen in target.opened if len(seen) > 2]
    assert len(target.opened) <= dcp_reader.READERS + 1
    assert sum(map(len, tensors)) >= 41
    assert all(seen == sorted(seen) for seen in tensors)


def test_a_missing_file_is_corruption_wherever_it_is_noticed(rig: Any) -> None:
    rig.save(a_state(), STEP)
    rig.persist(STEP)
    source = StorageSource(rig.target, STEP)
    for part in (rig.folder / step_folder(STEP)).glob("*.distcp"):
        part.unlink()
    with pytest.raises(CorruptError, match="missing"):
        load_state(source, blank(a_state()))


class Failing:
    """A file in a store whose connection breaks in the middle."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.left = stream, 5

    def readinto(self, view: memoryview) -> int:
        self.left -= 1
        if not self.left:
            raise RuntimeError("the wire was cut")
        return cast("Any", self.stream).readinto(view)

    def seek(self, offset: int) -> int:
        return self.stream.seek(offset)


class Cut:
    """A memory store; what is opened to be read breaks."""

    def __init__(self) -> None:
        self.files, self.open_now = fsspec.filesystem("memory"), 0
        self.lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.files, name)

    @contextlib.contextmanager
    def open(self, path: str, mode: str) -> Iterator[Any]:
        with self.files.open(path, mode) as stream:
            with self.lock:
                self.open_now += 1
            try:
                # fsspec's memory files share one position among all who open them.
                is_part = path.endswith(".distcp") and mode == "rb"
                yield Failing(io.BytesIO(stream.read())) if is_part else stream
            finally:
                with self.lock:
                    self.open_now -= 1


def test_a_client_library_error_is_reported_and_files_are_closed(rig: Any) -> None:
    store = Cut()
    rig.target = RemoteTarget(store, "/rows")
    rig.save(a_state(), STEP)
    rig.persist(STEP)
    with pytest.raises(StorageError, match="the wire was cut"):
        load_state(StorageSource(rig.target, STEP), blank(a_state()))
    assert store.open_now == 0
    rig.target.files.rm("/rows", recursive=True)
