"""The queue between requests and the audit log's file."""

import threading
from pathlib import Path

import msgspec
import pytest

from gangline.local.apiserver.audit.audit_log import AuditLog, AuditSettings
from gangline.local.apiserver.audit.events import RequestTrace
from gangline.local.apiserver.audit.log_file import RotatedFile


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
