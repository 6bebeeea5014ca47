"""The queue between requests and the audit log's file."""

import stat
import threading
from pathlib import Path

import msgspec
import pytest

from gangline.local.apiserver.audit import AuditLog, AuditSettings, RequestTrace, RotatedFile


def test_all_events_are_written_when_the_log_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog(AuditSettings(path))
    for number in range(100):
        log.record_end(RequestTrace("GET", f"/{number}", "127.0.0.1", ""))
    log.close()
    uris = [msgspec.json.decode(line)["requestURI"] for line in path.read_bytes().splitlines()]
    assert uris == [f"/{number}" for number in range(100)]


def test_a_disk_that_hangs_loses_events_and_blocks_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, resumed = threading.Event(), threading.Event()
    append = RotatedFile.append

    def hang(file: RotatedFile, lines: bytes) -> None:
        writing.set()
        assert resumed.wait(60)
        append(file, lines)

    monkeypatch.setattr(RotatedFile, "append", hang)
    lost: list[int] = []
    log = AuditLog(AuditSettings(tmp_path / "audit.log"), lost.append, max_queued_bytes=5000)
    trace = RequestTrace("GET", "/version", "127.0.0.1", "")
    log.record_end(trace)
    assert writing.wait(60)
    for _ in range(100):
        log.record_end(trace)  # returns while the thread is in the write
    resumed.set()
    log.close()
    written = len((tmp_path / "audit.log").read_bytes().splitlines())
    assert sum(lost) + written == 101
    assert 1 < written < 50


def test_file_is_rotated_before_it_exceeds_its_size(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    file = RotatedFile(path, 10, 2)
    for number in range(5):
        file.append(b"line %d\n" % number)
    file.close()
    assert path.read_bytes() == b"line 4\n"
    rotated = sorted(found for found in tmp_path.iterdir() if found != path)
    assert [found.read_bytes() for found in rotated] == [b"line 2\n", b"line 3\n"]
    assert {found.suffix for found in rotated} == {".jsonl"}
    assert {stat.S_IMODE(found.stat().st_mode) for found in tmp_path.iterdir()} == {0o600}


def test_rotation_leaves_files_of_other_names(tmp_path: Path) -> None:
    others = [tmp_path / name for name in ("audit-old.log", "audit-2.log", "b.log")]
    for other in others:
        other.write_text("mine")
    file = RotatedFile(tmp_path / "audit.log", 5, 0)
    file.append(b"first\n")
    file.append(b"second\n")
    file.close()
    assert sorted(tmp_path.iterdir()) == sorted([*others, tmp_path / "audit.log"])


def test_a_torn_line_is_ended_first(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b"complete\ntor")
    path.chmod(0o644)
    file = RotatedFile(path, 1000, 1)
    file.append(b"next\n")
    file.append(b"last\n")
    file.close()
    assert path.read_bytes() == b"complete\ntor\nnext\nlast\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("path", ["/dev/null", "."])
def test_only_a_regular_file_is_accepted(path: str) -> None:
    with pytest.raises(OSError, match=r"regular file|directory"):
        RotatedFile(Path(path), 10, 1)
