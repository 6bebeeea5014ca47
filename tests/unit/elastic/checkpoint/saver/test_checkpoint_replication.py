"""A segment from a peer is stored only if it is complete, verified and the requested one."""

import contextlib
import io
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from gangline.elastic.checkpoint.errors import CorruptError, MemoryShortError
from gangline.elastic.checkpoint.saver import replication
from gangline.elastic.checkpoint.snapshot import directory, inventory, segment
from gangline.elastic.checkpoint.snapshot.directory import SaverSettings
from gangline.elastic.checkpoint.snapshot.inventory import SnapshotInfo
from gangline.elastic.checkpoint.snapshot.segment import Segment
from gangline.elastic.checkpoint.storage import commit


@pytest.fixture
def sealed(rig: Any) -> SnapshotInfo:
    """A save with its checksums."""
    rig.save({"w": torch.arange(500.0), "n": 3}, 5)
    held: SnapshotInfo = rig.held(5)
    segment = Segment(held.path)
    commit.seal_segment(segment, held.header, held.layout)
    segment.close()
    return held


@pytest.fixture
def server(rig: Any, sealed: SnapshotInfo) -> Iterator[replication.PeerServer]:
    """The peer that has the save."""
    directory.write_settings(rig.job_folder, SaverSettings(target="", job="job", token="secret"))
    with replication.PeerServer(rig.job_folder) as made:
        made.start()
        yield made
        made.shutdown()


class Dribbling(io.BytesIO):
    """Returns fewer bytes than requested, as connections do."""

    def readinto(self, place: Any, /) -> int:
        view = memoryview(place)
        return super().readinto(view[: max(1, len(view) * 2 // 3)])


def request_of(held: SnapshotInfo) -> replication.SegmentRequest:
    return replication.SegmentRequest("get", 0, 5, held.layout.plan, held.header.total_bytes)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 8]) + data[at + 1 :]


def test_a_damaged_or_truncated_transfer_leaves_nothing(
    sealed: SnapshotInfo, tmp_path: Path
) -> None:
    data, header = sealed.path.read_bytes(), sealed.header
    middle = header.part_offset + header.part_bytes // 2
    places = (0, 20, header.layout_bytes + 4000, header.seal_offset + 20, header.part_offset)
    damaged = [flipped(data, at) for at in (*places, middle)]
    for sent in [*damaged, data[:middle], data[:-1], b""]:
        with pytest.raises(CorruptError):
            replication.receive_copy(io.BytesIO(sent), tmp_path, request_of(sealed))
        assert list(tmp_path.iterdir()) == []
    replication.receive_copy(io.BytesIO(data), tmp_path, request_of(sealed))
    assert [one.is_local for one in inventory.list_snapshots(tmp_path)] == [False]


@pytest.mark.parametrize("length", [1, 7, 100, 4096, 1 << 20])
def test_a_segment_is_received_in_pieces_of_any_size(
    sealed: SnapshotInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setattr(replication, "CHECKSUM_BLOCK", length)
    data = sealed.path.read_bytes()
    replication.receive_copy(Dribbling(data), tmp_path, request_of(sealed))
    (copy,) = tmp_path.iterdir()
    assert copy.read_bytes() == data


def test_a_segment_that_does_not_fit_into_memory_leaves_nothing(
    sealed: SnapshotInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, write = sealed.path.read_bytes(), os.pwrite

    def full(descriptor: int, piece: memoryview, at: int) -> int:
        if at + len(piece) > len(data) // 2:
            raise OSError(28, "No space left on device")
        return write(descriptor, piece, at)

    monkeypatch.setattr(replication, "CHECKSUM_BLOCK", 512)
    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(MemoryShortError, match="emptyDir"):
        replication.receive_copy(io.BytesIO(data), tmp_path, request_of(sealed))
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(segment, "free_bytes", lambda folder: len(data) - 1)
    unread = io.BytesIO(data)
    with pytest.raises(MemoryShortError, match="emptyDir"):
        replication.receive_copy(unread, tmp_path, request_of(sealed))
    assert unread.tell() == 0
    assert list(tmp_path.iterdir()) == []


def test_partial_copies_of_killed_receivers_are_removed(
    sealed: SnapshotInfo, tmp_path: Path
) -> None:
    data, left = sealed.path.read_bytes(), tmp_path / "arriving-0-0.seg"

    class Killed(io.BytesIO):
        """Leaves what a kill would leave, when half has come; and others clear meanwhile."""

        def readinto(self, place: Any, /) -> int:
            if self.tell() < len(data) // 2:
                return super().readinto(memoryview(place)[:100])
            if not left.exists():
                replication.remove_partial_copies(tmp_path)
                (arriving,) = tmp_path.iterdir()
                os.link(arriving, left)
                left.with_suffix(".new").touch()
            return 0

    with pytest.raises(CorruptError, match="closed the connection"):
        replication.receive_copy(Killed(data), tmp_path, request_of(sealed))
    assert len(list(tmp_path.iterdir())) == 2
    replication.remove_partial_copies(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_segment_of_another_step_is_refused(sealed: SnapshotInfo, tmp_path: Path) -> None:
    changed = msgspec.structs.replace(request_of(sealed), step=6)
    with pytest.raises(CorruptError, match="not the requested"):
        replication.receive_copy(io.BytesIO(sealed.path.read_bytes()), tmp_path, changed)
    assert list(tmp_path.iterdir()) == []


def test_a_segment_damaged_in_the_peers_memory_is_refused(
    server: replication.PeerServer, sealed: SnapshotInfo, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{server.port}"
    replication.fetch_segment(tmp_path, address, "secret", request_of(sealed))
    (copy,) = tmp_path.iterdir()
    copy.unlink()
    data = sealed.path.read_bytes()
    sealed.path.write_bytes(flipped(data, sealed.header.part_offset + 700))
    with pytest.raises(CorruptError, match="damaged in transfer"):
        replication.fetch_segment(tmp_path, address, "secret", request_of(sealed))
    assert list(tmp_path.iterdir()) == []


def test_a_peer_refuses_damaged_segments_and_unknown_tokens(
    server: replication.PeerServer, sealed: SnapshotInfo, rig: Any
) -> None:
    address, data = f"127.0.0.1:{server.port}", sealed.path.read_bytes()
    changed = msgspec.structs.replace(request_of(sealed), verb="put")
    with replication._asking(address, "secret", changed) as connection:
        connection.sendall(flipped(data, sealed.header.part_offset + 700))
        with pytest.raises(
            CorruptError, match="the peer refused: the segment of rank 0 was damaged"
        ):
            replication._answer_of(connection)
    with pytest.raises(CorruptError, match="belongs to another job"):
        replication.fetch_segment(rig.job_folder, address, "guess", request_of(sealed))
    assert all(one.is_local for one in inventory.list_snapshots(rig.job_folder))


def test_connections_that_prove_nothing_hold_no_threads(
    server: replication.PeerServer,
    sealed: SnapshotInfo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replication, "MAX_UNAUTHENTICATED", 4)
    address = ("127.0.0.1", server.port)
    with contextlib.ExitStack() as attackers:
        mute = [attackers.enter_context(socket.create_connection(address)) for _ in range(12)]
        replication.fetch_segment(
            tmp_path, f"127.0.0.1:{server.port}", "secret", request_of(sealed)
        )
        for cut in mute[:8]:
            cut.settimeout(30)
            assert cut.recv(1) == b""
    assert [path.name for path in tmp_path.iterdir()] != []


def test_the_segment_does_not_cross_the_network_in_clear(
    server: replication.PeerServer, sealed: SnapshotInfo, tmp_path: Path
) -> None:
    seen = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def relay() -> None:
            near, _ = listener.accept()
            far = socket.create_connection(("127.0.0.1", server.port))

            def copy(source: socket.socket, target: socket.socket) -> None:
                with contextlib.suppress(OSError):
                    while piece := source.recv(65536):
                        seen.extend(piece)
                        target.sendall(piece)
                    target.shutdown(socket.SHUT_WR)

            up = threading.Thread(target=copy, args=(near, far))
            up.start()
            copy(far, near)
            up.join()
            near.close()
            far.close()

        relaying = threading.Thread(target=relay)
        relaying.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        replication.fetch_segment(tmp_path, address, "secret", request_of(sealed))
        relaying.join()
    data = sealed.path.read_bytes()
    part = data[sealed.header.part_offset : sealed.header.part_offset + 64]
    assert len(seen) > len(data)
    assert part not in seen
